"""Writes the state of one subtask: collects the changes of tables, and writes files at a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.base.keys import hash_key
from headrace.state.cache import drop_cached
from headrace.state.files import write_run
from headrace.state.messages import (
    Checkpoint,
    CommitData,
    Compaction,
    KeyedData,
    Merge,
    Message,
    RecordBatchData,
    TableData,
)
from headrace.state.metadata import StateFile, SubtaskCheckpointMetadata
from headrace.state.runs import DELETE_KEY, INSERT, Run, RunLayout, in_memory, merge
from headrace.state.tables import StateTable
from headrace.storage.base import Storage


class SubtaskWriter:
    """Collects messages until a Checkpoint, then writes one file per changed table.

    File names are unique to the attempt: files of a failed attempt are never read.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        operator_id: str,
        subtask: int,
        tables: Mapping[str, StateTable],
        cache_dir: str | None,
    ) -> None:
        self._storage = storage
        self._operator_id = operator_id
        self._subtask = subtask
        self._tables = tables
        self._cache_dir = cache_dir
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        self._entries: dict[str, list[KeyedData]] = {}
        self._commit_data: dict[str, bytes] = {}
        self._merges: dict[str, tuple[Merge, ...]] = {}

    def send(self, message: Message) -> SubtaskCheckpointMetadata | None:
        """Handle a message; only a Checkpoint returns metadata."""
        if isinstance(message, Checkpoint):
            return self._checkpoint(message)
        if isinstance(message, Compaction):
            self._merges.update(message.tables)
        else:
            self._collect(message)
        return None

    def _collect(self, message: TableData) -> None:
        if isinstance(message.data, RecordBatchData):
            self._batches.setdefault(message.table, []).append(message.data.batch)
        elif isinstance(message.data, KeyedData):
            self._entries.setdefault(message.table, []).append(message.data)
        elif isinstance(message.data, CommitData):
            self._commit_data[message.table] = message.data.data

    def _checkpoint(self, message: Checkpoint) -> SubtaskCheckpointMetadata:
        files: dict[str, tuple[StateFile, ...]] = {}
        written = 0
        for name, table in self._tables.items():
            files[name] = self._write(name, table, message.epoch)
            written += sum(file.bytes for file in files[name] if file.epoch == message.epoch)
        metadata = SubtaskCheckpointMetadata(
            operator_id=self._operator_id,
            subtask=self._subtask,
            epoch=message.epoch,
            watermark=message.watermark,
            tables=files,
            commit_data=self._commit_data,
            bytes_written=written,
        )
        self._batches, self._entries, self._merges, self._commit_data = {}, {}, {}, {}
        return metadata

    def _write(self, name: str, table: StateTable, epoch: int) -> tuple[StateFile, ...]:
        batches = self._batches.get(name, [])
        if name in self._entries:
            batches = [_entries_batch(self._entries[name], table.layout)]
        runs: list[Run] = list(table.saved)
        carried = table.files()
        merges = self._merges.get(name, ())
        if batches:
            settled = name not in self._entries  # a table's changes are merged already
            runs.append(in_memory(batches, table.layout, low=table.low, high=table.high, settled=settled))
            merges = merges or (Merge(len(runs) - 1, len(runs), 0),)
        if not merges:
            return tuple(carried)
        files: list[StateFile] = []
        position = 0
        for group in sorted(merges, key=lambda item: item.start):
            files += carried[position : group.start]
            merged = self._merge(runs[group.start : group.stop], table, group, epoch)
            files += [merged] if merged is not None else []
            position = group.stop
        files += carried[position:]
        used = {file.file for file in files}
        dropped = [file.file for file in carried if file.file not in used]
        drop_cached(self._storage.url, dropped, cache_dir=self._cache_dir)
        return tuple(files)

    def _merge(self, runs: Sequence[Run], table: StateTable, group: Merge, epoch: int) -> StateFile | None:
        newest = runs[-1].file
        # The other subtasks of a global table may hold older entries than any this one knows of.
        oldest = group.start == 0 and not (table.layout.is_global and self._subtask)
        return write_run(
            merge(runs, table.layout, oldest=oldest, cutoff=table.cutoff),
            table.layout,
            storage=self._storage,
            operator_id=self._operator_id,
            subtask=self._subtask,
            epoch=epoch,
            order=epoch if newest is None else newest.order,
            level=group.level,
            low=table.low,
            high=table.high,
            compacted=len(runs) > 1,
            cache_dir=self._cache_dir,
        )


def _entries_batch(entries: Sequence[KeyedData], layout: RunLayout) -> pa.RecordBatch:
    """Return the changed entries of a global table as sorted rows."""
    keys = pa.array([entry.key for entry in entries], pa.binary())
    hashes = hash_key(pa.RecordBatch.from_arrays([keys], ["key"]), ("key",))
    kinds = [DELETE_KEY if entry.value is None else INSERT for entry in entries]
    batch = pa.RecordBatch.from_arrays(
        [
            keys,
            pa.array([entry.value for entry in entries], pa.binary()),
            pa.array(hashes),
            pa.array(kinds, pa.int8()),
        ],
        schema=layout.stored,
    )
    return batch.take(pa.array(np.argsort(hashes, kind="stable")))
