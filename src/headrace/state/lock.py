"""One run per state directory: an advisory lock that ends with its process."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from types import TracebackType
from typing import IO, Self

from headrace.base.errors import StateInUseError
from headrace.storage.base import Storage


class StateLock:
    """Holds a local state directory for one process; `acquire` raises StateInUseError if it is held.

    The lock is held by the kernel, on the file `lock`, so it cannot outlive its holder. On an object store it
    does nothing: there, the second run replaces the first (`state/generation.py`).
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Acquire the lock; the error names the process that holds it."""
        path = self._storage.local_path("lock")
        if path is None or self._file is not None:
            return
        self._storage.make_root()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, self._storage.file_mode)
        file = os.fdopen(handle, "a+", encoding="utf-8")  # open as long as the lock is held
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = _describe(file.read())
            file.close()
            raise StateInUseError(
                f"the state directory `{self._storage.url}` is in use by {holder}",
                hint="stop that run first, or give this one another state directory",
            ) from None
        except BaseException:
            file.close()
            raise
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
        file.flush()
        self._file = file

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _describe(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
