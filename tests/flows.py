"""Operators and pipelines that the engine's tests run: every feature of the engine in some flow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND


class TumblingCount(hr.ArrowOperator):
    """Counts and sums `counter` per key and window; emits a window once the watermark has passed it."""

    def __init__(self, width: int = 10 * SECOND) -> None:
        self.width = width

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema(
            [("_timestamp", pa.timestamp("ns")), ("k", pa.int64()), ("n", pa.int64()), ("s", pa.int64())]
        )
        return [hr.timestamp_table_config("t", "open windows", timedelta(days=1), schema=schema, key=["k"])]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        times = batch.column("_timestamp").cast(pa.int64()).to_numpy()
        bins = times // self.width * self.width
        if ctx.last_present_watermark is not None:
            late = bins + self.width <= ctx.last_present_watermark
            if late.any():
                ctx.metrics.add("late_rows", int(late.sum()))
                keep = pa.array(~late)
                batch, bins = batch.filter(keep), bins[~late]
        table = pa.table({"bin": bins, "k": batch.column("k"), "v": batch.column("counter")})
        grouped = table.group_by(["bin", "k"]).aggregate([("v", "count"), ("v", "sum")])
        ctx.time_table("t").insert(
            pa.record_batch(
                {
                    "_timestamp": grouped["bin"].combine_chunks().cast(pa.timestamp("ns")),
                    "k": grouped["k"].combine_chunks(),
                    "n": grouped["v_count"].combine_chunks(),
                    "s": grouped["v_sum"].combine_chunks(),
                }
            )
        )

    def handle_watermark(
        self, watermark: hr.Watermark, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> hr.Watermark | None:
        if watermark.time is not None:
            closed = watermark.time // self.width * self.width
            table = ctx.time_table("t")
            rows = table.range(None, closed)
            if rows.num_rows:
                grouped = rows.group_by(["_timestamp", "k"]).aggregate([("n", "sum"), ("s", "sum")])
                grouped = grouped.sort_by([("_timestamp", "ascending"), ("k", "ascending")])
                starts = grouped["_timestamp"].cast(pa.int64())
                out = pa.table(
                    {
                        "k": grouped["k"],
                        "window_start": starts,
                        "n": grouped["n_sum"],
                        "s": grouped["s_sum"],
                        "_timestamp": pc.add(starts, self.width - 1).cast(pa.timestamp("ns")),
                    }
                )
                table.delete_time_range(None, closed)
                for part in out.combine_chunks().to_batches():
                    collector.collect(part)
        return watermark


class RunningCount(hr.ArrowOperator):
    """Numbers the rows of every key: the stateful operator over an unbounded number of keys."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        return [hr.keyed_table_config("counts", "rows seen per key", schema, key=["k"])]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table = ctx.keyed_table("counts")
        keys, inverse = np.unique(batch.column("k").to_numpy(), return_inverse=True)
        rows, found = table.get(pa.record_batch({"k": pa.array(keys)}))
        before = np.where(found, rows.column("n").fill_null(0).to_numpy(zero_copy_only=False), 0)
        order = np.argsort(inverse, kind="stable")
        sorted_inverse = inverse[order]
        firsts = np.r_[0, np.flatnonzero(np.diff(sorted_inverse)) + 1]
        position = np.arange(len(order)) - np.repeat(firsts, np.diff(np.r_[firsts, len(order)]))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = position + 1
        counts = np.bincount(inverse, minlength=len(keys))
        table.put(pa.record_batch({"k": pa.array(keys), "n": pa.array(before + counts)}))
        collector.collect(batch.append_column("n", pa.array(before[inverse] + rank)))


class Join(hr.ArrowOperator):
    """Joins two inputs on `k`: each row meets every earlier row of the other side."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("_timestamp", pa.timestamp("ns")), ("k", pa.int64()), ("v", pa.int64())])
        return [
            hr.timestamp_table_config(
                side, f"{side} rows", timedelta(days=1000), schema=schema, key=["k"], order_by="key"
            )
            for side in ("left", "right")
        ]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        raise AssertionError("two inputs come by their index")

    def process_batch_index(
        self, index: int, total: int, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> None:
        assert total == 2
        own, other = ("left", "right") if index == 0 else ("right", "left")
        rows = pa.record_batch(
            {
                "_timestamp": batch.column("_timestamp"),
                "k": batch.column("k"),
                "v": batch.column("counter"),
            }
        )
        ctx.time_table(own).insert(rows)
        matches = ctx.time_table(other).get(pa.record_batch({"k": batch.column("k").unique()}))
        if matches.num_rows:
            joined = pa.table(rows).join(
                matches.rename_columns(["_timestamp2", "k", "w"]), "k", join_type="inner"
            )
            left, right = ("v", "w") if index == 0 else ("w", "v")
            out = pa.table(
                {
                    "k": joined["k"],
                    "left": joined[left],
                    "right": joined[right],
                    "_timestamp": pc.max_element_wise(joined["_timestamp"], joined["_timestamp2"]),
                }
            )
            for part in out.combine_chunks().to_batches():
                collector.collect(part)


class SubtaskTotals(hr.ArrowOperator):
    """Adds up `counter` per subtask in a global table and emits the grand total at the end."""

    def tables(self) -> list[hr.TableConfig]:
        return [hr.global_table_config("totals", "one total per subtask")]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table = ctx.global_table("totals")
        key = f"epoch-{ctx.task_info.epoch}-{ctx.task_info.subtask}"
        table.insert(key, int(table.get(key, 0)) + pc.sum(batch.column("counter")).as_py())

    def on_close(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if final:
            own = f"-{ctx.task_info.subtask}"
            entries = ctx.global_table("totals").get_all()
            total = sum(v for k, v in entries.items() if k == f"epoch-{ctx.task_info.epoch}{own}")
            if ctx.task_info.subtask == 0:
                old = [
                    v for k, v in entries.items() if not str(k).startswith(f"epoch-{ctx.task_info.epoch}-")
                ]
                total += sum(old)
            collector.collect(pa.record_batch({"total": [total]}))


class CountPerWatermark(hr.ArrowOperator):
    """Holds rows back until the watermark passes them, and forwards the watermark itself."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("_timestamp", pa.timestamp("ns")), ("counter", pa.int64()), ("k", pa.int64())])
        return [hr.timestamp_table_config("rows", "rows to come", timedelta(days=1000), schema=schema)]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        ctx.time_table("rows").insert(batch.select(["_timestamp", "counter", "k"]))

    def handle_watermark(
        self, watermark: hr.Watermark, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> hr.Watermark | None:
        table = ctx.time_table("rows")
        rows = table.range(None, watermark.time)
        table.delete_time_range(None, watermark.time)
        for part in rows.combine_chunks().to_batches():
            collector.collect(part)
        return watermark


def keyed(n: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that adds the column k = counter modulo n."""

    def add_key(batch: pa.RecordBatch) -> pa.RecordBatch:
        counter = batch.column("counter").to_numpy()
        return batch.append_column("k", pa.array(counter % n))

    return add_key


def impulse(count: int) -> hr.ImpulseSource:
    return hr.ImpulseSource(message_count=count, event_time_interval="1s", start_time=T0)


Sink = Callable[[str], hr.ArrowOperator]


def passthrough(sink: Sink, count: int = 200) -> hr.Pipeline:
    p = hr.Pipeline("passthrough")
    p.source(impulse(count)).map(keyed(7)).sink(sink("out"))
    return p


def tumbling(sink: Sink, count: int = 200) -> hr.Pipeline:
    p = hr.Pipeline("tumbling")
    p.source(impulse(count)).watermark(lateness="5s").map(keyed(7)).key_by("k").apply(TumblingCount()).sink(
        sink("out")
    )
    return p


def running(sink: Sink, count: int = 200) -> hr.Pipeline:
    p = hr.Pipeline("running")
    p.source(impulse(count)).map(keyed(13)).key_by("k").apply(RunningCount()).sink(sink("out"))
    return p


def join(sink: Sink, count: int = 200) -> hr.Pipeline:
    p = hr.Pipeline("join")
    left = p.source(impulse(count), id="left").map(keyed(40)).key_by("k")
    right = p.source(impulse(count // 2), id="right").map(keyed(25)).key_by("k")
    left.apply(Join(), right).sink(sink("out"))
    return p


def union_tumbling(sink: Sink, count: int = 200) -> hr.Pipeline:
    p = hr.Pipeline("union")
    a = p.source(impulse(count), id="a").watermark(lateness="1s")
    b = p.source(impulse(count // 2), id="b").watermark(lateness="3s")
    a.union(b).map(keyed(5)).key_by("k").apply(TumblingCount()).sink(sink("out"))
    return p


def two_levels(sink: Sink, count: int = 200) -> hr.Pipeline:
    """A window over windows: two shuffles, so the watermark crosses stages."""

    def regroup(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch(
            {
                "_timestamp": batch.column("_timestamp"),
                "counter": batch.column("n"),
                "k": pa.array(batch.column("k").to_numpy() % 2),
            }
        )

    p = hr.Pipeline("two-levels")
    first = p.source(impulse(count)).watermark(lateness="2s").map(keyed(7)).key_by("k").apply(TumblingCount())
    first.map(regroup).key_by("k").apply(TumblingCount(30 * SECOND)).sink(sink("out"))
    return p


def fan_out(sink: Sink, count: int = 200) -> hr.Pipeline:
    """One read of the source, several sinks at different depths."""
    p = hr.Pipeline("fan-out")
    rows = p.source(impulse(count)).watermark().map(keyed(3))
    rows.sink(sink("raw"))
    rows.key_by("k").apply(TumblingCount()).sink(sink("windows"))
    rows.key_by("k").apply(RunningCount()).sink(sink("running"))
    return p


def totals(sink: Sink, count: int = 200) -> hr.Pipeline:
    p = hr.Pipeline("totals")
    p.source(impulse(count)).apply(SubtaskTotals()).key_by().apply(SumTotals()).sink(sink("out"))
    return p


class SumTotals(hr.ArrowOperator):
    """Adds up the totals of all subtasks once they have ended."""

    def __init__(self) -> None:
        self.total = 0

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        self.total += pc.sum(batch.column("total")).as_py()

    def on_close(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if final and ctx.task_info.subtask == 0:
            collector.collect(pa.record_batch({"total": [self.total]}))


def held_back(sink: Sink, count: int = 200) -> hr.Pipeline:
    p = hr.Pipeline("held-back")
    p.source(impulse(count)).watermark(lateness="20s").map(keyed(4)).apply(CountPerWatermark()).sink(
        sink("out")
    )
    return p


FLOWS: dict[str, Callable[..., hr.Pipeline]] = {
    flow.__name__: flow
    for flow in (
        passthrough,
        tumbling,
        running,
        join,
        union_tumbling,
        two_levels,
        fan_out,
        totals,
        held_back,
    )
}
