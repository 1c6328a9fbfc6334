"""The columns of a table of PostgreSQL in Arrow's types."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from headrace.connectors.postgres.client import Column, PostgresTable

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
"""What is not among them is a text, as PostgreSQL writes it."""
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MOST_DIGITS = 38
_JSON = {b"headrace.json": b"true"}


def table_columns(table: PostgresTable, *, generated: bool) -> pa.Schema:
    """The columns of a table, with or without those that it computes."""
    return pa.schema(
        [_field(name, one) for name, one in table.columns.items() if generated or not one.generated]
    )


def _field(name: str, column: Column) -> pa.Field:
    if column.is_json:
        return pa.field(name, pa.string(), metadata=_JSON)
    depth = column.kind.count("[]")
    kind = _KINDS.get(column.kind.removesuffix("[]" * depth), pa.string())
    if (found := _NUMERIC.match(column.declared)) is not None:
        digits, scale = int(found[1]), int(found[2])
        if 0 <= scale <= digits <= _MOST_DIGITS:
            kind = pa.decimal128(digits, scale)
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.field(name, kind)
