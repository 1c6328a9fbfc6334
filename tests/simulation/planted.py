"""Faults that are planted in the product on purpose, to see that a simulation finds them.

Each is a mistake that somebody could make: the product is patched with it, and seeds are run until one fails.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from headrace.connectors import base as connectors
from headrace.connectors._shared import message_sink, sql_table
from headrace.connectors.received import Inbox, LoggedSource
from headrace.connectors.single_file import sink as single_file
from headrace.engine.driver import EpochDriver, _commit_data
from headrace.state import backend, files, generation, received
from headrace.state.backend import ParquetBackend
from headrace.state.files import operator_directory
from headrace.state.generation import Generation
from headrace.state.metadata import CheckpointMetadata, StateFile
from headrace.storage import local
from headrace.storage.base import Storage

Fault = Callable[[], contextlib.AbstractContextManager[Any]]


def drop_fsync() -> contextlib.AbstractContextManager[Any]:
    """The directory of the commit point is not synced."""
    return patch.object(local, "_sync_directory", lambda _path: None)


def drop_fsync_of_content() -> contextlib.AbstractContextManager[Any]:
    """A state file gets its name before its content is on disk."""
    sync_file = local._sync_file

    def sync_directories_only(path: str) -> None:
        if vars(local)["os"].path.isdir(path):
            sync_file(path)

    return patch.object(local, "_sync_file", sync_directories_only)


def skip_fence() -> contextlib.AbstractContextManager[Any]:
    """A run does not ask whether it was replaced."""
    return patch.object(Generation, "check", lambda _self, **_named: None)


@contextlib.contextmanager
def commit_before_metadata() -> Iterator[None]:
    """The sinks commit an epoch before its commit point."""
    write_operators = EpochDriver._write_operators

    def eager(self: EpochDriver, context: Any, subtasks: Any) -> Any:
        operators, written = write_operators(self, context, subtasks)
        for name, operator in self._operators.items():
            if data := _commit_data(operators.get(name), context.epoch):
                operator.handle_commit(context.epoch, data, self._commit_context(name, context.epoch))
        return operators, written

    with patch.object(EpochDriver, "_write_operators", eager):
        yield


@contextlib.contextmanager
def forget_offset() -> Iterator[None]:
    """A checkpoint holds the offsets of the epoch before it."""
    write = ParquetBackend.write_checkpoint_metadata
    before: dict[tuple[int, int], Any] = {}

    def forgetful(self: ParquetBackend, metadata: CheckpointMetadata) -> None:
        before[id(self), metadata.epoch] = metadata.offsets["sources"]
        sources = before.get((id(self), metadata.epoch - 1), metadata.offsets["sources"])
        write(self, replace(metadata, offsets={**metadata.offsets, "sources": sources}))

    with patch.object(ParquetBackend, "write_checkpoint_metadata", forgetful):
        yield


@contextlib.contextmanager
def remove_live_file() -> Iterator[None]:
    """Cleanup forgets that a checkpoint needs the files of earlier epochs."""
    needed_by = ParquetBackend._needed_by

    def forgetful(self: ParquetBackend, epoch: int) -> set[str]:
        own = f"checkpoints/checkpoint-{epoch:07}/"
        return {path for path in needed_by(self, epoch) if path.startswith(own)}

    with patch.object(ParquetBackend, "_needed_by", forgetful):
        yield


def trust_content() -> contextlib.AbstractContextManager[Any]:
    """The checksum of a state file is not verified when it is read."""

    def read(storage: Storage, file: StateFile) -> pa.Buffer:
        return pa.py_buffer(storage.read(file.file))

    return patch.object(files, "read_verified", read)


def reuse_attempt_name() -> contextlib.AbstractContextManager[Any]:
    """All attempts of a subtask write their state under the same name."""

    def run_path(*, epoch: int, operator_id: str, table: str, subtask: int, **_more: Any) -> str:
        return f"{operator_directory(epoch, operator_id)}/table-{table}-{subtask:03}.parquet"

    return patch.object(files, "run_path", run_path)


def append_without_truncating() -> contextlib.AbstractContextManager[Any]:
    """A repeated commit appends to the file whatever it finds there."""

    def append(path: Path, start: int, lines: bytes, *, check: Callable[[], None]) -> None:
        del start, check
        system: Any = vars(single_file)["os"]
        handle = system.open(path, system.O_RDWR | system.O_CREAT, 0o666)
        with system.fdopen(handle, "r+b") as file:
            file.seek(0, system.SEEK_END)
            file.write(lines)
            system.fsync(file.fileno())

    return patch.object(single_file, "_append", append)


@contextlib.contextmanager
def adopt_any_checkpoint() -> Iterator[None]:
    """A run that finds the checkpoint of its epoch written takes it for its own."""

    def adopt(self: EpochDriver, context: Any) -> bool:
        checkpoint = self.backend.load_checkpoint_metadata(context.job.job_id, context.epoch)
        self._restored, self.checkpoint = self._load_operators(checkpoint), checkpoint
        return True

    with skip_fence(), patch.object(EpochDriver, "_adopt", adopt):
        yield


def forget_watermarks() -> contextlib.AbstractContextManager[Any]:
    """A run does not restore where event time stood."""
    return patch.object(EpochDriver, "_marks", lambda _self, _before: {})


def forget_pending_commit() -> contextlib.AbstractContextManager[Any]:
    """A run that starts does not commit what the last one had only sealed."""
    return patch.object(ParquetBackend, "is_committed", lambda _self, _metadata: True)


def mark_before_delivery() -> contextlib.AbstractContextManager[Any]:
    """Messages are marked as delivered before they are."""

    def deliver_once(ctx: Any, attempts: Any, deliver: Callable[[], None]) -> None:
        marker = connectors.CommitMarker("delivered", ctx)
        if marker.read() != attempts:
            marker.write(attempts)
            deliver()

    return patch.object(message_sink, "deliver_once", deliver_once)


@contextlib.contextmanager
def new_mark_for_each_commit() -> Iterator[None]:
    """A repeated commit to a database has another mark than the first."""
    staged_batches = connectors.staged_batches

    def staged(data: Mapping[str, Mapping[int, bytes]], table: str, ctx: Any) -> Any:
        return staged_batches(data, table, ctx)[0], [uuid.uuid4().hex]

    with patch.object(sql_table, "staged_batches", staged):
        yield


@contextlib.contextmanager
def advance_before_commit_point() -> Iterator[None]:
    """A driver takes the next checkpoint for its own before it is written."""
    write = ParquetBackend.write_checkpoint_metadata
    seal = EpochDriver.seal

    def eager(self: EpochDriver, context: Any, control: Any) -> Any:
        def write_late(backend: ParquetBackend, metadata: CheckpointMetadata) -> None:
            self.checkpoint = metadata
            write(backend, metadata)

        with patch.object(ParquetBackend, "write_checkpoint_metadata", write_late):
            return seal(self, context, control)

    with patch.object(EpochDriver, "seal", eager):
        yield


@contextlib.contextmanager
def trust_listings() -> Iterator[None]:
    """Checkpoints, generations and parts of a log that a listing does not show are not looked for by name."""

    def listed_only(listed: int, exists: Callable[[int], bool]) -> int:
        del exists
        return listed

    with (
        patch.object(generation, "last_number", listed_only),
        patch.object(backend, "last_number", listed_only),
        patch.object(received, "last_number", listed_only),
    ):
        yield


@contextlib.contextmanager
def acknowledge_before_logged() -> Iterator[None]:
    """Messages are acknowledged when they come, before they are logged."""
    put = Inbox.put

    def eager(self: Inbox, value: bytes, *, token: Any = None, **more: Any) -> None:
        put(self, value, token=token, **more)
        self._logged.append(token)

    with patch.object(Inbox, "put", eager):
        yield


@contextlib.contextmanager
def expire_what_was_read() -> Iterator[None]:
    """Received messages are removed as soon as they are committed: an earlier checkpoint needs them."""
    expired = LoggedSource.expired

    def eager(self: LoggedSource, _offset: Any) -> None:
        expired(self, {"received": {"parts": self._parts}})

    with patch.object(LoggedSource, "expired", eager):
        yield


PLANTED: Final[dict[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        drop_fsync,
        drop_fsync_of_content,
        skip_fence,
        commit_before_metadata,
        forget_offset,
        remove_live_file,
        trust_content,
        reuse_attempt_name,
        append_without_truncating,
        adopt_any_checkpoint,
        forget_watermarks,
        forget_pending_commit,
        mark_before_delivery,
        new_mark_for_each_commit,
        advance_before_commit_point,
        trust_listings,
        acknowledge_before_logged,
        expire_what_was_read,
    )
}
