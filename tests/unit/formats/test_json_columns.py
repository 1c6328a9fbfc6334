"""The columns of JSON that nobody has declared."""

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError, ConfigurationError
from headrace.connectors._shared.messages import MessageOptions
from headrace.formats.json.columns import schema_columns
from headrace.formats.json.schema import json_schema
from headrace.formats.json.write import JsonStyle
from headrace.formats.options import infer_from
from headrace.formats.registry.client import RegisteredSchema
from headrace.sql.types import column_lines


def columns(schema: dict[str, Any], **more: Any) -> list[str]:
    return column_lines(schema_columns(RegisteredSchema("JSON", json.dumps(schema)), **more))


def found(messages: list[bytes], **options: Any) -> list[str]:
    return column_lines(infer_from(MessageOptions(**options), messages, where="somewhere"))


def test_a_json_schema_tells_columns() -> None:
    schema = {
        "type": "object",
        "required": ["id", "maybe"],
        "properties": {
            "id": {"type": "integer"},
            "maybe": {"oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int32"}]},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "place": {"$ref": "#/definitions/place"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "any": {},
            "either": {"type": ["string", "integer"]},
            "open": {"type": "object"},
            "deep": {"type": "object", "properties": {"any": {}}},
            "elsewhere": {"$ref": "other.json"},
        },
        "definitions": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}}},
    }
    assert columns(schema) == [
        "id BIGINT NOT NULL",
        "maybe INT",
        "price DOUBLE",
        "at TIMESTAMP",
        "place STRUCT<lat DOUBLE>",
        "tags TEXT[]",
        "any JSON",
        "either JSON",
        "open JSON",
        "deep STRUCT<any JSON>",
        "elsewhere JSON",
    ]


def test_a_schema_that_refers_to_itself_ends_in_json() -> None:
    schema = {"properties": {"next": {"$ref": "#"}, "loop": {"$ref": "#/properties/loop"}}}
    assert columns(schema) == ["next JSON", "loop JSON"]


def test_a_schema_of_changes_tells_the_columns_of_rows() -> None:
    row = {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"id": {"type": "integer"}}}]}
    envelope = {"type": "object", "properties": {"before": row, "after": row, "op": {"type": "string"}}}
    assert columns(envelope, changes=True) == ["id BIGINT"]
    assert columns({"properties": {"payload": envelope}}, changes=True) == ["id BIGINT"]


def test_the_schemas_that_sinks_register_can_be_read_back() -> None:
    schema = pa.schema({"n": pa.int64(), "s": pa.struct({"x": pa.list_(pa.bool_())}), "t": pa.string()})
    assert columns(json_schema(list(schema), JsonStyle())) == ["n BIGINT", "s STRUCT<x BOOLEAN[]>", "t TEXT"]


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"$ref": "#/nowhere"}])
def test_a_schema_without_columns_says_so(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="declares no columns"):
        columns(schema)


def test_messages_tell_their_columns_however_they_are_laid_out() -> None:
    assert found([b'{\n  "a": 1\n}', b'{"b": "x"}']) == ["a BIGINT", "b TEXT"]
    assert found([b'{"a": 1}\n{"b": 2.5}'], framing="newline") == ["a BIGINT", "b DOUBLE"]
    assert found([b"1,x", b"2,y"], format="csv") == ["f0 BIGINT", "f1 TEXT"]
    assert found([]) == []


def test_messages_that_cannot_be_read_are_left_out_if_bad_data_are() -> None:
    messages = [b"nonsense", b"[1]", b'{"a": 1}']
    assert found(messages, bad_data="drop") == ["a BIGINT"]
    with pytest.raises(BadLineError, match="a message cannot be read, it is not JSON"):
        found(messages)
    with pytest.raises(BadLineError, match="a message"):
        found([b'{"a": 1}', b'{"a": "x"}'])
