"""The tables of a FROM clause: what names mean there, and what DataFusion plans in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.model.fragments import quote
from headrace.sql.bind.calls import is_aggregate
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.grouping_sets import ALL_ROWS, Grouping
from headrace.sql.bind.logical import Relation
from headrace.sql.bind.scope import Scope, ScopeTable
from headrace.sql.parse.dialect import to_sql


class FromTables:
    """The tables in the FROM of one SELECT, and the conditions of its WHERE.

    Each table has a stub: an empty table of the same columns. DataFusion plans the SELECT as the user wrote
    it over the stubs, for the names and types of its result and for what is wrong with it.
    """

    def __init__(self, context: BindContext, where: list[exp.Expr], *, first: int = 0) -> None:
        self.context = context
        self.scope = Scope(context)
        self._first = first
        self.where = where
        """The conditions of WHERE; a comma join takes those that compare its sides."""
        self.stubs: dict[str, pa.Schema] = {}
        self._from: list[str] = []
        self._unnamed: set[str] = set()

    def check_alias(self, alias: str, node: exp.Expr) -> None:
        """Refuse a second table of the same name."""
        if any(table.alias == alias for table in self.scope.tables):
            raise self.context.fail(
                f"two tables are called `{alias}` here", node, "give one another name with AS"
            )

    def add(self, table: ScopeTable, stub: pa.Schema, *, join: str = "", is_named: bool = True) -> None:
        """Add a table, and its stub behind `join`; columns of a subquery without a name have no qualifier."""
        name = f"s{self.next_stub}"
        text = f"{name} AS {quote(table.alias)}"
        if not is_named:
            self._unnamed.add(table.alias)
            columns = ", ".join(f"c{i} AS {quote(column)}" for i, column in enumerate(stub.names))
            stub = pa.schema([f.with_name(f"c{i}") for i, f in enumerate(stub)])
            text = f"(SELECT {columns} FROM {name})"
        self.stubs[name] = stub
        self._from.append(f"{join} {text}".lstrip())
        self.scope.tables.append(table)

    def with_context(self, context: BindContext) -> FromTables:
        """The same tables for something that is only tried, whose problems go elsewhere."""
        tables = FromTables(context, list(self.where), first=self._first)
        tables.scope.tables, tables.scope.first = list(self.scope.tables), list(self.scope.first)
        tables.stubs, tables._from = dict(self.stubs), list(self._from)
        tables._unnamed = set(self._unnamed)
        return tables

    @property
    def next_stub(self) -> int:
        """The number of the next stub: different from those of all tables of the SELECT."""
        return self._first + len(self.stubs)

    def begin_parentheses(self) -> FromTables:
        """The tables of a join in parentheses, to which those before it are not visible."""
        return FromTables(self.context, [], first=self.next_stub)

    def end_parentheses(self, inner: FromTables, node: exp.Expr) -> None:
        """Add the tables of a join in parentheses as one side of a join."""
        for table in inner.scope.tables:
            self.check_alias(table.alias, node)
        self.stubs.update(inner.stubs)
        self._unnamed |= inner._unnamed
        self._from.append(f"({' '.join(inner._from)})")
        self.scope.tables += inner.scope.tables

    def join_last(self, join: str, condition: str) -> None:
        """Say how the table that was added last is joined."""
        self._from[-1] = f"{join} {self._from[-1]} {condition}"

    def remove_last(self, count: int) -> None:
        """Remove what follows the first `count` tables: a side that only decides which rows stay."""
        self.scope.tables = self.scope.tables[:count]
        self._from.pop()

    def update_columns(self, joined: Relation) -> None:
        """Take the columns from a join: those of an outer join may be null where their table's are not."""
        fields = joined.columns.field
        self.scope.tables = [
            replace(
                table,
                columns=tuple(fields(column.name) for column in table.columns),
                unqualified={name: fields(column.name) for name, column in table.unqualified.items()},
            )
            for table in self.scope.tables
        ]

    def stub_text(self, node: exp.Expr, *, plain: bool = False, grouped: bool = False) -> str:
        """An expression as DataFusion plans it over the stubs: resolved, with the names that users know.

        Behind GROUP BY, the value of a subquery is the same for all rows of a group.
        """
        hidden = {table.alias for table in self.scope.tables if table.is_hidden}
        columns = {
            column.name: (table.alias, name)
            for table in self.scope.tables
            for name, column in (*table.unqualified.items(), *zip(table.names, table.columns, strict=True))
        }

        def visit(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            if part.name == TIMESTAMP:
                return exp.Anonymous(this="row_time", expressions=[])
            alias, name = columns[part.name]
            table = None if alias in self._unnamed else exp.to_identifier(alias, quoted=True)
            column = exp.Column(this=exp.to_identifier(name, quoted=True), table=table)
            if grouped and alias in hidden and not self._is_aggregated(part):
                return exp.Anonymous(this="first_value", expressions=[column])
            return column

        resolved = node if node.meta.get("resolved") else self.scope.resolve(node, plain=plain)
        return to_sql(resolved.copy().transform(visit))

    def _is_aggregated(self, node: exp.Expr) -> bool:
        """Whether an expression is in the arguments of an aggregate."""
        while node.parent is not None:
            node = node.parent
            if is_aggregate(node, self.context.planner.aggregates):
                return True
        return False

    def stub_sql(
        self,
        items: Sequence[str],
        *,
        where: Sequence[exp.Expr] = (),
        group: Grouping = ALL_ROWS,
        having: exp.Expr | None = None,
    ) -> str:
        """A SELECT over the stubs."""
        sql = f"SELECT {', '.join(items)} FROM {' '.join(self._from)}"
        if where:
            sql += " WHERE " + " AND ".join(f"({self.stub_text(condition)})" for condition in where)
        keys = [self.stub_text(node) for node in group.keys]
        if group.sets is not None:
            sets = [f"({', '.join(keys[index] for index in indexes)})" for indexes in group.sets]
            sql += f" GROUP BY GROUPING SETS ({', '.join(sets)})"
        elif keys:
            sql += f" GROUP BY {', '.join(keys)}"
        if having is not None:
            sql += f" HAVING {self.stub_text(having, grouped=True)}"
        return sql
