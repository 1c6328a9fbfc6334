"""Arithmetic as PostgreSQL computes it: integers that do not wrap, intervals with a length."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ExpressionError

INTEGERS: Final = {
    "int8": (pa.int8(), "TINYINT"), "int16": (pa.int16(), "SMALLINT"),
    "int32": (pa.int32(), "INT"), "int64": (pa.int64(), "BIGINT"),
    "uint8": (pa.uint8(), "TINYINT UNSIGNED"), "uint16": (pa.uint16(), "SMALLINT UNSIGNED"),
    "uint32": (pa.uint32(), "INT UNSIGNED"), "uint64": (pa.uint64(), "BIGINT UNSIGNED"),
}  # fmt: skip
"""The integers by Arrow's names: their types, and what SQL calls these."""

INTERVAL: Final = pa.month_day_nano_interval()
LENGTH: Final = pa.decimal128(38, 0)
"""The length of an interval in nanoseconds: 64 bits end after 292 years."""

_PARTS: Final = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_INT64: Final = pa.decimal128(19, 0)
_DAY: Final = 86_400_000_000_000
_DAYS_OF_A_MONTH: Final = 30
_MOST_DAYS: Final = 2**31 - 1


@dataclass(frozen=True)
class Checked:
    """An operator between integers that raises if the result overflows their type."""

    symbol: str
    compute: Callable[[pa.Array, pa.Array], pa.Array]
    exact: Callable[[int, int], int]

    def __call__(self, left: pa.Array, right: pa.Array) -> pa.Array:
        try:
            return self.compute(left, right)
        except pa.ArrowInvalid as error:
            raise self._overflow(left, right) from error

    def _overflow(self, left: pa.Array, right: pa.Array) -> ExpressionError:
        kind, name = INTEGERS[str(left.type)]
        for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True):
            if a is not None and b is not None:
                try:
                    pa.scalar(self.exact(a, b), kind)
                except (OverflowError, pa.ArrowInvalid):
                    return ExpressionError(
                        f"{a} {self.symbol} {b} is out of range for {name}",
                        hint="cast one side to a wider type, such as BIGINT or DECIMAL(38, 0)",
                    )
        return ExpressionError(f"the result of {self.symbol} is out of range for {name}")


CHECKED: Final = {
    "add": Checked("+", pc.add_checked, lambda a, b: a + b),
    "subtract": Checked("-", pc.subtract_checked, lambda a, b: a - b),
    "multiply": Checked("*", pc.multiply_checked, lambda a, b: a * b),
}


def round_half_even(values: pa.Array) -> pa.Array:
    """Floating-point numbers without their fractions; a half goes to the even neighbour."""
    return pc.round(values, ndigits=0, round_mode="half_to_even")


def bigint_total(totals: pa.Array) -> pa.Array:
    """A sum that was computed in a wider type as BIGINT."""
    try:
        return totals.cast(pa.int64())
    except pa.ArrowInvalid as error:
        least, most = -(2**63), 2**63
        total = next(each for each in totals.to_pylist() if each is not None and not least <= each < most)
        raise ExpressionError(
            f"a sum is {total}, which is out of range for BIGINT",
            hint="sum a wider type: sum(CAST(… AS DECIMAL(38, 0)))",
        ) from error


_MEAN_DIGITS: Final = 16
"""Digits behind the point that a mean of decimals has at least, as PostgreSQL's."""


def mean_type(scale: int) -> pa.DataType:
    """The type of the mean of decimals with so many digits behind the point."""
    return pa.decimal128(38, max(scale, _MEAN_DIGITS))


def decimal_mean(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Sums divided by counts, rounded in the last digit; NULL where nothing was counted."""
    kind = mean_type(sums.type.scale)
    unit = Decimal(1).scaleb(-kind.scale)
    context = Context(prec=80, rounding=ROUND_HALF_UP)
    means: list[Decimal | None] = []
    for total, count in zip(sums.to_pylist(), counts.to_pylist(), strict=True):
        mean = None if total is None or not count else context.divide(total, Decimal(count))
        means.append(None if mean is None else mean.quantize(unit, context=context))
    try:
        return pa.array(means, kind)
    except pa.ArrowInvalid as error:
        raise ExpressionError(
            f"a mean does not fit a DECIMAL of {kind.precision} digits with {kind.scale} behind the point",
            hint="compute avg(CAST(… AS DOUBLE))",
        ) from error


def decimal_quotient(dividends: pa.Array, divisors: pa.Array) -> pa.Array:
    """Decimals divided by decimals, rounded in the last digit."""
    kind = mean_type(dividends.type.scale)
    unit = Decimal(1).scaleb(-kind.scale)
    context = Context(prec=80, rounding=ROUND_HALF_UP)
    quotients: list[Decimal | None] = []
    for dividend, divisor in zip(dividends.to_pylist(), divisors.to_pylist(), strict=True):
        if dividend is None or divisor is None:
            quotients.append(None)
        elif not divisor:
            raise ExpressionError("division by zero", hint="nullif(…, 0) makes the result NULL")
        else:
            quotients.append(context.divide(dividend, divisor).quantize(unit, context=context))
    try:
        return pa.array(quotients, kind)
    except pa.ArrowInvalid as error:
        raise ExpressionError(
            f"a quotient does not fit a DECIMAL of {kind.precision} digits, {kind.scale} behind the point",
            hint="CAST one side AS DOUBLE",
        ) from error


def interval_length(intervals: pa.Array) -> pa.Array:
    """How long intervals are in nanoseconds, as PostgreSQL compares them: a month has 30 days."""
    parts = _parts(intervals)
    days = parts["months"].astype(np.int64) * _DAYS_OF_A_MONTH + parts["days"]
    # 64 bits are 19 digits to Arrow, which adds the digits of factors: fewer leave room for the product.
    factor = pa.array(days).cast(_INT64).cast(pa.decimal128(12, 0))
    whole = pc.multiply(factor, pa.scalar(Decimal(_DAY), pa.decimal128(15, 0)))
    length = pc.add(whole, pa.array(np.ascontiguousarray(parts["nanoseconds"])).cast(_INT64))
    return pc.if_else(intervals.is_valid(), length.cast(LENGTH), pa.scalar(None, LENGTH))


def multiply_interval(intervals: pa.Array, factors: pa.Array) -> pa.Array:
    """Intervals times numbers; fractions of months become days, and fractions of days time."""
    rows = zip(_parts(intervals).tolist(), intervals.is_valid().to_pylist(), factors.to_pylist(), strict=True)
    return pa.array(
        [
            _multiplied(parts, factor) if valid and factor is not None else None
            for parts, valid, factor in rows
        ],
        INTERVAL,
    )


def divide_interval(intervals: pa.Array, divisors: pa.Array) -> pa.Array:
    """Intervals divided by numbers."""
    if 0.0 in divisors.to_pylist():
        raise ExpressionError("an interval is divided by zero", hint="nullif(…, 0) makes the result NULL")
    return multiply_interval(intervals, pc.divide(pa.scalar(1.0), divisors))


def _multiplied(parts: tuple[int, int, int], factor: float) -> Any:
    if not math.isfinite(factor):
        raise ExpressionError(f"an interval cannot be multiplied by {factor}")
    months, days, nanoseconds = parts
    whole_months = math.trunc(months * factor)
    more_days = (months * factor - whole_months) * _DAYS_OF_A_MONTH
    # The fraction of a month is known to the microsecond, as in PostgreSQL.
    more_days = round(more_days * _DAY / 1000) * 1000 / _DAY
    whole_days = math.trunc(days * factor) + math.trunc(more_days)
    fraction = days * factor - math.trunc(days * factor) + more_days - math.trunc(more_days)
    time = round((nanoseconds * factor + fraction * _DAY) / 1000) * 1000
    if abs(whole_months) > _MOST_DAYS or abs(whole_days) > _MOST_DAYS or abs(time) >= 2**63:
        raise ExpressionError("the product of an interval is out of range")
    return pa.MonthDayNano([whole_months, whole_days, time])


def _parts(intervals: pa.Array) -> npt.NDArray[Any]:
    """The months, days and nanoseconds of intervals; zero for NULL."""
    count = len(intervals)
    parts = np.frombuffer(
        intervals.buffers()[1] or b"", dtype=_PARTS, count=count, offset=intervals.offset * 16
    )
    return np.where(intervals.is_valid().to_numpy(zero_copy_only=False), parts, np.zeros(1, _PARTS))


# ---------------------------------------------------------------------------------------- as it was written

_WIDE: Final = "Decimal128(38, 0)"
_WAS_NATIVE: Final = re.compile(r"\b(ln|log|log10|sqrt)__double\(")
"""Functions that DataFusion computed in earlier versions."""
_CALL: Final = re.compile(r"checked__(\w+?)__\w+\(|bigint__total\(")
_WIDE_SUM: Final = re.compile(rf"sum\(arrow_cast\((.*?), '{re.escape(_WIDE)}'\)\)")


def wide_sum(value: str) -> str:
    """The SQL of a sum of BIGINT that does not wrap; `bigint__total(…)` around it makes it BIGINT again."""
    return f"sum(arrow_cast({value}, '{_WIDE}'))"


def as_written(sql: str) -> str:
    """SQL with plain operators instead of checked ones, for comparison with state of earlier versions.

    >>> as_written('checked__add__int64("a", checked__multiply__int64("b", 2)) AS "c"')
    '"a" + "b" * 2 AS "c"'
    >>> as_written(f"bigint__total({wide_sum('x')})")
    'sum(x)'
    >>> as_written('sqrt__double("x")')
    'sqrt("x")'
    """
    sql = _WAS_NATIVE.sub(r"\1(", sql)
    while match := _CALL.search(sql):
        end, arguments = _arguments(sql, match.end())
        if match[1] is None:
            plain = _WIDE_SUM.sub(r"sum(\1)", arguments[0])
        else:
            plain = f" {CHECKED[match[1]].symbol} ".join(arguments)
        sql = sql[: match.start()] + plain + sql[end:]
    return sql


def _arguments(sql: str, start: int) -> tuple[int, list[str]]:
    """Where a call ends whose arguments begin at `start`, and these."""
    arguments, depth, begin, quote, end = [], 0, start, "", start
    for end in range(start, len(sql)):
        character = sql[end]
        if quote or character in "'\"":
            quote = "" if character == quote else quote or character
        elif character in "([":
            depth += 1
        elif character in ")]" and depth:
            depth -= 1
        elif character in ",)" and not depth:
            arguments.append(sql[begin:end].strip())
            begin = end + 1
            if character == ")":
                break
    return end + 1, arguments
