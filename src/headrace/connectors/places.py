"""Directories of files, here or in a store, as connectors of files see them.

Everything goes through Arrow's file systems, so a place may be a path, a `file:` URL or the URL of any store
that Arrow knows. Only what makes a file durable is done with the system's own calls, where there are such.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyarrow import fs

from headrace.errors import ConfigurationError, ExternalError


class Found(NamedTuple):
    """A file below a place: its path relative to it and its size in bytes."""

    path: str
    size: int


class Place:
    """A file, or a directory and all files below it. It pickles, and is opened again where it is used."""

    def __init__(self, url: str) -> None:
        if "://" not in url and not url.startswith("file:"):
            # Workers may run in another directory than the driver.
            url = os.path.abspath(os.path.expanduser(url))  # noqa: PTH100, PTH111
        self.url = url
        try:
            self._fs, self.root = fs.FileSystem.from_uri(url)
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigurationError(
                f"`{url}` cannot be opened: {error}", hint="give a path or a URL such as file:///data"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url,)

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        """Whether it is on the disks of this machine, or mounted as if it were."""
        return isinstance(self._fs, fs.LocalFileSystem)

    def files(self) -> list[Found]:
        """The file itself, or every file below the directory but hidden ones (`.x`, `_x`), sorted by path."""
        with self._errors("listed"):
            info = self._fs.get_file_info(self.root)
            if info.type == fs.FileType.NotFound:
                raise ConfigurationError(f"there is no file or directory `{self.url}`")
            if info.type == fs.FileType.File:
                return [Found("", info.size)]
            infos = self._fs.get_file_info(fs.FileSelector(self.root, recursive=True))
        found = [
            Found(info.path[len(self.root.rstrip("/")) + 1 :], info.size)
            for info in infos
            if info.type == fs.FileType.File
        ]
        return sorted(file for file in found if not any(part[0] in "._" for part in file.path.split("/")))

    def open(self, path: str) -> Any:
        """A file for reading at any position."""
        with self._errors("read"):
            return self._fs.open_input_file(self._path(path))

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        with self._errors("read"):
            return bool(self._fs.get_file_info(self._path(path)).type == fs.FileType.File)

    def children(self, path: str) -> list[str]:
        """The names directly below a directory; none if there is no such directory."""
        with self._errors("listed"):
            selector = fs.FileSelector(self._path(path), allow_not_found=True)
            return [info.base_name for info in self._fs.get_file_info(selector)]

    def write(self, path: str, data: bytes) -> None:
        """Put a file, durably."""
        with self._errors("written"):
            target = self._path(path)
            self._fs.create_dir(target.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(target) as file:
                file.write(data)
            self._sync(target)

    def move(self, source: str, target: str) -> None:
        """Give a file another name, durably; on a disk in one step."""
        with self._errors("written"):
            directory = self._path(target).rpartition("/")[0]
            self._fs.create_dir(directory, recursive=True)
            self._fs.move(self._path(source), self._path(target))
            self._sync(directory)

    def remove(self, path: str) -> None:
        """Remove a directory and what is in it, if it is there."""
        with self._errors("written"), contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self._path(path))

    def check_writable(self) -> None:
        """Raise a ConfigurationError if this cannot be a directory to write in."""
        if self._fs.get_file_info(self.root).type == fs.FileType.File:
            raise ConfigurationError(f"`{self.url}` is a file, not a directory")
        if not self.is_local:
            return
        above = self.root
        while not os.path.exists(above):  # noqa: PTH110
            above = os.path.dirname(above)  # noqa: PTH120
        if not os.path.isdir(above):  # noqa: PTH112
            raise ConfigurationError(f"`{above}` is a file, not a directory")
        if not os.access(above, os.W_OK):
            raise ConfigurationError(f"`{above}` may not be written", hint="check its permissions")

    def _path(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else str(self.root)

    def _sync(self, path: str) -> None:
        if not self.is_local:
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ExternalError(f"`{self.url}` cannot be {what}: {error}", where="filesystem") from None
