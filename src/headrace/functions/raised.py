"""Tells what a user's function raised or gave: its line, and the values it was called with."""

from __future__ import annotations

import linecache
import reprlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.base.errors import ExpressionError
from headrace.functions.annotations import Convert
from headrace.functions.failures import FailedError, keep_failure

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 200
_shortener.maxlist = 20
short = _shortener.repr


def described(parameters: Iterable[str], values: Iterable[Any]) -> str:
    """`a=1, b='x'`: the arguments of a call."""
    return ", ".join(f"{name}={short(value)}" for name, value in zip(parameters, values, strict=True))


def user_lines(error: BaseException, sources: Sequence[tuple[str, str]] = ()) -> str:
    """The traceback of an error from the user's function on, without the frame that called it.

    `sources` are (file, text) of code that may be in no file here, such as that of a SQL text.
    """
    for file, text in sources:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    own = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, own))


def raised(
    name: str, error: BaseException, place: str, sources: Sequence[tuple[str, str]] = ()
) -> ExpressionError:
    """A raise in the user's function as an error that shows the values and the user's lines."""
    said = f": {error}" if str(error) else ""
    made = ExpressionError(f"udf `{name}` raised {type(error).__name__}{said} for {place}")
    made.traceback_text = user_lines(error, sources)
    made.__cause__ = error
    return made


def keep_raised(
    name: str, error: BaseException, place: str, sources: Sequence[tuple[str, str]] = ()
) -> FailedError:
    """The same for a function that DataFusion calls."""
    return keep_failure(raised(name, error, place, sources))


def to_arrow(
    name: str,
    results: list[Any],
    kind: pa.DataType,
    place: Callable[[int], str],
    dump: Convert | None = None,
) -> pa.Array:
    """Results as a column; one that is not of the type is an error that shows it and its `place`."""
    dumped: list[Any] = [] if dump is not None else results
    try:
        if dump is not None:
            for result in results:
                dumped.append(dump(result))  # noqa: PERF401 - an error tells how far it came
        return _null_inside(exact_array(dumped, kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError) as error:
        at, reason = len(dumped), error
        if at == len(results):
            at, reason = _first_misfit(dumped, kind, error)
        raise ExpressionError(
            f"udf `{name}` returned {short(results[at])} ({type(results[at]).__name__}), "
            f"which is not {kind}, for {place(at)}: {reason}"
        ) from error


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as a column; Arrow would cut off what a float has behind the point, at every depth."""
    if _has_integers(kind):
        _check_whole(values, kind, "")
    return pa.array(values, kind)


def _has_integers(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or any(
        _has_integers(kind.field(index).type) for index in range(kind.num_fields)
    )


def _check_whole(values: Sequence[Any], kind: pa.DataType, field: str) -> None:
    """Raise a ValueError for a float that is not whole where the type has an integer."""
    if pa.types.is_integer(kind):
        if float in set(map(type, values)):
            for value in values:
                if type(value) is float and not value.is_integer():
                    place = f"the field `{field}`" if field else "it"
                    raise ValueError(f"{place} is not a whole number")
    elif pa.types.is_struct(kind):
        given = [value for value in values if isinstance(value, dict)]
        for one in kind:
            if _has_integers(one.type):
                name = f"{field}.{one.name}" if field else one.name
                _check_whole([value.get(one.name) for value in given], one.type, name)
    elif pa.types.is_list(kind) and _has_integers(kind.value_type):
        for value in values:
            if isinstance(value, list | tuple):
                _check_whole(value, kind.value_type, field)


def _null_inside(array: pa.Array) -> pa.Array:
    """The same values; the fields of a STRUCT that is NULL are NULL too, as DataFusion expects."""
    if not pa.types.is_struct(array.type):
        return array
    fields = [array.type.field(i) for i in range(array.type.num_fields)]
    columns = [_null_inside(column) for column in array.flatten()]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=array.is_null())


def _first_misfit(results: list[Any], kind: pa.DataType, error: Exception) -> tuple[int, Exception]:
    for at, result in enumerate(results):
        try:
            exact_array([result], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
            return at, reason
    return 0, error
