"""The grammar for editors: a JSON schema, and the tables of the reference page."""

from __future__ import annotations

from typing import Any

from headrace.dataflow.document.grammar import BLOCKS, DOCUMENT, MODULE
from headrace.dataflow.document.shapes import Block, Key

_EFFECTS = {
    "used": "",
    "quiet": "No effect. ",
    "warned": "No effect, with a warning: ",
    "refused": "Refused: ",
}


def json_schema() -> dict[str, Any]:
    """The JSON schema of dataflow documents and of the files of modules.

    It knows the shape of a document. Whether nodes, outputs and files are there, only reading can tell.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headrace dataflow",
        "description": "A graph of operators, processes, connectors and SQL steps; or a module of one.",
        "if": {"type": "object", "required": ["module"]},
        "then": MODULE.schema(),
        "else": DOCUMENT.schema(),
        "$defs": {block.definition: _block(block) for block in BLOCKS},
    }


def _block(block: Block) -> dict[str, Any]:
    every = [key for key in block.keys if key.accepted]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key.name: _property(key, block) for key in every},
        "additionalProperties": False,
    }
    if required := [key.name for key in every if key.required]:
        schema["required"] = required
    if block.variants:
        schema["oneOf"] = [{"required": [variant]} for variant in block.variants]
        schema["allOf"] = [
            {"if": {"required": [variant]}, "then": {"propertyNames": {"enum": _names(block, variant)}}}
            for variant in block.variants
        ]
    return schema


def _names(block: Block, variant: str) -> list[str]:
    return [key.name for key in block.allowed(variant)]


def _property(key: Key, block: Block) -> dict[str, Any]:
    schema = key.shape.schema()
    if not key.required and key.name not in block.variants and schema:
        # A key without a value is a key that is not there.
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {"description": _says(key), **schema}


def _says(key: Key) -> str:
    says = key.says[:1].upper() + key.says[1:] if key.effect in {"used", "quiet"} else key.says
    return _EFFECTS[key.effect] + says


def key_table(block: Block) -> str:
    """The keys of a block as a table in Markdown: where each may stand, what it takes, what it does here."""
    where = ["with"] if block.variants else []
    rows = [["key", *where, "value", "here"]]
    for key in block.keys:
        name = f"`{key.name}`" + (", required" if key.required else "")
        variants = [", ".join(f"`{variant}`" for variant in key.variants)] if where else []
        rows.append([name, *variants, key.shape.words if key.accepted else "", _says(key)])
    rows.insert(1, ["---"] * len(rows[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
