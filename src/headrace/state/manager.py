"""The state tables of one operator in one subtask: restored lazily, saved at the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.base.errors import IncompatibleStateError, PlanError, suggest
from headrace.base.keys import KEY_SPACE, key_range
from headrace.base.watermarks import Watermark
from headrace.state.config import TableConfig
from headrace.state.files import Migrate, RunFiles
from headrace.state.messages import Checkpoint, CommitData, Compaction, Merge, RecordBatchData, TableData
from headrace.state.metadata import (
    OperatorCheckpointMetadata,
    StateFile,
    SubtaskCheckpointMetadata,
)
from headrace.state.runs import MIN_TIME, Run, RunLayout, plan_compaction, size_level, union
from headrace.state.tables import TABLES, StateTable
from headrace.state.writer import SubtaskWriter
from headrace.storage.base import Storage

MANY_RANGES = 256
"""With this many deleted ranges of time in its metadata, a file is rewritten."""


class TableManager:
    """Provides the tables of an operator, and writes them at the end of the epoch.

    Creating one reads nothing: the files of a table are opened when the table is first read. A subtask
    restores exactly the part of the files that its key range covers, whatever the parallelism was.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        job_id: str,
        operator_id: str,
        subtask: int,
        parallelism: int,
        epoch: int,
        configs: Sequence[TableConfig],
        restored: OperatorCheckpointMetadata | None,
        watermark: int | None,
        migrate: Migrate | None = None,
        compact_after: int = 8,
        cache_dir: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.operator_id = operator_id
        self.subtask = subtask
        self.epoch = epoch
        self._compact_after = max(2, compact_after)
        self._low, self._high = key_range(subtask, parallelism)
        run_files = RunFiles(storage, cache_dir=cache_dir, migrate=migrate)
        self._tables: dict[str, StateTable] = {}
        if watermark is None and restored is not None:
            watermark = saved_watermark(restored)
        for config in configs:
            if config.name in self._tables:
                raise PlanError(f"operator `{operator_id}` declares the table `{config.name}` twice")
            files: list[StateFile] = []
            is_global = config.kind == "global"
            low, high = (0, KEY_SPACE - 1) if is_global else (self._low, self._high)
            if restored is not None:
                saved = restored.table_configs.get(config.name)
                if saved is not None:
                    check_compatible(operator_id, saved, config)
                files = select_files(restored, config.name, low=low, high=high, is_global=is_global)
            self._tables[config.name] = TABLES[config.kind](
                config,
                files=files,
                run_files=run_files,
                low=low,
                high=high,
                watermark=watermark,
            )
        self._writer = SubtaskWriter(
            storage=storage,
            operator_id=operator_id,
            subtask=subtask,
            tables=self._tables,
            cache_dir=cache_dir,
        )

    def get(self, name: str) -> StateTable:
        """Return the table declared as `name`."""
        if name not in self._tables:
            raise undeclared_table(self.operator_id, name, self._tables)
        return self._tables[name]

    @property
    def late_rows(self) -> int:
        """Return the number of rows that arrived too late for the retention in this epoch."""
        return sum(table.late_rows for table in self._tables.values())

    def insert_committing_data(self, table: str, data: bytes) -> None:
        """Pass `data` to the commit of this epoch, under a name that need not be a declared table."""
        self._writer.send(TableData(table, CommitData(data)))

    def advance(self, watermark: int) -> None:
        """Advance event time to `watermark` within the epoch."""
        for table in self._tables.values():
            table.advance(watermark)

    def checkpoint(
        self, barrier_epoch: int, time: float, watermark: Watermark | None, then_stop: bool = False
    ) -> SubtaskCheckpointMetadata:
        """Write the changes of this epoch, merge runs where there are many, and return the live files."""
        if watermark is not None and watermark.time is not None:
            self.advance(watermark.time)
        merges: dict[str, tuple[Merge, ...]] = {}
        for name, table in self._tables.items():
            if table.layout.is_global and self.subtask != 0:
                table.saved = []  # every subtask sees them all; the first one carries them on
            changes = list(table.changes())
            for change in changes:
                self._writer.send(change)
            table.saved = unexpired(table.saved, table.layout, cutoff=table.cutoff)
            if changes:
                merges[name] = plan_merges(
                    table.files(),
                    table.layout.version,
                    compact_after=self._compact_after,
                    changed=sum(_rows(change) for change in changes),
                )
            elif table.layout.is_global and len(table.files()) >= self._compact_after:
                # The first subtask carries what the others write, and merges it without a change of its own.
                merges[name] = (Merge(0, len(table.files()), 1),)
        self._writer.send(Compaction(merges))
        metadata = self._writer.send(Checkpoint(barrier_epoch, time, watermark, then_stop))
        if metadata is None:
            raise AssertionError
        return metadata


def _rows(change: TableData) -> int:
    return change.data.batch.num_rows if isinstance(change.data, RecordBatchData) else 1


def saved_watermark(restored: OperatorCheckpointMetadata) -> int | None:
    """Return the saved watermark of all subtasks, without idle ones."""
    times = []
    for subtask in restored.subtasks:
        if subtask.watermark is None:
            return None
        if subtask.watermark.time is not None:
            times.append(subtask.watermark.time)
    return min(times, default=None)


def check_compatible(operator_id: str, saved: TableConfig, declared: TableConfig) -> None:
    """Raise an IncompatibleStateError if no migration leads from `saved` to `declared`."""

    def refuse(what: str, hint: str) -> IncompatibleStateError:
        return IncompatibleStateError(
            f"table `{declared.name}` of operator `{operator_id}` {what}", hint=hint
        )

    for attribute in ("kind", "key", "route", "generational"):
        before, now = getattr(saved, attribute), getattr(declared, attribute)
        if before != now:
            raise refuse(
                f"was saved with {attribute} {before!r} and is declared with {now!r}",
                "give the new table another name",
            )
    if declared.version < saved.version:
        raise refuse(
            f"was saved as version {saved.version} and is declared as version {declared.version}",
            "run the pipeline with the newer code, or resume from an older checkpoint",
        )
    if declared.version > saved.version or saved.schema is None or declared.schema is None:
        return
    before_types = {column.name: column.type for column in saved.schema}
    now_types = {column.name: column.type for column in declared.schema}
    for name in [*before_types, *now_types]:
        if before_types.get(name) != now_types.get(name):
            raise refuse(
                f"was saved with column `{name}` as {before_types.get(name, 'absent')}"
                f" and declares it as {now_types.get(name, 'absent')}",
                f"declare version={declared.version + 1} and define `migrate_table`",
            )


def select_files(
    restored: OperatorCheckpointMetadata, table: str, *, low: int, high: int, is_global: bool
) -> list[StateFile]:
    """Return the parts of a table's files that belong to one key range, oldest first."""
    parts: list[StateFile] = []
    for subtask in sorted(restored.subtasks, key=lambda item: item.subtask):
        for file in subtask.tables.get(table, ()):
            if is_global:
                parts.append(file)
                continue
            first, last = max(file.min_key, low), min(file.max_key, high)
            if first <= last:
                _append(parts, replace(file, min_key=first, max_key=last))
    return sorted(parts, key=lambda file: file.order)


def _append(parts: list[StateFile], part: StateFile) -> None:
    """Add a part of a file; adjacent parts of one file are merged."""
    for index, other in enumerate(parts):
        if other.file == part.file and other.deleted == part.deleted:
            if other.max_key + 1 == part.min_key:
                parts[index] = replace(other, max_key=part.max_key)
                return
            if part.max_key + 1 == other.min_key:
                parts[index] = replace(other, min_key=part.min_key)
                return
    parts.append(part)


def unexpired(runs: Sequence[Run], layout: RunLayout, *, cutoff: int) -> list[Run]:
    """Return the runs that are still needed, by their metadata alone.

    A run without live rows may still hide older rows, by a tombstone or by having replaced them. It is
    dropped when nothing older is left, or when it cannot hide anything.
    """
    if not layout.timed:
        return list(runs)
    remaining: list[Run] = []
    for run in runs:
        harmless = run.tombstones == 0 and not layout.replaces
        if (remaining and not harmless) or not _is_expired(run, cutoff):
            remaining.append(run)
    return remaining


def _is_expired(run: Run, cutoff: int) -> bool:
    file = run.file
    if file is None or file.max_time is None or file.min_time is None:
        return file is not None
    deleted = union(run.deleted, MIN_TIME, cutoff)
    return any(start <= file.min_time and file.max_time < end for start, end in deleted)


def plan_merges(
    files: Sequence[StateFile], version: int, *, compact_after: int, changed: int
) -> tuple[Merge, ...]:
    """Return which runs to merge with this checkpoint.

    The epoch's own run, of `changed` rows, is one more after `files`, and part of one of the merges.
    """
    new = len(files)
    level = size_level(changed, compact_after)
    levels = [*(file.level for file in files), level]
    rows, tombstones = sum(file.rows for file in files), sum(file.tombstones for file in files)
    # Tombstones pay for a merge of everything: afterwards there are none, and the work was no more than
    # twice their number.
    if (
        2 * tombstones > rows
        or any(file.version != version for file in files)
        or any(len(file.deleted) > MANY_RANGES for file in files)
    ):
        return (Merge(0, new + 1, max(1, *levels)),)
    merges = [Merge(*group) for group in plan_compaction(levels, compact_after)]
    if not any(group.stop > new for group in merges):
        merges.append(Merge(new, new + 1, level))
    return tuple(merges)


def undeclared_table(operator_id: str, name: str, declared: Iterable[str] = ()) -> PlanError:
    """The error about a table that `tables()` of the operator does not declare."""
    return PlanError(
        f"operator `{operator_id}` declares no table `{name}`",
        hint=suggest(name, declared, listing="`tables()` declares") or "`tables()` declares none",
    )
