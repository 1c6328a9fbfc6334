"""What is found out about a document while it is read: mistakes, and things worth knowing."""

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
        """Remember a mistake."""
        self.add(placed(DataflowError, message, span, hint))

    def warn(self, message: str, span: Span) -> None:
        """Remember what can run and should be known; what is said twice counts once."""
        self._warnings[f"{span.where}: {message}"] = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)
