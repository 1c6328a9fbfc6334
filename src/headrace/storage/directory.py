"""Directories of files, here or in an object store, as connectors of files see them.

Paths, `file:` and `hdfs:` go through Arrow's file systems; `s3:`, `gs:`, `az:`, `abfs:` and `r2:` through
obstore, with the settings `storage.*`. Only what makes a local file durable is done with the system's own
calls.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Protocol, Self, TypeVar

from pyarrow import fs
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.base.options import read_settings
from headrace.storage.objects import Found, ObjectFiles, first_line

T = TypeVar("T")
R = TypeVar("R")

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "r2")
_CONCURRENT = 8

StorageSettings = Annotated[
    dict[str, str],
    BeforeValidator(read_settings),
    PlainSerializer(lambda given: dict.fromkeys(given, "***"), return_type=dict[str, str], when_used="json"),
]


class StoreOptions(DeclaredOptions):
    """How an object store is reached."""

    storage: StorageSettings = Field(
        default={},
        description=(
            "How an object store is reached, as `storage.KEY` = 'value': `storage.aws_endpoint`, "
            "`storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed; "
            "what is not given is taken from the environment."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        return gather(given, "storage")


def gather(given: Any, name: str) -> Any:
    """Options with those that are called `name.KEY` as one mapping `name`."""
    if not isinstance(given, Mapping):
        return given
    own = {key: str(value) for key, value in given.items() if str(key).startswith(f"{name}.")}
    if not own:
        return given
    rest = {key: value for key, value in given.items() if key not in own}
    whole = read_settings(rest.get(name, {})) or {}
    return {**rest, name: {**whole, **{key.removeprefix(f"{name}."): value for key, value in own.items()}}}


class StorageOptions(StoreOptions):
    """Where files are, and how an object store is reached."""

    path: str = Field(min_length=1, description="A directory, as a path or a URL.")

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        if self.storage and not is_store(self.path):
            name = next(iter(self.storage))
            raise ValueError(f"`storage.{name}` is for object stores, and `{self.path}` is none")
        return self


def is_store(url: str) -> bool:
    """Whether a URL is that of an object store."""
    return url.partition("://")[0].lower() in STORES and "://" in url


class Place:
    """A file, or a directory and all files below it. It pickles, and is opened again where it is used."""

    def __init__(
        self, url: str, storage: Mapping[str, str] | None = None, *, part_size: int | None = None
    ) -> None:
        if "://" not in url and not url.startswith("file:"):
            # Workers may run in another directory than the driver.
            url = os.path.abspath(os.path.expanduser(url))
        self.url = url.rstrip("/") or "/"
        self._storage = dict(storage or {})
        self._part_size = part_size
        self._files: _Files = (
            ObjectFiles(self.url, self._storage, part_size) if is_store(url) else _ArrowFiles(self.url)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.url, self._storage, self._part_size)

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        """Whether it is on the disks of this machine, or mounted as if it were."""
        return self._files.is_local

    def files(self, *, may_be_missing: bool = False) -> list[Found]:
        """The file itself, or every file below the directory but hidden ones (`.x`, `_x`), sorted by path."""
        with self._errors("listed"):
            found = self._files.find()
        if found is None:
            if may_be_missing:
                return []
            raise ConfigurationError(f"there is no file or directory `{self.url}`")
        return sorted(
            file for file in found if not any(part.startswith((".", "_")) for part in file.path.split("/"))
        )

    def open(self, path: str) -> Any:
        """A file for reading at any position."""
        try:
            with self._errors("read"):
                return self._files.open(path)
        except FileNotFoundError as error:
            raise ExternalError(str(error), where="filesystem") from None

    def read(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError if there is none."""
        with self._errors("read"):
            return self._files.read(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        with self._errors("read"):
            return self._files.exists(path)

    def children(self, path: str) -> list[str]:
        """The names directly below a directory; none if there is no such directory."""
        with self._errors("listed"):
            return self._files.children(path)

    def write(self, path: str, data: bytes) -> None:
        """Put a file, durably."""
        with self._errors("written"):
            self._files.write(path, data)

    def move(self, source: str, target: str) -> None:
        """Give a file another name, durably: nobody sees half of it."""
        with self._errors("written"):
            self._files.move(source, target)

    def remove(self, path: str) -> None:
        """Remove a directory and what is in it, if it is there."""
        with self._errors("written"), contextlib.suppress(FileNotFoundError):
            self._files.remove(path)

    def each(self, action: Callable[[T], R], items: list[T]) -> list[R]:
        """The results of an action on each item: one after the other here, several at a time elsewhere."""
        if self.is_local or len(items) < 2:
            return [action(item) for item in items]
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            return list(pool.map(action, items))

    def check_writable(self) -> None:
        """Raise a ConfigurationError if this cannot be a directory to write in."""
        self._files.check_writable()

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"`{self.url}` cannot be {what}: {first_line(error)}") from None
        except (ConfigurationError, ExternalError):
            raise
        except Exception as error:  # noqa: BLE001 - a store's client raises classes of its own
            hint = (
                None if self.is_local else "check the address, the settings `storage.*` and the credentials"
            )
            raise ExternalError(
                f"`{self.url}` cannot be {what}: {first_line(error)}", where="filesystem", hint=hint
            ) from None


def _open(url: str, storage: Mapping[str, str], part_size: int | None) -> Place:
    return Place(url, storage, part_size=part_size)


class _Files(Protocol):
    """The operations of a place; each raises what its file system raises."""

    is_local: bool

    def find(self) -> list[Found] | None: ...
    def open(self, path: str) -> Any: ...
    def read(self, path: str) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def children(self, path: str) -> list[str]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def move(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def check_writable(self) -> None: ...


class _ArrowFiles:
    """A directory of a file system that Arrow knows: a local one, mostly."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._fs, root = fs.FileSystem.from_uri(url)
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigurationError(
                f"`{url}` cannot be opened: {first_line(error)}",
                hint="give a path or a URL such as s3://bucket/data or file:///data",
            ) from None
        self._root = str(root).rstrip("/")
        self.is_local = isinstance(self._fs, fs.LocalFileSystem)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root or "/"

    def find(self) -> list[Found] | None:
        info = self._fs.get_file_info(self._path(""))
        if info.type == fs.FileType.NotFound:
            return None
        if info.type == fs.FileType.File:
            return [Found("", info.size, info.mtime_ns or 0)]
        begin = len(self._root) + 1
        return [
            Found(info.path[begin:], info.size, info.mtime_ns or 0)
            for info in self._fs.get_file_info(fs.FileSelector(self._path(""), recursive=True))
            if info.type == fs.FileType.File
        ]

    def open(self, path: str) -> Any:
        return self._fs.open_input_file(self._path(path))

    def read(self, path: str) -> bytes:
        with self._fs.open_input_stream(self._path(path)) as file:
            return bytes(file.read())

    def exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self._path(path)).type == fs.FileType.File)

    def children(self, path: str) -> list[str]:
        selector = fs.FileSelector(self._path(path), allow_not_found=True)
        return [info.base_name for info in self._fs.get_file_info(selector)]

    def write(self, path: str, data: bytes) -> None:
        target = self._path(path)
        self._fs.create_dir(target.rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(target) as file:
            file.write(data)
        self._sync(target)

    def move(self, source: str, target: str) -> None:
        directory = self._path(target).rpartition("/")[0]
        self._fs.create_dir(directory, recursive=True)
        self._fs.move(self._path(source), self._path(target))
        self._sync(directory)

    def remove(self, path: str) -> None:
        self._fs.delete_dir(self._path(path))

    def check_writable(self) -> None:
        if self._fs.get_file_info(self._path("")).type == fs.FileType.File:
            raise ConfigurationError(f"`{self._url}` is a file, not a directory")
        if not self.is_local:
            return
        above = self._path("")
        while not os.path.exists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above):
            raise ConfigurationError(f"`{above}` is a file, not a directory")
        if not os.access(above, os.W_OK):
            raise ConfigurationError(f"`{above}` may not be written", hint="check its permissions")

    def _sync(self, path: str) -> None:
        if not self.is_local:
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
