"""The types of SQL, their Arrow types, and columns as SQL declares them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

UNBOUNDED_DECIMAL: Final = pa.decimal128(38, 10)
"""DECIMAL without a precision."""
_NAMES: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(), "BOOL": pa.bool_(),
    "TINYINT": pa.int8(), "INT1": pa.int8(),
    "SMALLINT": pa.int16(), "INT2": pa.int16(),
    "INT": pa.int32(), "INTEGER": pa.int32(), "INT4": pa.int32(),
    "BIGINT": pa.int64(), "INT8": pa.int64(), "LONG": pa.int64(),
    "TINYINT UNSIGNED": pa.uint8(), "SMALLINT UNSIGNED": pa.uint16(), "INT UNSIGNED": pa.uint32(),
    "INTEGER UNSIGNED": pa.uint32(), "BIGINT UNSIGNED": pa.uint64(),
    "FLOAT": pa.float32(), "REAL": pa.float32(), "FLOAT4": pa.float32(),
    "DOUBLE": pa.float64(), "FLOAT8": pa.float64(), "DOUBLE PRECISION": pa.float64(),
    "TEXT": pa.string(), "VARCHAR": pa.string(), "CHAR": pa.string(), "STRING": pa.string(),
    "CHARACTER": pa.string(), "CHARACTER VARYING": pa.string(), "CHAR VARYING": pa.string(),
    "JSON": pa.string(), "JSONB": pa.string(), "UUID": pa.string(),
    "BYTEA": pa.binary(), "BYTES": pa.binary(), "BLOB": pa.binary(),
    "BINARY": pa.binary(), "VARBINARY": pa.binary(),
    "DATE": pa.date32(), "TIME": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("ns"), "DATETIME": pa.timestamp("ns"), "TIMESTAMPTZ": pa.timestamp("ns"),
    "INTERVAL": pa.month_day_nano_interval(),
    "DECIMAL": UNBOUNDED_DECIMAL, "NUMERIC": UNBOUNDED_DECIMAL,
}  # fmt: skip

TYPE_NAMES: Final = [*_NAMES, "STRUCT", "ARRAY"]

JSON_MARK: Final = {b"headrace.json": b"true"}
"""The metadata of a column of type JSON."""

_UNITS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_LARGEST_PRECISION: Final = 38
_KEYWORDS: Final = ("check", "constraint", "foreign", "primary", "unique", "watermark")
"""What begins something else than a column in a CREATE TABLE."""


def named_type(name: str, arguments: tuple[int, ...]) -> pa.DataType | None:
    """The Arrow type of a SQL type, or None if there is no such type."""
    if name in ("DECIMAL", "NUMERIC") and arguments:
        precision, scale = (*arguments, 0)[:2]
        if not 1 <= precision <= _LARGEST_PRECISION or not 0 <= scale <= precision:
            return None
        return pa.decimal128(precision, scale)
    if name in ("TIMESTAMP", "DATETIME", "TIMESTAMPTZ") and arguments:
        return pa.timestamp(_UNITS[arguments[0]]) if arguments[0] in _UNITS else None
    return _NAMES.get(name)


def type_name(kind: pa.DataType) -> str:
    """A type as SQL writes it, for messages.

    >>> type_name(pa.list_(pa.int64()))
    'BIGINT[]'
    """
    if pa.types.is_struct(kind):
        inner = ", ".join(
            f"{kind.field(i).name} {type_name(kind.field(i).type)}" for i in range(kind.num_fields)
        )
        return f"STRUCT<{inner}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{type_name(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return f"TIMESTAMP({ {'s': 0, 'ms': 3, 'us': 6}[kind.unit] })"
    for name, named in _NAMES.items():
        if kind == named:
            return name
    return str(kind)


def sql_type(kind: pa.DataType) -> str:
    """A type as DataFusion reads it in a CAST."""
    if pa.types.is_time(kind):
        return "TIME"
    return type_name(kind)


def column_lines(columns: Sequence[pa.Field]) -> list[str]:
    """Columns as they are written between the brackets of a CREATE TABLE, without commas.

    >>> column_lines([pa.field("id", pa.int64(), nullable=False), pa.field("userId", pa.string())])
    ['id BIGINT NOT NULL', '"userId" TEXT']
    """
    return [_column_line(column) for column in columns]


def _column_line(column: pa.Field) -> str:
    declared = _declared(column.type)
    if declared is None:
        return f"-- {column_name(column.name)} is {column.type}, which SQL has no name for"
    kind = "JSON" if is_json_column(column) else declared
    return f"{column_name(column.name)} {kind}{'' if column.nullable else ' NOT NULL'}"


def is_json_column(field: pa.Field) -> bool:
    """Whether a column was declared as JSON."""
    return not JSON_MARK.keys().isdisjoint(field.metadata or {})


def _declared(kind: pa.DataType) -> str | None:
    """A type as it is declared; None if it cannot be."""
    if pa.types.is_struct(kind):
        members = [(column_name(f.name), "JSON" if is_json_column(f) else _declared(f.type)) for f in kind]
        if any(inner is None for _, inner in members):
            return None
        return f"STRUCT<{', '.join(f'{name} {inner}' for name, inner in members)}>"
    if pa.types.is_list(kind):
        inner = "JSON" if is_json_column(kind.value_field) else _declared(kind.value_type)
        return None if inner is None else f"{inner}[]"
    name = type_name(kind)
    return None if name == str(kind) else name


def column_name(name: str) -> str:
    """A name as SQL writes it: in quotes unless it is a lower-case word."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _KEYWORDS
    return name if plain else '"' + name.replace('"', '""') + '"'
