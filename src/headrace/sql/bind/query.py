"""Binds queries: names become columns, a query becomes a relation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from sqlglot import exp, parse_one

from headrace.base.problems import Problems
from headrace.model.fragments import EPOCH_CLOCK, quote
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.correlation import has_subquery
from headrace.sql.bind.logical import Constants, Map, Ordered
from headrace.sql.bind.planning import AGGREGATE_FORMS
from headrace.sql.bind.postgres_calls import length_of
from headrace.sql.bind.relations import (
    BoundQuery,
    LazyRelation,
    Namespace,
    constants,
    first_columns,
    rename_query,
)
from headrace.sql.bind.row_functions import ROW_FUNCTIONS
from headrace.sql.bind.scope import Scope, ScopeTable, alias_of, column_of
from headrace.sql.bind.select import bind_select
from headrace.sql.bind.set_operations import bind_set_operation
from headrace.sql.bind.syntax import check_syntax
from headrace.sql.parse.dialect import HeadraceDialect, to_sql
from headrace.sql.parse.window_functions import EMIT


def bind_query(context: BindContext, query: exp.Expr, namespace: Namespace) -> BoundQuery:
    """The relation of a query, where table names mean what `namespace` says; raises a ReportedError."""
    check_syntax(context, query)
    for node in query.find_all(exp.In):
        if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Values):
            node.set("query", exp.Subquery(this=node.expressions[0].pop()))
            node.set("expressions", None)
    bound = _bind_query(context, query, namespace, is_outermost=True)
    if (emit := query.meta.get(EMIT)) is not None:
        _check_emit(context, emit, bound)
    return bound


def _check_emit(context: BindContext, emit: exp.Expr, bound: BoundQuery) -> None:
    """Refuse an EMIT that asks for another moment than the one at which the rows are emitted."""
    windowed = bound.relation.windowing is not None and not bound.relation.updating
    if emit.name == "changes" and windowed:
        hint = "leave EMIT out, or group by date_trunc(…) for results that change"
        raise context.fail("a window emits its rows once, when it closes", emit, hint)
    if emit.name == "close" and not windowed:
        hint = "group by tumble(…), hop(…), cumulate(…) or session(…), or write EMIT CHANGES"
        raise context.fail("these rows are not those of a window, which would close", emit, hint)


def _bind_query(
    context: BindContext, query: exp.Expr, namespace: Namespace, *, is_outermost: bool = False
) -> BoundQuery:
    namespace = _with_queries(context, query, namespace)
    if isinstance(query, exp.Subquery):
        bound = _bind_query(context, query.this, namespace, is_outermost=is_outermost)
        return _bind_order_by(context, query, bound, is_outermost=is_outermost)
    if isinstance(query, exp.SetOperation):
        sides = partial(_bind_query, context, namespace=namespace)
        bound = bind_set_operation(context, query, sides)
        return _bind_order_by(context, query, bound, is_outermost=is_outermost)
    has_tables = not isinstance(query, exp.Select) or query.args.get("from_") is not None
    if isinstance(query, exp.Select) and not has_tables and not _is_constant(context, query):
        query = query.copy()
        query.set("from_", parse_one("FROM (VALUES (0)) AS row", dialect=HeadraceDialect).args["from_"])
    if isinstance(query, exp.Values) or (isinstance(query, exp.Select) and not query.args.get("from_")):
        return _bind_constants(context, query)
    if isinstance(query, exp.Select):
        bound, selected = bind_select(context, query, namespace, _QueryBinder(context))
        if not has_tables:
            bound = _computed(context, query, bound)
        ordered = _bind_order_by(context, query, bound, is_outermost=is_outermost)
        return first_columns(ordered, selected)
    kind = type(query).__name__.upper()
    raise context.fail(f"{kind} is not possible on streams", query, "SELECT, VALUES and set operations are")


@dataclass(frozen=True)
class _QueryBinder:
    """Binds the subqueries of a SELECT."""

    context: BindContext

    def __call__(self, query: exp.Expr, namespace: Namespace) -> BoundQuery:
        return _bind_query(self.context, query, namespace)

    def quietly(self) -> _QueryBinder:
        return _QueryBinder(replace(self.context, problems=Problems()))


def _is_constant(context: BindContext, select: exp.Select) -> bool:
    """Whether a SELECT without FROM is computed while planning; others stand over a row of their own."""
    where = select.args.get("where")
    nodes = [*select.expressions, *([] if where is None else [where])]
    calls = {call.name.lower() for node in nodes for call in node.find_all(exp.Anonymous)}
    if calls & (ROW_FUNCTIONS.keys() | AGGREGATE_FORMS) or any(map(has_subquery, nodes)):
        return False
    clauses = ("distinct", "group", "having", "order", "limit", "offset", "qualify")
    return any(select.args.get(clause) for clause in clauses) or bool(calls & context.planner.aggregates)


def _with_queries(context: BindContext, query: exp.Expr, namespace: Namespace) -> Namespace:
    """The namespace with the queries of WITH, each of which sees those before it."""
    clause = query.args.get("with_")
    if clause is None:
        return namespace
    names: set[str] = set()
    for cte in clause.expressions:
        if cte.alias.lower() in names:
            raise context.fail(f"two queries of WITH are called `{cte.alias}`", cte, "give one another name")
        names.add(cte.alias.lower())
        if clause.args.get("recursive") and _reads(cte.this, cte.alias):
            hint = "join the table with itself as often as there are levels"
            raise context.fail(f"`{cte.alias}` reads itself: recursion has no end on a stream", cte, hint)
        relation = LazyRelation(partial(_bind_cte, context, cte, namespace))
        namespace = {**namespace, cte.alias.lower(): relation}
    return namespace


def _reads(query: exp.Expr, name: str) -> bool:
    """Whether a table of this name stands in a query."""
    return any(table.name.lower() == name.lower() for table in query.find_all(exp.Table))


def _bind_cte(context: BindContext, cte: exp.Expr, namespace: Namespace) -> BoundQuery:
    return rename_query(context, _bind_query(context, cte.this, namespace), alias_of(cte)[1], cte)


def _bind_constants(context: BindContext, query: exp.Expr) -> BoundQuery:
    """VALUES, or a SELECT without FROM: rows that are known while planning."""
    bare = query.copy()
    bare.set("alias", None)
    scope = Scope(context)
    for part in (bare, *bare.find_all(exp.Tuple)) if isinstance(bare, exp.Values) else ():
        part.set("expressions", [scope.resolve(value) for value in part.expressions])
    with context.planning(query):
        return constants(context.planner.rows(to_sql(bare)))


def _computed(context: BindContext, query: exp.Expr, bound: BoundQuery) -> BoundQuery:
    """The row of a SELECT without FROM, unless it depends on the clock or on tables."""
    relation = bound.relation
    if not isinstance(relation, Map) or not isinstance(relation.input, Constants) or relation.where:
        return bound
    items = ", ".join(f"{item.value.text} AS {quote(item.name)}" for item in relation.items)
    if EPOCH_CLOCK in items:
        return bound
    with context.planning(query):
        rows = context.planner.rows(f"SELECT {items}")
    return BoundQuery(constants(rows).relation, bound.names)


def _bind_order_by(
    context: BindContext, query: exp.Expr, bound: BoundQuery, *, is_outermost: bool
) -> BoundQuery:
    """What ORDER BY, LIMIT and OFFSET leave of a query's rows; those of a subquery have no order."""
    order, limit, offset = (query.args.get(name) for name in ("order", "limit", "offset"))
    if order is None and limit is None and offset is None:
        return bound
    count = _number(context, limit)
    skip = _number(context, offset) or 0
    relation = bound.relation
    by_instant = relation.windowing is not None
    with_ties = _has_ties(limit)
    if with_ties and order is None:
        raise context.fail("WITH TIES needs an order", limit, "add ORDER BY")
    if order is None and count is None and not skip:
        return bound  # LIMIT ALL
    if order is None and not by_instant and not relation.updating:
        raise context.fail(
            "LIMIT without ORDER BY would end the stream after some rows",
            limit or offset,
            "add ORDER BY for the first rows of an order, or run with --max-epochs",
        )
    keys = [] if order is None else [_order_key(context, node, bound) for node in order.expressions]
    if count is None and not by_instant and not skip and not is_outermost:
        return bound
    if count is None and not by_instant and not skip:
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
        with_ties=with_ties,
        by_instant=by_instant,
    )
    return BoundQuery(ordered, bound.names, bound.meanings)


def _has_ties(limit: exp.Expr | None) -> bool:
    """Whether it is FETCH FIRST n ROWS WITH TIES."""
    options = None if limit is None else limit.args.get("limit_options")
    return options is not None and bool(options.args.get("with_ties"))


def _number(context: BindContext, node: exp.Expr | None) -> int | None:
    """The number of a LIMIT, FETCH or OFFSET: an expression without columns. None if it limits nothing."""
    if node is None:
        return None
    value = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
    if value is None:
        return 1  # FETCH FIRST ROW ONLY
    if isinstance(value, exp.Column) and value.name.upper() == "ALL":
        return None
    hint = "a whole number, such as LIMIT 10, or an expression of such"
    if value.find(exp.Column, exp.Query) is not None:
        raise context.fail("a LIMIT is the same for all rows", value, hint)
    with context.planning(value):
        number = context.planner.constant(to_sql(value))
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise context.fail("a LIMIT is a whole number", value, hint)
    return number


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
    if isinstance(key.this, exp.Column):
        key.set("this", length_of(key.this, columns.field(key.this.name).type) or key.this)
    return to_sql(key)
