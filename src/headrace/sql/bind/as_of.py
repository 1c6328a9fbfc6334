"""Joins with versions: `ASOF JOIN`, and `JOIN t FOR SYSTEM_TIME AS OF s.ts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from sqlglot import exp

from headrace.model.fragments import EPOCH_CLOCK
from headrace.operators.as_of_join import AsOf
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.filters import all_of
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.joins import JoinClause, bind_lookup_join, split_conditions
from headrace.sql.bind.logical import AsOfRelation, Map, Relation, Scan
from headrace.sql.bind.relations import lookup_of, where_map
from headrace.sql.bind.scope import as_expression
from headrace.sql.bind.time_bounds import event_time_of
from headrace.sql.bind.volatile import CLOCK, call_name_of
from headrace.sql.parse.dialect import to_sql

_MIRRORED: Mapping[str, Literal[">=", ">", "<=", "<"]] = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}
_COMPARISONS: Mapping[type[exp.Expr], Literal[">=", ">", "<=", "<"]] = {
    exp.GTE: ">=",
    exp.GT: ">",
    exp.LTE: "<=",
    exp.LT: "<",
}
_USAGE = "write a ASOF JOIN b MATCH_CONDITION (a.ts >= b.ts) ON a.k = b.k"
_EVENT_TIMES = "MATCH_CONDITION compares the event times of both tables: the columns of their WATERMARKs"
_VERSIONED = "write JOIN rates FOR SYSTEM_TIME AS OF o.ts ON o.currency = rates.currency"


def bind_as_of_join(
    tables: FromTables, left: Relation, right: Relation, clause: JoinClause, using: Sequence[str]
) -> Relation:
    """`a ASOF [LEFT] JOIN b MATCH_CONDITION (a.ts >= b.ts) ON a.k = b.k`, or with the comparison in ON.

    USING compares its last column by `>=`, as DuckDB does.
    """
    context, node = tables.context, clause.node
    written = node.args.get("match_condition")
    conditions = list(clause.conditions)
    if written is not None:
        comparison = tables.scope.resolve(written.unnest())
    elif using:
        *conditions, last = conditions
        comparison = exp.GTE(this=last.this, expression=last.expression)
    else:
        comparisons = [condition for condition in conditions if type(condition.unnest()) in _COMPARISONS]
        if len(comparisons) != 1:
            message = "an ASOF JOIN compares the times of both sides once"
            raise context.fail(message, node, _USAGE)
        comparison = comparisons[0].unnest()
        conditions.remove(comparisons[0])
    _refuse_changes(context, left, node, "ASOF JOIN")
    match = _match_of(context, left, right, comparison, node)
    return _versions(tables, left, right, clause, conditions, match, what="ASOF JOIN")


def bind_system_time_join(
    tables: FromTables, left: Relation, right: Relation, clause: JoinClause, time: exp.Expr
) -> Relation:
    """`JOIN t FOR SYSTEM_TIME AS OF s.ts`: each row with the version that was valid at its event time."""
    context = tables.context
    table = lookup_of(right)
    if table is not None:
        if not _is_clock(left, time):
            message = f"lookup table `{table.name}` has no versions: it is read as it is now"
            raise context.fail(message, time, "write FOR SYSTEM_TIME AS OF proctime(), or leave it out")
        return bind_lookup_join(tables, left, right, clause)
    _refuse_changes(context, left, clause.node, "FOR SYSTEM_TIME AS OF")
    side = event_time_of(context, time, left, right)
    if side != ("left", 0):
        written = to_sql(clause.node.this.args["version"].expression)
        message = f"`{written}` is not the event time of the rows on the left"
        if _is_clock(left, time):
            message = "a table of a stream is joined as of event time, not as of the clock"
        raise context.fail(message, clause.node, f"name the column of their WATERMARK; {_VERSIONED}")
    return _versions(tables, left, right, clause, clause.conditions, AsOf(), what="FOR SYSTEM_TIME AS OF")


def _refuse_changes(context: BindContext, left: Relation, node: exp.Join, what: str) -> None:
    if left.updating:
        hint = "join it before the aggregate, or with a plain JOIN"
        raise context.fail(f"the rows on the left of {what} may change", node, hint)


def _is_clock(left: Relation, time: exp.Expr) -> bool:
    """Whether an expression is the clock, or a generated column that is."""
    time = time.unnest()
    if isinstance(time, exp.Func) and call_name_of(time) in CLOCK:
        return True
    value = as_expression(time)
    relation = left
    while value.is_column:
        name = next(iter(value.columns))
        if isinstance(relation, Map):
            value = next(item.value for item in relation.items if item.name == name)
            relation = relation.input
        elif isinstance(relation, Scan):
            generated = {item.name: item.value for item in relation.generated}
            if name not in generated:
                return False
            value = generated[name]
        else:
            return False
    return f"{EPOCH_CLOCK}()" in value.text


def _match_of(
    context: BindContext, left: Relation, right: Relation, comparison: exp.Expr, node: exp.Join
) -> AsOf:
    kind = _COMPARISONS.get(type(comparison))
    if kind is None:
        raise context.fail(f"`{to_sql(comparison)}` does not compare two times", node, _USAGE)
    first = event_time_of(context, comparison.this, left, right)
    second = event_time_of(context, comparison.expression, left, right)
    if first is None or second is None or first[0] == second[0]:
        raise context.fail("an ASOF JOIN compares the event times of both sides", node, _EVENT_TIMES)
    if first[0] == "left":
        return AsOf(kind, second[1] - first[1])
    return AsOf(_MIRRORED[kind], first[1] - second[1])


def _versions(
    tables: FromTables,
    left: Relation,
    right: Relation,
    clause: JoinClause,
    conditions: Sequence[exp.Expr],
    match: AsOf,
    *,
    what: str,
) -> Relation:
    context, node, kind = tables.context, clause.node, clause.kind
    if kind not in ("inner", "left"):
        message = f"{what} cannot be a {kind.upper()} JOIN"
        raise context.fail(message, node, "JOIN and LEFT JOIN are possible")
    keys, rest = split_conditions(context, left, right, conditions)
    filters = [] if kind == "left" or what == "ASOF JOIN" else rest
    if rest and not filters:
        hint = "write other conditions in WHERE, or filter the right side in a subquery"
        raise context.fail(f"beside the times {what} compares keys by =", node, hint)
    if right.updating and not _identify(right, [pair[1].columns for pair in keys]):
        hint = f"compare all columns of the primary key: {', '.join(right.key)}" if right.key else _VERSIONED
        raise context.fail(f"the versions of {what} are those of a primary key", node, hint)
    fields = [pa.field(f.name, f.type, f.nullable or kind == "left") for f in right.columns]
    joined: Relation = AsOfRelation(
        pa.schema([*left.columns, *fields]),
        left=left,
        right=right,
        kind=kind,
        keys=tuple(keys),
        match=match,
    )
    tables.update_columns(joined)
    return where_map(joined, as_expression(all_of(filters))) if filters else joined


def _identify(right: Relation, compared: Sequence[frozenset[str]]) -> bool:
    """Whether what is compared tells a row of an updating relation from all others."""
    names = frozenset().union(*compared)
    return bool(right.key) and frozenset(right.key) <= names
