"""The messages of tables and the engine to the writer of a subtask's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headrace.base.watermarks import Watermark


@dataclass(frozen=True)
class Checkpoint:
    """End the epoch: write everything received and return its metadata."""

    epoch: int
    time: float
    watermark: Watermark | None
    then_stop: bool = False


@dataclass(frozen=True)
class Merge:
    """Runs `start` to before `stop` of a table, oldest first, become one run of `level`."""

    start: int
    stop: int
    level: int


@dataclass(frozen=True)
class Compaction:
    """Merge runs of these tables with the next checkpoint; the run of this epoch counts as the last."""

    tables: Mapping[str, tuple[Merge, ...]]


@dataclass(frozen=True)
class RecordBatchData:
    """Changed rows of a time or keyed table, sorted, with their hashes and operations."""

    batch: pa.RecordBatch


@dataclass(frozen=True)
class KeyedData:
    """One changed entry of a global table, both JSON strings; a value of None deletes the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True)
class CommitData:
    """Data that the driver passes to `handle_commit` after the commit point of the epoch."""

    data: bytes


@dataclass(frozen=True)
class TableData:
    """A change of one table."""

    table: str
    data: RecordBatchData | KeyedData | CommitData


Message = Checkpoint | Compaction | TableData
