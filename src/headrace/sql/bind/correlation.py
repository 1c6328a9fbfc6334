"""How a subquery depends on the rows of the query around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.base.errors import ExpressionError
from headrace.base.problems import Problems
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.filters import all_of
from headrace.sql.bind.from_clause import BindQuery, FromClause
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.relations import Namespace
from headrace.sql.bind.scope import conjuncts
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import ReportedError


@dataclass(frozen=True)
class Correlated:
    """A subquery without its references to the outer query, and these references."""

    select: exp.Expr
    keys: tuple[tuple[exp.Expr, exp.Expr], ...] = ()
    """(what of the outer row, resolved; what of the inner row) is compared for equality."""
    conditions: tuple[exp.Expr, ...] = ()
    """Other conditions on both."""
    tables: FromTables | None = None


@dataclass(frozen=True)
class CorrelationFinder:
    """Finds what subqueries of one SELECT read of its tables."""

    tables: FromTables
    namespace: Namespace
    bind_query: BindQuery

    @property
    def _context(self) -> BindContext:
        return self.tables.context

    def find(self, query: exp.Expr) -> Correlated:
        """A subquery, and how it depends on the outer row."""
        query = query_in(query)
        if not isinstance(query, exp.Select):
            return Correlated(query)
        quiet = replace(self._context, problems=Problems())
        where = query.args.get("where")
        inner = FromTables(quiet, [])
        if query.args.get("from_") is None:
            for node in [*query.expressions, *([] if where is None else [where])]:
                self._refuse_outer(node, inner, "write it without SELECT, or with CASE")
            return Correlated(query)
        try:
            FromClause(inner, self.namespace, self.bind_query.quietly()).bind(query.copy())
        except (ReportedError, ExpressionError):
            return Correlated(query)  # for its errors
        plain: list[exp.Expr] = []
        keys: list[tuple[exp.Expr, exp.Expr]] = []
        others: list[exp.Expr] = []
        for condition in [] if where is None else conjuncts(where.this):
            pair = self._tie(condition, inner)
            if pair is not None:
                keys.append(pair)
            elif any(self._is_outer(column, inner) for column in own_columns(condition)):
                others.append(condition)
            else:
                plain.append(condition)
        for name in ("expressions", "group", "having", "order", "joins"):
            part = query.args.get(name)
            for node in part if isinstance(part, list) else [] if part is None else [part]:
                if not isinstance(query.parent, exp.Exists):
                    self._refuse_outer(node, inner, "compare it in the subquery's WHERE: inner = outer")
        if not keys and not others:
            return Correlated(query)
        select = query.copy()
        select.set("where", exp.Where(this=all_of([node.copy() for node in plain])) if plain else None)
        return Correlated(select, tuple(keys), tuple(others), inner)

    def _refuse_outer(self, node: exp.Expr, inner: FromTables, hint: str) -> None:
        for column in own_columns(node):
            if self._is_outer(column, inner):
                raise self._context.fail(
                    f"`{column.name}` of the outer query cannot stand here", column, hint
                )

    def _tie(self, condition: exp.Expr, inner: FromTables) -> tuple[exp.Expr, exp.Expr] | None:
        """(outer, inner) of an equality between both."""
        if not isinstance(condition, exp.EQ) or has_subquery(condition):
            return None
        for outer, own in ((condition.this, condition.expression), (condition.expression, condition.this)):
            sides = [[self._is_outer(column, inner) for column in own_columns(side)] for side in (outer, own)]
            if sides[0] and all(sides[0]) and sides[1] and not any(sides[1]):
                return self.tables.scope.resolve(outer), own
        return None

    def _is_outer(self, column: exp.Column, inner: FromTables) -> bool:
        quiet = replace(self._context, problems=Problems())
        try:
            inner.scope.resolve(column)
        except ReportedError:
            pass
        else:
            return False
        try:
            replace(self.tables.scope, context=quiet).resolve(column)
        except ReportedError:
            return False
        return True


def has_subquery(node: exp.Expr) -> bool:
    """Whether an expression contains a query."""
    return node.find(exp.Query) is not None


def query_in(node: exp.Expr) -> exp.Expr:
    """The query in parentheses, or in IN, ANY and ALL."""
    if isinstance(node, exp.In):
        node = node.args["query"]
    while isinstance(node, exp.Paren | exp.Any | exp.All) or (
        isinstance(node, exp.Subquery)
        and not any(node.args.get(name) for name in ("order", "limit", "offset", "with_"))
    ):
        node = node.this
    return node


def own_columns(node: exp.Expr) -> Iterator[exp.Column]:
    """The columns of an expression, those of queries in it left out."""
    for part in node.walk(prune=lambda part: isinstance(part, exp.Query)):
        if isinstance(part, exp.Column) and not isinstance(part.this, exp.Star):
            yield part


def inner_columns(correlated: Correlated) -> list[exp.Expr]:
    """The inner columns that conditions on both sides read."""
    columns: dict[str, exp.Expr] = {}
    if correlated.tables is not None:
        for condition in correlated.conditions:
            for column in own_columns(condition):
                try:
                    correlated.tables.scope.resolve(column)
                except ReportedError:
                    continue
                columns.setdefault(to_sql(column), column)
    return list(columns.values())
