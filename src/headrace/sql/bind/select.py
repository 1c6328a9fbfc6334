"""SELECT: the list, WHERE, DISTINCT, and what DataFusion says about it all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import ExpressionError, suggest
from headrace.model.fragments import quote
from headrace.sql.bind.calls import call_name, find_aggregates, is_aggregate, is_window_call
from headrace.sql.bind.from_clause import FromClause
from headrace.sql.bind.function_calls import AsyncBinder
from headrace.sql.bind.groups import Groups, window_of
from headrace.sql.bind.guards import guard
from headrace.sql.bind.logical import Expression, Item, Relation
from headrace.sql.bind.over import bind_over, inline_windows, window_calls
from headrace.sql.bind.relations import (
    Bound,
    Names,
    constants,
    distinct_names,
    first_columns,
    limit_ranks,
    make_map,
    push_filter,
    where_map,
)
from headrace.sql.bind.scope import Scope, as_expression, column_of, identifier_name
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import FailedError

if TYPE_CHECKING:
    from headrace.sql.bind.binder import Binder

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


class SelectBinder:
    """Binds one SELECT: FROM, WHERE, GROUP BY, HAVING, OVER, the list, DISTINCT, ORDER BY."""

    def __init__(self, binder: Binder, select: exp.Select, names: Names) -> None:
        self.binder = binder
        self.planner = binder.planner
        self.select = select
        self.tables = FromClause(binder, select, names)
        self.scope = self.tables.scope
        self.waiting = AsyncBinder(binder)

    def bind(self) -> Bound:
        select, binder = self.select, self.binder
        for clause, value in select.args.items():
            if value and clause not in _CLAUSES:
                raise binder.fail(f"{_OTHER_CLAUSES.get(clause, clause.upper())} is not supported", select)
        if select.args.get("from_") is None:
            return self._without_from()
        self._refuse_subqueries()
        inline_windows(binder, select)
        relation = self.tables.bind()
        items = self._items()
        group = self._group(items)
        shown = len(items)
        items += self._order_items(items)
        having = _this(select.args.get("having"))
        if having is not None:
            having = self._dealias(having, items)
        aggregated = bool(group) or any(
            True
            for node in [*(item.node for item in items), *([having] if having is not None else [])]
            for _ in find_aggregates(node, self.planner.aggregates)
        )
        if having is not None and not aggregated:
            raise binder.fail("HAVING without GROUP BY or an aggregate", having, "use WHERE")
        self._refuse_in_where()
        for node in group:
            if is_window_call(node):
                window_of(binder, node, node)  # for its errors
        planned = self._plan(items, group, having)
        relation = self._filtered(relation)
        nodes = [item.physical(self.scope) for item in items]
        if aggregated:
            self._refuse_async(nodes, group, having)
            relation, nodes = Groups(binder, select, self.scope, relation).bind(nodes, group, having)
            self.waiting = AsyncBinder(binder)
        relation, nodes = self.waiting.bind(relation, nodes)
        for node in nodes:
            for part in node.find_all(exp.Anonymous):
                if is_window_call(part):
                    raise binder.fail(
                        f"{call_name(part)}(…) stands in GROUP BY", part, f"add `GROUP BY {to_sql(part)}`"
                    )
        relation, nodes = bind_over(binder, select, relation, nodes)
        relation, nodes = AsyncBinder(binder).bind(relation, nodes)
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            relation = self._distinct_on(relation, distinct, items, aggregated=aggregated)
        fields = [field for field, _ in planned]
        names = [name for _, name in planned]
        inner = distinct_names(names)
        schema = pa.schema([pa.field(n, f.type, f.nullable) for n, f in zip(inner, fields, strict=True)])
        made: Relation = make_map(
            relation,
            [Item(name, as_expression(node)) for name, node in zip(inner, nodes, strict=True)],
            schema,
        )
        if distinct is not None and distinct.args.get("on") is None:
            made = binder.distinct(made)
            made = replace(made, columns=schema)
        bound = binder.ordered(select, Bound(made, tuple(names)))
        return bound if shown == len(items) else first_columns(bound, shown)

    def _without_from(self) -> Bound:
        sql = to_sql(self.select)
        try:
            return constants(self.planner.rows(sql))
        except ExpressionError as error:
            raise self.binder.fail(error.message, self.select, error.hint) from error

    def _refuse_subqueries(self) -> None:
        for clause in ("where", "expressions", "having", "group"):
            value = self.select.args.get(clause)
            for node in value if isinstance(value, list) else [value]:
                found = None if node is None else node.find(exp.Query)
                if found is not None:
                    raise self.binder.fail(
                        "a subquery can stand in FROM only",
                        found,
                        "join it, or write it as a view or in WITH",
                    )

    def _items(self) -> list[_Item]:
        items: list[_Item] = []
        for node in self.select.expressions:
            star = node if isinstance(node, exp.Star) else node.this if isinstance(node, exp.Column) else None
            if isinstance(star, exp.Star):
                items += self._expand(node, star)
            elif isinstance(node, exp.Alias):
                items.append(_Item(node.this, identifier_name(node.args["alias"])))
            else:
                items.append(_Item(node, None))
        if not items:
            raise self.binder.fail("SELECT has no columns", self.select)
        return items

    def _expand(self, node: exp.Expr, star: exp.Star) -> list[_Item]:
        table = (
            identifier_name(node.args["table"])
            if isinstance(node, exp.Column) and node.args.get("table")
            else None
        )
        entries = [e for e in self.scope.entries if table is None or e.alias == table]
        if not entries:
            aliases = [e.alias for e in self.scope.entries]
            hint = suggest(table or "", aliases) or f"the tables are {', '.join(aliases)}"
            raise self.binder.fail(f"there is no table `{table}` here", node, hint)
        for clause in ("replace", "rename"):
            if star.args.get(clause):
                raise self.binder.fail(f"* {clause.upper()} is not supported", node)
        left_out = {identifier_name(_identifier(one)): one for one in star.args.get("except_") or ()}
        known = {name for entry in entries for name in entry.names}
        for name, one in left_out.items():
            if name not in known:
                raise self.binder.fail(f"there is no column `{name}` to leave out", one, suggest(name, known))
        items = []
        for entry in entries:
            for name, column in zip(entry.names, entry.columns, strict=True):
                if name in left_out or (table is None and name in entry.merged):
                    continue
                shown = entry.stands.get(name, column) if table is None else column
                made = column_of(shown.name)
                made.meta["physical"] = True
                items.append(_Item(made, name, shown))
        return items

    def _group(self, items: list[_Item]) -> list[exp.Expr]:
        clause = self.select.args.get("group")
        if clause is None:
            return []
        for node in clause.expressions:
            if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
                name = type(node).__name__.upper()
                raise self.binder.fail(f"{name} is not supported", node, "write one query for each grouping")
            if next(find_aggregates(node, self.planner.aggregates), None) is not None:
                raise self.binder.fail(
                    "GROUP BY comes before aggregates", node, "aggregate in a subquery first"
                )
        if clause.args.get("all"):
            return [
                item.node for item in items if not any(find_aggregates(item.node, self.planner.aggregates))
            ]
        group = []
        for node in clause.expressions:
            if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
                index = int(node.name) - 1
                if not 0 <= index < len(items):
                    raise self.binder.fail(f"there is no column {node.name} in the SELECT", node)
                group.append(items[index].node)
            else:
                group.append(self._dealias(node, items, whole=True))
        return group

    def _order_items(self, items: list[_Item]) -> list[_Item]:
        """What ORDER BY computes beyond the SELECT list, as more items, which it is made to name."""
        order = self.select.args.get("order")
        if order is None or self.select.args.get("distinct") is not None:
            return []
        names = {
            item.alias or item.node.name for item in items if item.alias or isinstance(item.node, exp.Column)
        }
        tables = {entry.alias for entry in self.scope.entries}
        made: list[_Item] = []
        for one in order.expressions:
            columns = [[identifier_name(part) for part in c.parts] for c in one.this.find_all(exp.Column)]
            shown = all(first in names and not (rest and first in tables) for first, *rest in columns)
            if shown and not any(find_aggregates(one.this, self.planner.aggregates)):
                continue
            name = f"order:{len(made)}"
            made.append(_Item(self._dealias(one.this, items), name))
            one.set("this", exp.column(name, quoted=True))
        return made

    def _dealias(self, node: exp.Expr, items: list[_Item], *, whole: bool = False) -> exp.Expr:
        """Names of the SELECT list that are no columns stand for their expressions."""
        aliases = {item.alias: item.node for item in items if item.alias is not None and item.field is None}

        def visit(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            name, *fields = part.parts
            entries = self.scope.entries
            taken = any(identifier_name(name) in entry.names for entry in entries)
            taken |= bool(fields) and any(identifier_name(name) == entry.alias for entry in entries)
            if taken or identifier_name(name) not in aliases:
                return part
            made = aliases[identifier_name(name)].copy()
            for one in fields:
                made = exp.Dot(this=made, expression=one.copy())
            return made

        if whole:
            return visit(node)
        return node.copy().transform(visit)

    def _plan(
        self, items: list[_Item], group: list[exp.Expr], having: exp.Expr | None
    ) -> list[tuple[pa.Field, str]]:
        """What DataFusion says about the SELECT: the type and the name of each item."""
        self._check_names(
            [
                *(i.node for i in items if i.field is None),
                *self.tables.where,
                *group,
                *([having] if having else []),
            ]
        )
        called: list[str] = []
        written: list[str | None] = []
        texts: list[str] = []
        columns = {name for entry in self.scope.entries for name in entry.names}
        for item in items:
            if item.field is None:
                text = self.tables.stub_text(item.node)
                is_column = isinstance(item.node, exp.Column) and not text.endswith("]")  # not a field of one
                written.append(identifier_name(item.node.this) if is_column else None)
                name = item.alias or written[-1] or text
                # What is called the same twice, or as a column, is planned under a name of its own.
                clash = name in called or item.alias in columns
                texts.append(text + _as(f"{name}:{len(texts)}" if clash else item.alias))
                called.append(name)
        try:
            planned = self.planner.schema(
                self.tables.stub_sql(texts or ["1"], group, having), self.tables.stubs
            )
        except ExpressionError as error:
            if "unique expression names" in error.message:
                hint = "name each of them with AS"
                raise self.binder.fail("two columns come out under one name", self.select, hint) from error
            raise self._explain(error, items, group, having) from error
        named = [planned.field(called.index(name)).name for name in called]
        fields = zip(planned, [own or name for own, name in zip(written, named, strict=True)], strict=False)
        made = []
        for item in items:
            if item.field is not None:
                made.append((item.field, item.alias or item.field.name))
            else:
                field, name = next(fields)
                made.append((field, item.alias or self._unnamed(item.node, name)))
        return made

    def _check_names(self, nodes: Sequence[exp.Expr]) -> None:
        """Find every name that stands for nothing."""
        failed = False
        for node in nodes:
            try:
                self.scope.physical(node)
            except FailedError:
                failed = True
        if failed:
            raise FailedError

    def _unnamed(self, node: exp.Expr, name: str) -> str:
        """What an item without a name is called: as DataFusion calls it, or as it is written."""
        calls = self.scope.physical(node).find_all(exp.Anonymous)
        return to_sql(node) if any("__" in call.name for call in calls) else name

    def _explain(
        self,
        error: ExpressionError,
        items: list[_Item],
        group: Sequence[exp.Expr],
        having: exp.Expr | None,
    ) -> FailedError:
        """Find the parts that DataFusion does not like, to point at each."""
        binder = self.binder
        candidates = [
            (one, f"{self.tables.stub_part(['1'])} WHERE {self.tables.stub_text(one)}")
            for one in self.tables.where
        ]
        candidates += [(one, self.tables.stub_part([self.tables.stub_text(one)])) for one in group]
        candidates += [
            (item.node, self.tables.stub_part([self.tables.stub_text(item.node)], group))
            for item in items
            if item.field is None
        ]
        failed: FailedError | None = None
        for node, sql in candidates:
            try:
                self.planner.schema(sql, self.tables.stubs)
            except ExpressionError as found:
                failed = binder.fail(found.message, node, found.hint)
        if failed is not None:
            return failed
        return binder.fail(error.message, self._culprit(error, items) or having or self.select, error.hint)

    def _culprit(self, error: ExpressionError, items: list[_Item]) -> exp.Expr | None:
        """The column that is neither grouped nor aggregated, where an aggregate is beside it."""
        found = re.match(r"`(?:[^`]*\.)?([^`.]+)` is neither grouped", error.message)
        for item in items if found is not None else ():
            if next(find_aggregates(item.node, self.planner.aggregates), None) is None:
                for column in item.node.find_all(exp.Column):
                    if found is not None and identifier_name(column.this) == found[1]:
                        return column
        return None

    def _refuse_in_where(self) -> None:
        for node in self.tables.where:
            if node.find(exp.Window) is not None:
                raise self.binder.fail("WHERE comes before OVER", node, "filter in an outer SELECT")
            for part in node.find_all(exp.Anonymous):
                if is_aggregate(part, self.planner.aggregates):
                    raise self.binder.fail("WHERE comes before aggregates", part, "use HAVING")
                if is_window_call(part):
                    raise self.binder.fail(
                        f"{call_name(part)}(…) stands in GROUP BY", part, "filter windows in an outer SELECT"
                    )

    def _filtered(self, relation: Relation) -> Relation:
        if not self.tables.where:
            return relation
        nodes = [self.scope.physical(one) for one in self.tables.where]
        waiting = [node for node in nodes if self._waits(node)]
        nodes = guard([node for node in nodes if node not in waiting], self.planner.user_functions)
        left_over = []
        for node in nodes:
            pushed = push_filter(relation, as_expression(node))
            if pushed is None:
                left_over.append(node)
            else:
                relation = pushed
        if left_over:
            both = left_over[0] if len(left_over) == 1 else exp.and_(*left_over, copy=False)
            relation = where_map(limit_ranks(relation, left_over), as_expression(both))
        # Asynchronous functions are called for the rows that pass all else.
        relation, waiting = self.waiting.bind(relation, waiting)
        for node in waiting:
            relation = where_map(relation, as_expression(node))
        return relation

    def _waits(self, node: exp.Expr) -> bool:
        known = self.planner.asynchronous
        return any(call.name.lower() in known for call in node.find_all(exp.Anonymous))

    def _refuse_async(
        self, nodes: Sequence[exp.Expr], group: Sequence[exp.Expr], having: exp.Expr | None
    ) -> None:
        for node in nodes:
            for found in find_aggregates(node, self.planner.aggregates):
                self.scope.refuse_async(found)
        for node in (*group, *([having] if having is not None else [])):
            self.scope.refuse_async(node)

    def _distinct_on(
        self, relation: Relation, distinct: exp.Distinct, items: list[_Item], *, aggregated: bool
    ) -> Relation:
        """DISTINCT ON (a) is the first row of each a, in the order of ORDER BY."""
        if aggregated:
            raise self.binder.fail("DISTINCT ON over aggregates", distinct, "group in a subquery first")
        on = distinct.args["on"]
        self.scope.refuse_async(on)
        by = [self.scope.physical(one) for one in (on.expressions if isinstance(on, exp.Tuple) else [on])]
        order = self.select.args.get("order")
        ordered = None
        if order is not None:
            made = [self._order_by(one, items) for one in order.expressions]
            ordered = exp.Order(expressions=made)
            self.select.set("order", None)
        call = exp.Window(
            this=exp.Anonymous(this="row_number", expressions=[]), partition_by=by, order=ordered, over="OVER"
        )
        numbered = window_calls(self.binder, self.select, relation, [("over_on", call)])
        return replace(
            numbered, limit=Expression('"over_on" = 1', frozenset(["over_on"])), rank=("over_on", 1)
        )

    def _order_by(self, node: exp.Expr, items: list[_Item]) -> exp.Expr:
        made = node.copy()
        made.set("this", self.scope.physical(self._dealias(node.this, items)))
        return made


@dataclass(frozen=True)
class _Item:
    """One item of a SELECT list; `field` if it came out of a `*`."""

    node: exp.Expr
    alias: str | None
    field: pa.Field | None = None

    def physical(self, scope: Scope) -> exp.Expr:
        return self.node if self.field is not None else scope.physical(self.node)


def _this(node: exp.Expr | None) -> exp.Expr | None:
    return None if node is None else node.this


def _identifier(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Column) else node


def _as(alias: str | None) -> str:
    return "" if alias is None else f" AS {quote(alias)}"
