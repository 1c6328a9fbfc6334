"""FROM: tables, subqueries and joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import ExpressionError, suggest
from headrace.base.problems import Problems
from headrace.model.fragments import quote
from headrace.sql.bind.as_of import bind_as_of_join, bind_system_time_join
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.joins import (
    JoinClause,
    bind_join,
    bind_lookup_join,
    bind_table_call,
    called_table,
    common_columns,
    equalities_of_using,
    equalities_of_where,
    join_relations,
    merge_using,
)
from headrace.sql.bind.lateral import inner_aliases, is_global_aggregate, value_of_no_rows, with_domain
from headrace.sql.bind.logical import Expression, Item, JoinKind, Relation, Scan
from headrace.sql.bind.relations import (
    BoundQuery,
    LazyRelation,
    Namespace,
    column_item,
    distinct_rows,
    lookup_of,
    make_map,
    rename_query,
    renamed,
    stub_schema,
    unique_names,
    where_map,
)
from headrace.sql.bind.rows_calls import bind_lateral_values, bind_rows_call, one_row, read_rows_call
from headrace.sql.bind.scope import (
    Scope,
    ScopeTable,
    alias_of,
    as_expression,
    column_of,
    conjuncts,
    identifier_name,
)
from headrace.sql.bind.temporal import reads_clock
from headrace.sql.bind.volatile import refuse_volatile
from headrace.sql.bind.windowed_rows import windowed_rows
from headrace.sql.parse.dialect import to_sql
from headrace.sql.parse.window_functions import EVENT_TIME
from headrace.sql.problems import ReportedError
from headrace.sql.types import sql_type


class BindQuery(Protocol):
    """Binds subqueries."""

    def __call__(self, query: exp.Expr, namespace: Namespace) -> BoundQuery:
        """The relation of a query, where table names mean what the namespace says."""

    def quietly(self) -> BindQuery:
        """The same for queries that are only tried: what is wrong with them is not reported."""


class JoinSubqueries(Protocol):
    """Computes the subqueries in ON of an outer join."""

    def __call__(self, tables: FromTables, relation: Relation, on: exp.Expr) -> Relation:
        """The rows of one side, with a column for each subquery in `on` that reads this side alone."""


class FromClause:
    """Binds the FROM of one SELECT into `tables`; without `subqueries`, to learn their columns alone."""

    def __init__(
        self,
        tables: FromTables,
        namespace: Namespace,
        bind_query: BindQuery,
        subqueries: JoinSubqueries | None = None,
    ) -> None:
        self._tables = tables
        self._context = tables.context
        self._namespace = namespace
        self._bind_query = bind_query
        self._subqueries = subqueries

    def bind(self, select: exp.Select) -> Relation:
        """The relation of all tables, joined."""
        return self.bind_joined(select.args["from_"].this, select.args.get("joins") or [])

    def bind_joined(self, node: exp.Expr, joins: list[exp.Join], *, prefix: bool = False) -> Relation:
        """The relation of a table and what is joined to it."""
        first, inner = _without_parentheses(node)
        joins = inner + joins
        relation = self._add_first(first, prefix=prefix or bool(joins))
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

    def _add_first(self, node: exp.Expr, *, prefix: bool) -> Relation:
        """Add the first table of FROM; a function there stands beside one row."""
        call = read_rows_call(self._context, node)
        if call is not None:
            return bind_rows_call(self._tables, one_row(), None, node, call)
        own = called_table(node)
        if own is not None and own.name.lower() in self._context.planner.table_functions:
            return bind_table_call(self._tables, one_row(), None, node, own)
        return self._add_table(node, prefix=prefix)

    def _add_table(self, node: exp.Expr, *, prefix: bool) -> Relation:
        """Add a table and return its relation; `prefix` puts the table's name before those of its columns."""
        bound, alias, is_named = self._bind_table(node)
        self._tables.check_alias(alias, node)
        relation = self._prefixed(bound.relation, alias) if prefix else bound.relation
        meanings = {relation.columns[index].name: its for index, its in bound.meanings.items()}
        columns = tuple(relation.columns)
        table = ScopeTable(alias, bound.names, columns, key=relation.key, meanings=meanings)
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
        """An item of FROM: its relation, its name, and whether users can refer to it by that name."""
        alias, columns = alias_of(node)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            bound = rename_query(self._context, self._named_table(node), columns, node)
            return bound, alias or identifier_name(node.this), True
        if isinstance(node, exp.Table) and (windowed := windowed_rows(self._context, node)) is not None:
            return self._bind_table(windowed)
        is_subquery = isinstance(node, exp.Subquery)
        if is_subquery and _is_table(node.this):
            if alias is None:
                return self._bind_table(node.this)
            node = exp.Subquery(this=_select_all(node.this), alias=node.args["alias"])
        if not is_subquery and not isinstance(node, exp.Values):
            hint = "a table, a view or a subquery can"
            if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
                raise self._context.fail("there is no table before LATERAL", node, "leave LATERAL out")
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
        if node.args.get("version"):
            usage = f"write FROM s JOIN {name} FOR SYSTEM_TIME AS OF s.ts ON …"
            raise self._context.fail("a version is of a table that is joined", node, usage)
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
        if method not in ("", "NATURAL", "ASOF") or (join.args.get("match_condition") and method != "ASOF"):
            raise context.fail(f"{method} JOIN is not supported", join, "write JOIN … ON …")
        if kind_name in ("SEMI", "ANTI"):
            return self._join_for_existence(left, join, side or method)
        if (rows := self._join_called(left, join)) is not None:
            return rows
        on, columns = join.args.get("on"), join.args.get("using") or []
        version, node = _without_version(context, join.this)
        if version is not None:
            version = tables.scope.resolve(version)
        if on is not None and on.find(exp.Query) is not None and version is None and not method:
            on = exp.Paren(this=on.copy())
            left = self._with_subqueries(tables, left, on)
        count = len(tables.scope.tables)
        right = self._add_side(node, on)
        if method == "NATURAL":
            columns = common_columns(tables, count)
        using = [identifier_name(column) for column in columns]
        if using and len(tables.scope.tables) > count + 1:
            hint = "write ON, or make it a subquery: (SELECT … FROM … JOIN …) AS name"
            raise context.fail("USING with a join in parentheses on its right", join, hint)
        conditions = self._conditions(on)
        clause = "ON TRUE" if on is None else f"ON {tables.stub_text(on)}"
        if using:
            conditions += equalities_of_using(tables, columns)
            clause = f"USING ({', '.join(map(quote, using))})"
        elif on is None and not method:  # the WHERE of a comma join is its condition
            conditions += equalities_of_where(tables, left, right)
        tables.join_last(f"{side} JOIN".lstrip(), clause)
        kinds: dict[str, JoinKind] = {"LEFT": "left", "RIGHT": "right", "FULL": "full"}
        bound = JoinClause(kinds.get(side, "inner"), conditions, join)
        if version is not None:
            return bind_system_time_join(tables, left, right, bound, version)
        return self._join_sides(left, right, bound, using)

    def _join_called(self, left: Relation, join: exp.Join) -> Relation | None:
        """The rows with those that a function or LATERAL gives for each; None for a join with a table."""
        if (rows_call := read_rows_call(self._context, join.this)) is not None:
            return bind_rows_call(self._tables, left, join, join.this, rows_call)
        if (call := called_table(join.this)) is not None:
            return bind_table_call(self._tables, left, join, join.this, call)
        if isinstance(join.this, exp.Lateral) and isinstance(join.this.this, exp.Subquery):
            if isinstance(values := join.this.this.this, exp.Values):
                return bind_lateral_values(self._tables, left, join, join.this, values)
            return self._join_lateral(left, join)
        return None

    def _join_for_existence(self, left: Relation, join: exp.Join, how: str) -> Relation:
        """`a LEFT SEMI JOIN b`: the rows that have a match; ANTI: those that have none."""
        tables, kind = self._tables, join.args["kind"].lower()
        if how not in ("", "LEFT"):
            message = f"{how} {kind.upper()} JOIN is not supported"
            raise self._context.fail(message, join, f"write … LEFT {kind.upper()} JOIN … ON …")
        using, count = join.args.get("using") or [], len(tables.scope.tables)
        right = self._add_side(join.this, None)
        if lookup_of(right) is not None:
            raise self._context.fail(f"{kind.upper()} JOIN with a lookup table", join, "use LEFT JOIN")
        conditions = self._conditions(join.args.get("on"))
        conditions += equalities_of_using(tables, using) if using else []
        tables.remove_last(count)
        refuse_volatile(self._context, left, conditions)
        return join_relations(self._context, left, right, kind, conditions)

    def _join_sides(self, left: Relation, right: Relation, clause: JoinClause, using: list[str]) -> Relation:
        if (clause.node.args.get("method") or "").upper() == "ASOF":
            return bind_as_of_join(self._tables, left, right, clause, using)
        if lookup_of(right) is not None:
            return bind_lookup_join(self._tables, left, right, clause)
        joined = bind_join(self._tables, left, right, clause)
        refuse_volatile(self._context, joined, clause.conditions)
        return merge_using(self._tables, joined, using) if using else joined

    def _with_subqueries(self, tables: FromTables, relation: Relation, on: exp.Expr) -> Relation:
        """One side of a join with the subqueries in ON that read this side alone."""
        if self._subqueries is not None:
            return self._subqueries(tables, relation, on)
        for condition in conjuncts(on):
            if condition.find(exp.Query) is not None:
                condition.replace(exp.true())
        return relation

    def _conditions(self, on: exp.Expr | None) -> list[exp.Expr]:
        """The resolved conditions of ON."""
        context, scope = self._context, self._tables.scope
        hint = "filter one side in a subquery in FROM"
        if on is not None:
            scope.refuse_async(on)
            if (subquery := on.find(exp.Query)) is not None:
                message = "a subquery in ON of an outer join reads columns of one side only"
                raise context.fail(message, subquery, hint)
        conditions = [scope.resolve(condition) for condition in conjuncts(on)]
        if (moving := next(filter(reads_clock, conditions), None)) is not None:
            where = "write it in WHERE, or filter one side in a subquery in FROM"
            raise context.fail("a condition on the clock cannot stand in ON", moving, where)
        return conditions

    # ------------------------------------------------------------------------------------- LATERAL

    def _join_lateral(self, left: Relation, join: exp.Join) -> Relation:
        """Each row with the rows that a subquery has for it."""
        context, tables, node = self._context, self._tables, join.this
        query = node.this.unnest()
        values = self.outer_values(query)
        if not values:
            plain = join.copy()
            plain.set("this", exp.Subquery(this=query.copy(), alias=node.args.get("alias")))
            return self._join(left, plain)
        side, on = (join.args.get("side") or "").upper(), join.args.get("on")
        is_always = on is None or (isinstance(on, exp.Boolean) and bool(on.this))
        if side not in ("", "LEFT") or join.args.get("using") or join.args.get("method"):
            hint = "write CROSS JOIN LATERAL (…), or LEFT JOIN LATERAL (…) ON TRUE"
            raise context.fail(
                "the rows of LATERAL can only be joined with CROSS JOIN, or LEFT JOIN ON TRUE", node, hint
            )
        if not isinstance(query, exp.Select):
            hint = "write a LATERAL for each side, or join without LATERAL"
            raise context.fail("a set operation in LATERAL cannot read the outer row", node, hint)
        columns = {text: f"c{index}" for index, text in enumerate(values)}
        domain = f"domain:{tables.next_stub}"
        select = with_domain(context, query, domain, columns)
        aggregates = context.planner.aggregates
        has_default = is_global_aggregate(query, aggregates)
        if has_default:
            select.append("expressions", exp.alias_(exp.Boolean(this=True), "m", quoted=True))
            if side and not is_always:
                raise context.fail("aggregates in LEFT JOIN LATERAL are joined ON TRUE", on)
        rows = self._domain(left, list(values.values()), node)
        namespace = {**self._namespace, domain: LazyRelation(lambda: rows)}
        bound = self._bind_query(select, namespace)
        count = len(bound.names) - len(values) - has_default
        alias, names = alias_of(node)
        if len(names) > count:
            raise context.fail(f"{len(names)} names for {count} columns", node)
        alias, names = alias or f"_{tables.next_stub}", [*names, *bound.names[len(names) : count]]
        tables.check_alias(alias, node)
        right = self._prefixed(bound.relation, alias)
        own, ties = list(right.columns)[:count], list(right.columns)[count:]
        conditions: list[exp.Expr] = []
        for value, tie in zip(values.values(), ties, strict=False):
            is_nullable = not isinstance(value, exp.Column) or left.columns.field(value.name).nullable
            comparison = exp.NullSafeEQ if is_nullable else exp.EQ
            conditions.append(comparison(this=value.copy(), expression=column_of(tie.name)))
        tables.add(ScopeTable(alias, tuple(names), tuple(own)), renamed(own, unique_names(names)))
        tables.join_last("LEFT JOIN" if side else "JOIN", "ON TRUE")
        others = [] if is_always else [tables.scope.resolve(condition) for condition in conjuncts(on)]
        kind: JoinKind = "left" if side or has_default else "inner"
        inside = [] if has_default else others
        joined: Relation = bind_join(tables, left, right, JoinClause(kind, [*conditions, *inside], join))
        if has_default:
            items = [item for item in query.expressions if not isinstance(item, exp.Star)]
            joined = self._with_defaults(joined, own, ties[-1].name, items)
            for condition in others:
                joined = where_map(joined, as_expression(condition))
        return joined

    def join_value(self, left: Relation, query: exp.Expr) -> tuple[Relation, exp.Column]:
        """The rows with the value of a subquery that has one row at most for each, and a name for it."""
        alias = f"value:{self._tables.next_stub}"
        name = exp.TableAlias(
            this=exp.to_identifier(alias, quoted=True), columns=[exp.to_identifier("v", quoted=True)]
        )
        lateral = exp.Lateral(this=exp.Subquery(this=query.copy()), alias=name)
        rows = self._join_lateral(left, exp.Join(this=lateral, side="LEFT", on=exp.Boolean(this=True)))
        *tables, last = self._tables.scope.tables
        if len(last.names) != 1:
            message = f"the subquery has {len(last.names)} columns, not 1"
            raise self._context.fail(message, query, "select as many as are compared")
        self._tables.scope.tables = [*tables, replace(last, is_hidden=True)]
        column = exp.Column(
            this=exp.to_identifier("v", quoted=True), table=exp.to_identifier(alias, quoted=True)
        )
        return rows, column

    def outer_values(self, query: exp.Expr) -> dict[str, exp.Expr]:
        """The columns of the tables before it that a subquery reads: their text, and what they stand for."""
        scope = replace(self._tables.scope, context=replace(self._context, problems=Problems()))
        inner = FromTables(scope.context, [])
        try:
            if isinstance(query, exp.Select) and query.args.get("from_") is not None:
                FromClause(inner, self._namespace, self._bind_query.quietly()).bind(query.copy())
        except (ReportedError, ExpressionError):
            pass  # it reads outer columns in FROM
        items = query.selects if isinstance(query, exp.Query) else []
        aliases, shown = inner_aliases(query), {item.alias for item in items if item.alias}
        values: dict[str, exp.Expr] = {}
        for column in query.find_all(exp.Column):
            if isinstance(column.this, exp.Star):
                continue
            first, *rest = (identifier_name(part) for part in column.parts)
            is_ordered = column.find_ancestor(exp.Order, exp.Qualify) is not None and first in shown
            if (rest and first in aliases) or is_ordered or _resolves(inner.scope, column):
                continue
            if _resolves(scope, column):
                values.setdefault(to_sql(column), self._tables.scope.resolve(column))
        return values

    def _domain(self, left: Relation, values: list[exp.Expr], node: exp.Expr) -> BoundQuery:
        """The different values that a LATERAL subquery reads, as columns `c0`, `c1` and so on."""
        names = [f"c{index}" for index in range(len(values))]
        with self._context.planning(node):
            kinds = self._context.planner.types(
                [to_sql(value) for value in values], self._tables.scope.schema
            )
        items = [Item(name, as_expression(value)) for name, value in zip(names, values, strict=True)]
        return BoundQuery(distinct_rows(make_map(left, items, renamed(kinds, names))), tuple(names))

    def _with_defaults(
        self, joined: Relation, own: list[pa.Field], marker: str, items: list[exp.Expr]
    ) -> Relation:
        """The aggregates of LATERAL, with their values over no rows where a row has no match."""
        defaults = dict(zip((column.name for column in own), items, strict=False))
        computed = []
        for column in joined.columns:
            item = defaults.get(column.name)
            if item is None:
                computed.append(column_item(column.name))
                continue
            empty = as_expression(
                self._tables.scope.resolve(value_of_no_rows(item, self._context.planner.aggregates))
            )
            default = f"CAST({empty.text} AS {sql_type(column.type)})"
            text = f"CASE WHEN {quote(marker)} THEN {quote(column.name)} ELSE {default} END"
            used = empty.columns | {column.name, marker}
            computed.append(Item(column.name, Expression(text, used)))
        return make_map(joined, computed, joined.columns)

    def _add_side(self, node: exp.Expr, on: exp.Expr | None) -> Relation:
        """Add the right side of a join: a table, or a join in parentheses whose tables keep their names."""
        has_subquery = on is not None and on.find(exp.Query) is not None
        if _without_parentheses(node)[1] or has_subquery:
            inner = self._tables.begin_parentheses()
            clause = FromClause(inner, self._namespace, self._bind_query, self._subqueries)
            relation = clause.bind_joined(node, [], prefix=True)
            if on is not None and has_subquery:
                relation = self._with_subqueries(inner, relation, on)
            self._tables.end_parentheses(inner, node)
            return relation
        return self._add_table(node, prefix=True)


def _resolves(scope: Scope, column: exp.Column) -> bool:
    """Whether a name stands for something; `scope` must not report problems."""
    try:
        scope.resolve(column)
    except ReportedError:
        return False
    return True


def _without_version(context: BindContext, node: exp.Expr) -> tuple[exp.Expr | None, exp.Expr]:
    """(the time of FOR SYSTEM_TIME AS OF, the table without it)."""
    version = node.args.get("version")
    if not isinstance(version, exp.Version):
        return None, node
    if (version.name, version.args.get("kind")) != ("TIMESTAMP", "AS OF") or version.expression is None:
        raise context.fail("a version of a table is FOR SYSTEM_TIME AS OF a time", node)
    table = node.copy()
    table.set("version", None)
    return version.expression, table


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
