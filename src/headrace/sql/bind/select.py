"""SELECT: the list, WHERE, GROUP BY, OVER, DISTINCT, and what DataFusion says about it all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import ExpressionError
from headrace.model.fragments import quote
from headrace.sql.bind.calls import call_name, find_aggregates, is_aggregate, is_window_call
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.filters import filter_rows
from headrace.sql.bind.from_clause import BindQuery, FromClause
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.function_calls import AsyncBinder
from headrace.sql.bind.group_by import GroupBinder, window_of
from headrace.sql.bind.logical import Expression, Item, Relation
from headrace.sql.bind.order_by import bind_order_by
from headrace.sql.bind.over import bind_over, bind_window_calls, inline_windows
from headrace.sql.bind.relations import (
    BoundQuery,
    Namespace,
    constants,
    distinct_rows,
    make_map,
    renamed,
    select_columns,
    unique_names,
    where_map,
)
from headrace.sql.bind.scope import as_expression, conjuncts, identifier_name
from headrace.sql.bind.select_list import SelectItem, expand_aliases, group_keys, order_items, select_items
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import ReportedError

_CLAUSES = frozenset(
    {"expressions", "from_", "joins", "where", "group", "having", "windows", "distinct", "order", "limit"}
    | {"offset", "with_", "kind", "operation_modifiers"}
)
_OTHER_CLAUSES = {
    "laterals": "LATERAL",
    "connect": "CONNECT BY",
    "locks": "FOR UPDATE",
    "into": "SELECT INTO",
}


def bind_select(
    context: BindContext, select: exp.Select, namespace: Namespace, bind_query: BindQuery
) -> BoundQuery:
    """The relation of a SELECT; `bind_query` binds its subqueries."""
    for clause, value in select.args.items():
        if value and clause not in _CLAUSES:
            raise context.fail(f"{_OTHER_CLAUSES.get(clause, clause.upper())} is not supported", select)
    if select.args.get("from_") is None:
        with context.planning(select):
            return constants(context.planner.rows(to_sql(select)))
    _refuse_subqueries(context, select)
    inline_windows(context, select)
    where = select.args.get("where")
    tables = FromTables(context, [] if where is None else list(conjuncts(where.this)))
    relation = FromClause(tables, namespace, bind_query).bind(select)
    return _SelectBinder(tables, select).bind(relation)


def _refuse_subqueries(context: BindContext, select: exp.Select) -> None:
    for clause in ("where", "expressions", "having", "group"):
        value = select.args.get(clause)
        for node in value if isinstance(value, list) else [value]:
            subquery = None if node is None else node.find(exp.Query)
            if subquery is not None:
                raise context.fail(
                    "a subquery can stand in FROM only",
                    subquery,
                    "join it, or write it as a view or in WITH",
                )


@dataclass(frozen=True)
class _Clauses:
    """The parts of a SELECT that are computed after WHERE."""

    items: list[SelectItem]
    """The SELECT list, then what ORDER BY computes beyond it."""
    shown: int
    """How many of the items are the SELECT list."""
    group: list[exp.Expr]
    having: exp.Expr | None

    @property
    def after_where(self) -> Iterator[exp.Expr]:
        yield from (item.node for item in self.items)
        if self.having is not None:
            yield self.having


class _SelectBinder:
    """Binds one SELECT over its FROM."""

    def __init__(self, tables: FromTables, select: exp.Select) -> None:
        self._tables = tables
        self._context = tables.context
        self._planner = tables.context.planner
        self._scope = tables.scope
        self._select = select

    def bind(self, relation: Relation) -> BoundQuery:
        clauses = self._read_clauses()
        aggregated = bool(clauses.group) or any(map(self._has_aggregate, clauses.after_where))
        if clauses.having is not None and not aggregated:
            raise self._context.fail("HAVING without GROUP BY or an aggregate", clauses.having, "use WHERE")
        self._refuse_in_where()
        for node in clauses.group:
            if is_window_call(node):
                window_of(self._context, node, node)  # for its errors
        planned = self._plan(clauses)
        calls = AsyncBinder(self._context)
        relation = self._filter(relation, calls)
        nodes = [item.resolve(self._scope) for item in clauses.items]
        if aggregated:
            self._refuse_async(nodes, clauses)
            groups = GroupBinder(self._scope, self._select, relation)
            relation, nodes = groups.bind(nodes, clauses.group, clauses.having)
            calls = AsyncBinder(self._context)
        relation, nodes = calls.bind(relation, nodes)
        self._refuse_ungrouped_windows(nodes)
        relation, nodes = bind_over(self._context, self._select, relation, nodes)
        relation, nodes = AsyncBinder(self._context).bind(relation, nodes)
        distinct = self._select.args.get("distinct")
        is_distinct_on = distinct is not None and distinct.args.get("on") is not None
        if distinct is not None and is_distinct_on:
            relation = self._distinct_on(relation, distinct, clauses.items, aggregated=aggregated)
        names = [name for _, name in planned]
        schema = renamed([field for field, _ in planned], unique_names(names))
        items = [Item(name, as_expression(node)) for name, node in zip(schema.names, nodes, strict=True)]
        relation = make_map(relation, items, schema)
        if distinct is not None and not is_distinct_on:
            relation = distinct_rows(relation)
        bound = bind_order_by(self._context, self._select, BoundQuery(relation, tuple(names)))
        if clauses.shown == len(clauses.items):
            return bound
        shown = bound.relation.columns.names[: clauses.shown]
        return BoundQuery(select_columns(bound.relation, shown), bound.names[: clauses.shown])

    def _has_aggregate(self, node: exp.Expr) -> bool:
        return any(find_aggregates(node, self._planner.aggregates))

    def _read_clauses(self) -> _Clauses:
        items = select_items(self._scope, self._select)
        group = group_keys(self._scope, self._select, items)
        hidden = order_items(self._scope, self._select, items)
        having = self._select.args.get("having")
        if having is not None:
            having = expand_aliases(self._scope, having.this, [*items, *hidden])
        return _Clauses([*items, *hidden], len(items), group, having)

    # ------------------------------------------------------------------------- planned by DataFusion

    def _plan(self, clauses: _Clauses) -> list[tuple[pa.Field, str]]:
        """What DataFusion says about the SELECT: the type and the name of each item."""
        computed = [item for item in clauses.items if item.field is None]
        having = [] if clauses.having is None else [clauses.having]
        self._check_names([*(item.node for item in computed), *self._tables.where, *clauses.group, *having])
        names: list[str] = []
        own_names: list[str | None] = []
        texts: list[str] = []
        columns = {name for table in self._scope.tables for name in table.names}
        for item in computed:
            text = self._tables.stub_text(item.node)
            is_column = isinstance(item.node, exp.Column) and not text.endswith("]")  # not a field of one
            own_names.append(identifier_name(item.node.this) if is_column else None)
            name = item.alias or own_names[-1] or text
            # What is called the same twice, or as a column, is planned under a name of its own.
            clash = name in names or item.alias in columns
            alias = f"{name}:{len(texts)}" if clash else item.alias
            texts.append(text if alias is None else f"{text} AS {quote(alias)}")
            names.append(name)
        planned = self._plan_stubs(texts, clauses)
        fields = iter(
            (field, own or planned.field(names.index(name)).name)
            for field, own, name in zip(planned, own_names, names, strict=False)
        )
        result = []
        for item in clauses.items:
            if item.field is not None:
                result.append((item.field, item.alias or item.field.name))
            else:
                field, name = next(fields)
                result.append((field, item.alias or self._unnamed(item.node, name)))
        return result

    def _plan_stubs(self, texts: Sequence[str], clauses: _Clauses) -> pa.Schema:
        sql = self._tables.stub_sql(
            texts or ["1"], where=self._tables.where, group=clauses.group, having=clauses.having
        )
        try:
            return self._planner.schema(sql, self._tables.stubs)
        except ExpressionError as error:
            if "unique expression names" in error.message:
                message = "two columns come out under one name"
                raise self._context.fail(message, self._select, "name each of them with AS") from error
            raise self._explain(error, clauses) from error

    def _check_names(self, nodes: Sequence[exp.Expr]) -> None:
        """Report every name that stands for nothing."""
        failed = False
        for node in nodes:
            try:
                self._scope.resolve(node)
            except ReportedError:
                failed = True
        if failed:
            raise ReportedError

    def _unnamed(self, node: exp.Expr, name: str) -> str:
        """What an item without a name is called: as DataFusion calls it, or as it is written."""
        calls = self._scope.resolve(node).find_all(exp.Anonymous)
        return to_sql(node) if any("__" in call.name for call in calls) else name

    def _explain(self, error: ExpressionError, clauses: _Clauses) -> ReportedError:
        """Report the parts that DataFusion refuses by themselves; the whole SELECT if it refuses none."""
        tables = self._tables
        candidates = [
            *((node, f"{tables.stub_sql(['1'])} WHERE {tables.stub_text(node)}") for node in tables.where),
            *((node, tables.stub_sql([tables.stub_text(node)])) for node in clauses.group),
            *(
                (item.node, tables.stub_sql([tables.stub_text(item.node)], group=clauses.group))
                for item in clauses.items
                if item.field is None
            ),
        ]
        failed: ReportedError | None = None
        for node, sql in candidates:
            try:
                self._planner.schema(sql, tables.stubs)
            except ExpressionError as refused:
                failed = self._context.fail(refused.message, node, refused.hint)
        if failed is not None:
            return failed
        node = self._ungrouped_column(error, clauses.items) or clauses.having or self._select
        return self._context.fail(error.message, node, error.hint)

    def _ungrouped_column(self, error: ExpressionError, items: list[SelectItem]) -> exp.Expr | None:
        """The column that is neither grouped nor aggregated, where an aggregate is beside it."""
        match = re.match(r"`(?:[^`]*\.)?([^`.]+)` is neither grouped", error.message)
        if match is None:
            return None
        for item in items:
            if not self._has_aggregate(item.node):
                for column in item.node.find_all(exp.Column):
                    if identifier_name(column.this) == match[1]:
                        return column
        return None

    # ---------------------------------------------------------------------------- WHERE, DISTINCT ON

    def _refuse_in_where(self) -> None:
        fail = self._context.fail
        for node in self._tables.where:
            if node.find(exp.Window) is not None:
                raise fail("WHERE comes before OVER", node, "filter in an outer SELECT")
            for part in node.find_all(exp.Anonymous):
                if is_aggregate(part, self._planner.aggregates):
                    raise fail("WHERE comes before aggregates", part, "use HAVING")
                if is_window_call(part):
                    hint = "filter windows in an outer SELECT"
                    raise fail(f"{call_name(part)}(…) stands in GROUP BY", part, hint)

    def _refuse_ungrouped_windows(self, nodes: Sequence[exp.Expr]) -> None:
        for node in nodes:
            for part in node.find_all(exp.Anonymous):
                if is_window_call(part):
                    hint = f"add `GROUP BY {to_sql(part)}`"
                    raise self._context.fail(f"{call_name(part)}(…) stands in GROUP BY", part, hint)

    def _refuse_async(self, nodes: Sequence[exp.Expr], clauses: _Clauses) -> None:
        for node in nodes:
            for call in find_aggregates(node, self._planner.aggregates):
                self._scope.refuse_async(call)
        for node in (*clauses.group, *([] if clauses.having is None else [clauses.having])):
            self._scope.refuse_async(node)

    def _filter(self, relation: Relation, calls: AsyncBinder) -> Relation:
        nodes = [self._scope.resolve(condition) for condition in self._tables.where]
        waiting = [node for node in nodes if calls.calls_any(node)]
        others = [node for node in nodes if node not in waiting]
        relation = filter_rows(relation, others, self._planner.user_functions)
        # Asynchronous functions are called for the rows that pass all else.
        relation, waiting = calls.bind(relation, waiting)
        for node in waiting:
            relation = where_map(relation, as_expression(node))
        return relation

    def _distinct_on(
        self, relation: Relation, distinct: exp.Distinct, items: list[SelectItem], *, aggregated: bool
    ) -> Relation:
        """DISTINCT ON (a) is the first row of each a, in the order of ORDER BY."""
        if aggregated:
            raise self._context.fail("DISTINCT ON over aggregates", distinct, "group in a subquery first")
        on = distinct.args["on"]
        self._scope.refuse_async(on)
        keys = [self._scope.resolve(key) for key in (on.expressions if isinstance(on, exp.Tuple) else [on])]
        order = self._select.args.get("order")
        if order is not None:
            self._select.set("order", None)
            order = exp.Order(expressions=[self._order_key(key, items) for key in order.expressions])
        call = exp.Window(
            this=exp.Anonymous(this="row_number", expressions=[]), partition_by=keys, order=order, over="OVER"
        )
        numbered = bind_window_calls(self._context, self._select, relation, [("over_on", call)])
        return replace(
            numbered, limit=Expression('"over_on" = 1', frozenset(["over_on"])), rank=("over_on", 1)
        )

    def _order_key(self, node: exp.Expr, items: list[SelectItem]) -> exp.Expr:
        key = node.copy()
        key.set("this", self._scope.resolve(expand_aliases(self._scope, node.this, items)))
        return key
