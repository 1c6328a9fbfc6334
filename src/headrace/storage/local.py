"""A storage on this machine, or mounted on every machine of the cluster."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.storage.base import Paths, Storage, StoredFile


class LocalStorage(Storage):
    """A local directory. Files are written under a temporary name, synced and renamed."""

    is_local = True

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
        self._put(path, lambda temporary: _write_through(temporary, data), os.replace)

    def write_file(self, path: str, source: str) -> None:
        """Write a local file, by renaming it where the file system allows it."""

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

        self._put(path, lambda temporary: _write_through(temporary, data), link)
        if is_free:
            # What was renamed before is on disk when this is: file systems log such changes in order.
            _sync(os.path.dirname(self._path(path)))
        return is_free

    def _put(self, path: str, fill: Callable[[str], None], publish: Callable[[str, str], None]) -> None:
        target = self._path(path)
        directory = os.path.dirname(target)
        # Cleanup removes directories that it finds empty, perhaps the one just made: try again then.
        for attempt in itertools.count(1):
            temporary = os.path.join(directory, f".{uuid.uuid4().hex}.tmp")
            try:
                with self._errors("written", path):
                    os.makedirs(directory, exist_ok=True)
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
            os.makedirs(directory, exist_ok=True)
            os.replace(self._path(source), self._path(target))
            _sync(directory)

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
            os.makedirs(self.url, exist_ok=True)
            _write_through(probe, b"")
            _unlink(probe)
        except OSError as error:
            raise ConfigurationError(
                f"the state directory `{self.url}` cannot be written: {error.strerror}",
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
