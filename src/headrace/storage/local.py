"""A storage on this machine, or mounted on every machine of the cluster."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import socket
import stat
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.storage.base import Paths, Storage, StorageSettings, StoredFile

_NO_DIRECTORY_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system that cannot sync a directory answers."""


class _Modes(NamedTuple):
    """The permissions of new directories and files, before the umask."""

    directory: int
    file: int


_PRIVATE: Final = _Modes(0o700, 0o600)
_BY_UMASK: Final = _Modes(0o777, 0o666)


class LocalStorage(Storage):
    """A local directory. Files are written under a temporary name, synced and renamed.

    What is created in a private storage is for its owner only, unless the root was there before and others
    may write to it: that is how the users of a cluster share one. Then the root's permissions are used.
    """

    is_local = True

    def __init__(self, url: str, settings: StorageSettings | None = None) -> None:
        super().__init__(url, settings)
        self._modes = None if self._settings.private else _BY_UMASK

    def _new_modes(self) -> _Modes:
        if self._modes is None:
            try:
                mode = stat.S_IMODE(os.stat(self.url).st_mode)
            except FileNotFoundError:
                return _PRIVATE
            is_shared = mode & (stat.S_IWGRP | stat.S_IWOTH)
            self._modes = _Modes(mode & 0o777, mode & 0o666) if is_shared else _PRIVATE
        return self._modes

    def _path(self, path: str) -> str:
        return os.path.join(self.url, path) if path else self.url

    def local_path(self, path: str) -> str | None:
        """Return the absolute path of `path`."""
        return self._path(path)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._errors("read", path), open(self._path(path), "rb") as file:
            return file.read()

    def open(self, path: str) -> Any:
        """Open a file with random access."""
        with self._errors("read", path):
            return pa.OSFile(self._path(path), "rb")

    def write(self, path: str, data: bytes) -> None:
        """Write a file by renaming a complete one over it."""
        self._put(path, lambda temporary: self._write_through(temporary, data), os.replace)

    def write_file(self, path: str, source: str) -> None:
        """Write a local file, by renaming it where the file system allows it."""

        def move(temporary: str) -> None:
            try:
                os.rename(source, temporary)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copyfile(source, temporary)
            if self._settings.private:
                os.chmod(temporary, self.file_mode)
            _sync_file(temporary)

        self._put(path, move, os.replace)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file by linking a complete one to a new name."""
        if self.exists(path):
            return False

        is_free = True

        def link(temporary: str, target: str) -> None:
            nonlocal is_free
            try:
                os.link(temporary, target)
            except FileExistsError:
                is_free = False
            os.unlink(temporary)

        self._put(path, lambda temporary: self._write_through(temporary, data), link)
        if is_free:
            # What was renamed before is on disk when this is: file systems log such changes in order.
            with self._errors("written", path):
                try:
                    _sync_directory(os.path.dirname(self._path(path)))
                except OSError:
                    # It may be gone after a crash: whoever tries again must not find it.
                    _unlink(self._path(path))
                    raise
        return is_free

    def _write_through(self, path: str, data: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.file_mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    @property
    def file_mode(self) -> int:
        """The permissions of new files, before the umask."""
        return self._new_modes().file

    def make_root(self) -> None:
        """Create the root directory, if it does not exist."""
        self._make_directory(self.url)

    def _make_directory(self, directory: str) -> None:
        """Create a directory at or below the root, with its parents."""
        try:
            os.mkdir(directory, self._new_modes().directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
        except FileNotFoundError:
            parent = os.path.dirname(directory)
            if len(directory) > len(self.url):
                self._make_directory(parent)
            else:
                os.makedirs(parent, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, self._new_modes().directory)

    def _put(self, path: str, fill: Callable[[str], None], publish: Callable[[str, str], None]) -> None:
        target = self._path(path)
        directory = os.path.dirname(target)
        # Cleanup removes directories that it finds empty, perhaps the one just made: try again then.
        for attempt in itertools.count(1):
            temporary = os.path.join(directory, f".{uuid.uuid4().hex}.tmp")
            try:
                with self._errors("written", path):
                    self._make_directory(directory)
                    fill(temporary)
                    publish(temporary, target)
            except FileNotFoundError:
                if attempt == 5:
                    raise
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            else:
                return

    def move(self, source: str, target: str) -> None:
        """Rename a file, and sync the directory."""
        directory = os.path.dirname(self._path(target))
        with self._errors("written", target):
            self._make_directory(directory)
            os.replace(self._path(source), self._path(target))
            _sync_directory(directory)

    def list(self, prefix: str) -> Paths:
        """Return every file below the directory `prefix`, sorted."""
        paths: Paths = []
        for directory, _, names in os.walk(self._path(prefix)):
            relative = os.path.relpath(directory, self.url).replace(os.sep, "/")
            lead = "" if relative == "." else f"{relative}/"
            paths.extend(f"{lead}{name}" for name in names)
        return sorted(paths)

    def list_files(self) -> Sequence[StoredFile] | None:
        """Return every file below the root, also below symbolic links, or the root if it is a file itself."""
        from pyarrow import fs

        local = fs.LocalFileSystem()
        with self._errors("listed", ""):
            root = local.get_file_info(self.url)
            if root.type == fs.FileType.NotFound:
                return None
            if root.is_file:
                return [StoredFile("", root.size, root.mtime_ns or 0)]
            infos = local.get_file_info(fs.FileSelector(self.url, recursive=True))
        start = len(self.url.rstrip("/")) + 1
        return [
            StoredFile(info.path[start:], info.size, info.mtime_ns or 0) for info in infos if info.is_file
        ]

    def is_there(self) -> bool:
        """Whether there is a file or a directory."""
        return os.path.exists(self.url)

    def children(self, prefix: str) -> Paths:
        """Return the names directly below the directory `prefix`."""
        with self._errors("listed", prefix):
            try:
                return sorted(os.listdir(self._path(prefix)))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, path: str) -> None:
        """Remove a file, and its parent directories that become empty."""
        target = self._path(path)
        with self._errors("deleted", path):
            _unlink(target)
        directory = os.path.dirname(target)
        while len(directory) > len(self.url):
            try:
                os.rmdir(directory)
            except OSError:
                break
            directory = os.path.dirname(directory)

    def delete_directory(self, path: str) -> None:
        """Remove a directory with its content."""
        with self._errors("deleted", path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path(path))

    def exists(self, path: str) -> bool:
        """Whether a file exists."""
        return os.path.isfile(self._path(path))

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        with self._errors("read", path):
            return os.stat(self._path(path)).st_size

    def check_directory(self) -> None:
        """Raise an error for a file, and for a directory that may not be written or created."""
        existing = self.url
        while not os.path.exists(existing):
            existing = os.path.dirname(existing)
        if not os.path.isdir(existing):
            raise ConfigurationError(f"`{existing}` is a file, not a directory")
        if not os.access(existing, os.W_OK):
            raise ConfigurationError(f"`{existing}` may not be written", hint="check its permissions")

    def check_writable(self) -> None:
        """Write and delete a small file; raises a ConfigurationError if that fails."""
        if os.path.exists(self.url) and not os.path.isdir(self.url):
            raise ConfigurationError(
                f"the state directory `{self.url}` is a file",
                hint="choose a directory, or remove the file",
            )
        probe = self._path(f".writable-{socket.gethostname()}-{uuid.uuid4().hex}.tmp")
        try:
            self.make_root()
            self._write_through(probe, b"")
            _unlink(probe)
        except OSError as error:
            raise ConfigurationError(
                f"the state directory `{self.url}` cannot be written: {error.strerror}",
                hint="choose another directory, or change who may write there",
            ) from None


def _sync_file(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_directory(path: str) -> None:
    """Sync a directory, where the file system can; where it cannot, the rename is atomic anyway."""
    try:
        _sync_file(path)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
