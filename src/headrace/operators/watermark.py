"""Makes watermarks from the event times of rows, by one rule for SQL and Python.

The watermark is the greatest of the least values among every CHUNK rows that follow each other: one row far
ahead does not make its neighbours late. Rows whose value is null do not count. It never goes back
(docs/decisions/0008-watermark-of-512-row-chunks.md).
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
from pydantic import Field

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import format_duration, nanoseconds
from headrace.base.errors import PlanError, suggest
from headrace.base.options import Duration, Options
from headrace.base.watermarks import Watermark, before_end
from headrace.model.operator import ArrowOperator, Collector, OperatorContext

CHUNK = 512
_NEVER = 2**63 - 1
_EARLIEST = -(2**63)


class _Watermarks(ArrowOperator):
    """What operators that make watermarks have in common."""

    outputs = ()

    @property
    def name(self) -> str:
        return "watermark"

    @property
    def stateless(self) -> bool:
        # The engine itself keeps the last watermark of every lane and subtask.
        return True

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        return watermark if watermark.is_end or watermark.is_idle else None


class WatermarkGenerator(_Watermarks):
    """Takes event time from a column and emits watermarks: the least time of a chunk, less the lateness.

    Of every 512 rows that follow each other the least time counts, and of these the greatest, as for
    `WATERMARK FOR column AS column - INTERVAL …` in SQL. The watermark never goes back, and rows of one epoch
    are processed before the watermark they cause. Put it right behind a source: there it is kept per lane.
    Behind a shuffle it is kept per subtask, and a subtask that has had no rows holds it back.
    """

    class Options(Options):
        """Which column is event time, and how far out of order rows may come."""

        column: str = Field(TIMESTAMP, description="the event-time column; it becomes `_timestamp`")
        lateness: Duration = Field(
            timedelta(0), description="how far the watermark stays behind the event times of the rows"
        )

    def __init__(self, options: Options) -> None:
        self.options = options
        self._lateness = nanoseconds(options.lateness)

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        column = self.options.column
        times = _times(batch, column)
        if column != TIMESTAMP:
            stamps = times.cast(pa.timestamp("ns"))
            if TIMESTAMP in batch.schema.names:
                index = batch.schema.get_field_index(TIMESTAMP)
                batch = batch.set_column(index, pa.field(TIMESTAMP, stamps.type), stamps)
            else:
                batch = batch.append_column(pa.field(TIMESTAMP, stamps.type), stamps)
        collector.collect(batch)
        _broadcast(times, self._lateness, collector)

    def display(self) -> str:
        return f"watermark({self.options.column} - {format_duration(self.options.lateness)})"


class ExpressionWatermark(_Watermarks):
    """Emits watermarks from a column that holds the value of a watermark expression for each row.

    `lateness` nanoseconds are subtracted from the values; with `drop` the column is not forwarded.
    `event_time` is for messages: the column that event time is read into, and its unit.
    """

    def __init__(
        self,
        column: str,
        drop: bool = True,
        lateness: int = 0,
        *,
        event_time: tuple[str, str] | None = None,
    ) -> None:
        if drop and column == TIMESTAMP:
            raise PlanError(
                f"the watermark cannot be taken from `{TIMESTAMP}` and drop it",
                hint="compute the watermark as a column of its own, or pass drop=False",
            )
        self.column = column
        self.drop = drop
        self.lateness = lateness
        self.event_time = event_time

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        times = _times(batch, self.column)
        collector.collect(batch.drop_columns([self.column]) if self.drop else batch)
        _broadcast(times, self.lateness, collector)

    def display(self) -> str:
        if not self.lateness:
            return f"watermark({self.column})"
        return f"watermark({self.column} - {format_duration(timedelta(microseconds=self.lateness / 1000))})"


def _broadcast(times: pa.Array, lateness: int, collector: Collector) -> None:
    """Broadcast the watermark of a batch, if any of its rows has a time."""
    values = times.cast(pa.timestamp("ns")).cast(pa.int64())
    if values.null_count == len(values):
        return
    # A null is as great as can be, so that it is never the least; chunks of nulls alone are left out.
    numbers = values.fill_null(_NEVER).to_numpy(zero_copy_only=False)
    starts = np.arange(0, len(numbers), CHUNK)
    least = np.minimum.reduceat(numbers, starts)
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        least = least[np.logical_or.reduceat(valid, starts)]
    time = max(int(least.max()) - lateness, _EARLIEST)
    collector.broadcast_watermark(before_end(Watermark(time)))


def _times(batch: pa.RecordBatch, column: str) -> pa.Array:
    if column not in batch.schema.names:
        raise PlanError(
            f"there is no column `{column}` to take event time from",
            hint=suggest(column, batch.schema.names, listing="the columns are"),
        )
    times = batch.column(column)
    if not pa.types.is_timestamp(times.type):
        raise PlanError(
            f"event-time column `{column}` is {times.type}, not a timestamp",
            hint="convert it first, for example with `pc.cast(column, pa.timestamp('ns'))`",
        )
    return times
