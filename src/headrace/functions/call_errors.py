"""Errors of a user's function: what it raised or returned, its lines, and the arguments of the call."""

from __future__ import annotations

import linecache
import reprlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.base.errors import ExpressionError
from headrace.functions.annotations import Convert
from headrace.functions.failures import FunctionFailedError, keep_failure

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 200
_shortener.maxlist = 20
short = _shortener.repr


def format_arguments(parameters: Iterable[str], values: Iterable[Any]) -> str:
    """`a=1, b='x'`: the arguments of a call."""
    return ", ".join(f"{name}={short(value)}" for name, value in zip(parameters, values, strict=True))


def user_lines(error: BaseException, sources: Sequence[tuple[str, str]] = ()) -> str:
    """The traceback of an error from the user's function on, without the frame that called it.

    `sources` are (file, text) of code that may not be in a file here, such as that inside SQL.
    """
    for file, text in sources:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    own = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, own))


def call_error(
    name: str, error: BaseException, inputs: str, sources: Sequence[tuple[str, str]] = ()
) -> ExpressionError:
    """The error of a function that raised; it shows the inputs of the call and the user's lines."""
    reason = f": {error}" if str(error) else ""
    expression_error = ExpressionError(f"udf `{name}` raised {type(error).__name__}{reason} for {inputs}")
    expression_error.traceback_text = user_lines(error, sources)
    expression_error.__cause__ = error
    return expression_error


def keep_call_error(
    name: str, error: BaseException, inputs: str, sources: Sequence[tuple[str, str]] = ()
) -> FunctionFailedError:
    """The same error, to be raised inside a function that DataFusion calls."""
    return keep_failure(call_error(name, error, inputs, sources))


def to_arrow(
    name: str,
    results: list[Any],
    kind: pa.DataType,
    inputs_at: Callable[[int], str],
    dump: Convert | None = None,
) -> pa.Array:
    """Results as a column; raises an error that shows the first result of a wrong type and its inputs."""
    dumped: list[Any] = [] if dump is not None else results
    try:
        if dump is not None:
            for result in results:
                dumped.append(dump(result))  # noqa: PERF401 - after an error its length says which failed
        return _null_inside(exact_array(dumped, kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError) as error:
        at, reason = len(dumped), error
        if at == len(results):
            at, reason = _first_misfit(dumped, kind, error)
        raise ExpressionError(
            f"udf `{name}` returned {short(results[at])} ({type(results[at]).__name__}), "
            f"which is not {kind}, for {inputs_at(at)}: {reason}"
        ) from error


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as a column; unlike Arrow, it refuses to truncate a float to an integer, at every depth."""
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
                    subject = f"the field `{field}`" if field else "it"
                    raise ValueError(f"{subject} is not a whole number")
    elif pa.types.is_struct(kind):
        structs = [value for value in values if isinstance(value, dict)]
        for child in kind:
            if _has_integers(child.type):
                name = f"{field}.{child.name}" if field else child.name
                _check_whole([value.get(child.name) for value in structs], child.type, name)
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
