"""The state shared by all parts of the binder: the planner, the SQL and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlglot import exp

from headrace.base.errors import ExpressionError, SqlError
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.sql.bind.planning import Planner
from headrace.sql.problems import ReportedError, span_of, sql_error


@dataclass(frozen=True)
class BindContext:
    """The planner, the SQL that is bound, and the collected errors."""

    planner: Planner
    source: Source
    problems: Problems

    def error(self, message: str, node: exp.Expr | None, hint: str | None = None) -> SqlError:
        """An error that points at an expression."""
        return sql_error(message, None if node is None else span_of(node, self.source), hint)

    def fail(self, message: str, node: exp.Expr | None, hint: str | None = None) -> ReportedError:
        """Report an error; raise what this returns."""
        self.problems.add(self.error(message, node, hint))
        return ReportedError()

    @contextmanager
    def planning(self, node: exp.Expr | None) -> Iterator[None]:
        """Report what DataFusion refuses as an error of this expression."""
        try:
            yield
        except ExpressionError as error:
            raise self.fail(error.message, node, error.hint) from error

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report the SqlErrors of a definition."""
        try:
            yield
        except SqlError as error:
            self.problems.add(error)
            raise ReportedError from error
