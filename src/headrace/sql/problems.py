"""Errors with a place: every mistake of a text is reported, not the first only."""

from __future__ import annotations

from typing import NoReturn

from sqlglot import exp

from headrace.errors import SqlError
from headrace.secrets import Secrets
from headrace.spans import Source, Span


class Problems:
    """Collects what is wrong with a text."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self.errors: list[SqlError] = []
        self._hide = (secrets or Secrets()).hide

    def add(self, error: SqlError) -> None:
        """Remember an error; the same one at the same place counts once."""
        error.message = self._hide(error.message)
        error.hint = None if error.hint is None else self._hide(error.hint)
        if all((one.message, one.where) != (error.message, error.where) for one in self.errors):
            self.errors.append(error)

    def raise_all(self) -> None:
        """Raise what was collected, in the order of the text, if anything was."""
        if not self.errors:
            return
        first, *others = sorted(self.errors, key=lambda error: error.place)
        first.more = tuple(others)
        raise first


class FailedError(Exception):
    """A statement could not be bound; why is in the problems already."""


def sql_error(message: str, span: Span | None, hint: str | None = None) -> SqlError:
    """An error that points at its place."""
    if span is None:
        return SqlError(message, hint=hint)
    error = SqlError(message, hint=hint, where=span.where)
    error.excerpt, error.place = span.excerpt(), span.start
    return error


def fail(message: str, span: Span | None, hint: str | None = None) -> NoReturn:
    """Raise an error that points at its place."""
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
