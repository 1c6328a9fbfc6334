"""A storage on HDFS, with Arrow's own client."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.storage.base import Paths, Storage, StorageSettings, StoredFile, error_line, join


class HdfsStorage(Storage):
    """A directory on HDFS."""

    creates_atomically = False
    """HDFS refuses a rename to a name that exists; Arrow's client then deletes that file and tries again."""
    _client_errors = (OSError, pa.ArrowException)

    def __init__(self, url: str, settings: StorageSettings | None = None) -> None:
        from pyarrow import fs

        super().__init__(url, settings)
        try:
            self._fs, root = fs.FileSystem.from_uri(url)
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigurationError(
                f"`{url}` cannot be opened: {error_line(error)}",
                hint="HDFS needs libhdfs: set HADOOP_HOME and CLASSPATH",
            ) from None
        self._root = str(root).rstrip("/")

    def _path(self, path: str) -> str:
        return join(self._root, path) or "/"

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._errors("read", path), self._fs.open_input_stream(self._path(path)) as file:
            return bytes(file.read())

    def open(self, path: str) -> Any:
        """Open a file with random access."""
        with self._errors("read", path):
            return self._fs.open_input_file(self._path(path))

    def write(self, path: str, data: bytes) -> None:
        """Write a file by renaming a complete one."""
        with self._errors("written", path):
            temporary = self._write_temporary(path, data)
            if self.exists(path):
                self._fs.delete_file(self._path(path))
            self._fs.move(temporary, self._path(path))

    def _write_temporary(self, path: str, data: bytes) -> str:
        directory = self._create_parent(path)
        temporary = f"{directory}/.{uuid.uuid4().hex}.tmp"
        with self._fs.open_output_stream(temporary) as file:
            file.write(data)
        return temporary

    def _create_parent(self, path: str) -> str:
        directory = self._path(path).rpartition("/")[0]
        self._fs.create_dir(directory, recursive=True)
        return directory

    def write_file(self, path: str, source: str) -> None:
        """Write the content of a local file."""
        self.write(path, Path(source).read_bytes())

    def create(self, path: str, data: bytes) -> bool:
        """Write a file by a rename, if the name is free; not atomic between concurrent writers."""
        with self._errors("written", path):
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

    def move(self, source: str, target: str) -> None:
        """Rename a file."""
        with self._errors("written", target):
            self._create_parent(target)
            self._fs.move(self._path(source), self._path(target))

    def _list(self, prefix: str, *, recursive: bool) -> Sequence[Any]:
        from pyarrow import fs

        with self._errors("listed", prefix):
            selector = fs.FileSelector(self._path(prefix), allow_not_found=True, recursive=recursive)
            infos: Sequence[Any] = self._fs.get_file_info(selector)
        return infos

    def list(self, prefix: str) -> Paths:
        """Return every file below the directory `prefix`, sorted."""
        start = len(self._root) + 1
        return sorted(info.path[start:] for info in self._list(prefix, recursive=True) if info.is_file)

    def list_files(self) -> Sequence[StoredFile] | None:
        """Return every file below the root, or the root if it is a file itself."""
        from pyarrow import fs

        with self._errors("listed", ""):
            root = self._fs.get_file_info(self._path(""))
        if root.type == fs.FileType.NotFound:
            return None
        if root.is_file:
            return [StoredFile("", root.size, root.mtime_ns or 0)]
        start = len(self._root) + 1
        return [
            StoredFile(info.path[start:], info.size, info.mtime_ns or 0)
            for info in self._list("", recursive=True)
            if info.is_file
        ]

    def is_there(self) -> bool:
        """Whether there is a file or a directory."""
        from pyarrow import fs

        with self._errors("listed", ""):
            return bool(self._fs.get_file_info(self._path("")).type != fs.FileType.NotFound)

    def children(self, prefix: str) -> Paths:
        """Return the names directly below the directory `prefix`."""
        return sorted(info.base_name for info in self._list(prefix, recursive=False))

    def delete(self, path: str) -> None:
        """Remove a file."""
        with self._errors("deleted", path):
            if self.exists(path):
                self._fs.delete_file(self._path(path))

    def delete_directory(self, path: str) -> None:
        """Remove a directory with its content."""
        try:
            with self._errors("deleted", path):
                self._fs.delete_dir(self._path(path))
        except FileNotFoundError:
            pass

    def exists(self, path: str) -> bool:
        """Whether a file exists."""
        with self._errors("read", path):
            return bool(self._fs.get_file_info(self._path(path)).is_file)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        with self._errors("read", path):
            info = self._fs.get_file_info(self._path(path))
            if not info.is_file:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return int(info.size)

    def check_directory(self) -> None:
        """Raise an error if the root is a file."""
        if self.exists(""):
            raise ConfigurationError(f"`{self.url}` is a file, not a directory")
