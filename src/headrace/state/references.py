"""References to files of the state directory: where a file is, and the size and checksum of its content.

Commit data, offsets and global tables refer to files in this form, so that a checkpoint can be verified
without knowing the connector that wrote them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.base.errors import CorruptStateError
from headrace.state.metadata import FORMAT, check_format
from headrace.storage.base import Storage

_PATH: Final = "state_file"
RESTORE: Final = "restore the file, or resume from an older checkpoint"


@dataclass(frozen=True)
class FileReference:
    """A file of the state directory, or a range of it, with the size and checksum of the content.

    State of earlier versions has no checksum (empty), and no size where it is None. `index` says that the
    content is JSON with further references.
    """

    path: str
    size: int | None = None
    checksum: str = ""
    begin: int | None = None
    """The start of the range; None for a whole file."""
    index: bool = False

    @classmethod
    def of(cls, path: str, data: bytes, *, begin: int | None = None, index: bool = False) -> FileReference:
        """Return the reference to a file with this content."""
        return cls(path, len(data), checksum(data), begin, index)

    def to_json(self) -> dict[str, Any]:
        """Return the form that `find_references` recognizes."""
        data: dict[str, Any] = {_PATH: self.path, "bytes": self.size, "checksum": self.checksum}
        if self.begin is not None:
            data["begin"] = self.begin
        if self.index:
            data["index"] = True
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> FileReference:
        """Parse what `to_json` returned, or the path alone, which earlier versions wrote."""
        if isinstance(data, str):
            return cls(data)
        check_format(data.get("format", FORMAT), str(data[_PATH]), where="the checkpoint that refers to it")
        return cls(
            data[_PATH], data["bytes"], data["checksum"], data.get("begin"), bool(data.get("index", False))
        )

    def read(self, storage: Storage, *, what: str = "file") -> bytes:
        """Read the content and verify it; a CorruptStateError names the file."""
        try:
            content = self._content(storage)
        except (FileNotFoundError, IsADirectoryError):
            raise CorruptStateError(
                f"{what} `{self.path}` is missing", where=storage.url, hint=RESTORE
            ) from None
        self.verify(content, what=what, where=storage.url)
        return content

    def _content(self, storage: Storage) -> bytes:
        local = None if self.begin is None else storage.local_path(self.path)
        if local is None:
            content = storage.read(self.path)
            return content if self.begin is None else self.part_of(content)
        with open(local, "rb") as file:
            file.seek(self.begin or 0)
            return file.read(-1 if self.size is None else self.size)

    def part_of(self, content: bytes) -> bytes:
        """Return the range of the content of the whole file."""
        begin = self.begin or 0
        return content[begin:] if self.size is None else content[begin : begin + self.size]

    def verify(self, content: bytes, *, what: str = "file", where: str) -> None:
        """Raise a CorruptStateError unless this is the content that was written."""
        size_fits = self.size is None or len(content) == self.size
        # An empty checksum fits everything; the name of a page of a listing holds the first half of one.
        actual = checksum(content) if self.checksum else ""
        if size_fits and actual[: len(self.checksum)] == self.checksum:
            return
        raise CorruptStateError(
            f"{what} `{self.path}` is damaged: expected {_described(self.size, self.checksum)},"
            f" found {_described(len(content), actual)}",
            where=where,
            hint=RESTORE,
        )


def checksum(data: bytes | memoryview) -> str:
    """Return the checksum that state files have: SHA-256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def write_referenced(storage: Storage, path: str, data: bytes, *, index: bool = False) -> FileReference:
    """Write a file, and return the reference to it."""
    storage.write(path, data)
    return FileReference.of(path, data, index=index)


def find_references(value: Any) -> Iterator[FileReference]:
    """Yield the references in a JSON value."""
    if isinstance(value, Mapping):
        if {_PATH, "bytes", "checksum"} <= value.keys():
            yield FileReference.from_json(value)
            return
        for item in value.values():
            yield from find_references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from find_references(item)


def find_texts(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from find_texts(item)


def seal(head: Mapping[str, Any], body: bytes = b"") -> tuple[bytes, str]:
    """Return a file that holds its own size and checksum, and the checksum: a line of JSON, then the body."""
    plain = json.dumps(head).encode()
    digest = hashlib.sha256(plain)
    digest.update(body)
    line = json.dumps({**head, "bytes": len(body), "checksum": digest.hexdigest()}).encode()
    return line + b"\n" + body, digest.hexdigest()


def unseal(storage: Storage, path: str, *, what: str = "file") -> tuple[dict[str, Any], memoryview]:
    """Read a file that `seal` made, and verify it; those of earlier versions have no checksum."""
    try:
        content = storage.read(path)
    except (FileNotFoundError, IsADirectoryError):
        raise CorruptStateError(f"{what} `{path}` is missing", where=storage.url, hint=RESTORE) from None
    return unseal_content(content, path, what=what, where=storage.url)


def unseal_content(
    content: bytes, path: str, *, what: str, where: str, hint: str = RESTORE
) -> tuple[dict[str, Any], memoryview]:
    """Verify what was read from a file that `seal` made, and return the head and the body."""

    def damaged(reason: str) -> CorruptStateError:
        return CorruptStateError(f"{what} `{path}` is damaged: {reason}", where=where, hint=hint)

    line, _, _ = content.partition(b"\n")
    body = memoryview(content)[len(line) + 1 :]
    try:
        head = json.loads(line)
        check_format(head.get("format", FORMAT), path, where=where)
        size, expected = head.get("bytes"), head.get("checksum")
    except (ValueError, AttributeError) as error:
        raise damaged(f"its first line cannot be read ({error})") from None
    if expected is not None:
        plain = {name: value for name, value in head.items() if name not in ("bytes", "checksum")}
        digest = hashlib.sha256(json.dumps(plain).encode())
        digest.update(body)
        if size != len(body) or digest.hexdigest() != expected:
            actual = _described(len(body), digest.hexdigest())
            raise damaged(f"expected {_described(size, str(expected))}, found {actual}")
    return head, body


def _described(size: int | None, digest: str) -> str:
    texts = [] if size is None else [f"{size} bytes"]
    return " with ".join([*texts, *([f"checksum {digest[:16]}…"] if digest else [])])
