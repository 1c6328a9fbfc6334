"""Sensors at three gates, counted and averaged per gate and two seconds: demo.sql with an own operator.

The source makes 500 readings a second for twelve seconds. A watermark says how far event time has come,
`key_by` brings the readings of a gate to one subtask, and `FlowPerWindow` keeps the open windows in a state
table. When the watermark has passed the end of a window its rows are written, in the same epoch. The source
is bounded, so the pipeline closes the last windows and ends by itself.

    make demo DEMO=examples/demo.py
"""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

WIDTH = 2_000_000_000  # two seconds in nanoseconds, the unit of instants
GATES = pa.array(["north", "north", "north", "south", "south", "weir"])


def read_sensors(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make a reading of every number: which gate, and how much water flows there."""
    counter = batch.column("counter").to_numpy()
    flow = 40 + 15 * np.sin(counter / 900) + counter % 7
    return pa.record_batch(
        {
            "gate": GATES.take(pa.array(counter % len(GATES))),
            "flow": pa.array(flow),
            "_timestamp": batch.column("_timestamp"),
        }
    )


class FlowPerWindow(hr.ArrowOperator):
    """Counts and averages the readings of every gate in windows of two seconds."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema(
            [
                ("_timestamp", pa.timestamp("ns")),
                ("gate", pa.string()),
                ("readings", pa.int64()),
                ("flow", pa.float64()),
            ]
        )
        return [hr.timestamp_table_config("open", "open windows", "1h", schema=schema, key=["gate"])]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        start = batch.column("_timestamp").cast(pa.int64()).to_numpy() // WIDTH * WIDTH
        closed = ctx.last_present_watermark
        if closed is not None and (late := start + WIDTH <= closed).any():
            ctx.metrics.add("late_rows", int(late.sum()))
            batch, start = batch.filter(pa.array(~late)), start[~late]
        rows = pa.table({"start": start, "gate": batch.column("gate"), "flow": batch.column("flow")})
        sums = rows.group_by(["start", "gate"]).aggregate([("flow", "count"), ("flow", "sum")])
        ctx.time_table("open").insert(
            pa.table(
                {
                    "_timestamp": sums["start"].cast(pa.timestamp("ns")),
                    "gate": sums["gate"],
                    "readings": sums["flow_count"],
                    "flow": sums["flow_sum"],
                }
            )
        )

    def handle_watermark(
        self, watermark: hr.Watermark, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> hr.Watermark:
        if watermark.time is None:  # idle: event time stands still
            return watermark
        closed = watermark.time // WIDTH * WIDTH
        table = ctx.time_table("open")
        rows = table.range(None, closed)
        table.delete_time_range(None, closed)
        sums = rows.group_by(["_timestamp", "gate"]).aggregate([("readings", "sum"), ("flow", "sum")])
        sums = sums.sort_by([("_timestamp", "ascending"), ("gate", "ascending")])
        result = pa.table(
            {
                "window": sums["_timestamp"].cast(pa.timestamp("s")),
                "gate": sums["gate"],
                "readings": sums["readings_sum"],
                "mean_flow": pc.round(pc.divide(sums["flow_sum"], sums["readings_sum"]), 2),
            }
        )
        for batch in result.combine_chunks().to_batches():
            collector.collect(batch)
        return watermark


pipeline = hr.Pipeline("demo")
(
    pipeline.source("impulse", event_rate=500, message_count=6000, align="2s", id="sensors")
    .map(read_sensors)
    .watermark(lateness=timedelta(milliseconds=500))
    .key_by("gate")
    .apply(FlowPerWindow(), id="flow_per_window")
    .sink("stdout", id="screen")
)
