"""Functions that give rows, as functions that give lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp


@dataclass(frozen=True)
class RowFunction:
    """A function that gives rows: for each of its columns, the function that gives a list of values."""

    lists: Mapping[str, str]
    """Column → function; a column without a name is called like the function or its alias."""
    least: int
    most: int


def _texts(function: str, *, column: str = "") -> RowFunction:
    return RowFunction({column: function}, 1, 1)


ROW_FUNCTIONS: Final[Mapping[str, RowFunction]] = {
    "generate_series": RowFunction({"": "generate_series"}, 2, 3),
    "range": RowFunction({"": "range"}, 1, 3),
    "string_to_table": RowFunction({"": "string_to_array"}, 2, 3),
    "regexp_split_to_table": RowFunction({"": "regexp_split__list"}, 2, 2),
    "regexp_matches": RowFunction({"": "regexp_matches__list"}, 2, 3),
    **{
        f"{prefix}_{name}": function
        for prefix, elements in (("json", "json_get_array"), ("jsonb", "jsonb__elements"))
        for name, function in {
            "array_elements": _texts(elements, column="value"),
            "array_elements_text": _texts(f"{prefix}__elements_text", column="value"),
            "object_keys": _texts("json_object_keys"),
            "each": RowFunction({"key": "json_object_keys", "value": f"{prefix}__values"}, 1, 1),
            "each_text": RowFunction({"key": "json_object_keys", "value": f"{prefix}__values_text"}, 1, 1),
        }.items()
    },
}
"""By name. A list that is NULL gives no rows."""

_LISTS_IN_SELECT: Final = frozenset({"range", "json_object_keys"})
"""Functions that give a list where they do not stand in FROM."""


def row_function_in(call: exp.Anonymous) -> exp.Expr | None:
    """What a call in the SELECT list is: `unnest` of a list; None for a function that gives no rows."""
    name = call.name.lower()
    function = ROW_FUNCTIONS.get(name)
    if function is None or name in _LISTS_IN_SELECT or len(function.lists) != 1:
        return None
    if not function.least <= len(call.expressions) <= function.most:
        return None
    (inner,) = function.lists.values()
    return exp.Anonymous(this="unnest", expressions=[list_of(inner, call.expressions)])


def _take_interval(call: exp.Anonymous) -> None:
    """Let a series of times have timestamps and an interval, as PostgreSQL takes dates and '1 day'."""
    start, end, step = call.expressions
    if step.is_string:
        step = exp.cast(step, "INTERVAL")
    is_interval = isinstance(step, exp.Cast) and step.to.this == exp.DataType.Type.INTERVAL
    if is_interval or isinstance(step, exp.Interval):
        kind = exp.Literal.string("Timestamp(ns)")
        times = [exp.Anonymous(this="arrow_cast", expressions=[side, kind.copy()]) for side in (start, end)]
        call.set("expressions", [*times, step])


def list_of(function: str, arguments: Sequence[exp.Expr]) -> exp.Anonymous:
    """The call of a function that gives a list."""
    call = exp.Anonymous(this=function, expressions=[argument.copy() for argument in arguments])
    if function == "generate_series" and len(arguments) == 3:
        _take_interval(call)
    if function == "regexp_matches__list" and len(arguments) == 2:
        call.append("expressions", exp.Literal.string(""))
    call.meta["rewritten"] = True  # it is not taken for the function that gives rows again
    return call
