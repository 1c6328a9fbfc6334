"""Lowers relations to operators: chooses the function that lowers each kind of relation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.problems import Problems
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import plain_schema, quote
from headrace.sql.bind.logical import (
    Aggregate,
    AsOfRelation,
    AsyncCalls,
    ClockFilter,
    Constants,
    DeadLetters,
    Join,
    LateScan,
    LookupJoinRelation,
    Map,
    Ordered,
    Relation,
    Scan,
    StreamScan,
    TableCall,
    Union,
    WindowCalls,
)
from headrace.sql.bind.planning import Planner
from headrace.sql.lower.aggregates import lower_aggregate
from headrace.sql.lower.as_of import lower_as_of_join
from headrace.sql.lower.calls import lower_async_calls, lower_table_call
from headrace.sql.lower.common_subplans import merge_common_subplans
from headrace.sql.lower.context import LATE, MAX_DEPTH, TIME, LoweredRelation, LoweringContext
from headrace.sql.lower.copartitioning import find_copartitioning
from headrace.sql.lower.joins import lower_join
from headrace.sql.lower.over import lower_ordered, lower_window_calls
from headrace.sql.lower.required_columns import find_required_columns, makes_rows
from headrace.sql.lower.tables import lower_dead_letters, lower_late_rows, lower_lookup_join, lower_scan
from headrace.sql.lower.temporal import lower_clock_filter
from headrace.sql.state_ttl import StateTtl


def start_lowering(
    roots: Sequence[Relation],
    *,
    builder: PlanBuilder,
    planner: Planner,
    problems: Problems,
    ttl: StateTtl,
    names: Mapping[Relation, str],
) -> LoweringContext:
    """A context to lower `roots` in: what they have in common and which columns anything reads is known.

    The operators of a relation in `names`, and of what it is made of, are called after its name.
    """
    shared = merge_common_subplans(roots, functions=[function.name for function in planner.functions])
    roots = [shared[root] for root in roots]
    all_names = dict(names)
    for relation, name in names.items():
        all_names.setdefault(shared.get(relation, relation), name)
    return LoweringContext(
        builder,
        planner,
        problems,
        ttl=ttl,
        lower_new=_lower,
        shared=shared,
        required=find_required_columns(roots),
        copartitioning=find_copartitioning(roots),
        names=all_names,
    )


def _lower(context: LoweringContext, relation: Relation) -> LoweredRelation:
    return _LOWERINGS[type(relation)](context, relation)


def _lower_stream_scan(context: LoweringContext, relation: StreamScan) -> LoweredRelation:
    return LoweredRelation(relation.ports, context.batch_schema(relation, relation.columns.names))


def _lower_constants(context: LoweringContext, relation: Constants) -> LoweredRelation:
    port = context.builder.add(
        "source", "memory", [], id=context.operator_id("values"), options={"rows": relation.rows}
    )
    return LoweredRelation((port,), plain_schema(pa.schema([*relation.columns, TIME])))


def _lower_map(context: LoweringContext, relation: Map) -> LoweredRelation:
    rows = context.lower(relation.input)
    required = set(context.columns(relation))
    # An unnest makes rows, even where nobody reads it.
    items = [item for item in relation.items if item.name in required or makes_rows(item)]
    is_plain = all(item.value.text == quote(item.name) for item in items)
    names = [item.name for item in items]
    if is_plain and relation.where is None and names == _emitted_columns(context, relation.input):
        return rows
    if rows.depth >= MAX_DEPTH:
        rows = context.apply_sql(rows)
    hidden = [TIMESTAMP, *([RETRACT] if relation.updating else [])]
    hidden += [LATE] if rows.late_of is not None else []
    texts = [f"{item.value.text} AS {quote(item.name)}" for item in items]
    where = "" if relation.where is None else f" WHERE {relation.where.text}"
    return rows.select([*texts, *map(quote, hidden)], where=where)


def _emitted_columns(context: LoweringContext, relation: Relation) -> list[str]:
    """The columns of the rows that reach the next operator: a stream of the plan has all of its own."""
    return relation.columns.names if isinstance(relation, StreamScan) else context.columns(relation)


def _lower_union(context: LoweringContext, relation: Union) -> LoweredRelation:
    ports: list[Port] = []
    schema = context.batch_schema(relation)
    columns = [quote(name) for name in [*context.columns(relation), TIMESTAMP]]
    for source in relation.inputs:
        rows, items = context.lower(source), columns
        if relation.updating:
            items = [*columns, quote(RETRACT) if source.updating else f"FALSE AS {quote(RETRACT)}"]
        ports += context.apply_sql(rows.select(items)).ports
    return LoweredRelation(tuple(ports), schema)


_LOWERINGS: Final[Mapping[type[Relation], Callable[[LoweringContext, Any], LoweredRelation]]] = {
    Scan: lower_scan,
    LateScan: lower_late_rows,
    DeadLetters: lower_dead_letters,
    StreamScan: _lower_stream_scan,
    Constants: _lower_constants,
    Map: _lower_map,
    Aggregate: lower_aggregate,
    ClockFilter: lower_clock_filter,
    Join: lower_join,
    AsOfRelation: lower_as_of_join,
    LookupJoinRelation: lower_lookup_join,
    TableCall: lower_table_call,
    AsyncCalls: lower_async_calls,
    WindowCalls: lower_window_calls,
    Ordered: lower_ordered,
    Union: _lower_union,
}
