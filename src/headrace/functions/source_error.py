"""The error for a mistake in the source of a function, in Python or Rust."""

from __future__ import annotations


class SourceError(Exception):
    """A mistake in a source: a message, the line and column in it, and a hint."""

    def __init__(
        self, message: str, line: int | None = None, column: int = 1, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        self.hint = hint
