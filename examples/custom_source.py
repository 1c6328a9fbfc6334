"""A source of one's own: gauges, each with readings numbered from 0.

A source says where it starts, how far an epoch may read, how the range is cut into splits, and how one
split is read. It never says "next": the same range must give the same rows, because a range is read again
after a failure. Here a reading is computed from its number; a real source would fetch rows `first` to
`last` of a gauge from outside. Each gauge is a lane: it has its own order and its own watermark, and a slow
gauge holds the others' windows open until it has caught up.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

import headrace as hr

START = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00 in nanoseconds
MINUTE = 60_000_000_000


class GaugeSource(hr.SourceOperator):
    """Emits one reading per gauge and minute, `readings` of each; then it is finished."""

    def __init__(self, gauges: Sequence[str], readings: int) -> None:
        self.gauges = tuple(gauges)
        self.readings = readings

    def validate(self) -> None:
        if not self.gauges:
            raise hr.ConfigurationError("GaugeSource needs at least one gauge")

    def initial_offset(self, *, time: float) -> hr.Offset:
        """Every lane at reading 0."""
        return dict.fromkeys(self.gauges, 0)

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        """An equal share of the limit for every gauge; `start` itself once all are read."""
        share = max(1, limit.rows // len(self.gauges))
        return {gauge: min(self.readings, start[gauge] + share) for gauge in self.gauges}

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> Sequence[hr.Split]:
        """One split per gauge that has something new: a task of its own."""
        final = self.is_finished(end)
        return [
            hr.Split(gauge, {"first": start[gauge], "last": end[gauge], "final": final})
            for gauge in self.gauges
            if start[gauge] < end[gauge]
        ]

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        """Read one split. Every batch needs the column `_timestamp`."""
        gauge, detail = ctx.split.lane, ctx.split.detail
        number = np.arange(detail["first"], detail["last"], dtype=np.int64)
        level = 200 + 10 * np.sin(number / 60 + self.gauges.index(gauge))
        collector.collect(
            pa.record_batch(
                {
                    "gauge": pa.array([gauge] * len(number)),
                    "reading": number,
                    "level": np.round(level, 1),
                    "_timestamp": pa.array(START + number * MINUTE).cast(pa.timestamp("ns")),
                }
            )
        )
        return hr.Finish.FINAL if detail["final"] else hr.Finish.GRACEFUL

    def is_finished(self, offset: hr.Offset) -> bool:
        """Whether nothing will ever follow: this makes the pipeline end by itself."""
        return all(offset[gauge] >= self.readings for gauge in self.gauges)

    def count(self, start: hr.Offset, end: hr.Offset) -> int:
        """How many rows the range has; it helps to size epochs."""
        return sum(end[gauge] - start[gauge] for gauge in self.gauges)


def every_two_hours(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep one reading of 120."""
    return batch.filter(pa.array(batch.column("reading").to_numpy() % 120 == 0))


pipeline = hr.Pipeline("custom-source")
gauges = pipeline.source(GaugeSource(["intake", "sluice", "tailrace"], readings=600), id="gauges")
gauges.map(every_two_hours).sink("stdout", id="screen")
