"""What a thread works for, so that its log lines can name the epoch and the operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[Mapping[str, object]] = ContextVar("headrace_log_context", default={})  # noqa: B039 - never changed


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Within the block, what this thread logs has these fields too."""
    token = _current.set({**_current.get(), **fields})
    try:
        yield
    finally:
        _current.reset(token)


def current_log_context() -> Mapping[str, object]:
    """The fields of what this thread logs."""
    return _current.get()
