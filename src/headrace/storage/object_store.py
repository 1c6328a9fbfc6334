"""A storage in an object store, with obstore."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.extras import load_extra
from headrace.storage.base import (
    Paths,
    RequestRetry,
    Storage,
    StorageSettings,
    StoredFile,
    error_line,
    join,
)
from headrace.storage.urls import resolve_url

_CLIENT_OPTIONS = {
    "allow_http": bool,
    "allow_invalid_certificates": bool,
    "connect_timeout": str,
    "http1_only": bool,
    "http2_only": bool,
    "proxy_url": str,
    "timeout": str,
    "user_agent": str,
}
"""Options of the connection, which obstore takes separately from those of the store."""


class ObjectStorage(Storage):
    """Objects below a prefix; object stores write and replace them atomically.

    Missing options are taken from the environment variables of each cloud's own tools, for S3
    `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL` and, for an endpoint
    without TLS, `AWS_ALLOW_HTTP`.
    """

    _client_errors = (Exception,)  # obstore raises classes of its own, and ValueError
    _hint = "check the address and the credentials: in the environment, or a connector's options `storage.*`"

    def __init__(self, url: str, settings: StorageSettings | None = None, *, store: Any = None) -> None:
        super().__init__(url, settings)
        self._obstore: Any = load_extra("obstore", feature=f"`{url}`", extra="cloud", package="obstore")
        resolved, options = resolve_url(url, dict(self._settings.options))
        parts = urlsplit(resolved)
        self._prefix = unquote(parts.path).strip("/")
        self._store = (
            store
            if store is not None
            else _connect(url, f"{parts.scheme}://{parts.netloc}", options, self._settings.retry)
        )

    def _key(self, path: str) -> str:
        return join(self._prefix, path.rstrip("/"))

    def _relative(self, key: str) -> str:
        return key[len(self._prefix) + 1 :] if self._prefix else key

    def read(self, path: str) -> bytes:
        """Return the content of an object."""
        with self._errors("read", path):
            return bytes(self._obstore.get(self._store, self._key(path)).bytes())

    def open(self, path: str) -> Any:
        """Open an object, which is read in ranges of bytes."""
        size = self.size(path)
        return pa.PythonFile(_ObjectFile(self, path, size), mode="r")

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes of an object from `begin` up to `end`."""
        with self._errors("read", path):
            return bytes(self._obstore.get_range(self._store, self._key(path), start=begin, end=end))

    def write(self, path: str, data: bytes) -> None:
        """Write an object."""
        self._put(path, data)

    def write_file(self, path: str, source: str) -> None:
        """Write the content of a local file, in parts if it is large."""
        self._put(path, Path(source))

    def _put(self, path: str, content: bytes | Path) -> None:
        part_size = self._settings.part_size
        sizes = {} if part_size is None else {"chunk_size": part_size}
        with self._errors("written", path):
            self._obstore.put(self._store, self._key(path), content, **sizes)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object on condition that it does not exist."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._errors("written", path):
            try:
                self._obstore.put(self._store, self._key(path), data, mode="create")
            except (AlreadyExistsError, PreconditionError, FileExistsError):
                return False
            except NotImplementedError:
                raise ConfigurationError(
                    f"conditional writes are switched off for `{self.url}`: two runs could not be kept apart",
                    hint="do not set AWS_CONDITIONAL_PUT, or set it to `etag`",
                ) from None
        return True

    def move(self, source: str, target: str) -> None:
        """Copy an object and delete the original.

        The copy appears atomically; until the original is deleted, a retried move writes the same copy.
        """
        with self._errors("written", target):
            self._obstore.copy(self._store, self._key(source), self._key(target))
            self._obstore.delete(self._store, self._key(source))

    def _objects(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        key = self._key(prefix)
        with self._errors("listed", prefix):
            for chunk in self._obstore.list(self._store, f"{key}/" if key else None):
                yield from chunk

    def list(self, prefix: str) -> Paths:
        """Return every object below `prefix`, sorted."""
        return sorted(self._relative(item["path"]) for item in self._objects(prefix))

    def list_files(self) -> Sequence[StoredFile] | None:
        """Return every object below the prefix, or the object of this name."""
        files = [_stored_file(self._relative(item["path"]), item) for item in self._objects("")]
        if files or not self._prefix:
            return files
        try:
            with self._errors("read", ""):
                return [_stored_file("", self._obstore.head(self._store, self._prefix))]
        except FileNotFoundError:
            return None

    def is_there(self) -> bool:
        """Whether an object has this name, or there are objects below the prefix."""
        try:
            if next(self._objects(""), None) is not None:
                return True
        except FileNotFoundError as error:
            raise ExternalError(f"there is no bucket of `{self.url}`: {error_line(error)}") from None
        return bool(self._prefix) and self.exists("")

    def children(self, prefix: str) -> Paths:
        """Return the names directly below `prefix`."""
        key = self._key(prefix)
        with self._errors("listed", prefix):
            listing = self._obstore.list_with_delimiter(self._store, f"{key}/" if key else None)
        paths = [*listing["common_prefixes"], *(item["path"] for item in listing["objects"])]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def delete(self, path: str) -> None:
        """Remove an object."""
        with contextlib.suppress(FileNotFoundError), self._errors("deleted", path):
            self._obstore.delete(self._store, self._key(path))

    def delete_directory(self, path: str) -> None:
        """Remove the objects below a prefix."""
        keys = [item["path"] for item in self._objects(path)]
        if keys:
            with contextlib.suppress(FileNotFoundError), self._errors("deleted", path):
                self._obstore.delete(self._store, keys)

    def exists(self, path: str) -> bool:
        """Whether an object exists."""
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        """Return the size of an object in bytes."""
        with self._errors("read", path):
            return int(self._obstore.head(self._store, self._key(path))["size"])

    def identity(self, path: str, size: int) -> str:
        """Return the ETag of an object, or when it was written."""
        with self._errors("read", path):
            head = self._obstore.head(self._store, self._key(path))
        return str(head.get("e_tag") or head["last_modified"].isoformat())


def _stored_file(path: str, item: Mapping[str, Any]) -> StoredFile:
    microseconds = round(item["last_modified"].timestamp() * 1_000_000)
    return StoredFile(path, item["size"], microseconds * 1_000)


def _connect(url: str, bucket: str, options: Mapping[str, str], retry: RequestRetry) -> Any:
    """Return a client for a bucket."""
    from obstore import store as stores

    store_options, client_options = dict(options), {}
    for key in options:
        name = key.lower().removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if (kind := _CLIENT_OPTIONS.get(name)) is not None:
            value = store_options.pop(key)
            client_options[name] = value.lower() in {"true", "yes", "1"} if kind is bool else value
    try:
        from_url: Any = stores.from_url
        return from_url(
            bucket,
            config=store_options or None,
            client_options=client_options or None,
            retry_config={"max_retries": retry.attempts, "retry_timeout": retry.timeout},
        )
    except Exception as error:  # noqa: BLE001 - obstore raises its own classes and ValueError, by kind of URL
        raise ConfigurationError(
            f"`{url}` cannot be opened: {error_line(error)}",
            hint=(
                "check the address and the options `storage.*`: they are those of the store's own client"
                if options
                else "check the address and the credentials in the environment"
            ),
        ) from None


class _ObjectFile(io.RawIOBase):
    """An object, read in ranges of bytes."""

    def __init__(self, storage: ObjectStorage, path: str, size: int) -> None:
        super().__init__()
        self._storage, self._path, self._size = storage, path, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        if end <= self._position:
            return b""
        try:
            data = self._storage.read_range(self._path, self._position, end)
        except FileNotFoundError as error:
            # Arrow lets an error of ours through as it is, and would take this one for damage of the file.
            raise ExternalError(
                f"`{join(self._storage.url, self._path)}` cannot be read: {error_line(error)}"
            ) from None
        self._position = end
        return data
