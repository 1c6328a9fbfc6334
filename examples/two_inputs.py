"""Two sources and one operator: match orders with payments, and report what nobody paid within an hour.

`MatchPayments` sees orders as input 0 and payments as input 1. It keeps what waits for the other side in
two tables by key, so it does not matter which side comes first. The watermark of the operator is the
minimum over both inputs: only when orders *and* payments have passed an order's hour is the order reported
as unpaid.
"""

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

HOUR = 3_600_000_000_000  # in nanoseconds, the unit of instants

ORDERS = [
    {"order": 1, "amount": 30.0, "_timestamp": "2026-01-01T09:00:00"},
    {"order": 2, "amount": 12.5, "_timestamp": "2026-01-01T09:10:00"},
    {"order": 3, "amount": 99.0, "_timestamp": "2026-01-01T09:20:00"},
    {"order": 4, "amount": 45.0, "_timestamp": "2026-01-01T12:00:00"},
]
PAYMENTS = [
    {"order": 2, "amount": 12.5, "_timestamp": "2026-01-01T09:12:00"},
    {"order": 1, "amount": 30.0, "_timestamp": "2026-01-01T09:40:00"},
    {"order": 4, "amount": 45.0, "_timestamp": "2026-01-01T12:30:00"},
]
SCHEMA = pa.schema([("_timestamp", pa.timestamp("ns")), ("order", pa.int64()), ("amount", pa.float64())])


def outcome(rows: pa.Table, state: str) -> list[pa.RecordBatch]:
    """Rows of orders with what became of them."""
    states = pa.repeat(pa.scalar(state), rows.num_rows)
    return list(rows.select(SCHEMA.names).append_column("state", states).combine_chunks().to_batches())


class MatchPayments(hr.ArrowOperator):
    """Joins orders with their payments; an order without one is `unpaid` after an hour."""

    def tables(self) -> list[hr.TableConfig]:
        return [
            hr.timestamp_table_config(
                side, f"{side} that wait", timedelta(days=1), schema=SCHEMA, key=["order"], order_by="key"
            )
            for side in ("orders", "payments")
        ]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        raise AssertionError("both inputs come through process_batch_index")

    def process_batch_index(
        self, index: int, total: int, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> None:
        own, other = ("orders", "payments") if index == 0 else ("payments", "orders")
        rows = pa.table(batch.select(SCHEMA.names))
        waiting = ctx.time_table(other).get(rows)
        orders = rows if own == "orders" else waiting
        matched = pc.is_in(orders["order"], (waiting if own == "orders" else rows)["order"])
        for part in outcome(orders.filter(matched), "paid"):
            collector.collect(part)
        if waiting.num_rows:
            ctx.time_table(other).delete_key(waiting)
        ctx.time_table(own).insert(rows.filter(pc.invert(pc.is_in(rows["order"], waiting["order"]))))

    def handle_watermark(
        self, watermark: hr.Watermark, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> hr.Watermark:
        if watermark.time is not None:
            table = ctx.time_table("orders")
            for part in outcome(table.range(None, watermark.time - HOUR), "unpaid"):
                collector.collect(part)
            table.delete_time_range(None, watermark.time - HOUR)
        return watermark


pipeline = hr.Pipeline("two-inputs")
orders = pipeline.source("memory", rows=ORDERS, id="orders").watermark().key_by("order")
payments = pipeline.source("memory", rows=PAYMENTS, id="payments").watermark().key_by("order")
orders.apply(MatchPayments(), payments, id="match").sink("stdout", id="screen")
