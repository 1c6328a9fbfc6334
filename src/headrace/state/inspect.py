"""Inspect saved state: list checkpoints, read tables as rows or with SQL; verify, repair, clean up.

Everything here returns data and prints nothing. Reading needs no lock and works while a pipeline runs: if a
checkpoint is removed meanwhile, a newer one is read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.base.errors import CorruptStateError, IncompatibleStateError, StateError, UserError, suggest
from headrace.base.keys import key_range
from headrace.state.backend import ParquetBackend, is_metadata
from headrace.state.base import restored_run
from headrace.state.config import TableConfig
from headrace.state.files import RunFiles
from headrace.state.identity import load_identity, missing_identity
from headrace.state.lock import StateLock
from headrace.state.manager import select_files
from headrace.state.metadata import (
    CheckpointMetadata,
    OperatorCheckpointMetadata,
    StateFile,
)
from headrace.state.runs import RunLayout, merge
from headrace.state.verify import FileChecks, Verification
from headrace.storage.base import Storage

_T = TypeVar("_T")
_OWN_FOLDERS: Final = ("checkpoints/", "staged/", "listed/", "snapshots/")
"""The folders whose files checkpoints refer to; logs of received messages are always kept."""
_TEMPORARY: Final = re.compile(r"(?:^|/)\.[0-9a-f]{32}\.tmp$")
"""What an interrupted write leaves."""
_MIN_AGE_NS: Final = 24 * 3600 * 10**9
"""How old a stray file of a storage without a lock has to be."""


@dataclass(frozen=True)
class CheckpointSummary:
    """A summary of a checkpoint. `problem` is the reason if it cannot be read."""

    epoch: int
    start_time: float = 0.0
    finish_time: float = 0.0
    committed: bool = False
    finished: bool = False
    parallelism: int = 0
    operators: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class TableDescription:
    """One table of an operator; `rows` counts stored rows, including replaced ones and tombstones."""

    name: str
    kind: str
    description: str
    version: int
    columns: Mapping[str, str]
    key: tuple[str, ...]
    rows: int
    bytes: int
    files: tuple[StateFile, ...]
    tombstones: int


@dataclass(frozen=True)
class OperatorDescription:
    """One operator's state; `saved` is the epoch in which it last changed."""

    operator_id: str
    name: str
    saved: int
    parallelism: int
    watermarks: Mapping[int, int | str | None]
    tables: tuple[TableDescription, ...]


@dataclass(frozen=True)
class CheckpointDescription:
    """The operators, tables and offsets of a checkpoint."""

    metadata: CheckpointMetadata
    committed: bool
    operators: tuple[OperatorDescription, ...]

    @property
    def offsets(self) -> Mapping[str, Any]:
        """Return the offset of every source."""
        return self.metadata.offsets


@dataclass(frozen=True)
class RepairReport:
    """The files that were removed, or would be without `dry_run`, and their size together."""

    removed: tuple[str, ...]
    bytes: int
    dry_run: bool


def list_checkpoints(storage: Storage) -> list[CheckpointSummary]:
    """Return a summary of every checkpoint, oldest first."""
    backend = ParquetBackend(storage)
    summaries = []
    for epoch in backend.epochs():
        try:
            metadata = backend.load_checkpoint_metadata("", epoch)
            files = {
                file.file: file for operator in load_operators(backend, metadata) for file in operator.files()
            }
        except StateError as error:
            if not backend.has_checkpoint(epoch):
                continue  # cleaned up since it was listed
            summaries.append(CheckpointSummary(epoch, problem=error.message))
            continue
        summaries.append(
            CheckpointSummary(
                epoch=epoch,
                start_time=metadata.start_time,
                finish_time=metadata.finish_time,
                committed=backend.is_committed(metadata),
                finished=metadata.finished,
                parallelism=metadata.parallelism,
                operators=len(metadata.operators),
                files=len(files),
                rows=sum(file.rows for file in files.values()),
                bytes=sum(file.bytes for file in files.values()),
            )
        )
    return summaries


def latest_checkpoint(storage: Storage) -> tuple[CheckpointMetadata, list[OperatorCheckpointMetadata]] | None:
    """The metadata of the latest checkpoint and of its operators; None if there is no checkpoint."""
    if ParquetBackend(storage).latest_epoch() is None:
        return None
    return _read(storage, None, lambda backend, metadata: (metadata, load_operators(backend, metadata)))


def show(storage: Storage, epoch: int | None = None) -> CheckpointDescription:
    """Describe a checkpoint, by default the latest."""

    def describe(backend: ParquetBackend, metadata: CheckpointMetadata) -> CheckpointDescription:
        operators = tuple(_describe(operator) for operator in load_operators(backend, metadata))
        return CheckpointDescription(metadata, backend.is_committed(metadata), operators)

    return _read(storage, epoch, describe)


def table_rows(storage: Storage, operator_id: str, table: str, epoch: int | None = None) -> pa.Table:
    """Return the live rows of a table over all subtasks; those of a global table as JSON strings."""

    def rows(backend: ParquetBackend, metadata: CheckpointMetadata) -> pa.Table:
        operator = _find_operator(backend, metadata, operator_id)
        if table not in operator.table_configs:
            names = list(operator.table_configs)
            raise UserError(
                f"operator `{operator_id}` has no table `{table}`",
                hint=suggest(table, names, listing="its tables are") or "it has no tables",
            )
        return _live(storage, operator, operator.table_configs[table])

    return _read(storage, epoch, rows)


def query(storage: Storage, sql: str, epoch: int | None = None) -> pa.Table:
    """Run SQL over the tables of a checkpoint.

    A table is named `"<operator id>.<table>"`, and also `<operator id>_<table>` with every character
    that is not a letter or digit replaced by `_`.
    """

    def run(backend: ParquetBackend, metadata: CheckpointMetadata) -> pa.Table:
        from datafusion import SessionContext, SQLOptions

        context = SessionContext()
        # It looks at state, and neither writes files nor reads others.
        read_only = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        names: list[str] = []
        lowered = sql.lower()
        for operator in load_operators(backend, metadata):
            for config in operator.table_configs.values():
                dotted = f"{operator.operator_id}.{config.name}"
                plain = query_name(operator.operator_id, config.name)
                names += [plain, f'"{dotted}"']
                if dotted.lower() not in lowered and plain not in lowered:
                    continue  # not part of the question, so not read
                batches = _as_partition(_live(storage, operator, config))
                context.register_record_batches(f'"{dotted}"', batches)
                context.register_record_batches(f'"{plain}"', batches)
        try:
            return context.sql(sql, options=read_only).to_arrow_table()
        except BaseException as error:  # a panic of the engine is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise _explain(error, sql, names) from None

    return _read(storage, epoch, run)


def query_name(operator_id: str, table: str) -> str:
    """Return the name of a table in SQL, as a word."""
    return re.sub(r"[^0-9A-Za-z]", "_", f"{operator_id}.{table}").lower()


def export(storage: Storage, directory: str, epoch: int | None = None) -> list[str]:
    """Write every table of a checkpoint as `<operator id>.<table>.parquet`; returns the paths."""

    def write(backend: ParquetBackend, metadata: CheckpointMetadata) -> list[str]:
        target = Path(directory)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"`{directory}` cannot be written: {error.strerror}") from None
        paths = []
        for operator in load_operators(backend, metadata):
            for config in operator.table_configs.values():
                name = re.sub(r"[^\w.-]", "_", f"{operator.operator_id}.{config.name}")
                path = target / f"{name}.parquet"
                pq.write_table(_live(storage, operator, config), path, compression="zstd")
                paths.append(str(path))
        return paths

    return _read(storage, epoch, write)


def cleanup(storage: Storage, keep: int) -> list[int]:
    """Keep the last `keep` checkpoints; return the epochs removed. Raises an error while a run is active."""
    with StateLock(storage):
        backend = ParquetBackend(storage)
        latest = backend.latest_epoch()
        return [] if latest is None else backend.cleanup(keep, latest)


def verify(storage: Storage, epoch: int | None = None) -> list[Verification]:
    """Read every file that the checkpoints refer to, or one of them, and compare sizes and checksums.

    Without a good `pipeline.json` none of them can be resumed.
    """
    backend = ParquetBackend(storage)
    epochs = backend.epochs()
    if epoch is not None and epoch not in epochs:
        backend.load_checkpoint_metadata("", epoch)  # raises the error that lists the checkpoints
    checks = FileChecks(storage)
    of_all = _identity_problems(storage)
    results = []
    for checked in epochs if epoch is None else [epoch]:
        result = backend.verification(checked, checks)
        if result.problems and checked not in backend.epochs():
            continue  # cleaned up since it was listed
        results.append(replace(result, problems=(*of_all, *result.problems)))
    return results


def _identity_problems(storage: Storage) -> tuple[str, ...]:
    try:
        return () if load_identity(storage) is not None else (missing_identity(storage).message,)
    except StateError as error:
        return (error.message,)


def repair(storage: Storage, *, dry_run: bool = False) -> RepairReport:
    """Remove files that no checkpoint refers to: of unfinished epochs, failed attempts, interrupted writes.

    Raises an error while a run holds the state directory, and if a checkpoint does not tell what it refers
    to; then nothing is removed. An object store has no lock: there, files of the last day stay, since a run
    may be writing them.
    """
    with StateLock(storage):
        backend = ParquetBackend(storage)
        require_checkpoint(backend)
        try:
            needed = [backend.needed_paths(epoch) for epoch in backend.epochs()]
        except IncompatibleStateError:
            raise  # a newer version knows what it needs
        except StateError as error:
            raise CorruptStateError(
                f"nothing was removed, since a checkpoint does not tell what it needs: {error.message}",
                where=storage.url,
                hint="restore the file, or discard the checkpoint: run the pipeline from an older one",
            ) from error
        newest = None if storage.local_path("") is not None else time.time_ns() - _MIN_AGE_NS
        strays = [
            file
            for file in storage.list_files() or ()
            if (file.path.startswith(_OWN_FOLDERS) or _TEMPORARY.search(file.path))
            and not any(needs.needs(file.path) for needs in needed)
            and (newest is None or file.modified < newest)
        ]
        if not dry_run:
            # An operator's metadata goes last: until then a cleanup can find what is left.
            for file in sorted(strays, key=lambda file: is_metadata(file.path)):
                storage.delete(file.path)
        return RepairReport(
            removed=tuple(file.path for file in strays),
            bytes=sum(file.size for file in strays),
            dry_run=dry_run,
        )


def _read(
    storage: Storage,
    epoch: int | None,
    action: Callable[[ParquetBackend, CheckpointMetadata], _T],
) -> _T:
    """Run `action` on a checkpoint; on a newer one if the latest was removed during it."""
    backend = ParquetBackend(storage)
    chosen = require_checkpoint(backend) if epoch is None else epoch
    while True:
        try:
            return action(backend, backend.load_checkpoint_metadata("", chosen))
        except (StateError, FileNotFoundError):
            latest = backend.latest_epoch()
            if epoch is not None or latest is None or latest <= chosen:
                raise
            chosen = latest


def require_checkpoint(backend: ParquetBackend) -> int:
    """Return the epoch of the latest checkpoint; raises a UserError if there is none."""
    latest = backend.latest_epoch()
    if latest is None:
        raise UserError(
            f"there is no checkpoint in `{backend.storage.url}`",
            hint="is this the state directory of a pipeline that has run?",
        )
    return latest


def load_operators(backend: ParquetBackend, metadata: CheckpointMetadata) -> list[OperatorCheckpointMetadata]:
    """Return the metadata of every operator of a checkpoint."""
    operators = []
    for saved in sorted(metadata.saved_operators()):
        operator = backend.load_operator_metadata(metadata.job_id, saved)
        if operator is None:
            raise CorruptStateError(
                f"the metadata of operator `{saved.operator_id}` as of epoch {saved.epoch} is missing",
                where=backend.storage.url,
                hint="resume from an older checkpoint",
            )
        operators.append(operator)
    return operators


def _find_operator(
    backend: ParquetBackend, metadata: CheckpointMetadata, operator_id: str
) -> OperatorCheckpointMetadata:
    for operator in load_operators(backend, metadata):
        if operator.operator_id == operator_id:
            return operator
    names = sorted(metadata.operators)
    raise UserError(
        f"checkpoint {metadata.epoch} has no operator `{operator_id}`",
        hint=suggest(operator_id, names, listing="the operators are") or "it has no operators",
    )


def _describe(operator: OperatorCheckpointMetadata) -> OperatorDescription:
    tables = []
    for name, config in operator.table_configs.items():
        entries = [file for subtask in operator.subtasks for file in subtask.tables.get(name, ())]
        files = {file.file: file for file in entries}
        layout = RunLayout.of(config)
        tables.append(
            TableDescription(
                name=name,
                kind=config.kind,
                description=config.description,
                version=config.version,
                columns={column.name: str(column.type) for column in layout.columns},
                key=layout.key,
                rows=sum(file.rows for file in files.values()),
                bytes=sum(file.bytes for file in files.values()),
                files=tuple(entries),
                tombstones=sum(file.tombstones for file in files.values()),
            )
        )
    return OperatorDescription(
        operator_id=operator.operator_id,
        name=operator.operator_name,
        saved=operator.epoch,
        parallelism=operator.parallelism,
        watermarks={
            subtask.subtask: None if subtask.watermark is None else subtask.watermark.to_json()
            for subtask in operator.subtasks
        },
        tables=tuple(tables),
    )


def _live(storage: Storage, operator: OperatorCheckpointMetadata, config: TableConfig) -> pa.Table:
    """Return the live rows of one table. Rows of an older version have nulls in new columns."""
    layout = RunLayout.of(config)

    def fill(table: str, version: int, rows: pa.Table) -> pa.Table:
        del table, version
        return pa.Table.from_arrays(
            [
                rows.column(column.name)
                if column.name in rows.schema.names and rows.schema.field(column.name).type == column.type
                else pa.nulls(rows.num_rows, column.type)
                for column in layout.columns
            ],
            names=layout.columns.names,
        )

    run_files = RunFiles(storage, use_cache=False, migrate=fill)
    parts: list[pa.RecordBatch] = []
    for subtask in sorted(operator.subtasks, key=lambda item: item.subtask):
        low, high = key_range(subtask.subtask, operator.parallelism)
        files = select_files(operator, config.name, low=low, high=high, is_global=layout.is_global)
        watermark = None if subtask.watermark is None else subtask.watermark.time
        runs = [restored_run(file, layout, run_files) for file in files]
        parts += merge(runs, layout, oldest=True, cutoff=layout.cutoff(watermark))
        if layout.is_global:
            break
    rows = pa.Table.from_batches(parts, layout.stored) if parts else layout.stored.empty_table()
    rows = layout.public(rows)
    if not layout.is_global:
        return rows
    return rows.cast(pa.schema([("key", pa.string()), ("value", pa.string())])).sort_by("key")


def _as_partition(rows: pa.Table) -> list[list[pa.RecordBatch]]:
    batches = rows.combine_chunks().to_batches()
    return [batches or [pa.RecordBatch.from_pylist([], schema=rows.schema)]]


def _explain(error: BaseException, sql: str, names: Sequence[str]) -> UserError:
    """Return the error for a failed query, with the existing names."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = re.sub(r"^(?:\w+\()?(?:DataFusion error: )?", "", lines[0]).rstrip('")')
    missing = re.search(r"[Tt]able '([^']+)' not found", text)
    tables = ", ".join(name for name in names if not name.startswith('"')) or "none"
    if missing:
        name = missing.group(1).removeprefix("datafusion.public.")
        return UserError(
            f"there is no table `{name}` in this checkpoint",
            hint=suggest(name, names) or f"the tables are {tables}",
            where=sql,
        )
    column = re.search(r"No field named ([^\s?]+)\.(?:\s|$)", text)
    if column:
        name = column.group(1).replace('"', "").rpartition(".")[2]
        listed = re.findall(r"Valid fields are (.+?)\.?$", "\n".join(lines), re.MULTILINE)
        fields = [field.replace('"', "").rpartition(".")[2] for field in ", ".join(listed).split(", ")]
        return UserError(
            f"there is no column `{name}` in these tables",
            hint=suggest(name, fields, listing="the columns are"),
            where=sql,
        )
    return UserError(f"the query cannot be run: {text}", where=sql)
