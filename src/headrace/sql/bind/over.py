"""Window functions: `row_number() OVER (PARTITION BY … ORDER BY …)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExpressionError, suggest
from headrace.sql.bind.calls import call_name, find_over, replace_parts
from headrace.sql.bind.logical import TIES, Item, Relation, WindowCalls
from headrace.sql.bind.relations import window_part
from headrace.sql.bind.scope import as_expression, column_of, identifier_name
from headrace.sql.parse.dialect import to_sql

if TYPE_CHECKING:
    from headrace.sql.bind.binder import Binder


def bind_over(
    binder: Binder, select: exp.Select, relation: Relation, nodes: list[exp.Expr]
) -> tuple[Relation, list[exp.Expr]]:
    """The relation with the window functions of a SELECT list, and the list over its columns."""
    calls: dict[str, str] = {}
    windows: list[exp.Window] = []
    for node in nodes:
        for found in find_over(node):
            text = to_sql(found)
            if text not in calls:
                calls[text] = f"over{len(calls)}"
                windows.append(found)
    if not calls:
        return relation, nodes
    made = window_calls(binder, select, relation, [(calls[to_sql(one)], one) for one in windows])

    def replacement(part: exp.Expr) -> exp.Expr | None:
        name = calls.get(to_sql(part)) if isinstance(part, exp.Window) else None
        return None if name is None else column_of(name)

    return made, [replace_parts(node, replacement) for node in nodes]


def inline_windows(binder: Binder, select: exp.Select) -> None:
    """`OVER w` becomes what `WINDOW w AS (…)` says."""
    named = {identifier_name(one.this): one for one in select.args.get("windows") or ()}
    for found in (one for node in select.expressions for one in find_over(node)):
        alias = found.args.get("alias")
        if alias is None:
            continue
        known = named.get(identifier_name(alias))
        if known is None:
            hint = suggest(identifier_name(alias), named) or "write OVER (…)"
            raise binder.fail(f"there is no WINDOW `{identifier_name(alias)}`", found, hint)
        for key, value in known.copy().args.items():
            if key in ("partition_by", "order", "spec"):
                found.set(key, value)
        found.set("alias", None)


def window_calls(
    binder: Binder, select: exp.Select, relation: Relation, calls: list[tuple[str, exp.Window]]
) -> WindowCalls:
    """Rows with window functions beside them."""
    calls = [(name, _without_ties(call, binder.planner.aggregates)) for name, call in calls]
    partitions = [{to_sql(one): one for one in call.args.get("partition_by") or ()} for _, call in calls]
    common = [text for text in partitions[0] if all(text in other for other in partitions)]
    windowing = relation.windowing
    by_instant = False
    keys: list[Item] = []
    for text in common:
        value = as_expression(partitions[0][text])
        if windowing is not None and window_part(value, windowing) is not None:
            by_instant = True
        else:
            keys.append(Item(f"by{len(keys)}", value))
    items = [Item(name, as_expression(call)) for name, call in calls]
    hidden = [pa.field(name, pa.timestamp("ns"), nullable=False) for name in (TIMESTAMP, TIES)]
    schema = pa.schema([*relation.columns, *hidden])
    try:
        types = binder.planner.types([item.value.text for item in items], schema)
    except ExpressionError as error:
        raise binder.fail(error.message, select, error.hint) from error
    columns = pa.schema(
        [*relation.columns, *(f.with_name(item.name) for f, item in zip(types, items, strict=True))]
    )
    return WindowCalls(
        columns,
        updating=not by_instant,
        windowing=windowing if by_instant else None,
        key=relation.key,
        input=relation,
        calls=tuple(items),
        partition=tuple(keys),
        by_instant=by_instant,
        numbered=_order_of_numbers([call for _, call in calls]),
    )


_ONE_ROW = ("row_number", "lag", "lead", "ntile", "first_value")
"""Window functions whose result depends on which of two rows in the same place of the order comes first."""


def _order_of_numbers(calls: list[exp.Window]) -> str | None:
    """The order in which rows are numbered, if nothing else is asked for."""
    order = calls[0].args.get("order")
    if len(calls) > 1 or calls[0].args.get("spec") is not None or order is None:
        return None
    if call_name(calls[0].this) != "row_number":
        return None
    return ", ".join(to_sql(one) for one in order.expressions)


def _without_ties(call: exp.Window, aggregates: frozenset[str]) -> exp.Window:
    """Let no two rows have the same place, so that a replay and another parallelism give the same.

    An aggregate over a whole partition goes through it in that order too: a sum of floats depends on it.
    """
    inner = call.this
    while not isinstance(inner, exp.Anonymous) and isinstance(inner.this, exp.Expr):
        inner = inner.this
    name, order = call_name(inner), call.args.get("order")
    whole = name in aggregates and name not in _ONE_ROW and order is None
    if call.args.get("spec") is not None or not (whole or name in _ONE_ROW):
        return call
    made = call.copy()
    ties = [exp.Ordered(this=column_of(column)) for column in (TIMESTAMP, TIES)]
    made.set("order", exp.Order(expressions=[*(order.expressions if order is not None else ()), *ties]))
    if whole:
        spec = exp.WindowSpec(
            kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
        )
        made.set("spec", spec)
    return made
