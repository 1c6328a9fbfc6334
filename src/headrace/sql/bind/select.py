"""SELECT: the list, WHERE, GROUP BY, OVER, DISTINCT, and what DataFusion says about it all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import ExpressionError, suggest
from headrace.base.problems import Problems
from headrace.model.fragments import quote
from headrace.sql.bind.calls import AsyncBinder, call_name, find_aggregates, is_aggregate, is_window_call
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.correlation import CorrelationFinder, has_subquery
from headrace.sql.bind.filters import filter_rows
from headrace.sql.bind.from_clause import BindQuery, FromClause
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.group_by import GroupBinder, window_of
from headrace.sql.bind.grouping_sets import Grouping, read_grouping
from headrace.sql.bind.lifting import SubqueryLifter
from headrace.sql.bind.logical import Expression, Item, Relation
from headrace.sql.bind.meanings import mark
from headrace.sql.bind.over import bind_over, bind_window_calls, inline_windows
from headrace.sql.bind.postgres_calls import meaning_of
from headrace.sql.bind.relations import (
    BoundQuery,
    Namespace,
    distinct_rows,
    make_map,
    renamed,
    select_columns,
    unique_names,
    where_map,
)
from headrace.sql.bind.respelling import is_rewritten
from headrace.sql.bind.scope import Scope, as_expression, column_of, conjuncts, identifier_name
from headrace.sql.bind.subqueries import SubqueriesOfJoins, SubqueryBinder, subquery_name
from headrace.sql.bind.temporal import filter_by_clock, isolate_clock, reads_clock, split_by_clock
from headrace.sql.bind.time_bounds import take_time_bounds
from headrace.sql.bind.volatile import refuse_volatile
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import ReportedError


def bind_select(
    context: BindContext, select: exp.Select, namespace: Namespace, bind_query: BindQuery
) -> tuple[BoundQuery, int]:
    """The relation of a SELECT before ORDER BY, and how many of its columns are selected.

    The others are what ORDER BY needs beyond these. `bind_query` binds subqueries.
    """
    inline_windows(context, select)
    _move_subqueries_of_joins(select)
    where = select.args.get("where")
    conditions = [] if where is None else [isolate_clock(node) for node in conjuncts(where.this)]
    tables = FromTables(context, [node for node in conditions if not has_subquery(node)])
    clause = FromClause(tables, namespace, bind_query, SubqueriesOfJoins(namespace, bind_query))
    relation = clause.bind(select)
    lifter = SubqueryLifter(clause, CorrelationFinder(tables, namespace, bind_query))
    subqueries = SubqueryBinder(tables, namespace, bind_query)
    for condition in conditions:
        if has_subquery(condition):
            relation, lifted = lifter.lift(relation, condition, in_where=True)
            if has_subquery(lifted):
                relation = subqueries.filter(relation, lifted)
            else:
                tables.where.append(lifted)
    if select.args.get("group") is None and not _has_aggregates(context, select):
        relation = _lift_items(select, relation, lifter)
    relation = _replace_subqueries(context, select, relation, subqueries)
    return _SelectBinder(tables, select, subqueries).bind(relation)


def _move_subqueries_of_joins(select: exp.Select) -> None:
    """Put the conditions of inner joins that have subqueries into WHERE, where they mean the same."""
    for join in reversed(select.args.get("joins") or []):
        on, side = join.args.get("on"), (join.args.get("side") or "").upper()
        if side in ("RIGHT", "FULL"):
            return  # it gives rows that pass no condition of the joins before it
        if on is None or side or join.args.get("method") or not has_subquery(on):
            continue
        for condition in conjuncts(on):
            if has_subquery(condition):
                select.where(condition.copy(), copy=False)
        others = [condition.copy() for condition in conjuncts(on) if not has_subquery(condition)]
        join.set("on", exp.and_(*others) if others else exp.true())


def _has_aggregates(context: BindContext, select: exp.Select) -> bool:
    having = select.args.get("having")
    nodes = [*select.expressions, *([] if having is None else [having])]
    return any(any(find_aggregates(node, context.planner.aggregates)) for node in nodes)


def _lift_items(select: exp.Select, relation: Relation, lifter: SubqueryLifter) -> Relation:
    """Join the subqueries of the SELECT list that need it; an item keeps the name of its subquery."""
    items = []
    for item in select.expressions:
        if not has_subquery(item):
            items.append(item)
            continue
        name = subquery_name(item)
        relation, lifted = lifter.lift(relation, item, in_where=False)
        is_bare = lifted is not item and name is not None
        items.append(exp.alias_(lifted, name, quoted=True) if is_bare else lifted)
    select.set("expressions", items)
    return relation


def _replace_subqueries(
    context: BindContext, select: exp.Select, relation: Relation, subqueries: SubqueryBinder
) -> Relation:
    """Put columns in the place of the subqueries of a SELECT; those that groups are made of are joined."""
    aggregated = select.args.get("group") is not None or _has_aggregates(context, select)
    for clause in ("group", "order", "distinct", "qualify"):
        node = select.args.get(clause)
        if node is not None and has_subquery(node) and (aggregated or clause != "order"):
            subquery = node.find(exp.Query)
            hint = "give it a name in the SELECT list of a subquery, and use this"
            raise context.fail("a subquery cannot stand here", subquery, hint)
    if aggregated:
        for node in _before_groups(context, select):
            node.replace(_named(subqueries.replace(node)))
        relation = subqueries.join(relation)
    elif (order := select.args.get("order")) is not None and has_subquery(order):
        for key in order.expressions:
            key.set("this", subqueries.replace(key.this))
    if any(has_subquery(item) for item in select.expressions):
        select.set("expressions", [_named(subqueries.replace(item)) for item in select.expressions])
    having = select.args.get("having")
    if having is not None and has_subquery(having):
        having.set("this", subqueries.replace(having.this))
    return relation


def _before_groups(context: BindContext, select: exp.Select) -> list[exp.Expr]:
    """What is computed of rows before they are grouped and has subqueries: aggregates, and listed keys."""
    having = select.args.get("having")
    nodes = [*select.expressions, *([] if having is None else [having])]
    computed = [
        call
        for node in nodes
        for call in find_aggregates(node, context.planner.aggregates)
        if has_subquery(call)
    ]
    group = select.args.get("group")
    if group is None:
        return computed
    positions = {key.name for key in group.expressions if isinstance(key, exp.Literal)}
    names = {key.name for key in group.expressions if isinstance(key, exp.Column) and not key.table}
    for number, item in enumerate(select.expressions, start=1):
        is_named = isinstance(item, exp.Alias) and item.alias in names
        is_key = bool(group.args.get("all")) or str(number) in positions or is_named
        if is_key and has_subquery(item):
            computed.append(item)
    return computed


def _named(item: exp.Expr) -> exp.Expr:
    """An item of a SELECT list under the name that a subquery has given it."""
    name = item.meta.get("subquery")
    return item if name is None else exp.alias_(item, name, quoted=True)


# ------------------------------------------------------------------------------------ the SELECT list


@dataclass(frozen=True)
class _SelectItem:
    """An item of a SELECT list; `field` if it came out of a `*`."""

    node: exp.Expr
    alias: str | None
    field: pa.Field | None = None

    def resolve(self, scope: Scope) -> exp.Expr:
        """The item over the columns of the relation."""
        return self.node if self.field is not None else scope.resolve(self.node)


def _select_items(scope: Scope, select: exp.Select) -> list[_SelectItem]:
    """The items of a SELECT list, with every `*` expanded."""
    items: list[_SelectItem] = []
    for node in select.expressions:
        star = node if isinstance(node, exp.Star) else node.this if isinstance(node, exp.Column) else None
        if isinstance(star, exp.Star):
            items += _expand_star(scope, node, star)
        elif isinstance(node, exp.Alias):
            items.append(_SelectItem(node.this, identifier_name(node.args["alias"])))
        else:
            items.append(_SelectItem(node, None))
    if not items:
        raise scope.context.fail("SELECT has no columns", select)
    return items


def _expand_star(scope: Scope, node: exp.Expr, star: exp.Star) -> list[_SelectItem]:
    qualifier = node.args.get("table") if isinstance(node, exp.Column) else None
    alias = None if qualifier is None else identifier_name(qualifier)
    tables = [t for t in scope.tables if not t.is_hidden and (alias is None or t.alias == alias)]
    if not tables:
        hint = suggest(alias or "", [table.alias for table in scope.tables], listing="the tables are")
        raise scope.context.fail(f"there is no table `{alias}` here", node, hint)
    for clause in ("replace", "rename"):
        if star.args.get(clause):
            raise scope.context.fail(f"* {clause.upper()} is not supported", node)
    excluded = {
        identifier_name(column.this if isinstance(column, exp.Column) else column): column
        for column in star.args.get("except_") or ()
    }
    names = {name for table in tables for name in table.names}
    for name, column in excluded.items():
        if name not in names:
            message = f"there is no column `{name}` to leave out"
            raise scope.context.fail(message, column, suggest(name, names))
    items = []
    for table in tables:
        for name, field in zip(table.names, table.columns, strict=True):
            if name in excluded or (alias is None and name in table.merged):
                continue
            shown = table.unqualified.get(name, field) if alias is None else field
            reference = column_of(shown.name)
            reference.meta["resolved"] = True
            mark(reference, scope.meaning(shown))
            items.append(_SelectItem(reference, name, shown))
    if alias is None:
        items.sort(
            key=lambda item: scope.first.index(item.alias) if item.alias in scope.first else len(names)
        )
    return items


def _expand_aliases(scope: Scope, node: exp.Expr, items: Sequence[_SelectItem]) -> exp.Expr:
    """A copy in which names of the SELECT list that are no columns are replaced by their expressions."""
    return node.copy().transform(lambda part: _expand_alias(scope, part, items))


def _expand_alias(scope: Scope, node: exp.Expr, items: Sequence[_SelectItem]) -> exp.Expr:
    if not isinstance(node, exp.Column):
        return node
    first, *fields = node.parts
    name = identifier_name(first)
    is_column = any(name in table.names for table in scope.tables)
    is_table = bool(fields) and any(name == table.alias for table in scope.tables)
    aliases = {item.alias: item.node for item in items if item.alias is not None and item.field is None}
    if is_column or is_table or name not in aliases:
        return node
    value = aliases[name].copy()
    for field in fields:
        value = exp.Dot(this=value, expression=field.copy())
    return value


def _read_group_by(scope: Scope, select: exp.Select, items: Sequence[_SelectItem]) -> Grouping:
    """What GROUP BY groups by: expressions, positions and aliases of the list, or ALL."""
    clause = select.args.get("group")
    if clause is None:
        return Grouping()
    context = scope.context
    aggregates = context.planner.aggregates
    if clause.args.get("all") and not clause.expressions:
        return Grouping(tuple(item.node for item in items if not any(find_aggregates(item.node, aggregates))))

    def key_of(node: exp.Expr) -> exp.Expr:
        if any(find_aggregates(node, aggregates)):
            raise context.fail("GROUP BY comes before aggregates", node, "aggregate in a subquery first")
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
            index = int(node.name) - 1
            if not 0 <= index < len(items):
                raise context.fail(f"there is no column {node.name} in the SELECT", node)
            key = items[index].node
            if any(find_aggregates(key, aggregates)):
                raise context.fail(f"column {node.name} is an aggregate", node, "group by another column")
            return key
        return _expand_alias(scope, node, items)

    return read_grouping(context, clause, key_of)


def _order_items(scope: Scope, select: exp.Select, items: Sequence[_SelectItem]) -> list[_SelectItem]:
    """What ORDER BY computes beyond the SELECT list, as hidden items; ORDER BY then names these."""
    order = select.args.get("order")
    if order is None or select.args.get("distinct") is not None:
        return []
    names = {
        item.alias or item.node.name for item in items if item.alias or isinstance(item.node, exp.Column)
    }
    tables = {table.alias for table in scope.tables}
    hidden: list[_SelectItem] = []
    for ordered in order.expressions:
        columns = [[identifier_name(part) for part in c.parts] for c in ordered.this.find_all(exp.Column)]
        is_shown = all(first in names and not (rest and first in tables) for first, *rest in columns)
        if is_shown and not any(find_aggregates(ordered.this, scope.context.planner.aggregates)):
            continue
        name = f"order:{len(hidden)}"
        hidden.append(_SelectItem(_expand_aliases(scope, ordered.this, items), name))
        ordered.set("this", exp.column(name, quoted=True))
    return hidden


# ---------------------------------------------------------------------------------------- the SELECT


@dataclass(frozen=True)
class _Clauses:
    """The parts of a SELECT that are computed after WHERE."""

    items: list[_SelectItem]
    """The SELECT list, then what ORDER BY computes beyond it."""
    selected: int
    """How many of the items are the SELECT list."""
    group: Grouping
    having: exp.Expr | None
    qualify: exp.Expr | None

    @property
    def after_where(self) -> Iterator[exp.Expr]:
        yield from (item.node for item in self.items)
        for condition in (self.having, self.qualify):
            if condition is not None:
                yield condition


class _SelectBinder:
    """Binds one SELECT over its FROM."""

    def __init__(self, tables: FromTables, select: exp.Select, subqueries: SubqueryBinder) -> None:
        self._subqueries = subqueries
        self._tables = tables
        self._context = tables.context
        self._planner = tables.context.planner
        self._scope = tables.scope
        self._select = select

    def bind(self, relation: Relation) -> tuple[BoundQuery, int]:
        clauses = self._with_decided_keys(self._read_clauses())
        aggregated = bool(clauses.group) or any(map(self._has_aggregate, clauses.after_where))
        if clauses.having is not None and not aggregated:
            raise self._context.fail("HAVING without GROUP BY or an aggregate", clauses.having, "use WHERE")
        self._refuse_in_where()
        for node in clauses.group.keys:
            if is_window_call(node):
                window_of(self._context, node, node)  # for its errors
        self._check_grouping_calls(clauses)
        planned = self._plan(clauses, aggregated=aggregated)
        calls = AsyncBinder(self._context)
        conditions = map(self._scope.resolve, self._tables.where)
        refuse_volatile(self._context, relation, (node for node in conditions if not reads_clock(node)))
        before = map(self._scope.resolve, self._before_groups(clauses))
        refuse_volatile(self._context, relation, before)
        relation = self._filter(relation, calls)
        nodes = [item.resolve(self._scope) for item in clauses.items]
        meanings = {index: its for index, node in enumerate(nodes) if (its := meaning_of(node)) is not None}
        if clauses.qualify is not None:  # it is computed beside the SELECT list, until rows are filtered
            self._scope.refuse_async(clauses.qualify)
            nodes.append(self._scope.resolve(clauses.qualify))
        if aggregated:
            self._refuse_async(nodes, clauses)
            self._refuse_two_orders(nodes)
            groups = GroupBinder(self._scope, self._select, relation)
            relation, nodes = groups.bind(nodes, clauses.group, clauses.having, self._subqueries)
            if clauses.having is not None:
                _, others = split_by_clock(self._scope.resolve(clauses.having))
                refuse_volatile(self._context, relation, others)
            calls = AsyncBinder(self._context)
        else:
            relation = self._subqueries.join(relation)
        refuse_volatile(self._context, relation, nodes)
        relation, nodes = calls.bind(relation, nodes)
        self._refuse_ungrouped_windows(nodes)
        relation, nodes = bind_over(self._context, self._select, relation, nodes)
        if clauses.qualify is not None:
            *nodes, condition = nodes
            rows = select_columns(relation, relation.columns.names)
            relation = filter_rows(rows, list(conjuncts(condition)), self._planner.user_functions)
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
        return BoundQuery(relation, tuple(names), meanings), clauses.selected

    def _check_grouped_stars(self, clauses: _Clauses) -> None:
        """Refuse columns that `*` stands for beside aggregates, unless they are keys."""
        keys = {to_sql(self._scope.resolve(key)) for key in clauses.group.keys}
        for item in clauses.items:
            if item.field is not None and to_sql(item.node) not in keys:
                hint = "add it to GROUP BY, or name the columns in place of `*`"
                message = f"`{item.alias}` is neither grouped nor aggregated"
                raise self._context.fail(message, self._select, hint)

    def _check_grouping_calls(self, clauses: _Clauses) -> None:
        """Refuse grouping(…) of anything but keys."""
        calls = [
            call
            for node in clauses.after_where
            for call in node.find_all(exp.Anonymous)
            if call.name.lower() == "grouping"
        ]
        if not calls:
            return
        keys = {to_sql(self._scope.resolve(key)) for key in clauses.group.keys}
        for call in calls:
            arguments = {to_sql(self._scope.resolve(argument)) for argument in call.expressions}
            if not arguments or arguments - keys:
                raise self._context.fail("grouping(…) takes keys of GROUP BY", call, "add them to GROUP BY")

    def _before_groups(self, clauses: _Clauses) -> Iterator[exp.Expr]:
        """What is computed of the rows that pass WHERE: GROUP BY, arguments of aggregates."""
        yield from clauses.group.keys
        for node in clauses.after_where:
            yield from find_aggregates(node, self._planner.aggregates)

    def _has_aggregate(self, node: exp.Expr) -> bool:
        return any(find_aggregates(node, self._planner.aggregates))

    def _read_clauses(self) -> _Clauses:
        items = _select_items(self._scope, self._select)
        group = _read_group_by(self._scope, self._select, items)
        hidden = _order_items(self._scope, self._select, items)
        having, qualify = (
            None if clause is None else _expand_aliases(self._scope, clause.this, [*items, *hidden])
            for clause in (self._select.args.get("having"), self._select.args.get("qualify"))
        )
        return _Clauses([*items, *hidden], len(items), group, having, qualify)

    def _with_decided_keys(self, clauses: _Clauses) -> _Clauses:
        """Group by all columns of a table whose primary key is grouped by: the key decides their values."""
        group = clauses.group
        if not group.keys or group.sets is not None or not any(table.key for table in self._scope.tables):
            return clauses
        try:
            keys = {to_sql(self._scope.resolve(key)) for key in group.keys}
        except ReportedError:
            return clauses  # it comes again
        decided = {
            to_sql(column_of(column.name))
            for table in self._scope.tables
            if table.key and {to_sql(column_of(name)) for name in table.key} <= keys
            for column in table.columns
        }
        added: dict[str, exp.Expr] = {}
        for column in (column for node in clauses.after_where for column in self._bare_columns(node)):
            text = to_sql(column if column.meta.get("resolved") else self._scope.resolve(column))
            if text in decided - keys:
                added.setdefault(text, column)
        return replace(clauses, group=replace(group, keys=(*group.keys, *added.values())))

    def _bare_columns(self, node: exp.Expr) -> Iterator[exp.Expr]:
        """The columns of an expression that no aggregate is computed of."""
        if isinstance(node, exp.Column):
            yield node
        elif not is_aggregate(node, self._planner.aggregates):
            for child in node.iter_expressions():
                yield from self._bare_columns(child)

    # ------------------------------------------------------------------------- planned by DataFusion

    def _plan(self, clauses: _Clauses, *, aggregated: bool) -> list[tuple[pa.Field, str]]:
        """What DataFusion says about the SELECT: the type and the name of each item."""
        computed = [item for item in clauses.items if item.field is None]
        conditions = [node for node in (clauses.having, clauses.qualify) if node is not None]
        nodes = [*(item.node for item in computed), *self._tables.where, *clauses.group.keys, *conditions]
        self._check_names(nodes)
        names: list[str] = []
        own_names: list[str | None] = []
        texts: list[str] = []
        aliases: list[str | None] = []
        columns = {name for table in self._scope.tables for name in table.names}
        for item in computed:
            text = self._tables.stub_text(item.node, grouped=aggregated)
            is_column = isinstance(item.node, exp.Column) and not text.endswith("]")  # not a field of one
            own_names.append(identifier_name(item.node.this) if is_column else None)
            name = item.alias or own_names[-1] or text
            # What is called the same twice, or as a column, is planned under a name of its own.
            clash = name in names or item.alias in columns
            aliases.append(f"{name}:{len(texts)}" if clash else item.alias)
            texts.append(text)
            names.append(name)
        planned = self._plan_stubs(texts, aliases, clauses)
        self._check_qualify(clauses, aggregated=aggregated)
        if aggregated:
            self._check_grouped_stars(clauses)
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

    def _plan_stubs(
        self, texts: Sequence[str], aliases: Sequence[str | None], clauses: _Clauses
    ) -> pa.Schema:
        items = [
            text if alias is None else f"{text} AS {quote(alias)}"
            for text, alias in zip(texts, aliases, strict=True)
        ]
        sql = self._tables.stub_sql(
            items or ["1"], where=self._tables.where, group=clauses.group, having=clauses.having
        )
        try:
            return self._planner.schema(sql, self._tables.stubs)
        except ExpressionError as error:
            if "unique expression names" not in error.message:
                raise self._explain(error, clauses) from error
        # DataFusion calls `a` and `CAST(a AS TEXT)` the same: every item gets a name of its own.
        unique = [f"{text}:{at}" for at, text in enumerate(texts)]
        return renamed(self._plan_stubs(texts, unique, clauses), texts)

    def _check_qualify(self, clauses: _Clauses, *, aggregated: bool) -> None:
        """Refuse a QUALIFY that is no condition on window functions."""
        node = clauses.qualify
        if node is None:
            return
        if not any(node.find(exp.Window) or item.node.find(exp.Window) for item in clauses.items):
            hint = "use WHERE or HAVING, which say the same"
            raise self._context.fail("QUALIFY without a window function", node, hint)
        sql = self._tables.stub_sql(
            [f"CASE WHEN {self._tables.stub_text(node, grouped=aggregated)} THEN 1 END AS q"],
            group=clauses.group,
        )
        with self._context.planning(node):
            self._planner.schema(sql, self._tables.stubs)

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
        if is_rewritten(self._scope.resolve(node)):
            quiet = self._tables.with_context(replace(self._context, problems=Problems()))
            try:
                sql = quiet.stub_sql([quiet.stub_text(node, plain=True)])
                name = self._planner.schema(sql, self._tables.stubs).field(0).name
            except (ExpressionError, ReportedError):
                return to_sql(node)
        return to_sql(node) if "__" in name else name

    def _explain(self, error: ExpressionError, clauses: _Clauses) -> ReportedError:
        """Report the parts that DataFusion refuses by themselves; the whole SELECT if it refuses none."""
        tables = self._tables
        candidates = [
            *((node, f"{tables.stub_sql(['1'])} WHERE {tables.stub_text(node)}") for node in tables.where),
            *((node, tables.stub_sql([tables.stub_text(node)])) for node in clauses.group.keys),
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

    def _ungrouped_column(self, error: ExpressionError, items: list[_SelectItem]) -> exp.Expr | None:
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
        for node in (*clauses.group.keys, *([] if clauses.having is None else [clauses.having])):
            self._scope.refuse_async(node)

    def _refuse_two_orders(self, nodes: Sequence[exp.Expr]) -> None:
        """DataFusion gives distinct values that are aggregated in two orders in one of these twice."""
        orders: dict[tuple[str, str], str] = {}
        for node in nodes:
            for order in node.find_all(exp.Order):
                if isinstance(order.this, exp.Distinct) and isinstance(order.parent, exp.Anonymous):
                    call = (order.parent.name.lower(), to_sql(order.this))
                    text = ", ".join(to_sql(key) for key in order.expressions)
                    if orders.setdefault(call, text) != text:
                        message = "the same distinct values are aggregated in two orders"
                        raise self._context.fail(message, order.parent, "use one order in one SELECT")

    def _filter(self, relation: Relation, calls: AsyncBinder) -> Relation:
        nodes = [self._scope.resolve(condition) for condition in self._tables.where]
        moving = [node for node in nodes if reads_clock(node)]
        waiting = [node for node in nodes if node not in moving and calls.calls_any(node)]
        others = [node for node in nodes if node not in moving and node not in waiting]
        relation, others = take_time_bounds(self._context, relation, others)
        relation = filter_rows(relation, others, self._planner.user_functions)
        # Asynchronous functions are called for the rows that pass all else.
        relation, waiting = calls.bind(relation, waiting)
        for node in waiting:
            relation = where_map(relation, as_expression(node))
        return filter_by_clock(self._context, relation, moving)

    def _distinct_on(
        self, relation: Relation, distinct: exp.Distinct, items: list[_SelectItem], *, aggregated: bool
    ) -> Relation:
        """DISTINCT ON (a) is the first row of each a, in the order of ORDER BY."""
        if aggregated:
            raise self._context.fail("DISTINCT ON over aggregates", distinct, "group in a subquery first")
        on = distinct.args["on"]
        self._scope.refuse_async(on)
        keys = [
            self._scope.resolve(self._listed(key, items))
            for key in (on.expressions if isinstance(on, exp.Tuple) else [on])
        ]
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

    def _order_key(self, node: exp.Expr, items: list[_SelectItem]) -> exp.Expr:
        key = node.copy()
        key.set("this", self._scope.resolve(self._listed(node.this, items)))
        return key

    def _listed(self, node: exp.Expr, items: list[_SelectItem]) -> exp.Expr:
        """What a position, a name of the SELECT list or an expression stands for, tried in this order."""
        if isinstance(node, exp.Literal) and not node.is_string:
            if not node.name.isdigit() or not 0 < int(node.name) <= len(items):
                raise self._context.fail(f"there is no column {node.name} in the SELECT", node)
            return items[int(node.name) - 1].node
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            name = identifier_name(node.this)
            for item in items:
                if item.alias == name:
                    return item.node
        return _expand_aliases(self._scope, node, items)
