"""What the columns of an existing table can hold, and which rows do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base import Refusal, excerpt

_MOST_DIGITS = 38
_HINT = "leave such rows out, change the value, or change the column of the table: ALTER TABLE"


@dataclass(frozen=True)
class ColumnLimits:
    """What a column of a table can hold; None is no limit."""

    declared: str
    """Its type, as the database shows it."""
    nullable: bool = True
    whole: tuple[int, int] | None = None
    """The least and the greatest whole number."""
    characters: int | None = None
    digits: tuple[int, int] | None = None
    """All digits of a decimal number, and those behind the point."""


def limit_refusals(rows: pa.Table, limits: Mapping[str, ColumnLimits]) -> Iterator[Refusal]:
    """Yield a refusal for each column with values that it cannot hold."""
    for name in rows.schema.names:
        if (limit := limits.get(name)) is None:
            continue
        column = _plain(rows.column(name).combine_chunks())
        if not limit.nullable and column.null_count:
            yield refuse(name, column, column.is_null(), f"{limit.declared} NOT NULL")
        misfits = _misfits(column, limit)
        if misfits is not None and pc.any(misfits, min_count=0).as_py():
            yield refuse(name, column, misfits, limit.declared)


def refuse(name: str, column: pa.Array, rows: pa.Array, declared: str) -> Refusal:
    """Return the refusal of rows whose values do not fit a column of this type."""

    def reason(row: int) -> str:
        value = column[row].as_py()
        shown = "null" if value is None else excerpt(repr(value) if isinstance(value, str) else value)
        return f"it has {shown} for column `{name}`, which is {declared} in the table"

    return Refusal(rows, reason, _HINT)


def _plain(column: pa.Array) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        return _plain(column.storage)
    if pa.types.is_dictionary(column.type):
        return _plain(column.dictionary_decode())
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def _misfits(column: pa.Array, limit: ColumnLimits) -> pa.Array | None:
    kind = column.type
    if limit.characters is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        # Databases cut off blanks at the end without a word.
        return pc.greater(pc.utf8_length(pc.utf8_rtrim(column, " ")), limit.characters)
    if limit.whole is not None and pa.types.is_integer(kind):
        least, greatest = limit.whole
        wide = column.cast(pa.decimal128(20, 0))
        return pc.or_(pc.less(wide, Decimal(least)), pc.greater(wide, Decimal(greatest)))
    if limit.digits is None or not 0 <= limit.digits[1] <= limit.digits[0] <= _MOST_DIGITS:
        return None
    whole_digits, scale = limit.digits[0] - limit.digits[1], limit.digits[1]
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64())
        # NaN is larger than nothing: a database that has it takes it.
        return pc.greater_equal(pc.abs(pc.round(numbers, scale)), 10.0**whole_digits)
    if pa.types.is_integer(kind):
        column = column.cast(pa.decimal128(20, 0))
    if not pa.types.is_decimal(column.type):
        return None
    # Wider: rounding may add a digit.
    wide = column.cast(pa.decimal256(76, column.type.scale))
    rounded = pc.round(wide, scale, "half_towards_infinity")
    return pc.greater_equal(pc.abs(rounded), Decimal(10) ** whole_digits)
