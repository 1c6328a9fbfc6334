"""What is wrong with SQL, and where."""

from __future__ import annotations

from typing import NoReturn

from sqlglot import exp

from headrace.base.errors import SqlError
from headrace.base.problems import placed
from headrace.base.spans import Source, Span


class ReportedError(Exception):
    """Something could not be bound; the error is among the problems already."""


def sql_error(message: str, span: Span | None, hint: str | None = None) -> SqlError:
    """A SQL error that points at its location."""
    return placed(SqlError, message, span, hint)


def fail(message: str, span: Span | None, hint: str | None = None) -> NoReturn:
    """Raise a SQL error that points at its location."""
    raise sql_error(message, span, hint)


def span_of(node: exp.Expr, source: Source) -> Span | None:
    """The characters that an expression was written with, as far as its parts say."""
    starts, ends = [], []
    for part in node.walk():
        if "start" in part.meta:
            starts.append(part.meta["start"])
            ends.append(part.meta["end"] + 1)
    if not starts:
        return None
    start, end = min(starts), max(ends)
    text = source.text
    if isinstance(node, exp.Anonymous) and text[end : end + 1] == "(":
        end += 1
    # A call's closing bracket belongs to it.
    depth = text.count("(", start, end) - text.count(")", start, end)
    while depth > 0 and end < len(text):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return Span(source, start, end)
