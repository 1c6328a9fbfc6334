"""The schema that Kafka Connect adds to each JSON value: `{"schema": …, "payload": …}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.formats.base import is_json
from headrace.formats.json.write import PLAIN, JsonStyle

_MILLISECONDS = "org.apache.kafka.connect.data.Timestamp"
_UNITS = {
    "s": "",
    "ms": _MILLISECONDS,
    "us": "io.debezium.time.MicroTimestamp",
    "ns": "io.debezium.time.NanoTimestamp",
}
"""What a number is in, by the unit of the column: Connect and Debezium have no name for seconds."""


def connect_schema(fields: Sequence[pa.Field], style: JsonStyle = PLAIN) -> dict[str, Any]:
    """Return the Kafka Connect schema of rows with these fields.

    >>> connect_schema([pa.field("a", pa.int64())])["fields"]
    [{'type': 'int64', 'optional': True, 'field': 'a'}]
    """
    return {"type": "struct", "fields": [_member(field, style) for field in fields], "optional": False}


def _member(field: pa.Field, style: JsonStyle) -> dict[str, Any]:
    return {**_describe(field, style), "optional": field.nullable, "field": field.name}


def _describe(field: pa.Field, style: JsonStyle) -> dict[str, Any]:
    kind = field.type
    if is_json(field):
        return {"type": "string", "name": "io.debezium.data.Json"}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_member(child, style) for child in kind]}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_field
        return {"type": "array", "items": {**_describe(item, style), "optional": item.nullable}}
    if pa.types.is_timestamp(kind):
        name = _UNITS[kind.unit] if style.timestamps == "unix" else _MILLISECONDS
        return {"type": "int64", "name": name} if name else {"type": "int64"}
    if pa.types.is_decimal(kind) and style.decimals == "bytes":
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        return {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": parameters,
        }
    return {"type": _name(kind, style)}


def _name(kind: pa.DataType, style: JsonStyle) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_signed_integer(kind):
        return f"int{kind.bit_width}"
    if pa.types.is_unsigned_integer(kind):
        return f"int{min(kind.bit_width * 2, 64)}"
    if pa.types.is_floating(kind):
        return "double" if kind.bit_width == 64 else "float"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_decimal(kind) and style.decimals == "number":
        return "double"
    return "string"
