"""Where state lives: a small set of atomic file operations on a directory or an object store.

Paths are relative to the root of the storage and use `/`. Every storage can be pickled; it is opened
again from its URL.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from headrace.base.errors import ConfigurationError, ExternalError, MissingExtraError

_T = TypeVar("_T")
Paths: TypeAlias = list[str]
"""A name of its own, because the method `list` hides the type inside the classes."""

SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs")


class Storage(Protocol):
    """Files below one root. A reader sees a whole file or none."""

    @property
    def url(self) -> str:
        """The address this storage is opened with; the same for every way to write it."""

    def read(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError if there is none."""

    def write(self, path: str, data: bytes) -> None:
        """Put a file, replacing an older one in one step."""

    def write_file(self, path: str, source: str) -> None:
        """Put the content of the local file `source`, which may be moved away."""

    def create(self, path: str, data: bytes) -> bool:
        """Put a file only if there is none yet, in one step; False if there was one."""

    def list(self, prefix: str) -> Paths:
        """Every file below the directory `prefix`, sorted."""

    def children(self, prefix: str) -> Paths:
        """The names directly below the directory `prefix`, files and directories, sorted."""

    def delete(self, path: str) -> None:
        """Remove a file; a file that is not there is fine."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    def size(self, path: str) -> int:
        """How many bytes a file has; FileNotFoundError if there is none."""

    def local_path(self, path: str) -> str | None:
        """The real path on this machine's disk, or None for a storage that is elsewhere."""

    def check_writable(self) -> None:
        """Raise a ConfigurationError that says why, if nothing can be written here."""


def open_storage(url: str) -> Storage:
    """The storage at `url`: a path, `file:`, `s3://`, `gs://`, `az://`, `abfs://` or `hdfs://`."""
    return _open(canonical_url(url))


def canonical_url(url: str) -> str:
    """One spelling for each address: absolute paths for local ones, no slash at the end."""
    scheme = _scheme(url)
    if scheme in ("", "file"):
        path = unquote(urlsplit(url).path) if scheme else url
        if not path:
            raise ConfigurationError("the address of the state directory is empty")
        return str(Path(path).expanduser().absolute())
    if scheme == "s3a":
        url = "s3" + url[len("s3a") :]
    return url.rstrip("/")


def _scheme(url: str) -> str:
    head, colon, _ = url.partition(":")
    is_scheme = bool(colon) and len(head) > 1 and "/" not in head and head[0].isalpha()
    return head.lower() if is_scheme else ""


@functools.lru_cache(maxsize=64)
def _open(url: str) -> Storage:
    scheme = _scheme(url)
    if scheme == "":
        return LocalStorage(url)
    if scheme == "hdfs":
        return ArrowStorage(url)
    if scheme in SCHEMES:
        return ObjectStorage(url)
    raise ConfigurationError(
        f"`{url}` has the scheme `{scheme}`, which no storage serves",
        hint=f"use a path or one of {', '.join(f'{name}://' for name in SCHEMES)}",
    )


class LocalStorage:
    """A directory on this machine, or one mounted on every machine of the cluster."""

    def __init__(self, root: str) -> None:
        self.url = root
        self._root = root

    def __reduce__(self) -> tuple[object, ...]:
        return (open_storage, (self.url,))

    def __repr__(self) -> str:
        return f"LocalStorage({self.url!r})"

    def local_path(self, path: str) -> str | None:
        """The real path of `path`."""
        return os.path.join(self._root, path)

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        with open(self._path(path), "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        """Put a file by renaming a finished one over it."""
        self._put(path, lambda temporary: _write_through(temporary, data), os.replace)

    def write_file(self, path: str, source: str) -> None:
        """Put a local file, by renaming where the file system allows it."""

        def move(temporary: str) -> None:
            try:
                os.rename(source, temporary)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copyfile(source, temporary)
            _sync(temporary)

        self._put(path, move, os.replace)

    def create(self, path: str, data: bytes) -> bool:
        """Put a file by linking a finished one to a name that must be free."""
        if self.exists(path):
            return False

        def link(temporary: str, target: str) -> None:
            os.link(temporary, target)
            os.unlink(temporary)

        try:
            self._put(path, lambda temporary: _write_through(temporary, data), link)
        except FileExistsError:
            return False
        # What was renamed before is on disk when this is: file systems log such changes in order.
        _sync(os.path.dirname(self._path(path)))
        return True

    def _put(self, path: str, fill: Callable[[str], None], publish: Callable[[str, str], None]) -> None:
        target = self._path(path)
        directory = os.path.dirname(target)
        # Cleanup removes directories that it finds empty, perhaps the one just made: try again then.
        for attempt in itertools.count(1):
            temporary = os.path.join(directory, f".{uuid.uuid4().hex}.tmp")
            try:
                os.makedirs(directory, exist_ok=True)
                fill(temporary)
                publish(temporary, target)
            except FileNotFoundError:
                if attempt == 5:
                    raise
            except BaseException:
                _unlink(temporary)
                raise
            else:
                return

    def list(self, prefix: str) -> Paths:
        """Every file below the directory `prefix`, sorted."""
        base = self._path(prefix) if prefix else self._root
        found: Paths = []
        for directory, _, names in os.walk(base):
            relative = os.path.relpath(directory, self._root).replace(os.sep, "/")
            lead = "" if relative == "." else f"{relative}/"
            found.extend(f"{lead}{name}" for name in names)
        return sorted(found)

    def children(self, prefix: str) -> Paths:
        """The names directly below the directory `prefix`."""
        try:
            return sorted(os.listdir(self._path(prefix)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        """Remove a file, and the directories above it that become empty."""
        target = self._path(path)
        _unlink(target)
        directory = os.path.dirname(target)
        while len(directory) > len(self._root):
            try:
                os.rmdir(directory)
            except OSError:
                break
            directory = os.path.dirname(directory)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return os.path.isfile(self._path(path))

    def size(self, path: str) -> int:
        """How many bytes a file has."""
        return os.stat(self._path(path)).st_size

    def check_writable(self) -> None:
        """Try to write a file, and say plainly what is in the way."""
        if os.path.exists(self._root) and not os.path.isdir(self._root):
            raise ConfigurationError(
                f"the state directory `{self._root}` is a file",
                hint="choose a directory, or remove the file",
            )
        probe = f".writable-{socket.gethostname()}-{uuid.uuid4().hex}.tmp"
        try:
            os.makedirs(self._root, exist_ok=True)
            _write_through(self._path(probe), b"")
            _unlink(self._path(probe))
        except OSError as error:
            raise ConfigurationError(
                f"the state directory `{self._root}` cannot be written: {error.strerror}",
                hint="choose another directory, or change who may write there",
            ) from None


def _write_through(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse to sync a directory; the rename is atomic anyway
    finally:
        os.close(handle)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class ObjectStorage:
    """A bucket or container and a prefix in it, through obstore.

    Credentials and endpoints come from the environment that each cloud's own tools use, for S3
    `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL` and, for an endpoint
    without TLS, `AWS_ALLOW_HTTP`.
    """

    def __init__(self, url: str, *, store: Any = None) -> None:
        self.url = url
        self._obstore: Any = _import_obstore(url)
        self._store = store if store is not None else self._connect(url)

    def __reduce__(self) -> tuple[object, ...]:
        return (open_storage, (self.url,))

    def __repr__(self) -> str:
        return f"ObjectStorage({self.url!r})"

    @staticmethod
    def _connect(url: str) -> Any:
        import obstore.store

        try:
            return obstore.store.from_url(url)
        except Exception as error:  # noqa: BLE001 - obstore raises its own classes and ValueError, by kind of URL
            raise ConfigurationError(
                f"the storage `{url}` cannot be opened: {_first_line(error)}",
                hint="check the address and the credentials in the environment",
            ) from None

    def _call(self, what: str, path: str, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ExternalError(
                f"{what} `{path}` failed: {_first_line(error)}",
                where=self.url,
                hint="check that the store can be reached and the credentials are valid",
            ) from error

    def local_path(self, path: str) -> str | None:
        """None: the files are elsewhere."""
        del path
        return None

    def read(self, path: str) -> bytes:
        """The content of an object."""
        return self._call("reading", path, lambda: bytes(self._obstore.get(self._store, path).bytes()))

    def write(self, path: str, data: bytes) -> None:
        """Put an object; object stores do that in one step."""
        self._call("writing", path, lambda: self._obstore.put(self._store, path, data))

    def write_file(self, path: str, source: str) -> None:
        """Put the content of a local file, in parts if it is large."""
        self._call("writing", path, lambda: self._obstore.put(self._store, path, Path(source)))

    def create(self, path: str, data: bytes) -> bool:
        """Put an object with the condition that there is none of this name."""
        from obstore.exceptions import (
            AlreadyExistsError,
            PreconditionError,
        )

        def put() -> bool:
            try:
                self._obstore.put(self._store, path, data, mode="create")
            except (AlreadyExistsError, PreconditionError, FileExistsError):
                return False
            return True

        return self._call("creating", path, put)

    def list(self, prefix: str) -> Paths:
        """Every object below `prefix`, sorted."""
        return self._call(
            "listing",
            prefix,
            lambda: sorted(
                item["path"] for chunk in self._obstore.list(self._store, prefix or None) for item in chunk
            ),
        )

    def children(self, prefix: str) -> Paths:
        """The names directly below `prefix`."""

        def names() -> Paths:
            found = self._obstore.list_with_delimiter(self._store, prefix or None)
            paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
            return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

        return self._call("listing", prefix, names)

    def delete(self, path: str) -> None:
        """Remove an object."""
        with contextlib.suppress(FileNotFoundError):
            self._call("deleting", path, lambda: self._obstore.delete(self._store, path))

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        """How many bytes an object has."""
        return self._call("looking at", path, lambda: int(self._obstore.head(self._store, path)["size"]))

    def check_writable(self) -> None:
        """Write and delete a small object."""
        _probe(self)


def _import_obstore(url: str) -> Any:
    try:
        import obstore
    except ImportError:
        raise MissingExtraError(f"state at `{url}`", extra="cloud", package="obstore") from None
    return obstore


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _probe(storage: Storage) -> None:
    path = f".writable-{uuid.uuid4().hex}"
    try:
        storage.write(path, b"")
        storage.delete(path)
    except (ExternalError, OSError) as error:
        reason = error.message if isinstance(error, ExternalError) else _first_line(error)
        raise ConfigurationError(
            f"the state directory `{storage.url}` cannot be written: {reason}",
            hint="check the address and the credentials in the environment",
        ) from None


class ArrowStorage:
    """A directory on HDFS, through Arrow's own client."""

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        self.url = url
        try:
            self._fs, self._root = fs.FileSystem.from_uri(url)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"the storage `{url}` cannot be opened: {_first_line(error)}",
                hint="HDFS needs libhdfs: set HADOOP_HOME and CLASSPATH",
            ) from None

    def __reduce__(self) -> tuple[object, ...]:
        return (open_storage, (self.url,))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def local_path(self, path: str) -> str | None:
        """None: the files are elsewhere."""
        del path
        return None

    def read(self, path: str) -> bytes:
        """The content of a file."""
        with self._fs.open_input_stream(self._path(path)) as file:
            return bytes(file.read())

    def write(self, path: str, data: bytes) -> None:
        """Put a file by renaming a finished one to its name."""
        temporary = self._write_temporary(path, data)
        if self.exists(path):
            self._fs.delete_file(self._path(path))
        self._fs.move(temporary, self._path(path))

    def _write_temporary(self, path: str, data: bytes) -> str:
        target = self._path(path)
        directory = target.rpartition("/")[0]
        self._fs.create_dir(directory, recursive=True)
        temporary = f"{directory}/.{uuid.uuid4().hex}.tmp"
        with self._fs.open_output_stream(temporary) as file:
            file.write(data)
        return temporary

    def write_file(self, path: str, source: str) -> None:
        """Put the content of a local file."""
        self.write(path, Path(source).read_bytes())

    def create(self, path: str, data: bytes) -> bool:
        """Put a file by a rename, which HDFS refuses when the name is taken."""
        if self.exists(path):
            return False
        temporary = self._write_temporary(path, data)
        try:
            self._fs.move(temporary, self._path(path))
        except OSError:
            self._fs.delete_file(temporary)
            if self.exists(path):
                return False
            raise
        return True

    def _infos(self, prefix: str, *, recursive: bool) -> Sequence[Any]:
        from pyarrow import fs

        base = self._path(prefix) if prefix else self._root
        selector = fs.FileSelector(base, allow_not_found=True, recursive=recursive)
        found: Sequence[Any] = self._fs.get_file_info(selector)
        return found

    def list(self, prefix: str) -> Paths:
        """Every file below the directory `prefix`, sorted."""
        start = len(self._root) + 1
        return sorted(info.path[start:] for info in self._infos(prefix, recursive=True) if info.is_file)

    def children(self, prefix: str) -> Paths:
        """The names directly below the directory `prefix`."""
        return sorted(info.base_name for info in self._infos(prefix, recursive=False))

    def delete(self, path: str) -> None:
        """Remove a file."""
        if self.exists(path):
            self._fs.delete_file(self._path(path))

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return bool(self._fs.get_file_info(self._path(path)).is_file)

    def size(self, path: str) -> int:
        """How many bytes a file has."""
        info = self._fs.get_file_info(self._path(path))
        if not info.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return int(info.size)

    def check_writable(self) -> None:
        """Write and delete a small file."""
        _probe(self)
