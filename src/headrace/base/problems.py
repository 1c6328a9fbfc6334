"""Errors with a place: every mistake of a text is reported, not the first only."""

from __future__ import annotations

from typing import TypeVar

from headrace.base.errors import PlacedError
from headrace.base.secrets import Secrets
from headrace.base.spans import Span

AnyPlaced = TypeVar("AnyPlaced", bound=PlacedError)


class Problems:
    """Collects what is wrong with a text."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self.errors: list[PlacedError] = []
        self._hide = (secrets or Secrets()).hide

    def add(self, error: PlacedError) -> None:
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


def placed(kind: type[AnyPlaced], message: str, span: Span | None, hint: str | None = None) -> AnyPlaced:
    """An error that points at its place."""
    error = kind(message, hint=hint, where=None if span is None else span.where)
    if span is not None:
        error.excerpt, error.place = span.excerpt(), span.start
    return error
