"""FROM: tables, subqueries and joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import suggest
from headrace.model.fragments import quote
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.joins import (
    JoinClause,
    bind_join,
    bind_lookup_join,
    bind_table_call,
    bind_unnest,
    called_table,
    common_columns,
    equalities_of_using,
    equalities_of_where,
    merge_using,
)
from headrace.sql.bind.logical import Expression, Item, JoinKind, Relation, Scan
from headrace.sql.bind.relations import BoundQuery, Namespace, lookup_of, make_map, rename_query, stub_schema
from headrace.sql.bind.scope import ScopeTable, alias_of, conjuncts, identifier_name
from headrace.sql.bind.volatile import refuse_volatile
from headrace.sql.parse.dialect import to_sql
from headrace.sql.parse.window_functions import EVENT_TIME

BindQuery: TypeAlias = Callable[[exp.Expr, Namespace], BoundQuery]
"""Binds a subquery, where table names mean what the namespace says."""


class FromClause:
    """Binds the FROM of one SELECT into `tables`."""

    def __init__(self, tables: FromTables, namespace: Namespace, bind_query: BindQuery) -> None:
        self._tables = tables
        self._context = tables.context
        self._namespace = namespace
        self._bind_query = bind_query

    def bind(self, select: exp.Select) -> Relation:
        """The relation of all tables, joined."""
        return self.bind_joined(select.args["from_"].this, select.args.get("joins") or [])

    def bind_joined(self, node: exp.Expr, joins: list[exp.Join], *, prefix: bool = False) -> Relation:
        """The relation of a table and what is joined to it."""
        first, inner = _without_parentheses(node)
        joins = inner + joins
        relation = self._add_table(first, prefix=prefix or bool(joins))
        if (lookup := lookup_of(relation)) is not None:
            key = ", ".join(lookup.definition.primary_key)
            raise self._context.fail(
                f"lookup table `{lookup.name}` can only be joined, on the right",
                first,
                f"write FROM … JOIN {lookup.name} ON … = {lookup.name}.{key}",
            )
        for join in joins:
            relation = self._join(relation, join)
        return relation

    def _add_table(self, node: exp.Expr, *, prefix: bool) -> Relation:
        """Add a table and return its relation; `prefix` puts the table's name before those of its columns."""
        bound, alias, is_named = self._bind_table(node)
        self._tables.check_alias(alias, node)
        relation = self._prefixed(bound.relation, alias) if prefix else bound.relation
        table = ScopeTable(alias, bound.names, tuple(relation.columns))
        self._tables.add(table, stub_schema(bound), is_named=is_named)
        return relation

    def _prefixed(self, relation: Relation, alias: str) -> Relation:
        names = {column.name for table in self._tables.scope.tables for column in table.columns}
        items, fields = [], []
        for column in relation.columns:
            name = f"{alias}.{column.name}"
            while name in names:
                name += "'"
            items.append(Item(name, Expression(quote(column.name), frozenset([column.name]))))
            fields.append(column.with_name(name))
        return make_map(relation, items, pa.schema(fields))

    def _bind_table(self, node: exp.Expr) -> tuple[BoundQuery, str, bool]:
        """What stands in FROM, the name it goes by, and whether that is a name that users know."""
        alias, columns = alias_of(node)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            bound = rename_query(self._context, self._named_table(node), columns, node)
            return bound, alias or identifier_name(node.this), True
        is_subquery = isinstance(node, exp.Subquery)
        if is_subquery and _is_table(node.this):
            if alias is None:
                return self._bind_table(node.this)
            node = exp.Subquery(this=_select_all(node.this), alias=node.args["alias"])
        if not is_subquery and not isinstance(node, exp.Values):
            call = called_table(node)
            hint = "a table, a view or a subquery can"
            if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
                hint = "join a subquery ON what it compares, or write the subquery in the SELECT list"
                raise self._context.fail("LATERAL before a subquery is not supported", node, hint)
            if call is not None and call.name.lower() in self._context.planner.table_functions:
                hint = f"it gives rows for those of a table before it: FROM t, {call.name}(t.x)"
            raise self._context.fail(f"`{to_sql(node)[:40]}` cannot stand in FROM", node, hint)
        hidden = f"_{self._tables.next_stub}"
        bound = rename_query(self._context, self._bind_query(node, self._namespace), columns, node)
        return bound, alias or hidden, alias is not None

    def _named_table(self, node: exp.Table) -> BoundQuery:
        name = node.name.lower()
        schema = node.args.get("db")
        if schema is not None and identifier_name(schema) != "public":
            where = f"write `{name}`: all tables are in the schema `public`"
            raise self._context.fail(f"there is no schema `{schema.name}`", node, where)
        if any(value for key, value in node.args.items() if key not in ("this", "alias", "db")):
            shown = to_sql(node)[:40]
            raise self._context.fail(f"`{shown}` cannot stand in FROM", node, f"write `{name}` alone")
        if name not in self._namespace:
            hint = suggest(name, self._namespace, listing="the tables are")
            message = f"there is no table `{node.name}`"
            raise self._context.fail(message, node, hint or "define it with CREATE TABLE")
        bound = self._namespace[name]()
        if (time_column := node.meta.get(EVENT_TIME)) is not None:
            self._check_event_time(bound, node, time_column.text)
        return bound

    def _check_event_time(self, bound: BoundQuery, node: exp.Table, column: str) -> None:
        """Refuse a window function over a column that is not the event time of the table."""
        relation = bound.relation
        if not isinstance(relation, Scan):
            message = f"`{node.name}` is no table with a watermark, and a window function needs one"
            raise self._context.fail(message, node, "name the table itself, and filter it in this query")
        event_time = relation.event_time
        if event_time is None or event_time.columns not in ({column}, {column.lower()}):
            declared = "" if event_time is None else f": it is `{', '.join(event_time.columns)}`"
            message = f"`{column}` is not the event time of `{node.name}`{declared}"
            raise self._context.fail(message, node, f"declare WATERMARK FOR {column} in CREATE TABLE")

    def _join(self, left: Relation, join: exp.Join) -> Relation:
        context, tables = self._context, self._tables
        side, kind_name = (join.args.get("side") or "").upper(), (join.args.get("kind") or "").upper()
        method = (join.args.get("method") or "").upper()
        if method not in ("", "NATURAL"):
            raise context.fail(f"{method} JOIN is not supported", join, "write JOIN … ON …")
        if kind_name in ("SEMI", "ANTI"):
            raise context.fail(f"{kind_name} JOIN is not supported", join, "use a LEFT JOIN and a filter")
        if isinstance(join.this, exp.Unnest):
            return bind_unnest(tables, left, join)
        if (call := called_table(join.this)) is not None:
            return bind_table_call(tables, left, join, call)
        on, columns = join.args.get("on"), join.args.get("using") or []
        if on is not None:
            tables.scope.refuse_async(on)
            if (subquery := on.find(exp.Query)) is not None:
                hint = "write it in WHERE, or filter one side in a subquery in FROM"
                raise context.fail("a subquery cannot stand in ON", subquery, hint)
        count = len(tables.scope.tables)
        right = self._add_side(join.this)
        if method:
            columns = common_columns(tables, count)
        using = [identifier_name(column) for column in columns]
        if using and len(tables.scope.tables) > count + 1:
            hint = "write ON, or make it a subquery: (SELECT … FROM … JOIN …) AS name"
            raise context.fail("USING with a join in parentheses on its right", join, hint)
        conditions = [tables.scope.resolve(condition) for condition in conjuncts(on)]
        clause = "ON TRUE" if on is None else f"ON {tables.stub_text(on)}"
        if using:
            conditions += equalities_of_using(tables, columns)
            clause = f"USING ({', '.join(map(quote, using))})"
        elif on is None:  # the WHERE of a comma join is its condition
            conditions += equalities_of_where(tables, left, right)
        tables.join_last(f"{side} JOIN".lstrip(), clause)
        kinds: dict[str, JoinKind] = {"LEFT": "left", "RIGHT": "right", "FULL": "full"}
        bound = JoinClause(kinds.get(side, "inner"), conditions, join)
        if lookup_of(right) is not None:
            return bind_lookup_join(tables, left, right, bound)
        joined = bind_join(tables, left, right, bound)
        refuse_volatile(context, joined, conditions)
        return merge_using(tables, joined, using) if using else joined

    def _add_side(self, node: exp.Expr) -> Relation:
        """Add the right side of a join: a table, or a join in parentheses whose tables keep their names."""
        if _without_parentheses(node)[1]:
            inner = self._tables.begin_parentheses()
            clause = FromClause(inner, self._namespace, self._bind_query)
            relation = clause.bind_joined(node, [], prefix=True)
            self._tables.end_parentheses(inner, node)
            return relation
        return self._add_table(node, prefix=True)


def _is_table(node: exp.Expr) -> bool:
    """Whether what stands in parentheses is something of FROM rather than a query."""
    if isinstance(node, exp.Subquery):
        return alias_of(node)[0] is not None or bool(node.args.get("joins")) or _is_table(node.this)
    return not isinstance(node, exp.Query)


def _select_all(node: exp.Expr) -> exp.Select:
    """`SELECT *` from a table or join in parentheses."""
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=node.copy()))


def _without_parentheses(node: exp.Expr) -> tuple[exp.Expr, list[exp.Join]]:
    """The first table of FROM, and the joins behind it: `(a JOIN b …) JOIN c` is `a JOIN b … JOIN c`."""
    if isinstance(node, exp.Subquery) and alias_of(node)[0] is None and _is_table(node.this):
        first, inner = _without_parentheses(node.this)
        return first, inner + (node.args.get("joins") or [])
    joins: list[exp.Join] = node.args.get("joins") or []
    if not joins:
        return node, []
    first = node.copy()
    first.set("joins", None)
    return first, joins
