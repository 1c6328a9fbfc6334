"""Rows that are not in a file yet, stored as parts in the state storage.

A sink whose files span epochs writes the rows of each epoch once, as Arrow, all directories into one file of
the state storage. Its table `open` lists the ranges that are not published yet. The table is part of the
checkpoint: resuming from an earlier one restores the parts that were open then.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.connectors.base import from_ipc, unify_schemas
from headrace.model.operator import OperatorContext
from headrace.state.config import TableConfig, global_table_config
from headrace.state.references import FileReference

OPEN = "open"
TABLE: TableConfig = global_table_config(OPEN, "rows that are not in a file yet, and where they are kept")
WAITING = "file of rows that wait to be written"
KEPT_BYTES = 256 * 1024 * 1024
"""The most bytes of remote parts to cache in memory while files are written from them."""
_PART, _RATIO, _CLOSED = "part", "ratio", "gone"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class StoredPart:
    """Some rows of one directory, in a range of a file of the state storage."""

    directory: str
    epoch: int
    subtask: int
    number: int
    file: FileReference
    """The range of the file, with its checksum."""
    rows: int
    bytes: int
    """The size of the rows in memory, in bytes."""
    opened: float
    """The epoch time at which the first row arrived."""
    last: float
    latest: int | None
    """The latest event time among them."""
    level: int = 0
    """How often they were merged with others."""

    @property
    def key(self) -> tuple[Any, ...]:
        return (_PART, self.directory, self.epoch, self.subtask, self.number)

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the sort key: merged rows are older than those that arrived in the epoch of the merge."""
        return (self.epoch, -1 if self.level else self.subtask, self.number)

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file.to_json(),
            "rows": self.rows,
            "bytes": self.bytes,
            "opened": self.opened,
            "last": self.last,
            "latest": self.latest,
            "level": self.level,
        }

    @classmethod
    def from_json(cls, key: Any, value: Mapping[str, Any]) -> StoredPart:
        _, directory, epoch, subtask, number = key
        if "file" in value:
            file = FileReference.from_json(value["file"])
        else:  # of an earlier version
            begin, size = value["range"]
            file = FileReference(value["path"], size, begin=begin)
        rest = {name: value[name] for name in ("rows", "bytes", "opened", "last", "latest", "level")}
        return cls(directory=directory, epoch=epoch, subtask=subtask, number=number, file=file, **rest)


class PartReader:
    """Reads parts. Of a local file only the range is read; other files are fetched and cached."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self._fetched: dict[str, bytes] = {}

    def read(self, file: FileReference) -> list[pa.RecordBatch]:
        """Return the rows of a range, verified."""
        if self._storage.local_path(file.path) is not None:
            return from_ipc(file.read(self._storage, what=WAITING))
        if file.path not in self._fetched:
            while self._fetched and sum(map(len, self._fetched.values())) > KEPT_BYTES:
                del self._fetched[next(iter(self._fetched))]
            self._fetched[file.path] = FileReference(file.path).read(self._storage, what=WAITING)
        content = file.part_of(self._fetched[file.path])
        file.verify(content, what=WAITING, where=self._storage.url)
        return from_ipc(content)


class OpenFiles:
    """The parts of one subtask of a sink in one epoch."""

    def __init__(self, ctx: OperatorContext, min_epoch: int) -> None:
        self._ctx = ctx
        self._info = ctx.task_info
        self._table = ctx.global_table(OPEN)
        self._min_epoch = min_epoch
        self._reader = PartReader(ctx.storage)
        entries = self._table.get_all()
        self.all = [StoredPart.from_json(key, value) for key, value in entries.items() if _is(key, _PART)]
        """The parts of every subtask, as the last epoch left them."""
        self._closed = {key: value for key, value in entries.items() if _is(key, _CLOSED)}
        self._ratios = {key: value for key, value in entries.items() if _is(key, _RATIO)}
        self._pending: list[tuple[StoredPart, pa.Table]] = []

    @property
    def keep_from(self) -> int:
        """The first epoch of which a file may still be needed, by this epoch or a checkpoint before it."""
        epochs = [part.epoch for part in self.all]
        epochs += [value for key, value in self._closed.items() if _closed_at(key) > self._min_epoch]
        return min([*epochs, self._info.epoch])

    def ratio(self, default: float) -> float:
        """Return the last measured ratio of file size to memory size."""
        own = self._ratios.get((_RATIO, self._info.subtask))
        return float(own or next(iter(self._ratios.values()), default))

    def learn(self, ratio: float) -> None:
        """Store the measured ratio of file size to memory size."""
        self._ratios[_RATIO, self._info.subtask] = ratio
        self._table.insert((_RATIO, self._info.subtask), ratio)

    def read(self, parts: Sequence[StoredPart]) -> list[pa.RecordBatch]:
        """Return the rows of parts, in the order in which they arrived."""
        ordered = sorted(parts, key=lambda part: part.order)
        return [batch for part in ordered for batch in self._reader.read(part.file)]

    def add(
        self,
        directory: str,
        rows: pa.Table,
        *,
        opened: float,
        last: float,
        latest: int | None = None,
        level: int = 0,
    ) -> None:
        """Add rows that are not in a file yet."""
        part = StoredPart(
            directory=directory,
            epoch=self._info.epoch,
            subtask=self._info.subtask,
            number=len(self._pending),
            file=FileReference(""),
            rows=rows.num_rows,
            bytes=rows.nbytes,
            opened=opened,
            last=last,
            latest=latest,
            level=level,
        )
        self._pending.append((part, rows))

    def merge(self, parts: Sequence[StoredPart]) -> None:
        """Merge small parts of a directory into one."""
        times = [part.latest for part in parts if part.latest is not None]
        self.add(
            parts[0].directory,
            to_table(self.read(parts)),
            opened=min(part.opened for part in parts),
            last=max(part.last for part in parts),
            latest=max(times, default=None),
            level=1 + max(part.level for part in parts),
        )
        self.close(parts)

    def close(self, parts: Sequence[StoredPart]) -> None:
        """Remove parts whose rows are in a file or another part."""
        for part in parts:
            self._table.delete(part.key)
        if parts:
            key = (_CLOSED, self._info.subtask, self._info.epoch)
            lowest = min(part.epoch for part in parts)
            self._closed[key] = min(lowest, self._closed.get(key, lowest))
            self._table.insert(key, self._closed[key])

    def save(self) -> list[StoredPart]:
        """Write the added rows; return the parts of this epoch."""
        for key in self._closed:
            if (
                _closed_at(key) <= self._min_epoch
                and _owner(key) % self._info.parallelism == self._info.subtask
            ):
                self._table.delete(key)
        if not self._pending:
            return []
        info = self._info
        path = f"{folder(info.operator_id)}/{info.epoch:010}/{info.subtask:03}-{uuid.uuid4().hex}"
        chunks: list[bytes] = []
        saved: list[StoredPart] = []
        begin = 0
        for part, rows in self._pending:
            data = _to_ipc(rows)
            saved.append(replace(part, file=FileReference.of(path, data, begin=begin)))
            chunks.append(data)
            begin += len(data)
        self._ctx.storage.write(path, b"".join(chunks))
        for part in saved:
            self._table.insert(part.key, part.to_json())
        self._pending = []
        return saved


def _is(key: Any, kind: str) -> bool:
    return isinstance(key, tuple) and key[0] == kind


def _closed_at(key: Any) -> int:
    return int(key[2])


def _owner(key: Any) -> int:
    return int(key[1])


def folder(operator_id: str) -> str:
    """Return the folder of the parts of a sink."""
    return f"staged/{operator_id}"


def forget(ctx: OperatorContext, before: int) -> None:
    """Remove the parts of all epochs before one, including those of failed attempts."""
    storage, below = ctx.storage, folder(ctx.task_info.operator_id)
    paths = [
        path
        for name in storage.children(below)
        if name.isdigit() and int(name) < before
        for path in storage.list(f"{below}/{name}")
    ]
    if paths:
        # Listed before: what a successor has written meanwhile is not among them.
        ctx.check_generation()
        for path in paths:
            storage.delete(path)


def _to_ipc(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows)
    data: bytes = out.getvalue().to_pybytes()
    return data


def to_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches of several epochs as one table."""
    return pa.Table.from_batches(unify_schemas(batches))
