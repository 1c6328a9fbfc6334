"""The checkpoints of a pipeline, as its state directory has them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.base.errors import StateError, UserError
from headrace.formats.json.format import encode_json_lines
from headrace.server.errors import RequestError
from headrace.server.models import (
    CheckpointPhaseView,
    CheckpointView,
    OperatorCheckpointView,
    SubtaskCheckpointView,
)
from headrace.state import inspect
from headrace.state.backend import ParquetBackend
from headrace.storage.base import Storage
from headrace.storage.open import open_storage

BACKEND = "parquet"
_PARTS_OF_KEPT = (0.0, 0.5, 0.8)
"""Where among the kept checkpoints the earlier one is looked for, attempt after attempt."""


def storage_of(state_dir: str | None) -> Storage | None:
    """The storage of a state directory; None if nothing is there yet."""
    if state_dir is None:
        return None
    storage = open_storage(state_dir)
    return storage if ParquetBackend(storage).epochs() else None


def list_checkpoints(state_dir: str | None, *, stopping_epoch: int | None) -> list[CheckpointView]:
    """The checkpoints that can be resumed from, the oldest first."""
    storage = storage_of(state_dir)
    if storage is None:
        return []
    return [
        CheckpointView(
            epoch=summary.epoch,
            backend=BACKEND,
            checkpoint_type="stopping" if summary.epoch == stopping_epoch else "scheduled",
            start_time=_micros(summary.start_time),
            finish_time=_micros(summary.finish_time),
            events=_events(summary.start_time, summary.finish_time, committed=summary.committed),
        )
        for summary in inspect.list_checkpoints(storage)
        if summary.problem is None
    ]


def checkpoint_epochs(state_dir: str | None) -> list[int]:
    """The epochs that can be resumed from."""
    storage = storage_of(state_dir)
    return [] if storage is None else ParquetBackend(storage).epochs()


def operator_checkpoints(state_dir: str | None, epoch: int) -> list[OperatorCheckpointView]:
    """What each operator holds in a checkpoint."""
    storage = storage_of(state_dir)
    if storage is None or epoch not in ParquetBackend(storage).epochs():
        raise RequestError(404, f"there is no checkpoint of epoch {epoch}")
    checkpoint = inspect.show(storage, epoch)
    start, finish = checkpoint.metadata.start_time, checkpoint.metadata.finish_time
    views = []
    for operator in checkpoint.operators:
        files = [file for table in operator.tables for file in table.files]
        subtasks = _bytes_of_subtasks(operator.parallelism, files)
        views.append(
            OperatorCheckpointView(
                operator_id=operator.operator_id,
                bytes=sum(subtasks),
                started_metadata_write=_micros(finish),
                finish_time=_micros(finish),
                subtasks=[
                    SubtaskCheckpointView(index=index, bytes=size, event_spans=_events(start, finish))
                    for index, size in enumerate(subtasks)
                ],
            )
        )
    return views


def _bytes_of_subtasks(parallelism: int, files: list[Any]) -> list[int]:
    """The bytes of state files by the subtask that has their keys; a shared file counts for the first."""
    width = 2**64 // max(1, parallelism)
    sizes = [0] * max(1, parallelism)
    for file in {file.file: file for file in files}.values():
        sizes[min(file.min_key // width, len(sizes) - 1)] += file.bytes
    return sizes


def _events(start: float, finish: float, *, committed: bool = True) -> list[CheckpointPhaseView]:
    spans = [
        ("Checkpointing", "the epoch, from its first row to its checkpoint"),
        ("CheckpointingOperators", "the tasks that process the epoch and write state"),
    ]
    events = [
        CheckpointPhaseView(
            start_time=_micros(start), finish_time=_micros(finish), event=event, description=text
        )
        for event, text in spans
    ]
    moments = [("WritingMetadata", "the commit point")]
    if committed:
        moments.append(("Committing", "the sinks make the epoch's rows visible"))
    return events + [
        CheckpointPhaseView(
            start_time=_micros(finish), finish_time=_micros(finish), event=event, description=text
        )
        for event, text in moments
    ]


def query_state(state_dir: str | None, sql: str, *, epoch: int | None, limit: int) -> dict[str, Any]:
    """Run SQL over the tables of a checkpoint; it can only read."""
    storage = storage_of(state_dir)
    if storage is None:
        raise UserError(
            "there is no checkpoint yet", hint="let the pipeline run until its first epoch is committed"
        )
    rows = inspect.query(storage, sql, epoch)
    lines = encode_json_lines(rows.slice(0, limit)).decode()
    return {"columns": rows.column_names, "lines": lines, "has_more": rows.num_rows > limit}


def describe_state(state_dir: str | None, epoch: int | None) -> list[dict[str, Any]]:
    """The tables of a checkpoint, with the names that SQL has for them."""
    storage = storage_of(state_dir)
    if storage is None:
        return []
    return [
        {
            "operator_id": operator.operator_id,
            "table": table.name,
            "sql_name": inspect.query_name(operator.operator_id, table.name),
            "kind": table.kind,
            "description": table.description,
            "columns": dict(table.columns),
            "key": list(table.key),
            "rows": table.rows,
            "bytes": table.bytes,
        }
        for operator in inspect.show(storage, epoch).operators
        for table in operator.tables
    ]


def compare_table(
    state_dir: str | None,
    operator_id: str,
    table: str,
    *,
    before: int | None,
    after: int | None,
    limit: int,
) -> dict[str, Any]:
    """How the rows of a table differ between the checkpoints of two epochs.

    Rows of one key that are in both, with other values, have changed; in a table without a key such rows were
    removed and added. `before` is the oldest checkpoint and `after` the latest one unless told.
    """
    storage = storage_of(state_dir)
    if storage is None:
        raise UserError("there is no checkpoint yet", hint="let the pipeline run until its second epoch")
    epochs, old, new, key = _read_both(storage, operator_id, table, before, after)
    removed, added = _by_key(old - new, key), _by_key(new - old, key)
    changes: list[dict[str, Any]] = []
    for name in sorted(removed.keys() | added.keys()):
        changes += _changes(removed.get(name, []), added.get(name, []), is_keyed=bool(key))
    counts = Counter(change["change"] for change in changes)
    return {
        "before": epochs[0],
        "after": epochs[1],
        "rows_before": old.total(),
        "rows_after": new.total(),
        **{kind: counts[kind] for kind in ("added", "removed", "changed")},
        "changes": changes[:limit],
        "has_more": len(changes) > limit,
    }


def _read_both(
    storage: Storage, operator_id: str, table: str, before: int | None, after: int | None
) -> tuple[tuple[int, int], Counter[bytes], Counter[bytes], tuple[str, ...]]:
    """The two epochs, the rows of each, and the key of the table."""
    problem: StateError | None = None
    for part in _PARTS_OF_KEPT:
        epochs = ParquetBackend(storage).epochs()
        first = epochs[int(len(epochs) * part)] if before is None else before
        last = epochs[-1] if after is None else after
        try:
            old, new = (_lines(storage, operator_id, table, epoch) for epoch in (first, last))
            return (first, last), old, new, _key_of(storage, operator_id, table, last)
        except StateError as error:
            # A running pipeline removes old checkpoints meanwhile; the next attempt is further from them.
            problem = error
            if None not in (before, after):
                break
    assert problem is not None
    raise problem


def _lines(storage: Storage, operator_id: str, table: str, epoch: int) -> Counter[bytes]:
    """The rows of a table as JSON, and how often each is there."""
    return Counter(encode_json_lines(inspect.table_rows(storage, operator_id, table, epoch)).splitlines())


def _key_of(storage: Storage, operator_id: str, table: str, epoch: int) -> tuple[str, ...]:
    described = {
        (operator.operator_id, own.name): own
        for operator in inspect.show(storage, epoch).operators
        for own in operator.tables
    }[operator_id, table]
    return ("key",) if described.kind == "global" else described.key


def _by_key(lines: Counter[bytes], key: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines.elements():
        row = json.loads(line)
        rows.setdefault(json.dumps([row.get(column) for column in key]) if key else line.decode(), []).append(
            row
        )
    return rows


def _changes(
    removed: list[dict[str, Any]], added: list[dict[str, Any]], *, is_keyed: bool
) -> list[dict[str, Any]]:
    """What happened to the rows of one key."""
    if is_keyed and len(removed) == len(added) == 1:
        return [{"change": "changed", "before": removed[0], "after": added[0]}]
    return [
        *({"change": "removed", "before": row, "after": None} for row in removed),
        *({"change": "added", "before": None, "after": row} for row in added),
    ]


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)
