"""Binds queries: names become columns, a query becomes a relation."""

from __future__ import annotations

from functools import partial

from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Ordered, Relation, Union
from headrace.sql.bind.relations import (
    BoundQuery,
    LazyRelation,
    Namespace,
    cast_columns,
    constants,
    distinct_rows,
    first_columns,
    rename_query,
    renamed,
    stub_schema,
    unique_names,
)
from headrace.sql.bind.scope import Scope, ScopeTable, alias_of, column_of
from headrace.sql.bind.select import bind_select
from headrace.sql.bind.syntax import check_syntax
from headrace.sql.parse.dialect import to_sql


def bind_query(context: BindContext, query: exp.Expr, namespace: Namespace) -> BoundQuery:
    """The relation of a query, where table names mean what `namespace` says; raises a ReportedError."""
    check_syntax(context, query)
    return _bind_query(context, query, namespace)


def _bind_query(context: BindContext, query: exp.Expr, namespace: Namespace) -> BoundQuery:
    namespace = _with_queries(context, query, namespace)
    if isinstance(query, exp.Subquery):
        return _bind_order_by(context, query, _bind_query(context, query.this, namespace))
    if isinstance(query, exp.Union):
        return _bind_order_by(context, query, _bind_union(context, query, namespace))
    if isinstance(query, exp.Values) or (isinstance(query, exp.Select) and not query.args.get("from_")):
        return _bind_constants(context, query)
    if isinstance(query, exp.Select):
        bound, selected = bind_select(context, query, namespace, partial(_bind_query, context))
        return first_columns(_bind_order_by(context, query, bound), selected)
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
    return rename_query(context, _bind_query(context, cte.this, namespace), alias_of(cte)[1], cte)


def _bind_union(context: BindContext, query: exp.Union, namespace: Namespace) -> BoundQuery:
    sides = [_bind_query(context, side, namespace) for side in (query.this, query.expression)]
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


def _bind_constants(context: BindContext, query: exp.Expr) -> BoundQuery:
    """VALUES, or a SELECT without FROM: rows that are known while planning."""
    bare = query.copy()
    bare.set("alias", None)
    with context.planning(query):
        return constants(context.planner.rows(to_sql(bare)))


def _bind_order_by(context: BindContext, query: exp.Expr, bound: BoundQuery) -> BoundQuery:
    """What ORDER BY, LIMIT and OFFSET leave of a query's rows."""
    order, limit, offset = (query.args.get(name) for name in ("order", "limit", "offset"))
    if order is None and limit is None and offset is None:
        return bound
    count = _number(context, limit)
    skip = _number(context, offset) or 0
    relation = bound.relation
    by_instant = relation.windowing is not None
    if order is None and not by_instant:
        raise context.fail(
            "LIMIT without ORDER BY would end the stream after some rows",
            limit or offset,
            "add ORDER BY for the first rows of an order, or run with --max-epochs",
        )
    keys = [] if order is None else [_order_key(context, node, bound) for node in order.expressions]
    if count is None and not by_instant:
        raise context.fail(
            "ORDER BY without LIMIT never knows its first row on a stream",
            order,
            "add LIMIT n, or order within a window",
        )
    if relation.updating and by_instant:
        raise AssertionError
    ordered = Ordered(
        relation.columns,
        updating=not by_instant,
        windowing=relation.windowing,
        key=relation.key,
        input=relation,
        order=tuple(keys),
        limit=count,
        offset=skip,
        by_instant=by_instant,
    )
    return BoundQuery(ordered, bound.names)


def _number(context: BindContext, node: exp.Expr | None) -> int | None:
    if node is None:
        return None
    value = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
    if not isinstance(value, exp.Literal) or value.is_string or not value.name.isdigit():
        raise context.fail("a LIMIT is a whole number", value, "such as LIMIT 10")
    return int(value.name)


def _order_key(context: BindContext, node: exp.Expr, bound: BoundQuery) -> str:
    key = node.copy()
    target = key.this
    columns = bound.relation.columns
    if isinstance(target, exp.Literal) and not target.is_string:
        index = int(target.name) - 1
        if not 0 <= index < len(bound.names):
            raise context.fail(f"there is no column {target.name} in the result", node)
        key.set("this", column_of(columns.names[index]))
    else:
        scope = Scope(context, [ScopeTable("", bound.names, tuple(columns))])
        key.set("this", scope.resolve(target))
    return to_sql(key)
