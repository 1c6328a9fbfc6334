"""The interface of a storage: files below one root, in a local directory, an object store or HDFS.

State and the file connectors both use it. Paths are relative to the root and use `/`; the empty path is the
root itself, which may be a single file. A storage can be pickled; it is opened again from its address.
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
from headrace.storage.identity import content_identity

T = TypeVar("T")
R = TypeVar("R")
Paths: TypeAlias = list[str]
"""An alias, because the method `list` hides the type inside the classes."""

_CONCURRENT_REQUESTS = 8


class StoredFile(NamedTuple):
    """A file of a storage: its path relative to the root, its size in bytes, and when it was modified."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


class RequestRetry(NamedTuple):
    """How often and for how long a request is retried before it fails with an ExternalError."""

    attempts: int
    timeout: timedelta


STATE_RETRY = RequestRetry(10, timedelta(minutes=3))
"""For state: a failed request may end the run."""
FILES_RETRY = RequestRetry(4, timedelta(seconds=30))
"""For file connectors: the epoch is retried after that."""


class StorageSettings(NamedTuple):
    """The settings of a storage besides its URL."""

    options: tuple[tuple[str, str], ...] = ()
    """The settings of an object store: the options `storage.*` of a connector."""
    part_size: int | None = None
    """The part size of a multipart upload, in bytes."""
    retry: RequestRetry = STATE_RETRY
    private: bool = True
    """Whether new local files are for their owner only, as state is; else the umask decides."""


class Storage(ABC):
    """Files below one root. A reader sees a complete file or none.

    A failed operation raises an ExternalError with the path and the reason; a missing file is a
    FileNotFoundError.
    """

    is_local: ClassVar[bool] = False
    """Whether the files are on this machine, or mounted."""
    creates_atomically: ClassVar[bool] = True
    """Whether of several `create` of one path in the same moment exactly one returns True."""
    _client_errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """The exceptions of the client of this storage."""
    _hint: ClassVar[str | None] = None
    """What to check when an operation fails."""

    def __init__(self, url: str, settings: StorageSettings | None = None) -> None:
        self.url = url
        """The canonical URL of this storage."""
        self._settings = settings or StorageSettings()

    def __reduce__(self) -> tuple[object, ...]:
        from headrace.storage.open import reopen_storage

        return (reopen_storage, (self.url, self._settings))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of a file; raises a FileNotFoundError."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """Open a file as an Arrow file with random access; raises a FileNotFoundError."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a file durably; an existing one is replaced atomically."""

    @abstractmethod
    def write_file(self, path: str, source: str) -> None:
        """Write the content of the local file `source`, which may be moved."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a file atomically if it does not exist; return False if it does."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Rename a file durably; a reader never sees a partial file under the new name."""

    @abstractmethod
    def list(self, prefix: str) -> Paths:
        """Return every file below the directory `prefix`, sorted."""

    @abstractmethod
    def list_files(self) -> Sequence[StoredFile] | None:
        """Return every file below the root, or the root if it is a file itself; None if there is neither."""

    def is_there(self) -> bool:
        """Whether the root is a file or a directory; in an object store a directory is there with files.

        One small request, however many files there are.
        """
        return self.exists("") or bool(self.children(""))

    @abstractmethod
    def children(self, prefix: str) -> Paths:
        """Return the names of files and directories directly below `prefix`, sorted."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""

    @abstractmethod
    def delete_directory(self, path: str) -> None:
        """Remove a directory with its content, if it exists."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a file exists."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of a file in bytes; raises a FileNotFoundError."""

    def identity(self, path: str, size: int) -> str:
        """Return what changes when a file is replaced by another; raises a FileNotFoundError.

        Bytes after the first `size` do not count, where a storage can append to a file.
        """
        with self.open(path) as file, self._errors("read", path):
            return content_identity(file, size)

    def local_path(self, path: str) -> str | None:
        """Return the path on this machine, or None for a remote storage."""
        del path
        return None

    @property
    def file_mode(self) -> int:
        """The permissions of new files of a local storage, before the umask."""
        return 0o600

    def make_root(self) -> None:
        """Create the root directory of a local storage, if it does not exist."""

    def check_directory(self) -> None:
        """Raise a ConfigurationError if this cannot be a directory to write to; nothing is written."""

    def check_writable(self) -> None:
        """Write and delete a small file; raises a ConfigurationError if that fails."""
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
        """Return the results of an action on each item; remote storages run several at a time."""
        if self.is_local or len(items) < 2:
            return [action(item) for item in items]
        with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
            return [*pool.map(action, items)]

    @contextlib.contextmanager
    def _errors(self, operation: str, path: str) -> Iterator[None]:
        """Convert errors of the client to ExternalErrors: the file `cannot be {operation}`."""
        try:
            yield
        except (FileNotFoundError, HeadraceError):
            raise
        except self._client_errors as error:
            raise ExternalError(
                f"`{join(self.url, path)}` cannot be {operation}: {error_line(error)}", hint=self._hint
            ) from error


def join(root: str, path: str) -> str:
    """Return the path below a root; the root itself for the empty path.

    >>> join("s3://bucket/data", "a/b")
    's3://bucket/data/a/b'
    >>> join("", "a/b"), join("data", "")
    ('a/b', 'data')
    """
    return f"{root}/{path}" if root and path else root or path


def error_line(error: BaseException) -> str:
    """Return the first line of an error, without details."""
    if isinstance(error, HeadraceError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def settings_from(
    options: Mapping[str, str] | None, part_size: int | None, retry: RequestRetry, *, private: bool
) -> StorageSettings:
    """Return settings that can be compared and hashed."""
    return StorageSettings(tuple(sorted((options or {}).items())), part_size, retry, private)
