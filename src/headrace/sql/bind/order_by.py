"""ORDER BY, LIMIT and OFFSET."""

from __future__ import annotations

from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Ordered
from headrace.sql.bind.relations import BoundQuery
from headrace.sql.bind.scope import Scope, ScopeTable, column_of
from headrace.sql.parse.dialect import to_sql


def bind_order_by(context: BindContext, query: exp.Expr, bound: BoundQuery) -> BoundQuery:
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
