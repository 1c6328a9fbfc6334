"""The blocks of documents for editors, as a JSON schema, and for the reference page, as tables."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from headrace.dataflow.document.blocks import BLOCKS, DocumentBlock, ModuleBlock
from headrace.dataflow.document.validation import YamlBlock, expected_of


class _EditorSchema(GenerateJsonSchema):
    """Without titles that repeat names and without defaults: a key that is not written has none."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        described = super().dict_schema(schema)
        # No other names than those of the pattern.
        return described | ({"additionalProperties": False} if "patternProperties" in described else {})


def json_schema() -> dict[str, Any]:
    """The JSON schema of dataflow documents and of the files of modules.

    It knows the structure of a document. Whether nodes, outputs and files are there, only reading can tell.
    """
    references, schema = models_json_schema(
        [(block, "validation") for block in BLOCKS], schema_generator=_EditorSchema
    )
    for block in BLOCKS:
        _add_kinds(block, schema["$defs"][block.__name__])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headrace dataflow",
        "description": "A graph of operators, processes, connectors and SQL steps; or a module of one.",
        "if": {"type": "object", "required": ["module"]},
        "then": references[ModuleBlock, "validation"],
        "else": references[DocumentBlock, "validation"],
        **schema,
    }


def _add_kinds(block: type[YamlBlock], schema: dict[str, Any]) -> None:
    """A block has exactly one of the keys that name a kind, not empty, and only the keys of that kind."""
    for kind in block.kinds:
        kinds = schema["properties"][kind]
        kinds["anyOf"].remove({"type": "null"})
        schema.setdefault("oneOf", []).append({"required": [kind]})
        allowed = {"propertyNames": {"enum": block.keys_of(kind)}}
        schema.setdefault("allOf", []).append({"if": {"required": [kind]}, "then": allowed})


def key_table(block: type[YamlBlock]) -> str:
    """The keys of a block as a table in Markdown: where each may stand, what it takes, what it does here."""
    where = ["with"] if block.kinds else []
    rows = [["key", *where, "value", "here"], ["---"] * (3 + len(where))]
    for key, field in block.fields_by_key().items():
        name = f"`{key}`" + (", required" if field.is_required() else "")
        kinds = [", ".join(f"`{kind}`" for kind, keys in block.kinds.items() if key in keys)] if where else []
        rows.append([name, *kinds, expected_of(field).words, field.description or ""])
    for key, why in block.refused.items():
        rows.append([f"`{key}`", *("" for _ in where), "", f"Refused: {why}"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
