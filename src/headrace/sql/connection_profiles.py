"""Saved connection profiles: options that several tables share, by the name of the profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True)
class SavedProfile:
    """The connector of a profile, and the options that a table with it takes from there."""

    connector: str
    options: Mapping[str, Any]


_profiles: Final[ContextVar[Mapping[str, SavedProfile]]] = ContextVar(
    "profiles", default=MappingProxyType({})
)


def saved_profiles() -> Mapping[str, SavedProfile]:
    """The profiles that `connection_profile = 'name'` may name."""
    return _profiles.get()


@contextmanager
def using_profiles(profiles: Mapping[str, SavedProfile]) -> Iterator[None]:
    """Within the context, let tables name these profiles."""
    token = _profiles.set(profiles)
    try:
        yield
    finally:
        _profiles.reset(token)
