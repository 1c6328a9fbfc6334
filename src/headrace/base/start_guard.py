"""Where a pipeline may not be started: while its file is loaded, and inside a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import UserError

_reason: str | None = None


def forbid_start(reason: str) -> None:
    """Refuse to start pipelines in this process from now on; `reason` is the error's message."""
    global _reason  # noqa: PLW0603 - it holds for the whole process
    _reason = reason


@contextmanager
def start_forbidden(reason: str) -> Iterator[None]:
    """Refuse to start pipelines within the block."""
    global _reason  # noqa: PLW0603 - it holds for the whole process
    before, _reason = _reason, reason
    try:
        yield
    finally:
        _reason = before


def check_start_allowed() -> None:
    """Raise a UserError if a pipeline must not be started here."""
    if _reason is not None:
        raise UserError(
            _reason, hint='call it under `if __name__ == "__main__":`, and run the file with python'
        )
