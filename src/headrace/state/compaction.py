"""Offline compaction: merge the state files of a checkpoint while the pipeline is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.base.keys import KEY_SPACE, key_range
from headrace.state.backend import ParquetBackend
from headrace.state.base import restored_run
from headrace.state.files import RunFiles, write_run
from headrace.state.generation import Generation
from headrace.state.inspect import load_operators, require_checkpoint
from headrace.state.lock import StateLock
from headrace.state.manager import select_files
from headrace.state.metadata import OperatorCheckpointMetadata, StateFile, SubtaskCheckpointMetadata
from headrace.state.runs import RunLayout, merge
from headrace.storage.base import Storage


@dataclass(frozen=True)
class CompactionReport:
    """The result of an offline compaction. `skipped` are tables that need a migration."""

    epoch: int
    files_before: int = 0
    files_after: int = 0
    rows_before: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    skipped: tuple[str, ...] = field(default_factory=tuple)


def compact(storage: Storage) -> CompactionReport:
    """Merge every table of the latest checkpoint into one file per subtask, in place.

    Raises an error while a run holds the state directory; on an object store, such a run ends. Safe against a
    crash at any point: the merged files are written first, under new names; then each operator's metadata are
    replaced in one step by those that list files with the same rows; only then, and only in a local
    directory, files that no checkpoint refers to are deleted.
    """
    with StateLock(storage):
        backend = ParquetBackend(storage)
        epoch = require_checkpoint(backend)
        Generation.claim(storage, "compaction")  # an object store has no lock: a run that is at work ends
        metadata = backend.load_checkpoint_metadata("", epoch)
        before: list[StateFile] = []
        after: list[StateFile] = []
        skipped: list[str] = []
        for operator in load_operators(backend, metadata):
            compacted, waiting = _compact_operator(storage, operator)
            before += operator.files()
            after += compacted.files()
            skipped += waiting
            if compacted != operator:
                backend.rewrite_operator_metadata(compacted)
        if storage.local_path("") is not None:
            in_use = {file for epoch in backend.epochs() for file in backend.live_files(epoch)}
            for file in before:
                if file.file not in in_use:
                    storage.delete(file.file)
        return CompactionReport(
            epoch=epoch,
            files_before=len(before),
            files_after=len(after),
            rows_before=sum(file.rows for file in before),
            rows_after=sum(file.rows for file in after),
            bytes_before=sum(file.bytes for file in before),
            bytes_after=sum(file.bytes for file in after),
            skipped=tuple(skipped),
        )


def _compact_operator(
    storage: Storage, operator: OperatorCheckpointMetadata
) -> tuple[OperatorCheckpointMetadata, list[str]]:
    skipped: list[str] = []
    tables: dict[int, dict[str, tuple[StateFile, ...]]] = {
        subtask.subtask: dict(subtask.tables) for subtask in operator.subtasks
    }
    for name, config in operator.table_configs.items():
        layout = RunLayout.of(config)
        if any(
            file.version != config.version
            for subtask in operator.subtasks
            for file in subtask.tables.get(name, ())
        ):
            skipped.append(f"{operator.operator_id}.{name}")
            continue
        for subtask in sorted(operator.subtasks, key=lambda item: item.subtask):
            files: Sequence[StateFile] = subtask.tables.get(name, ())
            low, high = key_range(subtask.subtask, operator.parallelism)
            if layout.is_global:  # the first subtask carries the entries of all
                low, high = 0, KEY_SPACE - 1
                files = select_files(operator, name, low=low, high=high, is_global=True)
                files = files if subtask.subtask == min(tables) else ()
            if len(files) > 1 or any(file.tombstones or file.deleted for file in files):
                files = _compact_files(storage, operator, subtask, layout, files=files, low=low, high=high)
            if name in subtask.tables or files:
                tables[subtask.subtask][name] = tuple(files)
    subtasks = tuple(replace(subtask, tables=tables[subtask.subtask]) for subtask in operator.subtasks)
    return replace(operator, subtasks=subtasks), skipped


def _compact_files(
    storage: Storage,
    operator: OperatorCheckpointMetadata,
    subtask: SubtaskCheckpointMetadata,
    layout: RunLayout,
    *,
    files: Sequence[StateFile],
    low: int,
    high: int,
) -> tuple[StateFile, ...]:
    run_files = RunFiles(storage, use_cache=False)
    runs = [restored_run(file, layout, run_files) for file in files]
    watermark = None if subtask.watermark is None else subtask.watermark.time
    merged = write_run(
        merge(runs, layout, oldest=True, cutoff=layout.cutoff(watermark)),
        layout,
        storage=storage,
        operator_id=operator.operator_id,
        subtask=subtask.subtask,
        epoch=operator.epoch,
        order=max(file.order for file in files),
        level=max(1, *(file.level for file in files)),
        low=low,
        high=high,
        compacted=True,
        cache_dir=None,
    )
    return () if merged is None else (merged,)
