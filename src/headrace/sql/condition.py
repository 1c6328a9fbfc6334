"""A condition on rows whose columns nobody has declared: what filters the rows of a tap."""

from __future__ import annotations

from sqlglot import exp

from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.sql.bind.calls import find_aggregates, is_window_call
from headrace.sql.bind.planning import Planner
from headrace.sql.parse.dialect import to_sql
from headrace.sql.parse.statements import SelectStatement, parse_statements
from headrace.sql.problems import fail

_BEFORE = "SELECT * FROM input WHERE "
_CLAUSES = {"expressions", "from_", "where"}


def filter_query(condition: str) -> str:
    """The SELECT of the rows of `input` for which a condition holds; a SqlError says what is wrong with it.

    >>> filter_query("amount > 3 AND shop = 'mill'")
    "SELECT * FROM input WHERE amount > 3 AND shop = 'mill'"
    """
    problems = Problems()
    statements = parse_statements(Source("filter", f"{_BEFORE}{condition}"), problems)
    for error in problems.errors:
        error.offset = max(0, error.offset - len(_BEFORE))
    problems.raise_all()
    query = statements[0][1].query if isinstance(statements[0][1], SelectStatement) else None
    if len(statements) != 1 or not isinstance(query, exp.Select) or not _is_filter(query):
        fail(
            f"`{condition}` is not a condition on one row",
            None,
            "write what stands behind WHERE, such as amount > 3 AND shop = 'mill'",
        )
    return to_sql(query)


def _is_filter(query: exp.Select) -> bool:
    """Whether it looks at nothing but the row: no other clause, no other query, nothing over several rows."""
    clauses = {name for name, value in query.args.items() if value}
    planner = Planner(())
    return (
        clauses == _CLAUSES
        and not query.find(exp.Subquery, exp.Window)
        and len(list(query.find_all(exp.Query))) == 1
        and not any(find_aggregates(query.args["where"].this, planner.aggregates))
        and not any(is_window_call(part) for part in query.walk())
    )
