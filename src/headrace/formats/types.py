"""Arrow types in options: `int64`, `timestamp`, `list<string>`, `struct<a: int64>`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pyarrow as pa

from headrace.base.errors import ConfigurationError, suggest

_SIMPLE: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(), "boolean": pa.bool_(),
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "int": pa.int32(), "bigint": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "float": pa.float32(), "float32": pa.float32(), "double": pa.float64(), "float64": pa.float64(),
    "string": pa.string(), "text": pa.string(), "binary": pa.binary(),
    "date": pa.date32(), "date32": pa.date32(), "date32[day]": pa.date32(),
    "date64": pa.date64(), "date64[ms]": pa.date64(), "time": pa.time64("ns"),
    "time32[s]": pa.time32("s"), "time32[ms]": pa.time32("ms"),
    "time64[us]": pa.time64("us"), "time64[ns]": pa.time64("ns"),
    "interval": pa.month_day_nano_interval(), "month_day_nano_interval": pa.month_day_nano_interval(),
    "timestamp": pa.timestamp("ns"),
    "timestamp[s]": pa.timestamp("s"), "timestamp[ms]": pa.timestamp("ms"),
    "timestamp[us]": pa.timestamp("us"), "timestamp[ns]": pa.timestamp("ns"),
}  # fmt: skip
_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([A-Za-z_][\w]*(?:\[\w+\])?)|(\d+)|([<>:,()]))')


def parse_type(text: str) -> pa.DataType:
    """Parse a type; the error for an unknown name suggests similar ones.

    >>> parse_type("list<struct<a: int64, b: text>>")
    ListType(list<item: struct<a: int64, b: string>>)
    """
    tokens, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise _not_a_type(text)
        tokens.append(next(group for group in match.groups() if group is not None))
        position = match.end()
    kind = _take_type(tokens, text)
    if tokens:
        raise _not_a_type(text)
    return kind


def format_type(kind: pa.DataType) -> str:
    """Format a type so that `parse_type` reads it."""
    if pa.types.is_struct(kind):
        fields = ", ".join(f"{_name(field.name)}: {format_type(field.type)}" for field in kind)
        return f"struct<{fields}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{format_type(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return str(kind)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else json.dumps(name)


def _take_type(tokens: list[str], text: str) -> pa.DataType:
    name = tokens.pop(0) if tokens else ""
    lower = name.lower()
    if lower == "list":
        _take(tokens, "<", text)
        inner = _take_type(tokens, text)
        _take(tokens, ">", text)
        return pa.list_(inner)
    if lower == "struct":
        _take(tokens, "<", text)
        fields = []
        while tokens and tokens[0] != ">":
            field = tokens.pop(0)
            _take(tokens, ":", text)
            column = json.loads(field) if field.startswith('"') else field
            fields.append(pa.field(column, _take_type(tokens, text)))
            if tokens and tokens[0] == ",":
                tokens.pop(0)
        _take(tokens, ">", text)
        return pa.struct(fields)
    if lower in {"decimal", "decimal128"}:
        _take(tokens, "(", text)
        precision = tokens.pop(0) if tokens else ""
        _take(tokens, ",", text)
        scale = tokens.pop(0) if tokens else ""
        _take(tokens, ")", text)
        if not (precision.isdigit() and scale.isdigit() and 1 <= int(precision) <= 38):
            raise _not_a_type(text)
        return pa.decimal128(int(precision), int(scale))
    if lower not in _SIMPLE:
        raise _not_a_type(text, name)
    return _SIMPLE[lower]


def _take(tokens: list[str], expected: str, text: str) -> None:
    if not tokens or tokens.pop(0) != expected:
        raise _not_a_type(text)


def _not_a_type(text: str, name: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"`{text}` is not a type",
        hint=(suggest(name.lower(), [*_SIMPLE, "list", "struct", "decimal"]) if name else None)
        or "write one such as int64, double, string, bool, timestamp, decimal(10, 2), list<string>",
    )
