"""Objects of a store as files of a directory, through obstore."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headrace.base.errors import ConfigurationError, ExternalError, MissingExtraError

RETRIES, PATIENCE = 4, timedelta(seconds=30)
"""How often, and for how long, a request to a store is tried again before the epoch is."""
_OF_CLIENT = {
    "allow_http": bool,
    "allow_invalid_certificates": bool,
    "connect_timeout": str,
    "http1_only": bool,
    "http2_only": bool,
    "proxy_url": str,
    "timeout": str,
    "user_agent": str,
}
"""Settings that are of the connection and not of the store."""


class Found(NamedTuple):
    """A file below a place: its path relative to it, its size in bytes, and when it was modified."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


def first_line(error: BaseException) -> str:
    """What an error says, without the details below."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


class ObjectFiles:
    """Objects below a prefix of a bucket."""

    is_local = False

    def __init__(self, url: str, settings: Mapping[str, str], part_size: int | None) -> None:
        try:
            import obstore
        except ImportError:
            raise MissingExtraError(f"`{url}`", extra="cloud", package="obstore") from None
        self._obstore: Any = obstore
        self._url = url
        self._store, self._root = _connect(url, settings)
        self._part_size = part_size

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root and path else self._root or path

    def find(self) -> list[Found] | None:
        begin = len(self._root) + 1 if self._root else 0
        found = [
            Found(item["path"][begin:], item["size"], _nanoseconds(item["last_modified"]))
            for chunk in self._obstore.list(self._store, f"{self._root}/" if self._root else None)
            for item in chunk
        ]
        if found or not self._root:
            return found
        try:
            item = self._obstore.head(self._store, self._root)
        except FileNotFoundError:
            return None
        return [Found("", item["size"], _nanoseconds(item["last_modified"]))]

    def open(self, path: str) -> Any:
        key = self._path(path)
        size = int(self._obstore.head(self._store, key)["size"])
        where = f"{self._url}/{path}" if path else self._url
        return pa.PythonFile(_ObjectFile(self._obstore, self._store, key, size=size, where=where), mode="r")

    def read(self, path: str) -> bytes:
        return bytes(self._obstore.get(self._store, self._path(path)).bytes())

    def exists(self, path: str) -> bool:
        try:
            self._obstore.head(self._store, self._path(path))
        except FileNotFoundError:
            return False
        return True

    def children(self, path: str) -> list[str]:
        below = self._path(path)
        found = self._obstore.list_with_delimiter(self._store, f"{below}/" if below else None)
        paths = [*found["common_prefixes"], *(item["path"] for item in found["objects"])]
        return [one.rstrip("/").rpartition("/")[2] for one in paths]

    def write(self, path: str, data: bytes) -> None:
        sizes = {} if self._part_size is None else {"chunk_size": self._part_size}
        self._obstore.put(self._store, self._path(path), data, **sizes)

    def move(self, source: str, target: str) -> None:
        # The copy appears in one step; until the original is gone a repeated move makes the same copy.
        self._obstore.copy(self._store, self._path(source), self._path(target))
        self._obstore.delete(self._store, self._path(source))

    def remove(self, path: str) -> None:
        listed = self._obstore.list(self._store, f"{self._path(path)}/")
        paths = [item["path"] for chunk in listed for item in chunk]
        if paths:
            self._obstore.delete(self._store, paths)

    def check_writable(self) -> None:
        """What may be written shows when it is: a probe would leave a trace in the bucket."""


def _nanoseconds(instant: Any) -> int:
    micros: int = round(instant.timestamp() * 1_000_000)
    return micros * 1_000


def resolve(url: str, settings: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The URL and the settings as clients of object stores know them: `s3a:` and `r2:` are kinds of `s3:`."""
    scheme, _, rest = url.partition("://")
    given = dict(settings)
    if scheme.lower() == "r2":
        account, _, rest = rest.rpartition("@")
        if not account:
            raise ConfigurationError(f"`{url}` names no account", hint="write it as r2://ACCOUNT@BUCKET/path")
        given.setdefault("aws_endpoint", f"https://{account}.r2.cloudflarestorage.com")
        given.setdefault("aws_region", "auto")
    known = {"s3a": "s3", "r2": "s3"}.get(scheme.lower(), scheme.lower())
    return f"{known}://{rest}", given


def _connect(url: str, settings: Mapping[str, str]) -> tuple[Any, str]:
    """A client for the bucket of a URL, and the path in the bucket."""
    from obstore import store as stores

    resolved, of_store = resolve(url, settings)
    parts = urlsplit(resolved)
    client: dict[str, Any] = {}
    for key in list(of_store):
        name = key.lower().removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if (kind := _OF_CLIENT.get(name)) is not None:
            value = of_store.pop(key)
            client[name] = value.lower() in {"true", "yes", "1"} if kind is bool else value
    try:
        from_url: Any = stores.from_url
        store = from_url(
            f"{parts.scheme}://{parts.netloc}",
            config=of_store or None,
            client_options=client or None,
            retry_config={"max_retries": RETRIES, "retry_timeout": PATIENCE},
        )
    except Exception as error:  # noqa: BLE001 - obstore raises its own classes and ValueError, by kind of URL
        raise ConfigurationError(
            f"`{url}` cannot be opened: {first_line(error)}",
            hint="check the address and the options `storage.*`: they are those of the store's own client",
        ) from None
    return store, unquote(parts.path).strip("/")


class _ObjectFile(io.RawIOBase):
    """An object, read in ranges."""

    def __init__(self, obstore: Any, store: Any, path: str, *, size: int, where: str) -> None:
        super().__init__()
        self._get_range: Any = obstore.get_range
        self._object = (store, path)
        self._size, self._where = size, where
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
            data = bytes(self._get_range(*self._object, start=self._position, end=end))
        except Exception as error:  # noqa: BLE001 - a store's client raises classes of its own
            # Arrow lets an error of ours through as it is; one of the client would be taken for a mistake.
            raise ExternalError(
                f"`{self._where}` cannot be read: {first_line(error)}", where="filesystem"
            ) from None
        self._position = end
        return data
