"""What a function of PostgreSQL is: a name, the types that it takes, and what it computes of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

TEXT: Final = pa.string()
INTEGER: Final = pa.int64()
DOUBLE: Final = pa.float64()
BOOLEAN: Final = pa.bool_()
BYTES: Final = pa.binary()
DATE: Final = pa.date32()
DECIMAL: Final = pa.decimal128(38, 10)
TIMESTAMP: Final = pa.timestamp("ns")
INTERVAL: Final = pa.month_day_nano_interval()
TEXTS: Final = pa.list_(pa.string())
INTEGERS: Final = pa.list_(pa.int64())
DOUBLES: Final = pa.list_(pa.float64())
BOOLEANS: Final = pa.list_(pa.bool_())

MANY: Final = 16
"""How many arguments a function takes at most that takes any number of them."""


@dataclass(frozen=True)
class Overload:
    """A function of PostgreSQL for arguments of certain types.

    `compute` takes the values of a row: instants as nanoseconds since 1970, intervals as (months, days,
    nanoseconds), everything else as Python has it. It is not called for a row with a NULL, whose result is
    NULL, unless the function is `lenient`.
    """

    name: str
    arguments: tuple[pa.DataType, ...]
    returns: pa.DataType
    compute: Callable[..., Any]
    lenient: bool = False
    internal: bool = False
    """Whether only the binder calls it."""
    vectorized: bool = False
    """Whether `compute` takes and returns whole columns."""

    @property
    def registered(self) -> str:
        """The name under which DataFusion knows it."""
        return f"{self.name}__{'_'.join(map(_type_word, self.arguments))}"

    def __call__(self, *columns: pa.Array) -> pa.Array:
        if self.vectorized:
            return self.compute(*columns)
        rows = zip(*map(_values, columns), strict=True)
        if self.lenient:
            results = [self.compute(*row) for row in rows]
        else:
            results = [None if any(value is None for value in row) else self.compute(*row) for row in rows]
        if pa.types.is_timestamp(self.returns):
            return pa.array(results, pa.int64()).view(self.returns)
        if pa.types.is_interval(self.returns):
            results = [None if result is None else pa.MonthDayNano(list(result)) for result in results]
        return pa.array(results, self.returns)


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _type_word(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"{_type_word(kind.value_type)}s"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return "interval" if pa.types.is_interval(kind) else str(kind)


def accepts(declared: pa.DataType, kind: pa.DataType) -> bool:
    """Whether an argument of one type can be given where another is declared, without losing anything."""
    if kind == declared or pa.types.is_null(kind):
        return True
    if declared == TEXT:
        return kind in (pa.large_string(), pa.string_view())
    if declared == INTEGER:
        return bool(pa.types.is_integer(kind))
    if declared == DOUBLE:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
    if declared == TIMESTAMP:
        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
    if declared == INTERVAL:
        return bool(pa.types.is_duration(kind) or pa.types.is_interval(kind))
    if pa.types.is_list(declared):
        return bool(pa.types.is_list(kind) and accepts(declared.value_type, kind.value_type))
    return False


def find_overload(overloads: Sequence[Overload], kinds: Sequence[pa.DataType]) -> Overload | None:
    """The first of some overloads that takes arguments of these types; exact types come before others."""
    fitting = [
        overload
        for overload in overloads
        if len(overload.arguments) == len(kinds)
        and all(accepts(*pair) for pair in zip(overload.arguments, kinds, strict=True))
    ]
    exact = [overload for overload in fitting if list(overload.arguments) == list(kinds)]
    return next(iter(exact or fitting), None)
