"""What tests of connectors need to drive them without an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.operator import Finish, Limit, Offset, SourceContext, SourceOperator, Split, TaskInfo
from headrace.watermarks import Watermark

WHOLE = (0, 2**64 - 1)


class ListCollector:
    """A collector that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.watermarks: list[Watermark] = []

    def collect(self, batch: pa.RecordBatch) -> None:
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


def task(*, job: str = "job", operator: str = "op", subtask: int = 0, parallelism: int = 1, epoch: int = 1):
    return TaskInfo(job, operator, operator, subtask, parallelism, WHOLE, epoch)


def read_split(source: SourceOperator, split: Split) -> tuple[list[pa.RecordBatch], Finish]:
    ctx, collector = SourceContext(task(), split), ListCollector()
    source.on_start(ctx)
    finish = source.run(ctx, collector)
    source.on_close(ctx, collector)
    return collector.batches, finish


def read_range(source: SourceOperator, start: Offset, end: Offset, *, parallelism: int = 1):
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
