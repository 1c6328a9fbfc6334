"""The page that shows the OpenAPI document: made here, so that it needs nothing of another host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.45 }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { overflow: auto; padding: .6rem; border: 1px solid #8886; border-radius: .4rem }
details { border: 1px solid #8886; border-radius: .4rem; margin: .4rem 0; padding: .4rem .8rem }
summary { cursor: pointer }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700 }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .8rem .15rem 0 }
"""


def reference_page(document: Mapping[str, Any]) -> str:
    """The document as one HTML page."""
    sections: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            sections.setdefault(tag, []).append(_operation(path, method, operation))
    info = document["info"]
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in sections.items())
    schemas = "".join(
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> "
        f"{escape(schema.get('description', ''))}</summary>"
        f"<pre>{escape(json.dumps(schema, indent=2))}</pre></details>"
        for name, schema in sorted(document.get("components", {}).get("schemas", {}).items())
    )
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        "<p>The document is at <a href='/api/v1/api-docs/openapi.json'>/api/v1/api-docs/openapi.json</a>.</p>"
        f"{body}<h2>schemas</h2>{schemas}</body></html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    rows = [
        (
            parameter["name"],
            parameter["in"],
            _type(parameter.get("schema", {})),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", ())
    ]
    content = operation.get("requestBody", {}).get("content", {})
    rows += [("body", kind, _type(media.get("schema", {})), "") for kind, media in content.items()]
    rows += [
        (status, kind, _type(media.get("schema", {})), answer.get("description", ""))
        for status, answer in operation.get("responses", {}).items()
        for kind, media in (answer.get("content") or {"": {}}).items()
    ]
    table = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(where)}</td><td>{kind}</td>"
        f"<td>{escape(text)}</td></tr>"
        for name, where, kind, text in rows
    )
    return (
        f"<details><summary><span class='method'>{escape(method.upper())}</span> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary><p>{escape(operation.get('description', ''))}</p>"
        f"<table>{table}</table></details>"
    )


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "")))
