"""Writes `headrace.sources` and `headrace.sinks`: a function for each connector, with its options typed."""
# ruff: noqa: INP001  docs is a folder of pages, not a package

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow as pa
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from headrace.model.registry import BUILT_IN, Role, registry

API = Path(__file__).parents[1] / "src" / "headrace" / "api"
WIDTH = 110
HEADER = '''"""{title}

Written by `python -m docs.generate` from the options that connectors declare. Options that are left out have
the defaults that `docs/reference/operators-and-connectors.md` lists.
"""
# ruff: noqa: A002  options are called what they are called in SQL

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from headrace.api.connectors import UNSET, {result}, checked_options
from headrace.api.schemas import Schema
from headrace.base.call_site import located
'''
TITLES = {
    "source": "Sources with their options: `pipeline.source(hr.sources.kafka(topic=…))`.",
    "sink": "Sinks with their options: `stream.sink(hr.sinks.kafka(topic=…))`.",
}
SIMPLE: Mapping[Any, str] = {str: "str", int: "int", float: "float", bool: "bool"}


def module_text(role: Role) -> str:
    """The module of all connectors of a role."""
    result = "ConfiguredSource" if role == "source" else "ConfiguredSink"
    functions = [_function(role, name, result) for name in sorted(BUILT_IN[role])]
    header = HEADER.format(title=TITLES[role], result=result)
    body = "\n\n" + "\n\n\n".join(functions) + "\n"
    for unused in ("Any", "Mapping", "Sequence", "timedelta", "Literal", "Schema"):
        if f"{unused}[" not in body and f": {unused}" not in body and f"| {unused}" not in body:
            header = header.replace(f", {unused}", "").replace(f"{unused}, ", "")
            header = "\n".join(line for line in header.split("\n") if not line.endswith(f"import {unused}"))
    return header + _exports(sorted(BUILT_IN[role])) + body


def _exports(names: Sequence[str]) -> str:
    """What `import *` and completion show: the connectors, without the names that the module imports."""
    listed = "".join(f'    "{name}",\n' for name in names)
    listing = "def __dir__() -> list[str]:\n    return [*__all__]\n"
    return f"\n__all__ = [\n{listed}]\n\n\n{listing}"


def _function(role: Role, name: str, result: str) -> str:
    fields = registry.options(role, name).model_fields
    parameters = {_parameter(option, field): field for option, field in fields.items()}
    if not parameters:
        lines = ["@located", f"def {name}() -> {result}:"]
    else:
        lines = ["@located", f"def {name}(", "    *,"]
        ordered = sorted(parameters.items(), key=lambda item: not item[1].is_required())
        for parameter, field in ordered:
            default = "" if field.is_required() else " = UNSET"
            lines.append(f"    {parameter}: {_annotation(field)}{default},")
        lines.append(f") -> {result}:")
    constructor = registry.constructor(role, name)
    first = (inspect.getdoc(constructor) or "").partition("\n\n")[0].replace("\n", " ")
    lines += textwrap.wrap(f'"""{first}', WIDTH, initial_indent="    ", subsequent_indent="    ")
    if parameters:
        lines += ["", "    Args:"]
        for parameter, field in parameters.items():
            text = f"{parameter}: {' '.join((field.description or '').split())}"
            lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12)
        lines.append('    """')
    else:
        lines[-1] += '"""'
    given = "locals()" if parameters else "{}"
    lines.append(f'    return {result}("{name}", checked_options("{role}", "{name}", {given}))')
    return "\n".join(lines)


def _parameter(option: str, field: FieldInfo) -> str:
    """What an option is called in Python: as in SQL, where that is a name, else with `_` for dots."""
    alias = field.alias
    return alias if alias is not None and alias.isidentifier() else option


def _annotation(field: FieldInfo) -> str:
    is_read = any(isinstance(item, BeforeValidator) for item in field.metadata)
    kinds = _kinds(field.annotation, is_read=is_read)
    return " | ".join(dict.fromkeys(kinds))


def _kinds(annotation: Any, *, is_read: bool) -> list[str]:  # noqa: PLR0911 - one for each type
    """The types that a value may have; `is_read` if a text is read as the type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        validated = any(isinstance(item, BeforeValidator) for item in arguments[1:])
        return _kinds(arguments[0], is_read=is_read or validated)
    if origin in {Union, types.UnionType}:
        kinds = [
            kind for part in arguments if part is not type(None) for kind in _kinds(part, is_read=is_read)
        ]
        return kinds + (["None"] if type(None) in arguments else [])
    if origin is Literal:
        return [f"Literal[{', '.join(repr(value).replace(chr(39), chr(34)) for value in arguments)}]"]
    if annotation is timedelta:
        return ["str", "float", "timedelta"]
    if annotation is pa.Schema:
        return ["Schema"]
    if annotation in SIMPLE:
        return [SIMPLE[annotation], *(["str"] if is_read else [])]
    if origin in {list, tuple}:
        return ["Sequence[str]", *(["str"] if is_read else [])]
    if origin in {dict, Mapping} and arguments[1] is str:
        return ["Mapping[str, str]", *(["str"] if is_read else [])]
    return ["Any"]


FILES: Mapping[Path, Role] = {API / "sources.py": "source", API / "sinks.py": "sink"}


def stale() -> list[str]:
    """The modules that are not what the code declares."""
    return [
        file.name
        for file, role in FILES.items()
        if not file.is_file() or file.read_text(encoding="utf-8") != module_text(role)
    ]


def write() -> None:
    """Write the modules."""
    for file, role in FILES.items():
        file.write_text(module_text(role), encoding="utf-8")
