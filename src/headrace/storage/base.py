"""The interface of a storage: files below one root, in a local directory, an object store or HDFS.

State and the connectors of files both use it. Paths are relative to the root and use `/`; the empty path is
the root itself, which may be a single file. A storage can be pickled; it is opened again from its address.
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError

T = TypeVar("T")
R = TypeVar("R")
Paths: TypeAlias = list[str]
"""A name of its own, because the method `list` hides the type inside the classes."""

_CONCURRENT_REQUESTS = 8


class StoredFile(NamedTuple):
    """A file of a storage: its path relative to the root, its size in bytes, and when it was modified."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


class RequestRetry(NamedTuple):
    """How often, and for how long, a request to a store is repeated before it fails with an ExternalError."""

    attempts: int
    timeout: timedelta


STATE_RETRY = RequestRetry(10, timedelta(minutes=3))
"""For state: a failed request may end the run."""
FILES_RETRY = RequestRetry(4, timedelta(seconds=30))
"""For files of connectors: the epoch is repeated after that."""


class StorageSettings(NamedTuple):
    """What a storage is opened with besides its URL."""

    options: tuple[tuple[str, str], ...] = ()
    """How an object store is reached: the options `storage.*` of a connector."""
    part_size: int | None = None
    """How many bytes a request has when a large object is uploaded in parts."""
    retry: RequestRetry = STATE_RETRY


class Storage(ABC):
    """Files below one root. A reader sees a whole file or none.

    An operation that fails raises an ExternalError with the path and the reason, whatever the client of the
    storage raises; a file that is missing is a FileNotFoundError.
    """

    is_local: ClassVar[bool] = False
    """Whether the files are on the disks of this machine, or mounted as if they were."""
    _client_errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """What the client of this storage raises when an operation fails."""
    _hint: ClassVar[str | None] = None
    """What to check when an operation fails."""

    def __init__(self, url: str, settings: StorageSettings | None = None) -> None:
        self.url = url
        """The address this storage is opened with; the same for every way to write it."""
        self._settings = settings or StorageSettings()

    def __reduce__(self) -> tuple[object, ...]:
        from headrace.storage.open import reopen_storage

        return (reopen_storage, (self.url, self._settings))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError if there is none."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """A file of Arrow, for reading at any position; FileNotFoundError if there is none."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Put a file, durably, replacing an older one in one step."""

    @abstractmethod
    def write_file(self, path: str, source: str) -> None:
        """Put the content of the local file `source`, which may be moved away."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Put a file only if there is none yet, in one step; False if there was one."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Give a file another name, durably: nobody sees half of it under the new one."""

    @abstractmethod
    def list(self, prefix: str) -> Paths:
        """Every file below the directory `prefix`, sorted."""

    @abstractmethod
    def list_files(self) -> Sequence[StoredFile] | None:
        """Every file below the root, or the root if it is a file itself; None if there is neither."""

    @abstractmethod
    def children(self, prefix: str) -> Paths:
        """The names directly below the directory `prefix`, files and directories, sorted."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file; a file that is not there is fine."""

    @abstractmethod
    def delete_directory(self, path: str) -> None:
        """Remove a directory and what is in it; one that is not there is fine."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def size(self, path: str) -> int:
        """How many bytes a file has; FileNotFoundError if there is none."""

    def local_path(self, path: str) -> str | None:
        """The real path on this machine's disk, or None for a storage that is elsewhere."""
        del path
        return None

    def check_directory(self) -> None:
        """Raise a ConfigurationError if this cannot be a directory to write in; nothing is written."""

    def check_writable(self) -> None:
        """Write and delete a small file; raise a ConfigurationError that says what prevents it."""
        path = f".writable-{uuid.uuid4().hex}"
        try:
            self.write(path, b"")
            self.delete(path)
        except (ExternalError, OSError) as error:
            raise ConfigurationError(
                f"the state directory `{self.url}` cannot be written: {error_line(error.__cause__ or error)}",
                hint="check the address and the credentials in the environment",
            ) from None

    def map(self, action: Callable[[T], R], items: Sequence[T]) -> Sequence[R]:
        """The results of an action on each item: one after the other here, several at a time elsewhere."""
        if self.is_local or len(items) < 2:
            return [action(item) for item in items]
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
            return [*pool.map(action, items)]

    @contextlib.contextmanager
    def _errors(self, operation: str, path: str) -> Iterator[None]:
        """Raise what the client raises as an ExternalError: the file `cannot be {operation}`."""
        try:
            yield
        except (FileNotFoundError, HeadraceError):
            raise
        except self._client_errors as error:
            raise ExternalError(
                f"`{join(self.url, path)}` cannot be {operation}: {error_line(error)}", hint=self._hint
            ) from error


def join(root: str, path: str) -> str:
    """The path below a root; the root itself for the empty path.

    >>> join("s3://bucket/data", "a/b")
    's3://bucket/data/a/b'
    >>> join("", "a/b"), join("data", "")
    ('a/b', 'data')
    """
    return f"{root}/{path}" if root and path else root or path


def error_line(error: BaseException) -> str:
    """What an error says in its first line, without the details below."""
    if isinstance(error, HeadraceError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def settings_from(
    options: Mapping[str, str] | None, part_size: int | None, retry: RequestRetry
) -> StorageSettings:
    """Settings that can be compared and hashed."""
    return StorageSettings(tuple(sorted((options or {}).items())), part_size, retry)
