"""Collects errors with their locations, so that all errors of a program are reported at once."""

from __future__ import annotations

from typing import TypeVar

from headrace.base.errors import PlacedError
from headrace.base.secrets import Secrets
from headrace.base.spans import Span

AnyPlaced = TypeVar("AnyPlaced", bound=PlacedError)


class Problems:
    """Collects the errors of a program."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self.errors: list[PlacedError] = []
        self._hide = (secrets or Secrets()).hide

    def add(self, error: PlacedError) -> None:
        """Add an error; the same one at the same location counts once."""
        error.message = self._hide(error.message)
        error.hint = None if error.hint is None else self._hide(error.hint)
        if (error.message, error.where) not in [(other.message, other.where) for other in self.errors]:
            self.errors.append(error)

    def raise_all(self) -> None:
        """Raise the collected errors, in the order of their locations, if there are any."""
        if not self.errors:
            return
        first, *rest = sorted(self.errors, key=lambda error: error.offset)
        first.more = tuple(rest)
        raise first


def placed(kind: type[AnyPlaced], message: str, span: Span | None, hint: str | None = None) -> AnyPlaced:
    """An error that points at its location."""
    error = kind(message, hint=hint, where=None if span is None else span.where)
    if span is not None:
        error.excerpt, error.offset, error.end = span.excerpt(), span.start, span.end
    return error
