"""Makes watermarks from the event times of rows."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    """Forwards batches and says how far event time has come: the latest time seen, less the lateness.

    It never goes back, and rows of one epoch are processed before the watermark they cause. Put it right
    behind a source: there it is kept per lane. Behind a shuffle it is kept per subtask, and a subtask that
    has had no rows holds it back.
    """

    class Options(Options):
        """Which column is event time, and how far out of order rows may come."""

        column: str = Field(TIMESTAMP, description="the event-time column; it becomes `_timestamp`")
        lateness: Duration = Field(
            timedelta(0), description="how far behind the latest row another row may still come"
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
        latest = pc.max(times.cast(pa.timestamp("ns")).cast(pa.int64())).as_py()
        if latest is not None:
            collector.broadcast_watermark(before_end(Watermark(latest - self._lateness)))

    def display(self) -> str:
        return f"watermark({self.options.column} - {format_duration(self.options.lateness)})"


class ExpressionWatermark(_Watermarks):
    """Forwards batches and says how far event time has come, as an expression tells for each row.

    `column` holds the expression's value of each row, to which `lateness` nanoseconds are still missing; with
    `drop` it is not forwarded. The watermark is the greatest of the least values among every CHUNK rows that
    follow each other: no row is late because of those next to it. Rows whose value is null say nothing. It
    never goes back.
    """

    def __init__(self, column: str, drop: bool = True, lateness: int = 0) -> None:
        if drop and column == TIMESTAMP:
            raise PlanError(
                f"the watermark cannot be taken from `{TIMESTAMP}` and drop it",
                hint="compute the watermark as a column of its own, or pass drop=False",
            )
        self.column = column
        self.drop = drop
        self.lateness = lateness

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        times = _times(batch, self.column)
        collector.collect(batch.drop_columns([self.column]) if self.drop else batch)
        values = times.cast(pa.timestamp("ns")).cast(pa.int64())
        if values.null_count == len(values):
            return
        # A null is greater than every value, so that it is not the least; chunks of nulls are left out.
        numbers = values.fill_null(_NEVER).to_numpy(zero_copy_only=False)
        least = np.minimum.reduceat(numbers, np.arange(0, len(numbers), CHUNK))
        time = max(int(least[least < _NEVER].max()) - self.lateness, _EARLIEST)
        collector.broadcast_watermark(before_end(Watermark(time)))

    def display(self) -> str:
        if not self.lateness:
            return f"watermark({self.column})"
        return f"watermark({self.column} - {format_duration(timedelta(microseconds=self.lateness / 1000))})"


def _times(batch: pa.RecordBatch, column: str) -> pa.Array:
    if column not in batch.schema.names:
        raise PlanError(
            f"there is no column `{column}` to take event time from",
            hint=suggest(column, batch.schema.names) or f"the columns are {', '.join(batch.schema.names)}",
        )
    times = batch.column(column)
    if not pa.types.is_timestamp(times.type):
        raise PlanError(
            f"event-time column `{column}` is {times.type}, not a timestamp",
            hint="convert it first, for example with `pc.cast(column, pa.timestamp('ns'))`",
        )
    return times
