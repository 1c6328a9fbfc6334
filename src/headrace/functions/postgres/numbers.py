"""Functions over numbers."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ExpressionError
from headrace.functions.postgres.overload import DOUBLE, DOUBLES, INTEGER, TEXT, Overload


def width_bucket(value: float, low: float, high: float, count: int) -> int:
    """The number of the bucket that a value falls into, of `count` equal ones between two bounds.

    >>> width_bucket(5.35, 0.024, 10.06, 5), width_bucket(11, 10, 0, 5)
    (3, 0)
    """
    if count < 1 or low == high or not (math.isfinite(low) and math.isfinite(high)) or math.isnan(value):
        raise ExpressionError(
            f"width_bucket({value}, {low}, {high}, {count}) has no buckets",
            hint="the bounds differ and are finite, and the count is at least 1",
        )
    if low > high:
        return (
            count + 1
            if value <= high
            else 0
            if value > low
            else int(count * (low - value) / (low - high)) + 1
        )
    return 0 if value < low else count + 1 if value >= high else int(count * (value - low) / (high - low)) + 1


def bucket_of(value: float, thresholds: Sequence[float]) -> int:
    """The number of the bucket that a value falls into, of those that begin at some thresholds.

    >>> bucket_of(2, [1, 2, 3])
    2
    """
    return bisect.bisect_right(thresholds, value)


def _logarithm(name: str, compute: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    def checked(column: pa.Array) -> pa.Array:
        outside = column.filter(pc.less_equal(column, 0.0))
        if len(outside):
            value = outside[0].as_py()
            what = "zero" if value == 0 else "a negative number"
            hint = f"{name}(nullif(x, 0)) is NULL for zero"
            raise ExpressionError(f"{name}({value:g}): {what} has no logarithm", hint=hint)
        return compute(column)

    return checked


def _square_root(column: pa.Array) -> pa.Array:
    negative = column.filter(pc.less(column, 0.0))
    if len(negative):
        raise ExpressionError(f"sqrt({negative[0].as_py():g}): a negative number has no square root")
    return pc.sqrt(column)


def _log_of_base(base: float, value: float) -> float:
    if base <= 0 or base == 1 or value <= 0:
        raise ExpressionError(f"log({base:g}, {value:g}) does not exist", hint="both are greater than zero")
    return math.log(value) / math.log(base)


def float_text(column: pa.Array) -> pa.Array:
    """Floating-point numbers as PostgreSQL writes them: as few digits as read back to the same number.

    >>> float_text(pa.array([100.0, 1e15, 1.5e-7, float("inf")])).to_pylist()
    ['100', '1e+15', '1.5e-07', 'Infinity']
    """
    places = 15 if column.type == pa.float64() else 6
    texts = column.cast(pa.string())
    sizes = pc.abs(column)
    is_plain = pc.or_(pc.equal(column, 0), pc.and_(pc.greater_equal(sizes, 1e-4), pc.less(sizes, 1e6)))
    if pc.all(is_plain).as_py() is not False:  # NULL passes
        return texts
    whole = pc.and_(pc.equal(column, pc.trunc(column)), pc.less(sizes, 10.0**places))
    whole = pc.and_(pc.fill_null(whole, fill_value=False), pc.not_equal(column, 0))
    integers = pc.if_else(whole, column, None).cast(pa.int64()).cast(pa.string())
    rest = pc.fill_null(pc.invert(pc.or_(is_plain, whole)), fill_value=False)
    texts = pc.if_else(whole, integers, texts)
    written = pa.array([_float_text(text, places) for text in texts.filter(rest).to_pylist()], pa.string())
    return pc.replace_with_mask(texts, rest, written)


def _float_text(shortest: str, places: int) -> str:
    """A number by its shortest text in any notation."""
    sign, digits, exponent = Decimal(shortest).as_tuple()
    if not isinstance(exponent, int):
        return {"n": "NaN", "F": "-Infinity" if sign else "Infinity"}[exponent]
    text = "".join(map(str, digits)).rstrip("0")
    power = len(digits) + exponent - 1
    minus = "-" * sign
    if power >= places or power < -4:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{power:+03}"
    return minus + format(Decimal((0, digits, exponent)), "f")


NUMBER_FUNCTIONS: Final = (
    Overload("text_of_number", (DOUBLE,), TEXT, float_text, internal=True, vectorized=True),
    Overload("text_of_number", (pa.float32(),), TEXT, float_text, internal=True, vectorized=True),
    Overload("width_bucket", (DOUBLE, DOUBLE, DOUBLE, INTEGER), INTEGER, width_bucket),
    Overload("width_bucket", (DOUBLE, DOUBLES), INTEGER, bucket_of),
    Overload("ln", (DOUBLE,), DOUBLE, _logarithm("ln", pc.ln), vectorized=True),
    Overload("log", (DOUBLE,), DOUBLE, _logarithm("log", pc.log10), vectorized=True),
    Overload("log10", (DOUBLE,), DOUBLE, _logarithm("log10", pc.log10), vectorized=True),
    Overload("log", (DOUBLE, DOUBLE), DOUBLE, _log_of_base),
    Overload("sqrt", (DOUBLE,), DOUBLE, _square_root, vectorized=True),
)
