"""Subqueries in expressions that read the outer row in other ways than by equalities: joined as LATERAL."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.base.problems import Problems
from headrace.sql.bind.correlation import CorrelationFinder, query_in
from headrace.sql.bind.from_clause import FromClause
from headrace.sql.bind.lateral import is_global_aggregate
from headrace.sql.bind.logical import Relation
from headrace.sql.bind.row_functions import ROW_FUNCTIONS
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import ReportedError


@dataclass(frozen=True)
class SubqueryLifter:
    """Joins what subqueries of expressions give, and puts columns in their place."""

    clause: FromClause
    finder: CorrelationFinder

    def lift(self, relation: Relation, node: exp.Expr, *, in_where: bool) -> tuple[Relation, exp.Expr]:
        """The rows with the values of subqueries that no other join gives, and the expression over them."""
        for part in list(node.find_all(exp.Subquery, exp.Exists)):
            if not _is_value(part, node):
                continue
            is_exists = isinstance(part, exp.Exists)
            query = query_in(part.this)
            stands_alone = is_exists and in_where and part.find_ancestor(exp.Or, exp.Case) is None
            if not isinstance(query, exp.Select) or not self._needs(query, stands_alone=stands_alone):
                continue
            if is_exists and not _is_plain(query):
                continue
            if not is_exists and not self._has_one_row(query):
                continue
            relation, value = self.clause.join_value(relation, _counted(query) if is_exists else query)
            new: exp.Expr = value
            if is_exists:
                new = exp.Paren(this=exp.GT(this=value, expression=exp.Literal.number(0)))
            if part is node:
                node = new
            else:
                part.replace(new)
        return relation, node

    def _needs(self, query: exp.Select, *, stands_alone: bool) -> bool:
        """Whether a subquery is tied to the outer row by more than equalities."""
        values = self.clause.outer_values(query)
        if not values:
            return False
        for column in query.find_all(exp.Column):
            if to_sql(column) in values and column.find_ancestor(exp.Select) is not query:
                return True
        quiet = replace(self.finder.tables.context, problems=Problems())
        tables = self.finder.tables.with_context(quiet)
        try:
            correlated = replace(self.finder, tables=tables).find(query)
        except ReportedError:
            return True
        return bool(correlated.conditions) and not stands_alone

    def _has_one_row(self, query: exp.Select) -> bool:
        """Whether a subquery has one row at most, whatever the outer row is."""
        limit = query.args.get("limit")
        number = None if limit is None else limit.args.get("count") or limit.args.get("expression")
        is_one = isinstance(number, exp.Literal) and number.name == "1"
        is_aggregate = is_global_aggregate(query, self.finder.tables.context.planner.aggregates)
        calls = {call.name.lower() for item in query.expressions for call in item.find_all(exp.Anonymous)}
        if query.find(exp.Unnest) is not None or calls & {"unnest", *ROW_FUNCTIONS}:
            return is_one
        return is_one or is_aggregate or query.args.get("from_") is None


def _is_value(part: exp.Expr, node: exp.Expr) -> bool:
    """Whether a subquery is a value in an expression, and not in another subquery, IN, ANY or ALL."""
    parent = part.parent
    if isinstance(parent, exp.In | exp.Any | exp.All | exp.Exists) and part is not node:
        return False
    if isinstance(parent, exp.Anonymous) and parent.name.lower() == "array":
        return False
    ancestor = parent
    while part is not node and ancestor is not None and ancestor is not node:
        if isinstance(ancestor, exp.Query | exp.Exists):
            return False
        ancestor = ancestor.parent
    return part is node or not isinstance(node, exp.Query | exp.Exists)


def _is_plain(query: exp.Select) -> bool:
    return not any(query.args.get(name) for name in ("group", "having", "limit", "offset", "qualify"))


def _counted(query: exp.Select) -> exp.Select:
    """How many rows a query has."""
    counted: exp.Select = query.copy()
    counted.set("expressions", [exp.Anonymous(this="count", expressions=[exp.Star()])])
    counted.set("order", None)
    counted.set("distinct", None)
    return counted
