"""Window functions: `row_number() OVER (PARTITION BY … ORDER BY …)`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import suggest
from headrace.functions.arithmetic import wide_sum
from headrace.sql.bind.calls import call_name, find_over, replace_parts
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import TIES, Item, Relation, WindowCalls
from headrace.sql.bind.postgres_calls import parse_expression
from headrace.sql.bind.relations import window_part
from headrace.sql.bind.scope import as_expression, column_of, identifier_name
from headrace.sql.parse.dialect import to_sql
from headrace.sql.types import type_name


def bind_over(
    context: BindContext, select: exp.Select, relation: Relation, nodes: list[exp.Expr]
) -> tuple[Relation, list[exp.Expr]]:
    """The relation with the window functions of a SELECT list, and the list over its columns."""
    windows: dict[str, exp.Window] = {}
    for node in nodes:
        for window in find_over(node):
            windows.setdefault(to_sql(window), window)
    if not windows:
        return relation, nodes
    columns = {text: f"over{index}" for index, text in enumerate(windows)}
    calls = [(columns[text], window) for text, window in windows.items()]

    def replacement(part: exp.Expr) -> exp.Expr | None:
        name = columns.get(to_sql(part)) if isinstance(part, exp.Window) else None
        return None if name is None else column_of(name)

    relation = bind_window_calls(context, select, relation, calls)
    return relation, [replace_parts(node, replacement) for node in nodes]


def inline_windows(context: BindContext, select: exp.Select) -> None:
    """Replace `OVER w` and `OVER (w …)` by what `WINDOW w AS (…)` says."""
    windows: dict[str, exp.Window] = {}
    for window in select.args.get("windows") or ():
        _inline_window(context, window, windows)  # a window may go on from one before it
        windows[identifier_name(window.this)] = window
    qualify = select.args.get("qualify")
    nodes = [*select.expressions, *([] if qualify is None else [qualify])]
    for call in (call for node in nodes for call in find_over(node)):
        _inline_window(context, call, windows)


def _inline_window(context: BindContext, window: exp.Window, windows: Mapping[str, exp.Window]) -> None:
    """Add the clauses of the named window to a window that extends it, as PostgreSQL does."""
    alias = window.args.get("alias")
    if alias is None:
        return
    name = identifier_name(alias)
    if name not in windows:
        hint = suggest(name, windows) or "write OVER (…)"
        raise context.fail(f"there is no WINDOW `{name}`", window, hint)
    base = windows[name]
    goes_on = [part for part in ("partition_by", "order", "spec") if window.args.get(part)]
    if "partition_by" in goes_on:
        raise context.fail(f"PARTITION BY cannot be added to WINDOW `{name}`", window, "write OVER (…) whole")
    if "order" in goes_on and base.args.get("order"):
        raise context.fail(f"WINDOW `{name}` has an ORDER BY already", window, "write OVER (…) whole")
    if goes_on and base.args.get("spec"):
        raise context.fail(
            f"WINDOW `{name}` has a frame, and nothing can be added to it", window, "write OVER (…) whole"
        )
    for part, value in base.copy().args.items():
        if part in ("partition_by", "order", "spec") and value and part not in goes_on:
            window.set(part, value)
    window.set("alias", None)


def bind_window_calls(
    context: BindContext, select: exp.Select, relation: Relation, calls: list[tuple[str, exp.Window]]
) -> WindowCalls:
    """Rows with window functions beside them."""
    hidden = [pa.field(name, pa.timestamp("ns"), nullable=False) for name in (TIMESTAMP, TIES)]
    schema = pa.schema([*relation.columns, *hidden])
    calls = [(name, _break_ties(call, context.planner.aggregates)) for name, call in calls]
    partitions = [{to_sql(by): by for by in call.args.get("partition_by") or ()} for _, call in calls]
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
    items = [Item(name, as_expression(_checked_sum(context, call, schema))) for name, call in calls]
    with context.planning(select):
        types = context.planner.types([item.value.text for item in items], schema)
    for _, call in calls:
        _check_frame(context, call, schema)
    results = [field.with_name(item.name) for field, item in zip(types, items, strict=True)]
    return WindowCalls(
        pa.schema([*relation.columns, *results]),
        updating=not by_instant,
        windowing=windowing if by_instant else None,
        key=relation.key,
        input=relation,
        calls=tuple(items),
        partition=tuple(keys),
        by_instant=by_instant,
        numbered=_row_number_order([call for _, call in calls]),
    )


def _check_frame(context: BindContext, call: exp.Window, schema: pa.Schema) -> None:
    """Refuse frames for which DataFusion's results make no sense: distances between texts, the 0th value."""
    inner = call.this.this if isinstance(call.this, exp.Filter | exp.IgnoreNulls) else call.this
    if call_name(inner) == "nth_value" and len(inner.expressions) > 1 and inner.expressions[1].name == "0":
        raise context.fail("`nth_value` counts from 1", inner, "nth_value(x, 1)")
    spec, order = call.args.get("spec"), call.args.get("order")
    if spec is None or order is None or (spec.args.get("kind") or "").upper() != "RANGE":
        return
    if not any(isinstance(spec.args.get(end), exp.Expr) for end in ("start", "end")):
        return
    key = order.expressions[0].this
    with context.planning(call):
        kind = context.planner.types([to_sql(key)], schema)[0].type
    offsets = [spec.args[end] for end in ("start", "end") if isinstance(spec.args.get(end), exp.Expr)]
    is_time = pa.types.is_temporal(kind) or pa.types.is_interval(kind)
    if pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_binary(kind):
        hint = "order by a number or a time, or write ROWS"
        raise context.fail(f"RANGE has no distance between values of {type_name(kind)}", call, hint)
    if is_time and any(offset.is_number for offset in offsets):
        hint = "write RANGE BETWEEN INTERVAL '1 day' PRECEDING AND CURRENT ROW"
        raise context.fail(f"the distance between values of {type_name(kind)} is an INTERVAL", call, hint)


def _checked_sum(context: BindContext, call: exp.Window, schema: pa.Schema) -> exp.Expr:
    """A sum of BIGINT over a frame that raises where it would wrap."""
    node = call.copy()
    inner = node.this.this if isinstance(node.this, exp.Filter) else node.this
    if (
        call_name(inner) != "sum"
        or len(inner.expressions) != 1
        or isinstance(inner.expressions[0], exp.Distinct)
    ):
        return node
    value = to_sql(inner.expressions[0])
    with context.planning(inner):
        if context.planner.types([value], schema)[0].type != pa.int64():
            return node
    inner.replace(parse_expression(wide_sum(value)))
    return exp.Anonymous(this="bigint__total", expressions=[node])


_ORDER_SENSITIVE = ("row_number", "lag", "lead", "ntile", "first_value")
"""Window functions whose result depends on which of two rows in the same place of the order comes first."""


def _row_number_order(calls: list[exp.Window]) -> str | None:
    """The order in which rows are numbered, if nothing else is asked for."""
    order = calls[0].args.get("order")
    if len(calls) > 1 or calls[0].args.get("spec") is not None or order is None:
        return None
    if call_name(calls[0].this) != "row_number":
        return None
    return ", ".join(to_sql(item) for item in order.expressions)


def _break_ties(call: exp.Window, aggregates: frozenset[str]) -> exp.Window:
    """Order rows that the user's order leaves equal, so that a replay and another parallelism give the same.

    An aggregate over a whole partition goes through it in that order too: a sum of floats depends on it.
    """
    inner = call.this
    while not isinstance(inner, exp.Anonymous) and isinstance(inner.this, exp.Expr):
        inner = inner.this
    name, order = call_name(inner), call.args.get("order")
    whole = name in aggregates and name not in _ORDER_SENSITIVE and order is None
    if call.args.get("spec") is not None or not (whole or name in _ORDER_SENSITIVE):
        return call
    ordered = call.copy()
    ties = [exp.Ordered(this=column_of(column)) for column in (TIMESTAMP, TIES)]
    ordered.set("order", exp.Order(expressions=[*(order.expressions if order is not None else ()), *ties]))
    if whole:
        spec = exp.WindowSpec(
            kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
        )
        ordered.set("spec", spec)
    return ordered
