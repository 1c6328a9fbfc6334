"""Lowers joins: window joins, interval joins, and joins of append-only and of updating rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.fragments import quote
from headrace.operators.interval_join import POSITIONS, IntervalJoin
from headrace.operators.updating_fragment import UpdatingFragment
from headrace.operators.updating_join import UpdatingJoin
from headrace.operators.windowed_fragment import WindowedFragment
from headrace.sql.bind.logical import Expression, Join, Relation, TimeBounds
from headrace.sql.lower.context import LoweredRelation, LoweringContext, shuffle, without


def lower_join(context: LoweringContext, relation: Join) -> LoweredRelation:
    """The pairs of rows that meet."""
    if relation.time_bounds is not None and relation.kind != "inner":
        return _lower_outer_interval_join(context, relation, relation.time_bounds)
    updating = (relation.left.updating, relation.right.updating)
    is_inner = relation.kind == "inner" and not relation.windowed
    keys = [key_columns([pair[index] for pair in relation.keys]) for index in (0, 1)]
    if is_inner and not relation.keys:
        keys = [{f"{TIMESTAMP}:key": Expression("0")}] * 2  # all rows meet in one subtask
    sides = [
        lower_side(context, side, values, updating=any(updating))
        for side, values in zip((relation.left, relation.right), keys, strict=True)
    ]
    schemas = [side.schema if is_inner else without(side.schema, RETRACT) for side in sides]
    fragment = context.fragment(
        _join_sql(context, relation, keys, retract=is_inner and any(updating)),
        {"input0": schemas[0], "input1": schemas[1]},
    )
    names = (tuple(keys[0]), tuple(keys[1]))
    inputs = [shuffle(side.ports, own) for side, own in zip(sides, names, strict=True)]
    if relation in context.copartitioning.joins:
        inputs = [side.ports for side in sides]
    if relation.windowed:
        return context.result(relation, context.add(WindowedFragment(fragment, names), inputs, "window_join"))
    operator: UpdatingJoin | UpdatingFragment
    if is_inner:
        bounds = relation.time_bounds
        operator = UpdatingJoin(fragment, names, ttl=context.ttl.joins, updating=updating, time_bounds=bounds)
    else:
        operator = UpdatingFragment(fragment, names, ttl=context.ttl.joins, updating=(any(updating),) * 2)
    return context.result(relation, context.add(operator, inputs, "join"))


def _lower_outer_interval_join(
    context: LoweringContext, relation: Join, time_bounds: TimeBounds
) -> LoweredRelation:
    """The pairs of rows near each other in event time, and the rows that have no partner."""
    kind = relation.kind
    if kind == "inner" or kind == "semi" or kind == "anti":  # noqa: PLR1714 - mypy follows no `in`
        raise AssertionError
    keys = [key_columns([pair[index] for pair in relation.keys]) for index in (0, 1)]
    if not relation.keys:
        keys = [{f"{TIMESTAMP}:key": Expression("0")}] * 2
    sides = [
        lower_side(context, side, values, updating=False)
        for side, values in zip((relation.left, relation.right), keys, strict=True)
    ]
    fragment = context.fragment(
        _join_sql(context, relation, keys, retract=False, positions=True),
        {
            f"input{index}": side.schema.append(pa.field(position, pa.int64()))
            for index, (side, position) in enumerate(zip(sides, POSITIONS, strict=True))
        },
    )
    names = (tuple(keys[0]), tuple(keys[1]))
    operator = IntervalJoin(fragment, names, kind=kind, time_bounds=time_bounds)
    inputs = [shuffle(side.ports, own) for side, own in zip(sides, names, strict=True)]
    return context.result(relation, context.add(operator, inputs, "join"))


def lower_side(
    context: LoweringContext, side: Relation, keys: Mapping[str, Expression], *, updating: bool
) -> LoweredRelation:
    """The columns of a side that are read, and what it is joined by."""
    columns = context.columns(side)
    items = [quote(name) for name in columns]
    items += [f"{value.text} AS {quote(key)}" for key, value in keys.items() if key not in columns]
    items += [quote(TIMESTAMP)]
    if updating:
        items.append(quote(RETRACT) if side.updating else f"FALSE AS {quote(RETRACT)}")
    return context.apply_sql(context.lower(side).select(items))


def _join_sql(
    context: LoweringContext,
    relation: Join,
    keys: Sequence[Mapping[str, Expression]],
    *,
    retract: bool,
    positions: bool = False,
) -> str:
    is_filter = relation.kind in ("semi", "anti")
    sides = [("l", relation.left), ("r", relation.right)]
    items = [
        f"{table}.{quote(name)} AS {quote(name)}"
        for table, side in (sides[:1] if is_filter else sides)
        for name in context.columns(relation)
        if name in side.columns.names
    ]
    time = quote(TIMESTAMP)
    items.append(f"l.{time} AS {time}" if is_filter else f"greatest(l.{time}, r.{time}) AS {time}")
    if retract:
        items.append(f"l.{quote(RETRACT)} <> r.{quote(RETRACT)} AS {quote(RETRACT)}")
    if positions:
        items += [
            f"{table}.{quote(name)} AS {quote(name)}" for table, name in zip("lr", POSITIONS, strict=True)
        ]
    on = [f"l.{quote(left)} = r.{quote(right)}" for left, right in zip(*keys, strict=True)]
    if relation.windowed:
        on.insert(0, f"l.{time} = r.{time}")
    if relation.condition is not None:
        on.append(f"({relation.condition.text})")
    kind = "INNER" if positions else relation.kind.upper()
    return (
        f"SELECT {', '.join(items)} FROM input0 AS l "
        f"{'LEFT ' * is_filter}{kind} JOIN input1 AS r ON {' AND '.join(on) or 'TRUE'}"
    )


def key_columns(values: Sequence[Expression]) -> dict[str, Expression]:
    """Names for what a side is joined by: a column keeps its own, so that it is not carried twice."""
    keys: dict[str, Expression] = {}
    for index, value in enumerate(values):
        own = next(iter(value.columns)) if value.is_column else TIMESTAMP
        keys[f"{TIMESTAMP}:key{index}" if own == TIMESTAMP or own in keys else own] = value
    return keys
