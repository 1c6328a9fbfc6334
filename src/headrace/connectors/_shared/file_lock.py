"""A lock on a file for the length of a commit: a run that was replaced may be in the middle of its own."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import IO, Any, Final

from headrace.base.errors import ExternalError
from headrace.base.retry import is_retryable, with_retry

LOCK_SECONDS = 30.0
"""How long a commit waits for one of a run that was replaced."""
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What a file system that cannot lock a file answers."""


def lock_for_commit(file: IO[Any], path: Path, *, where: str) -> None:
    """Lock an open file until it is closed; a run that was replaced may be suspended in its commit.

    Who has the lock checks whether it was replaced, and only then writes.
    """

    def attempt() -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExternalError(
                f"`{path}` is being written by another run",
                hint="end that run, also if it is suspended; this one goes on when it is started again",
                where=where,
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    with_retry(attempt, is_transient=is_retryable, deadline=LOCK_SECONDS)
