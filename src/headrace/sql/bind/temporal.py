"""Conditions on the clock in WHERE and HAVING: when a row begins to pass, and when it no longer does.

`ts > now() - INTERVAL '1 hour'` lets a row pass until an hour after `ts`. Each condition compares the clock,
or `date_trunc(unit, clock)`, with an expression over the row; it becomes the first or the last instant at
which the row passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.model.fragments import EPOCH_CLOCK
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import ClockFilter, Expression, Relation
from headrace.sql.bind.relations import where_map
from headrace.sql.bind.scope import as_expression, conjuncts
from headrace.sql.parse.dialect import to_sql

_USAGE = "write conditions such as ts > now() - INTERVAL '1 hour', joined by AND"
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.EQ: "=",
}
_UNKNOWN = "this condition on the clock cannot be evaluated ahead of time"
_UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_NANOSECONDS = "arrow_cast(arrow_cast({}, 'Timestamp(Nanosecond, None)'), 'Int64')"
_CLAMPED = f"arrow_cast(least(greatest({{}}, {-(2**63) + 2}), {2**63 - 3}), 'Int64')"
"""A number as the nearest instant of 64 bits, of which an instant can still be the next."""
_LONGEST_TICK = timedelta(seconds=10)
_SHORTEST_TICK = timedelta(seconds=1)


@dataclass(frozen=True)
class _Clock:
    """The side of a comparison with the clock: perhaps truncated to a unit, plus nanoseconds."""

    unit: str | None = None
    offset: int = 0


@dataclass
class _Bounds:
    """What rows are compared with, as BIGINTs in nanoseconds."""

    first: list[str] = field(default_factory=list)
    until: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


def reads_clock(node: exp.Expr) -> bool:
    """Whether a resolved expression depends on the time of the epoch."""
    return any(call.name == EPOCH_CLOCK for call in node.find_all(exp.Anonymous))


def filter_by_clock(context: BindContext, relation: Relation, conditions: Sequence[exp.Expr]) -> Relation:
    """The rows that pass these resolved conditions at the time of each epoch."""
    if not conditions:
        return relation
    bounds, values = _Bounds(), list[exp.Expr]()
    for condition in conditions:
        for comparison, clock, value in _comparisons(context, condition):
            values.append(value)
            bounds.offsets.append(abs(clock.offset))
            _add_bound(bounds, comparison, clock, to_sql(value))
    # A comparison with null is never true.
    not_null = exp.and_(*(exp.Not(this=exp.Is(this=exp.paren(v), expression=exp.Null())) for v in values))
    relation = where_map(relation, as_expression(not_null))
    columns = frozenset(column for value in values for column in as_expression(value).columns)
    return ClockFilter(
        relation.columns,
        updating=relation.updating or bool(bounds.until),
        key=relation.key,
        input=relation,
        first=_instant("greatest", bounds.first, columns),
        until=_instant("least", bounds.until, columns),
        tick=_tick(bounds.offsets),
    )


def isolate_clock(node: exp.Expr) -> exp.Expr:
    """`now() - ts < INTERVAL '1 hour'` as `now() < ts + INTERVAL '1 hour'`, before names are resolved."""
    kind = type(node)
    if kind not in _COMPARISONS:
        return node
    for near, far in (("this", "expression"), ("expression", "this")):
        difference, length = node.args[near].unnest(), node.args[far].unnest()
        if not isinstance(difference, exp.Sub) or not isinstance(length, exp.Interval):
            continue
        later, earlier = difference.this, difference.expression
        if _is_written_clock(later.unnest()):
            parts = {near: later.copy(), far: exp.Add(this=earlier.copy(), expression=length.copy())}
        elif _is_written_clock(earlier.unnest()):
            parts = {near: exp.Sub(this=later.copy(), expression=length.copy()), far: earlier.copy()}
        else:
            continue
        isolated = kind(**parts)
        isolated.meta.update(node.meta)
        return isolated
    return node


def _is_written_clock(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in ("now", "proctime", "current_timestamp") and not node.expressions
    return isinstance(node, exp.Column) and not node.table and node.name.lower() == "current_timestamp"


def _comparisons(context: BindContext, condition: exp.Expr) -> Iterator[tuple[str, _Clock, exp.Expr]]:
    """(comparison, clock, value) for each comparison of the clock with a value of the row."""
    node = condition.unnest()
    if isinstance(node, exp.Between):
        pairs: list[tuple[str, exp.Expr, exp.Expr]] = [
            (">=", node.this, node.args["low"]),
            ("<=", node.this, node.args["high"]),
        ]
    elif type(node) in _COMPARISONS:
        pairs = [(_COMPARISONS[type(node)], node.this, node.expression)]
    else:
        raise context.fail(_UNKNOWN, node, _USAGE)
    for comparison, left, right in pairs:
        if not reads_clock(left) and not reads_clock(right):
            raise context.fail("one of these times has nothing to do with the clock", node, _USAGE)
        if reads_clock(left) and reads_clock(right):
            raise context.fail("the clock is compared with itself", node, _USAGE)
        side, value = (left, right) if reads_clock(left) else (right, left)
        clock = _clock_of(context, side, node)
        if comparison == "=" and clock.unit is None:
            message = "no row passes at one instant of the clock alone"
            raise context.fail(message, node, "compare with <= or >=, or with current_date")
        yield comparison if side is left else _MIRRORED[comparison], clock, value


def _clock_of(context: BindContext, node: exp.Expr, whole: exp.Expr) -> _Clock:
    """The clock in `now() - INTERVAL …`, `date_trunc('day', now())`, `current_date`."""
    node, offset = node.unnest(), 0
    while isinstance(node, exp.Add | exp.Sub):
        length = node.expression.unnest()
        if not isinstance(length, exp.Interval):
            break
        with context.planning(whole):
            months, nanoseconds = context.planner.interval(to_sql(length))
        if months:
            raise context.fail("months have no fixed length", whole, "use days")
        offset += nanoseconds if isinstance(node, exp.Add) else -nanoseconds
        node = node.this.unnest()
    unit = None
    if isinstance(node, exp.Cast):
        if node.to.this == exp.DataType.Type.DATE:
            unit = "day"
        elif node.to.this not in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ):
            raise context.fail(_UNKNOWN, whole, _USAGE)
        node = node.this.unnest()
    if isinstance(node, exp.Anonymous) and node.name.lower() == "date_trunc" and unit is None:
        arguments = node.expressions
        if len(arguments) == 2 and arguments[0].is_string and arguments[0].name.lower() in _UNITS:
            unit, node = arguments[0].name.lower(), arguments[1].unnest()
    if isinstance(node, exp.Anonymous) and node.name == EPOCH_CLOCK:
        return _Clock(unit, offset)
    raise context.fail(_UNKNOWN, whole, _USAGE)


def _add_bound(bounds: _Bounds, comparison: str, clock: _Clock, text: str) -> None:
    """Add when `clock comparison value` begins or ends to hold."""
    value = _NANOSECONDS.format(f"({text})")
    if clock.offset:
        value = _CLAMPED.format(f"{value} - CAST({clock.offset} AS DECIMAL(38, 0))")
    if clock.unit is None:
        later = f"({value} + 1)"
        if comparison in (">", ">="):
            bounds.first.append(later if comparison == ">" else value)
        else:
            bounds.until.append(later if comparison == "<=" else value)
        return
    instant = f"arrow_cast({value}, 'Timestamp(Nanosecond, None)')"
    floor = f"date_trunc('{clock.unit}', {instant})"
    length = "3 months" if clock.unit == "quarter" else f"1 {clock.unit}"
    following = _NANOSECONDS.format(f"({floor} + INTERVAL '{length}')")
    ceiling = f"CASE WHEN {floor} = {instant} THEN {value} ELSE {following} END"
    # The truncated clock is greater than a value from the next unit on, and not less from its ceiling on.
    if comparison in (">", ">=", "="):
        bounds.first.append(following if comparison == ">" else ceiling)
    if comparison in ("<", "<=", "="):
        bounds.until.append(ceiling if comparison == "<" else following)


def _instant(
    function: Literal["greatest", "least"], texts: Sequence[str], columns: frozenset[str]
) -> Expression | None:
    if not texts:
        return None
    text = texts[0] if len(texts) == 1 else f"{function}({', '.join(texts)})"
    return Expression(f"arrow_cast({text}, 'Timestamp(Nanosecond, None)')", columns - {TIMESTAMP})


def _tick(offsets: Sequence[int]) -> timedelta:
    """How often rows are looked for that enter or leave while none come: a sixtieth of the shortest time."""
    shortest = min((offset for offset in offsets if offset), default=0)
    return min(max(timedelta(microseconds=shortest / 60_000), _SHORTEST_TICK), _LONGEST_TICK)


def split_by_clock(condition: exp.Expr) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """The conditions that AND joins: (those on the clock, the others)."""
    nodes = list(conjuncts(condition))
    return [node for node in nodes if reads_clock(node)], [node for node in nodes if not reads_clock(node)]
