"""Binds queries: names become columns, a query becomes a relation."""

from __future__ import annotations

from functools import partial

from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Relation, Union
from headrace.sql.bind.order_by import bind_order_by
from headrace.sql.bind.relations import (
    BoundQuery,
    LazyRelation,
    Namespace,
    cast_columns,
    constants,
    distinct_rows,
    rename_query,
    renamed,
    stub_schema,
    unique_names,
)
from headrace.sql.bind.scope import alias_of
from headrace.sql.bind.select import bind_select
from headrace.sql.parse.dialect import to_sql


def bind_query(context: BindContext, query: exp.Expr, namespace: Namespace) -> BoundQuery:
    """The relation of a query, where table names mean what `namespace` says; raises a ReportedError."""
    namespace = _with_queries(context, query, namespace)
    if isinstance(query, exp.Subquery):
        return bind_order_by(context, query, bind_query(context, query.this, namespace))
    if isinstance(query, exp.Union):
        return bind_order_by(context, query, _bind_union(context, query, namespace))
    if isinstance(query, exp.Select):
        return bind_select(context, query, namespace, partial(bind_query, context))
    if isinstance(query, exp.Values):
        return _bind_values(context, query)
    kind = type(query).__name__.upper()
    raise context.fail(f"{kind} is not possible on streams", query, "UNION ALL, joins and filters are")


def _with_queries(context: BindContext, query: exp.Expr, namespace: Namespace) -> Namespace:
    """The namespace with the queries of WITH, each of which sees those before it."""
    clause = query.args.get("with_")
    if clause is None:
        return namespace
    if clause.args.get("recursive"):
        raise context.fail("a recursive WITH has no end on a stream", clause, "leave RECURSIVE out")
    for cte in clause.expressions:
        relation = LazyRelation(partial(_bind_cte, context, cte, namespace))
        namespace = {**namespace, cte.alias.lower(): relation}
    return namespace


def _bind_cte(context: BindContext, cte: exp.Expr, namespace: Namespace) -> BoundQuery:
    return rename_query(context, bind_query(context, cte.this, namespace), alias_of(cte)[1], cte)


def _bind_union(context: BindContext, query: exp.Union, namespace: Namespace) -> BoundQuery:
    sides = [bind_query(context, side, namespace) for side in (query.this, query.expression)]
    counts = [len(side.names) for side in sides]
    if counts[0] != counts[1]:
        raise context.fail(
            f"UNION of {counts[0]} and {counts[1]} columns",
            query.expression,
            "both sides need the same number",
        )
    stubs = {f"s{i}": stub_schema(side) for i, side in enumerate(sides)}
    with context.planning(query.expression):
        planned = context.planner.schema("SELECT * FROM s0 UNION ALL SELECT * FROM s1", stubs)
    schema = renamed(planned, unique_names(sides[0].names))
    inputs = [cast_columns(side.relation, schema) for side in sides]
    windowing = inputs[0].windowing if inputs[0].windowing == inputs[1].windowing else None
    updating = any(relation.updating for relation in inputs)
    union: Relation = Union(
        schema, updating=updating, windowing=None if updating else windowing, inputs=inputs
    )
    if query.args.get("distinct"):
        union = distinct_rows(union)
    return BoundQuery(union, sides[0].names)


def _bind_values(context: BindContext, query: exp.Expr) -> BoundQuery:
    bare = query.copy()
    bare.set("alias", None)
    with context.planning(query):
        return constants(context.planner.rows(to_sql(bare)))
