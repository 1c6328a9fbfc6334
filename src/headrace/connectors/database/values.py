"""Convert Arrow columns to the values and types of SQLAlchemy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.connectors._shared.table_limits import ColumnLimits
from headrace.formats.base import is_binary, is_json, is_list, plain_field
from headrace.formats.intervals import format_interval
from headrace.formats.json.format import PLAIN, encode_values

_KEY_LENGTH = 190
"""The longest string that every supported database can index."""


def python_values(column: pa.Array, field: pa.Field, target: Any, dialect: Any) -> Sequence[Any]:
    """Return the Python values of a column for a table column."""
    from sqlalchemy import types

    kind, into = column.type, target.type
    if isinstance(kind, pa.BaseExtensionType):
        return python_values(column.storage, field, target, dialect)
    if pa.types.is_dictionary(kind):
        return python_values(column.dictionary_decode(), field, target, dialect)
    if isinstance(into, types.JSON):
        texts = encode_values(column, field, PLAIN).to_pylist()
        is_valid = column.is_valid().to_pylist()
        return [json.loads(text) if valid else None for text, valid in zip(texts, is_valid, strict=True)]
    if pa.types.is_nested(kind) and not (is_list(kind) and isinstance(into, types.ARRAY)):
        texts = encode_values(column, field, PLAIN).to_pylist()
        return [
            text if valid else None for text, valid in zip(texts, column.is_valid().to_pylist(), strict=True)
        ]
    column = _plain(column)
    is_text = isinstance(into, types.String) and not is_binary(kind)
    if is_text and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return _texts(column)
    if pa.types.is_decimal(kind) and dialect.name == "sqlite":
        column = column.cast(pa.float64())  # it has no other numbers
    if pa.types.is_timestamp(kind) and getattr(into, "timezone", False):
        column = column.cast(pa.timestamp("us", "UTC"))
    if pa.types.is_interval(kind):
        return [None if value is None else _timedelta(value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _plain(column: pa.Array) -> pa.Array:
    """Convert times to microseconds, in UTC without a zone."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.timestamp("us"))
    if pa.types.is_time(kind):
        return column.cast(pa.time64("ns")).cast(pa.time64("us"), safe=False)
    if pa.types.is_duration(kind):
        return column.cast(pa.duration("us"), safe=False)
    return column


def _texts(column: pa.Array) -> Sequence[Any]:
    if pa.types.is_interval(column.type):
        return [None if value is None else format_interval(value) for value in column.to_pylist()]
    texts: list[Any] = column.cast(pa.string()).to_pylist()
    return texts


def _timedelta(value: pa.MonthDayNano) -> timedelta | str:
    if value.months:
        return format_interval(value)  # months have no length
    return timedelta(days=value.days, microseconds=value.nanoseconds // 1000)


_BITS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INTEGER": 32, "BIGINT": 64}


def limits_of(column: Any, dialect: str, *, fills_in: bool) -> ColumnLimits:
    """Return what a column of a table can hold; `fills_in` if a trigger may replace null before.

    SQLite keeps to no length and no range, and of others nothing is known but NOT NULL.
    """
    kind = column.type
    # MySQL and SQLite number such rows.
    nullable = column.nullable or fills_in or column.autoincrement is True
    nullable = nullable or (dialect == "sqlite" and column.primary_key)
    if dialect not in {"postgresql", "mysql", "mariadb"}:
        return ColumnLimits(str(kind), nullable=nullable)
    name = kind.__visit_name__.upper()
    whole, unsigned = None, bool(getattr(kind, "unsigned", False))
    if bits := _BITS.get(name):
        whole = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    digits = (kind.precision, kind.scale or 0) if name in {"NUMERIC", "DECIMAL"} and kind.precision else None
    return ColumnLimits(
        str(kind),
        nullable=nullable,
        whole=whole,
        characters=kind.length if name in {"VARCHAR", "CHAR", "NVARCHAR", "NCHAR"} else None,
        digits=digits,
    )


def column_type(field: pa.Field, *, key: bool = False) -> Any:
    """Return the SQLAlchemy type for a column of this Arrow field."""
    from sqlalchemy import types

    kind = plain_field(field).type
    if is_json(field) or pa.types.is_nested(kind):
        return types.JSON()
    if pa.types.is_decimal(kind):
        return types.Numeric(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return types.DateTime(timezone=kind.tz is not None)
    if pa.types.is_uint64(kind):
        return types.Numeric(20, 0)
    fitting = (
        (pa.types.is_boolean, types.Boolean()),
        (lambda arrow_type: arrow_type in {pa.int8(), pa.int16(), pa.uint8()}, types.SmallInteger()),
        (lambda arrow_type: arrow_type in {pa.int32(), pa.uint16()}, types.Integer()),
        (pa.types.is_integer, types.BigInteger()),
        (pa.types.is_floating, types.Float(24 if kind == pa.float32() else 53)),
        (is_binary, types.LargeBinary()),
        (pa.types.is_date, types.Date()),
        (pa.types.is_time, types.Time()),
        (
            lambda arrow_type: pa.types.is_interval(arrow_type) or pa.types.is_duration(arrow_type),
            types.Interval(),
        ),
    )
    text = types.String(_KEY_LENGTH) if key else types.Text()
    return next((sql_type for fits, sql_type in fitting if fits(kind)), text)
