"""The layout of a log of received messages: numbered parts, each with its size and checksum.

Parts after the position of a checkpoint are the only copy of messages that were acknowledged, so a checkpoint
needs all of them. The position holds the checksum of the last part that was read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from headrace.base.errors import CorruptStateError
from headrace.state.generation import last_number
from headrace.state.references import RESTORE, unseal
from headrace.storage.base import Storage

LANE: Final = "received"
"""The lane of the offset of such a source."""
FOLDER: Final = "received"
SPARK_LANE: Final = "spark"
"""The lane of the offset of a source whose micro-batches Spark writes."""
MANIFEST: Final = "manifest of a micro-batch"
WHAT: Final = "part of the received messages"


def log_folder(node: str) -> str:
    """Return the folder of the log of a source."""
    return f"{FOLDER}/{node}"


def part_path(node: str, part: int) -> str:
    """Return the path of a part."""
    return f"{log_folder(node)}/{part:010}.arrow"


def part_numbers(storage: Storage, node: str) -> list[int]:
    """Return the numbers of the parts that a listing shows."""
    return _listed_numbers(storage, functools.partial(part_path, node))


def last_part(storage: Storage, node: str, *, read: int = 0) -> int:
    """Return the number of the newest part; 0 if there is none.

    `read` is a part that a checkpoint has read: from there on parts are found by name, if the listing is so
    far behind that it shows only parts that were removed since.
    """
    return _last_file(storage, functools.partial(part_path, node), read=read)


def _listed_numbers(storage: Storage, path_of: Callable[[int], str]) -> list[int]:
    """Return the numbers of the numbered files of a folder, as far as a listing shows them."""
    pattern = PurePosixPath(path_of(0))
    names = [PurePosixPath(path) for path in storage.list(f"{pattern.parent}/")]
    # A file that a crash cut off is there under another name.
    return [int(name.stem) for name in names if name.suffix == pattern.suffix and name.stem.isdigit()]


def _last_file(storage: Storage, path_of: Callable[[int], str], *, read: int = 0) -> int:
    """Return the number of the newest of the numbered files of a folder; 0 if there is none."""
    listed = max(_listed_numbers(storage, path_of), default=0)
    if read > listed and storage.exists(path_of(read)):
        listed = read
    return last_number(listed, lambda number: storage.exists(path_of(number)))


def check_part(storage: Storage, node: str, part: int, expected: str | None = None) -> tuple[int, bool]:
    """Verify a part; return its size, and whether it has a checksum.

    `expected` is the checksum that a position holds.
    """
    path = part_path(node, part)
    head, body = unseal(storage, path, what=WHAT)
    actual = head.get("checksum")
    if expected is not None and actual != expected:
        raise CorruptStateError(
            f"{WHAT} `{path}` is not the one that was read: expected checksum {expected[:16]}…,"
            f" found {str(actual)[:16]}…",
            where=storage.url,
            hint=RESTORE,
        )
    return len(body), actual is not None


def needed_parts(storage: Storage, sources: Mapping[str, Any]) -> Iterator[tuple[str, int, str | None]]:
    """Yield the parts that offsets need: (source, part, the checksum that the offset holds)."""
    for node, offset in sources.items():
        position = offset.get(LANE) if isinstance(offset, Mapping) else None
        if not isinstance(position, Mapping) or not isinstance(position.get("parts"), int):
            continue
        read: int = position["parts"]
        last = last_part(storage, node, read=read)
        if read and last <= read:  # the newest part says where the connector goes on
            yield node, read, position.get("checksum")
        for part in range(read + 1, last + 1):
            yield node, part, None


def manifest_path(node: str, number: int) -> str:
    """Return the path of the manifest of a micro-batch: a line of JSON that names its files."""
    return f"{log_folder(node)}/batches/{number:010}.json"


def manifest_numbers(storage: Storage, node: str) -> list[int]:
    """Return the numbers of the micro-batches that a listing shows."""
    return _listed_numbers(storage, functools.partial(manifest_path, node))


def last_manifest(storage: Storage, node: str) -> int:
    """Return the number of the newest micro-batch; 0 if there is none."""
    return _last_file(storage, functools.partial(manifest_path, node))


def needed_manifests(storage: Storage, sources: Mapping[str, Any]) -> Iterator[str]:
    """Yield the manifests of the micro-batches that offsets still have to read."""
    for node, offset in sources.items():
        position = offset.get(SPARK_LANE) if isinstance(offset, Mapping) else None
        if isinstance(position, Mapping) and isinstance(position.get("batches"), int):
            for number in range(position["batches"] + 1, last_manifest(storage, node) + 1):
                yield manifest_path(node, number)
