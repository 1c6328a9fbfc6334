"""How far apart in event time the rows of a join can be, by its conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.model.fragments import quote
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Expression, Join, Map, Relation, Scan, TimeBounds
from headrace.sql.bind.scope import as_expression
from headrace.sql.parse.dialect import to_sql


def find_time_bounds(
    context: BindContext, left: Relation, right: Relation, conditions: Sequence[exp.Expr]
) -> TimeBounds | None:
    """The least and the greatest that a left row can be later than a right row; None if nothing limits both.

    Conditions compare the event time of one side with that of the other, plus or minus an INTERVAL.
    """
    earliest: int | None = None
    latest: int | None = None
    for lower, upper in _comparisons(conditions):
        sides = [event_time_of(context, side, left, right) for side in (lower, upper)]
        if sides[0] is None or sides[1] is None or sides[0][0] == sides[1][0]:
            continue
        distance = sides[1][1] - sides[0][1]
        if sides[0][0] == "left":  # left + a ≤ right + b: left is later by b - a at most
            latest = distance if latest is None else min(latest, distance)
        else:
            earliest = -distance if earliest is None else max(earliest, -distance)
    return None if earliest is None or latest is None else (earliest, latest)


def take_time_bounds(
    context: BindContext, relation: Relation, conditions: Sequence[exp.Expr]
) -> tuple[Relation, list[exp.Expr]]:
    """Let conditions of WHERE that limit how far apart in event time rows are be conditions of their join.

    Returns the relation and the other conditions.
    """
    if not isinstance(relation, Join) or relation.kind != "inner" or relation.windowed:
        return relation, list(conditions)
    left, rest = take_time_bounds(context, relation.left, conditions)
    if left is not relation.left:
        relation = replace(relation, left=left)
    if relation.updating or relation.time_bounds is not None:
        return relation, rest
    near = [node for node in rest if _is_between_sides(context, node, relation)]
    bounds = find_time_bounds(context, relation.left, relation.right, near)
    if bounds is None:
        return relation, rest
    values = [as_expression(node) for node in near]
    values += [] if relation.condition is None else [relation.condition]
    text = " AND ".join(f"({value.text})" for value in values)
    condition = Expression(text, frozenset().union(*(value.columns for value in values)))
    limited = replace(relation, condition=condition, time_bounds=bounds)
    return limited, [node for node in rest if node not in near]


def _is_between_sides(context: BindContext, node: exp.Expr, join: Join) -> bool:
    """Whether a condition compares the event times of both sides of a join."""
    for pair in _comparisons([node]):
        sides = [event_time_of(context, side, join.left, join.right) for side in pair]
        if sides[0] is not None and sides[1] is not None and sides[0][0] != sides[1][0]:
            return True
    return False


def _comparisons(conditions: Sequence[exp.Expr]) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """(what is less or equal, what is greater or equal) of each comparison."""
    for condition in conditions:
        node = condition.unnest()
        if isinstance(node, exp.Between):
            yield node.args["low"], node.this
            yield node.this, node.args["high"]
        elif isinstance(node, exp.LT | exp.LTE):
            yield node.this, node.expression
        elif isinstance(node, exp.GT | exp.GTE):
            yield node.expression, node.this


def event_time_of(
    context: BindContext, node: exp.Expr, left: Relation, right: Relation
) -> tuple[str, int] | None:
    """(side, nanoseconds) if an expression is the event time of a side plus a fixed time."""
    node, offset = node.unnest(), 0
    while isinstance(node, exp.Add | exp.Sub):
        if not isinstance(node.expression.unnest(), exp.Interval):
            return None
        months, nanoseconds = context.planner.interval(to_sql(node.expression.unnest()))
        if months:
            return None
        offset += nanoseconds if isinstance(node, exp.Add) else -nanoseconds
        node = node.this.unnest()
    value = as_expression(node)
    if not value.is_column:
        return None
    name = next(iter(value.columns))
    for side, relation in (("left", left), ("right", right)):
        if name in relation.columns.names and _is_event_time(relation, name):
            return side, offset
    return None


def _is_event_time(relation: Relation, column: str) -> bool:
    """Whether a column holds the event time of its row."""
    while isinstance(relation, Map):
        value = next(item.value for item in relation.items if item.name == column)
        if value.text == quote(TIMESTAMP):
            return True
        if not value.is_column:
            return False
        relation, column = relation.input, next(iter(value.columns))
    return (
        isinstance(relation, Scan)
        and relation.event_time is not None
        and relation.event_time.text in (quote(column), f"CAST({quote(column)} AS TIMESTAMP(9))")
    )
