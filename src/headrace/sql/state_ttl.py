"""How long updating results and joins keep their state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from headrace.base.durations import parse_duration
from headrace.base.errors import HeadraceError, suggest
from headrace.sql.parse.statements import SetOption
from headrace.sql.problems import fail

NAME = "updating_ttl"
_NEVER = ("0", "none", "never")


@dataclass(frozen=True)
class StateTtl:
    """Durations by the wall clock; None is for ever.

    A result that nobody limited must not lose rows; the state of a join of streams grows with every row, so
    it has a limit of its own.
    """

    results: timedelta | None = None
    """Of aggregates, window functions, Top-N and DISTINCT."""
    joins: timedelta | None = timedelta(hours=24)
    """Of joins of streams."""


def set_ttl(statement: SetOption) -> StateTtl:
    """What `SET updating_ttl = …` says, for results and joins; raises a SqlError."""
    if statement.name != NAME:
        hint = suggest(statement.name, [NAME], listing="the only setting in SQL is")
        fail(f"there is no setting `{statement.name}`", statement.span, hint)
    if str(statement.value).strip().lower() in _NEVER:
        return StateTtl(None, None)
    hint = "write interval '1 hour', or 'none' to keep state for ever"
    try:
        ttl = parse_duration(statement.value)
    except (HeadraceError, TypeError, AttributeError, OverflowError):
        fail(f"`{statement.value}` is not a duration", statement.span, hint)
    if ttl < timedelta(0):
        fail("updating_ttl cannot be negative", statement.span, hint)
    return StateTtl(ttl, ttl) if ttl else StateTtl(None, None)
