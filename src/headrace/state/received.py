"""The layout of a log of received messages: numbered parts, each with its size and checksum.

Parts after the position of a checkpoint are the only copy of messages that were acknowledged, so a checkpoint
needs all of them. The position holds the checksum of the last part that was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def last_part(storage: Storage, node: str) -> int:
    """Return the number of the newest part; 0 if there is none."""
    names = [PurePosixPath(path) for path in storage.list(f"{log_folder(node)}/")]
    # A part that a crash cut off is there under another name.
    complete = [name.stem for name in names if name.suffix == ".arrow" and name.stem.isdigit()]
    listed = max(map(int, complete), default=0)
    return last_number(listed, lambda part: storage.exists(part_path(node, part)))


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
        last = last_part(storage, node)
        if read and last <= read:  # the newest part says where the connector goes on
            yield node, read, position.get("checksum")
        for part in range(read + 1, last + 1):
            yield node, part, None


def manifest_path(node: str, number: int) -> str:
    """Return the path of the manifest of a micro-batch: a line of JSON that names its files."""
    return f"{log_folder(node)}/batches/{number:010}.json"


def last_manifest(storage: Storage, node: str) -> int:
    """Return the number of the newest micro-batch; 0 if there is none."""
    names = [PurePosixPath(path) for path in storage.list(f"{log_folder(node)}/batches/")]
    complete = [name.stem for name in names if name.suffix == ".json" and name.stem.isdigit()]
    listed = max(map(int, complete), default=0)
    return last_number(listed, lambda number: storage.exists(manifest_path(node, number)))


def needed_manifests(storage: Storage, sources: Mapping[str, Any]) -> Iterator[str]:
    """Yield the manifests of the micro-batches that offsets still have to read."""
    for node, offset in sources.items():
        position = offset.get(SPARK_LANE) if isinstance(offset, Mapping) else None
        if isinstance(position, Mapping) and isinstance(position.get("batches"), int):
            for number in range(position["batches"] + 1, last_manifest(storage, node) + 1):
                yield manifest_path(node, number)
