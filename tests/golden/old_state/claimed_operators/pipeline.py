"""Operators with a table of every kind: keyed, by time, by time with the newest row of a key, and global."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

import headrace as hr

SECOND = 1_000_000_000
TIME = ("_timestamp", pa.timestamp("ns"))


class RunningCount(hr.ArrowOperator):
    """Numbers the rows of every key."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        return [hr.keyed_table_config("counts", "rows seen per key", schema, key=["k"])]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table = ctx.keyed_table("counts")
        keys = batch.column("k").unique()
        rows, _ = table.get(pa.record_batch({"k": keys}))
        counts = {key.as_py(): n.as_py() or 0 for key, n in zip(keys, rows.column("n"), strict=True)}
        numbers = []
        for key in batch.column("k").to_pylist():
            counts[key] += 1
            numbers.append(counts[key])
        table.put(pa.record_batch({"k": pa.array(counts), "n": pa.array(counts.values())}))
        collector.collect(batch.append_column("n", pa.array(numbers)))


class HoldBack(hr.ArrowOperator):
    """Holds rows back until the watermark has passed them."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([TIME, ("counter", pa.int64()), ("k", pa.int64())])
        return [
            hr.timestamp_table_config("rows", "rows to come", timedelta(days=1), schema=schema, key=["k"])
        ]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        ctx.time_table("rows").insert(batch.select(["_timestamp", "counter", "k"]))

    def handle_watermark(
        self, watermark: hr.Watermark, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> hr.Watermark | None:
        table = ctx.time_table("rows")
        for part in table.range(None, watermark.time).combine_chunks().to_batches():
            collector.collect(part)
        table.delete_time_range(None, watermark.time)
        return watermark


class Newest(hr.ArrowOperator):
    """Keeps the newest row of each key, and emits them all at the end."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([TIME, ("k", pa.int64()), ("counter", pa.int64())])
        return [
            hr.timestamp_table_config(
                "newest", "the newest row per key", timedelta(days=1), True, schema, key=["k"]
            )
        ]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        newest = {row["k"]: row for row in batch.select(["_timestamp", "k", "counter"]).to_pylist()}
        schema = self.tables()[0].schema
        ctx.time_table("newest").insert(pa.RecordBatch.from_pylist(list(newest.values()), schema=schema))

    def on_close(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if final:
            for part in ctx.time_table("newest").all().combine_chunks().to_batches():
                collector.collect(part)


class Totals(hr.ArrowOperator):
    """Adds up all rows in a global table, and emits the total at the end."""

    max_parallelism = 1

    def tables(self) -> list[hr.TableConfig]:
        return [hr.global_table_config("totals", "the total so far")]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table = ctx.global_table("totals")
        table.insert("rows", table.get("rows", 0) + batch.num_rows)
        table.insert(("sum", 0), table.get(("sum", 0), 0) + sum(batch.column("counter").to_pylist()))
        table.insert("last", bytes(str(batch.column("counter")[-1]), "ascii"))

    def on_close(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if final:
            table = ctx.global_table("totals")
            total = {"rows": [table.get("rows")], "sum": [table.get(("sum", 0))], "last": [table.get("last")]}
            collector.collect(pa.record_batch(total))


def add_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    counter = batch.column("counter").to_numpy()
    return batch.append_column("k", pa.array(counter % 7))


def out(name: str) -> hr.SingleFileSink:
    return hr.SingleFileSink(path=f"out/{name}.json", format="json", with_timestamp=name != "totals")


def pipeline() -> hr.Pipeline:
    made = hr.Pipeline("operators")
    numbers = hr.ImpulseSource(message_count=60, event_time_interval="1s", start_time=1_700_000_000 * SECOND)
    rows = made.source(numbers).watermark(lateness="7s").map(add_key)
    rows.key_by("k").apply(RunningCount()).map(without_subtask).sink(out("running"))
    rows.key_by("k").apply(HoldBack(), id="held").sink(out("held"))
    rows.key_by("k").apply(Newest()).sink(out("newest"))
    rows.key_by().apply(Totals()).map(last_as_text).sink(out("totals"))
    return made


def without_subtask(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["_timestamp", "k", "counter", "n"])


def last_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch(
        {**{n: batch.column(n) for n in ("rows", "sum")}, "last": batch.column("last").cast("string")}
    )
