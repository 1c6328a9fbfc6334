"""What tests of connectors need to drive them without an engine."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headrace.base.watermarks import Watermark
from headrace.model.operator import (
    ArrowOperator,
    CheckpointBarrier,
    Finish,
    Limit,
    Offset,
    OperatorContext,
    SourceContext,
    SourceOperator,
    Split,
    TaskInfo,
)
from headrace.state.generation import Generation
from headrace.state.tables import GlobalTable, StateTable
from headrace.storage.open import open_storage

WHOLE = (0, 2**64 - 1)

WITH_SERVERS = {
    "confluent",
    "database",
    "kafka",
    "mqtt",
    "nats",
    "polling_http",
    "postgres",
    "rabbitmq",
    "redis",
    "spark",
    "sse",
    "webhook",
    "websocket",
}
"""Connectors that need a server: tests/servers holds them to the contract."""


Server = TypeVar("Server", bound=socketserver.BaseServer)


@contextlib.contextmanager
def served(server: Server) -> Iterator[Server]:
    """Let a server answer, in a thread, until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class ListCollector:
    """A collector that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.watermarks: list[Watermark] = []

    def collect(self, batch: pa.RecordBatch, output: str = "") -> None:
        self.batches.append(batch)

    def broadcast_watermark(self, watermark: Watermark) -> None:
        self.watermarks.append(watermark)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return to_rows(self.batches)


def to_rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Rows as dicts, instants as integers so that no nanosecond is lost."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in batch.columns
        ]
        rows.extend(pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist())
    return rows


def task(
    *, job: str = "job", operator: str = "op", subtask: int = 0, parallelism: int = 1, epoch: int = 1
) -> TaskInfo:
    return TaskInfo(job, operator, operator, subtask, parallelism, WHOLE, epoch)


def read_split(source: SourceOperator, split: Split) -> tuple[list[pa.RecordBatch], Finish]:
    ctx, collector = SourceContext(task(), split), ListCollector()
    source.on_start(ctx)
    finish = source.run(ctx, collector)
    source.on_close(ctx, collector)
    return collector.batches, finish


def read_range(
    source: SourceOperator, start: Offset, end: Offset, *, parallelism: int = 1
) -> list[dict[str, Any]]:
    """The rows between two offsets, in the order of the splits."""
    batches: list[pa.RecordBatch] = []
    for split in source.splits(start, end, parallelism=parallelism):
        batches += read_split(source, split)[0]
    return to_rows(batches)


def plan(source: SourceOperator, sizes: Sequence[int], *, start: float, now: float) -> list[Offset]:
    """The offsets of epochs of at most these many rows, the last size repeated, until nothing is new."""
    offsets = [source.initial_offset(time=start)]
    for turn in range(10_000):
        rows = sizes[min(turn, len(sizes) - 1)]
        end = source.latest_offset(offsets[-1], Limit(rows, now), parallelism=2)
        if end == offsets[-1]:
            return offsets
        offsets.append(end)
    raise AssertionError("the source never comes to rest")


class EpochTables:
    """The global tables of one operator for one epoch, with the entries that earlier epochs left."""

    def __init__(self, operator: ArrowOperator, saved: Mapping[str, Mapping[Any, Any]]) -> None:
        self.commit_data: dict[str, bytes] = {}
        self._tables: dict[str, GlobalTable] = {}
        for config in operator.tables():
            table = GlobalTable(config, files=(), run_files=None, low=WHOLE[0], high=WHOLE[1])
            for key, value in saved.get(config.name, {}).items():
                table.insert(key, value)
            self._tables[config.name] = table

    def get(self, name: str) -> StateTable:
        return self._tables[name]

    def insert_committing_data(self, table: str, data: bytes) -> None:
        self.commit_data[table] = data

    def save(self) -> dict[str, dict[Any, Any]]:
        return {name: table.get_all() for name, table in self._tables.items()}


CommitData = dict[str, dict[int, bytes]]


class SinkDriver:
    """Runs a sink epoch by epoch the way the engine does: prepare in subtasks, save, commit on the driver."""

    def __init__(self, make: Callable[[], ArrowOperator], folder: Path, *, job: str = "job") -> None:
        self.make = make
        self.job = job
        self.storage = open_storage(str(folder))
        self.claim: Generation | None = None
        self.saved: dict[str, dict[Any, Any]] = {}
        self.metrics: dict[str, float] = {}

    def prepare(self, epoch: int, *subtasks: Sequence[pa.RecordBatch]) -> CommitData:
        """One epoch of a sink: the batches of each subtask; returns the commit data and saves the tables."""
        data: CommitData = {}
        for subtask, batches in enumerate(subtasks):
            sink, collector = self.make(), ListCollector()
            tables = EpochTables(sink, self.saved)
            ctx = self._context(tables, epoch, subtask, len(subtasks))
            sink.on_start(ctx)
            for batch in batches:
                sink.process_batch(batch, ctx, collector)
            sink.handle_checkpoint(CheckpointBarrier(epoch, 0, 0.0), ctx, collector)
            sink.on_close(False, ctx, collector)
            self.saved.update(tables.save())
            for name, value in ctx.metrics.values.items():
                self.metrics[name] = self.metrics.get(name, 0) + value
            for table, staged in tables.commit_data.items():
                data.setdefault(table, {})[subtask] = staged
        return data

    def commit(self, epoch: int, data: CommitData, *, share: int = 0, shares: int = 1) -> None:
        sink = self.make()
        ctx = self._context(EpochTables(sink, self.saved), epoch, share, shares)
        ctx.claim = self.claim
        sink.handle_commit(epoch, data, ctx)

    def take_over(self) -> Generation | None:
        """Go on as the next run; returns the claim of the one that is replaced."""
        replaced, self.claim = self.claim, Generation.claim(self.storage, "run")
        return replaced

    def run(self, epoch: int, *subtasks: Sequence[pa.RecordBatch]) -> None:
        self.commit(epoch, self.prepare(epoch, *subtasks))

    def _context(self, tables: EpochTables, epoch: int, subtask: int, parallelism: int) -> OperatorContext:
        return OperatorContext(
            task(job=self.job, subtask=subtask, parallelism=parallelism, epoch=epoch),
            tables,
            staging=f"staging/{epoch}-{subtask}",
            storage=self.storage,
        )
