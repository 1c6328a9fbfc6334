"""Makes watermarks from an event-time column."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headrace.durations import format_duration, nanoseconds
from headrace.errors import PlanError, near
from headrace.operator import TIMESTAMP, ArrowOperator, Collector, OperatorContext
from headrace.options import Duration, Options
from headrace.watermarks import Watermark, before_end


class WatermarkGenerator(ArrowOperator):
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

    @property
    def name(self) -> str:
        return "watermark"

    @property
    def stateless(self) -> bool:
        # The engine itself keeps the last watermark of every lane and subtask.
        return True

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        column = self.options.column
        if column not in batch.schema.names:
            raise PlanError(
                f"there is no column `{column}` to take event time from",
                hint=near(column, batch.schema.names) or f"the columns are {', '.join(batch.schema.names)}",
            )
        times = batch.column(column)
        if not pa.types.is_timestamp(times.type):
            raise PlanError(
                f"event-time column `{column}` is {times.type}, not a timestamp",
                hint="convert it first, for example with `pc.cast(column, pa.timestamp('ns'))`",
            )
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

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        return watermark if watermark.is_end or watermark.is_idle else None

    def display(self) -> str:
        return f"watermark({self.options.column} - {format_duration(self.options.lateness)})"
