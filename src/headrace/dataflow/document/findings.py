"""Collects the errors and warnings of a document while it is read."""

from __future__ import annotations

from headrace.base.errors import DataflowError
from headrace.base.problems import Problems, placed
from headrace.base.spans import Span


class Findings(Problems):
    """Collects the mistakes of a document, which are raised together, and its warnings."""

    def __init__(self) -> None:
        super().__init__()
        self._warnings: dict[str, None] = {}

    def refuse(self, message: str, span: Span | None, hint: str | None = None) -> None:
        """Collect an error."""
        self.add(placed(DataflowError, message, span, hint))

    def warn(self, message: str, span: Span) -> None:
        """Collect a warning; the same warning counts once."""
        self._warnings[f"{span.where}: {message}"] = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)
