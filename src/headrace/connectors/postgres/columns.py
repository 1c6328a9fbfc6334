"""Map the columns of a PostgreSQL table to Arrow types."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from headrace.connectors.postgres.client import PostgresColumn, PostgresTable

_KINDS: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "numeric": pa.decimal128(38, 10),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time without time zone": pa.time64("ns"),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us"),
    "interval": pa.month_day_nano_interval(),
}
"""Every other type becomes a string, in the text form of PostgreSQL."""
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MOST_DIGITS = 38
_JSON = {b"headrace.json": b"true"}


def table_columns(table: PostgresTable, *, generated: bool) -> pa.Schema:
    """Return the columns of a table as an Arrow schema, with or without generated columns."""
    return pa.schema(
        [_field(name, column) for name, column in table.columns.items() if generated or not column.generated]
    )


def _field(name: str, column: PostgresColumn) -> pa.Field:
    if column.is_json:
        return pa.field(name, pa.string(), metadata=_JSON)
    depth = column.kind.count("[]")
    kind = _KINDS.get(column.kind.removesuffix("[]" * depth), pa.string())
    if (match := _NUMERIC.match(column.declared)) is not None:
        digits, scale = int(match[1]), int(match[2])
        if 0 <= scale <= digits <= _MOST_DIGITS:
            kind = pa.decimal128(digits, scale)
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.field(name, kind)
