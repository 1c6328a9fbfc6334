"""Aggregates that are computed from the list of a group's values: ordered sets, and JSON.

`percentile_disc`, `mode`, `json_agg` and the like become `array_agg(…)` with a function around it. The list
is built anew from the rows that are left, so they are right where rows are taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.json_forms import json_value_of, parse_internal
from headrace.sql.bind.meanings import copy_marks
from headrace.sql.bind.planning import AGGREGATE_FORMS, ORDERED_SETS, OTHER_NAMES
from headrace.sql.bind.postgres_calls import TypeOf, interval_of, length_of
from headrace.sql.parse.dialect import to_sql
from headrace.sql.types import type_name

_WRAPPERS = (exp.Filter, exp.WithinGroup)
_Fractions = float | list[float | None] | None

PERCENTILE: Final = "percentile__cont"
"""A call that stands for a continuous percentile, until the type of its value is known."""


def respell_aggregate(
    context: BindContext, node: exp.Expr, respell: Callable[[exp.Expr], exp.Expr]
) -> exp.Expr | None:
    """An aggregate with its FILTER and WITHIN GROUP, as an expression of aggregates of DataFusion.

    None for any other. `respell` is applied to its arguments.
    """
    call, order, filters = node, None, []
    while isinstance(call, _WRAPPERS):
        if isinstance(call, exp.Filter):
            filters.append(to_sql(respell(call.expression.this.copy())))
        else:
            order = call.expression
        call = call.this
    name = call.name.lower() if isinstance(call, exp.Anonymous) else ""
    if name not in AGGREGATE_FORMS or isinstance(node.parent, _WRAPPERS):
        return None
    if name in _TEXTS and order is not None and len(call.expressions) == 2:  # WITHIN GROUP
        value, separator = call.expressions
        ordered = exp.Order(this=separator.copy(), expressions=[key.copy() for key in order.expressions])
        call = exp.Anonymous(this="string_agg", expressions=[value.copy(), ordered])
        return _ordered_texts(call, filters, respell)
    if name in ("count_if", "countif", "group_concat") or name in OTHER_NAMES:
        return _by_other_name(context, node, call, respell)
    if name == "string_agg":
        return None if isinstance(node.parent, exp.Window) else _ordered_texts(call, filters, respell)
    if name == "percentile_cont" and order is None:
        return None  # percentile_cont(x, 0.5) is DataFusion's own
    return _of_list(context, node, call, order, filters, respell)


def _by_other_name(
    context: BindContext, node: exp.Expr, call: exp.Expr, respell: Callable[[exp.Expr], exp.Expr]
) -> exp.Expr:
    """An aggregate that DataFusion has under another name."""
    name, arguments = call.name.lower(), call.expressions
    if name in OTHER_NAMES:
        return _renamed(node, call, OTHER_NAMES[name])
    if name == "group_concat":
        separator = [] if len(arguments) > 1 else [exp.Literal.string(",")]
        return _renamed_call(node, call, "string_agg", [*arguments, *separator])
    if len(arguments) != 1 or isinstance(arguments[0], exp.Distinct):
        raise context.fail(f"`{name}` takes a condition", call, f"{name}(x > 1)")
    counted = parse_internal(f"CASE WHEN {to_sql(respell(arguments[0].copy()))} THEN 1 END")
    return _renamed_call(node, call, "count", [counted])


def _of_list(
    context: BindContext,
    node: exp.Expr,
    call: exp.Expr,
    order: exp.Expr | None,
    filters: Sequence[str],
    respell: Callable[[exp.Expr], exp.Expr],
) -> exp.Expr:
    """An aggregate that is computed from the ordered values of a group."""
    name = call.name.lower()
    if isinstance(node.parent, exp.Window) and node.parent.this is node:
        hint = "aggregate with GROUP BY in a subquery, and join it"
        raise context.fail(f"`{name}` cannot stand before OVER", call, hint)
    if name in _EXTREMES:
        return _of_extreme(context, call, filters, respell)
    if name in ORDERED_SETS:
        return _ordered_set(context, call, order, filters, respell)
    if order is not None:
        raise context.fail(f"`{name}` takes no WITHIN GROUP", call, f"write {name}(x ORDER BY y)")
    return _json(context, call, filters, respell)


_TEXTS: Final = ("string_agg", "listagg", "group_concat")
_EXTREMES: Final = {"arg_max": "DESC", "max_by": "DESC", "arg_min": "ASC", "min_by": "ASC"}


def _of_extreme(
    context: BindContext, call: exp.Expr, filters: Sequence[str], respell: Callable[[exp.Expr], exp.Expr]
) -> exp.Expr:
    """`max_by(value, key)`: the value of the row with the greatest key; of several the least value."""
    name = call.name.lower()
    if len(call.expressions) != 2 or isinstance(call.expressions[0], exp.Distinct):
        raise context.fail(f"`{name}` takes a value and what it is chosen by", call, f"{name}(value, key)")
    value, key = (to_sql(respell(argument.copy())) for argument in call.expressions)
    passing = " AND ".join([f"({key}) IS NOT NULL", *(f"({condition})" for condition in filters)])
    order = f"{key} {_EXTREMES[name]}, {value} ASC"
    return parse_internal(f"first_value({value} ORDER BY {order}) FILTER (WHERE {passing})")


def _renamed_call(node: exp.Expr, call: exp.Expr, name: str, arguments: list[exp.Expr]) -> exp.Expr:
    renamed = exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])
    if node is call:
        return renamed
    copy = node.copy()
    inner = copy
    while isinstance(inner, _WRAPPERS):
        inner = inner.this
    inner.replace(renamed)
    return copy


def _renamed(node: exp.Expr, call: exp.Expr, name: str) -> exp.Expr:
    copy = node.copy()
    inner = copy
    while isinstance(inner, _WRAPPERS):
        inner = inner.this
    inner.set("this", name)
    return copy if node is not call else inner


def _ordered_texts(
    call: exp.Expr, filters: Sequence[str], respell: Callable[[exp.Expr], exp.Expr]
) -> exp.Expr | None:
    """`string_agg(x, ',' ORDER BY y)` as a list: DataFusion takes one order for all texts of a SELECT."""
    if len(call.expressions) != 2 or not isinstance(call.expressions[1], exp.Order):
        return None
    value, order = call.expressions
    if isinstance(value, exp.Distinct) or order.this.find(exp.Column) is not None:
        return None
    text, separator = to_sql(respell(value.copy())), to_sql(respell(order.this.copy()))
    keys = ", ".join(to_sql(respell(key.copy())) for key in order.expressions)
    passing = " AND ".join([f"({text}) IS NOT NULL", *(f"({condition})" for condition in filters)])
    values = f"array_agg({text} ORDER BY {keys}) FILTER (WHERE {passing})"
    return parse_internal(f"array_to_string({values}, {separator})")


# ------------------------------------------------------------------------------------------ ordered sets


def _ordered_set(
    context: BindContext,
    call: exp.Expr,
    order: exp.Expr | None,
    filters: Sequence[str],
    respell: Callable[[exp.Expr], exp.Expr],
) -> exp.Expr:
    name, arguments = call.name.lower(), call.expressions
    usage = "mode() WITHIN GROUP (ORDER BY x)" if name == "mode" else f"{name}(0.5) WITHIN GROUP (ORDER BY x)"
    if name == "mode" and order is None and len(arguments) == 1:
        keys = [exp.Ordered(this=arguments[0])]  # mode(x)
    elif order is None or len(arguments) != (name != "mode"):
        raise context.fail(f"`{name}` is called differently", call, f"write {usage}")
    else:
        keys = order.expressions
    if len(keys) != 1:
        raise context.fail(f"`{name}` orders by one value", call, f"write {usage}")
    ordered = respell(keys[0].this.copy())
    value = to_sql(ordered)
    direction = " DESC" if keys[0].args.get("desc") else ""
    passing = " AND ".join([f"({value}) IS NOT NULL", *(f"({condition})" for condition in filters)])
    if name == "percentile_cont":
        placeholder = exp.Anonymous(this=PERCENTILE, expressions=[ordered, parse_internal(passing)])
        placeholder.meta["rewritten"] = True
        placeholder.meta["percentile"] = (direction, _fractions(context, call, arguments[0]))
        return placeholder
    values = f"array_agg({value} ORDER BY {value}{direction}) FILTER (WHERE {passing})"
    if name == "mode":
        return parse_internal(f"array_element({values}, mode__position(arrow_cast({values}, 'List(Utf8)')))")
    fractions = _fractions(context, call, arguments[0])
    return parse_internal(_percentiles(values, fractions, _discrete))


def continuous_percentile(context: BindContext, node: exp.Expr, type_of: TypeOf) -> exp.Expr:
    """What a call of `PERCENTILE` stands for: an interval of intervals, a DOUBLE of numbers."""
    value, passing = node.expressions
    direction, fractions = node.meta["percentile"]
    text, kind = to_sql(value), type_of(value)
    compute, order = _continuous, text
    # DataFusion takes array_agg(CAST(x AS DOUBLE)) and array_agg(x) for one column.
    listed = f"arrow_cast({text}, 'Float64')"
    length = None if kind is None else length_of(value, kind)
    if kind is not None and length is not None:
        compute, order, listed = _continuous_interval, to_sql(length), to_sql(interval_of(value, kind))
    elif kind is not None and not any(test(kind) for test in _IS_NUMBER):
        raise context.fail(
            f"`percentile_cont` takes numbers and intervals, and this is {type_name(kind)}",
            value,
            "percentile_disc(0.5) WITHIN GROUP (ORDER BY x) is one of the values, of any type",
        )
    values = f"array_agg({listed} ORDER BY {order}{direction}) FILTER (WHERE {to_sql(passing)})"
    return parse_internal(_percentiles(values, fractions, compute))


_IS_NUMBER: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)


def _percentiles(values: str, fractions: _Fractions, compute: Callable[[str, float | None], str]) -> str:
    """The percentile of an ordered list for a fraction, or a list of them for a list."""
    if not isinstance(fractions, list):
        return compute(values, fractions)
    items = ", ".join(compute(values, fraction) for fraction in fractions)
    return f"CASE WHEN array_length({values}) > 0 THEN make_array({items}) END"


def _fractions(context: BindContext, call: exp.Expr, node: exp.Expr) -> _Fractions:
    """The fraction or fractions that a percentile is asked for."""
    name = call.name.lower()
    hint = f"a number between 0 and 1, such as {name}(0.5)"
    if node.find(exp.Column, exp.Query) is not None:
        raise context.fail(f"the fraction of `{name}` is the same for all groups", node, hint)
    with context.planning(node):
        value = context.planner.constant(to_sql(node))
    numbers = value if isinstance(value, list) else [value]
    fractions: list[float | None] = []
    for number in numbers:
        try:
            fraction = None if number is None else float(str(number))
        except ValueError:
            fraction = -1.0
        if fraction is not None and not 0 <= fraction <= 1:
            raise context.fail(f"{number} is not a fraction", node, hint)
        fractions.append(fraction)
    return fractions if isinstance(value, list) else fractions[0]


def _discrete(values: str, fraction: float | None) -> str:
    """The first value at which the share of values up to it reaches the requested fraction."""
    if fraction is None:
        return f"CASE WHEN FALSE THEN array_element({values}, 1) END"
    position = f"ceil(CAST({fraction!r} AS DOUBLE) * CAST(array_length({values}) AS DOUBLE))"
    return f"array_element({values}, CAST(greatest({position}, CAST(1 AS DOUBLE)) AS BIGINT))"


def _continuous(values: str, fraction: float | None) -> str:
    """A value interpolated between two neighbours, as PostgreSQL computes it."""
    if fraction is None:
        return "CAST(NULL AS DOUBLE)"
    row, low, high = _neighbours(values, fraction)
    between = f"{low} + ({row} - floor({row})) * ({high} - {low})"
    return f"CASE WHEN floor({row}) = ceil({row}) THEN {low} ELSE {between} END"


def _continuous_interval(values: str, fraction: float | None) -> str:
    """An interval between two neighbours."""
    if fraction is None:
        return "arrow_cast(NULL, 'Interval(MonthDayNano)')"
    row, low, high = _neighbours(values, fraction)
    between = f"{low} + interval__multiply({high} - {low}, {row} - floor({row}))"
    return f"CASE WHEN floor({row}) = ceil({row}) THEN {low} ELSE {between} END"


def _neighbours(values: str, fraction: float) -> tuple[str, str, str]:
    """(the place of a fraction in a list, counted from 0; the values before and behind it)."""
    row = f"(CAST({fraction!r} AS DOUBLE) * (CAST(array_length({values}) AS DOUBLE) - CAST(1 AS DOUBLE)))"
    low, high = (
        f"array_element({values}, CAST({side}({row}) + CAST(1 AS DOUBLE) AS BIGINT))"
        for side in ("floor", "ceil")
    )
    return row, low, high


# -------------------------------------------------------------------------------------------------- JSON


def _json(
    context: BindContext,
    call: exp.Expr,
    filters: Sequence[str],
    respell: Callable[[exp.Expr], exp.Expr],
) -> exp.Expr:
    """`json_agg(x ORDER BY y)` and `json_object_agg(k, v)`: text made of a list of JSON."""
    name, arguments, order, is_distinct = call.name.lower(), list(call.expressions), [], False
    if arguments and isinstance(arguments[-1], exp.Order):
        order = arguments[-1].expressions
        arguments[-1] = arguments[-1].this
    if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        is_distinct, arguments = True, list(arguments[0].expressions)
    has_pairs = "object" in name
    if len(arguments) != 1 + has_pairs or any(isinstance(argument, exp.Star) for argument in arguments):
        usage = f"{name}(key, value)" if has_pairs else f"{name}(value)"
        raise context.fail(f"`{name}` is called differently", call, f"write {usage}")
    texts = [to_sql(respell(argument.copy())) for argument in arguments]
    item = f"coalesce({json_value_of(name)}({texts[-1]}), 'null')"
    if has_pairs:
        item = f"json__pair(CAST({texts[0]} AS TEXT), {item})"
    keys = [to_sql(respell(key.copy())) for key in order]
    if is_distinct:
        if order and [to_sql(key.this) for key in order] != [to_sql(arguments[0])]:
            hint = "order by what is distinct, or leave ORDER BY out"
            raise context.fail("distinct values are ordered by themselves", call, hint)
        direction = " DESC" if order and order[0].args.get("desc") else ""
        keys = [f"{item}{direction}"]
    by = f" ORDER BY {', '.join(keys)}" if keys else ""
    where = f" FILTER (WHERE {' AND '.join(f'({condition})' for condition in filters)})" if filters else ""
    values = f"array_agg({'DISTINCT ' * is_distinct}{item}{by}){where}"
    build = "json__array" if not has_pairs else f"{name.split('_')[0]}__object"
    return copy_marks(call, parse_internal(f"{build}({values})"))
