"""Event times as numbers, and the handling of late rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import PlanError
from headrace.base.windows import Instants, Window
from headrace.model.operator import Collector, OperatorContext

TIMESTAMP_TYPE = pa.timestamp("ns")


def instants(rows: pa.RecordBatch | pa.Table, column: str = TIMESTAMP) -> Instants:
    """A column of instants in nanoseconds."""
    times = rows.column(column)
    if times.null_count:
        raise PlanError(
            f"a row has no `{column}`, so it is in no window",
            hint="leave such rows out, or give them a time, before they come to a window",
        )
    values: Instants = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values


def timestamps(values: Instants) -> pa.Array:
    """Instants as a column."""
    return pa.array(values).view(TIMESTAMP_TYPE)


def in_range(rows: pa.RecordBatch, window: Window, ctx: OperatorContext) -> pa.RecordBatch:
    """Return the rows whose windows fit into 64 bits; others are bad data, dropped and counted.

    Times have nanoseconds and reach from 1677 to 2262: at the edge, the bounds of a window overflow.
    """
    times = instants(rows)
    if not len(times) or (times.min() >= window.first_time and times.max() <= window.last_time):
        return rows
    outside = (times < window.first_time) | (times > window.last_time)
    count, first = int(outside.sum()), timestamps(times[outside][:1])
    ctx.metrics.add("bad_rows", count)
    ctx.report_error(
        f"dropped {count} rows whose event time is in no window, such as {first.cast(pa.string())[0]}: "
        "a window must lie between the years 1677 and 2262"
    )
    return rows.filter(pa.array(~outside))


def without_late_rows(rows: pa.RecordBatch, watermark: int, ctx: OperatorContext) -> pa.RecordBatch:
    """The rows that are not behind the watermark; the others are dropped and counted."""
    late = instants(rows) < watermark
    if not late.any():
        return rows
    ctx.metrics.add("late_rows", late.sum())
    return rows.filter(pa.array(~late))


@dataclass(frozen=True)
class LateRows:
    """Counts late rows, and emits them if the query asks for them.

    An emitted late row has the columns of `output`: all null but `column`, which it carries from its source,
    and `_timestamp`.
    """

    output: pa.Schema
    column: str | None = None

    def take(self, rows: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Count these rows, and emit them if there is a column for them."""
        if not rows.num_rows:
            return
        ctx.metrics.add("late_rows", rows.num_rows)
        if self.column is not None:
            carried = (self.column, TIMESTAMP)
            arrays = [
                rows.column(column.name) if column.name in carried else pa.nulls(rows.num_rows, column.type)
                for column in self.output
            ]
            collector.collect(pa.RecordBatch.from_arrays(arrays, schema=self.output))


def check_late_column(column: str | None, schema: pa.Schema) -> None:
    """Raise a PlanError for a column of late rows that the input does not have."""
    if column is not None and column not in schema.names:
        raise PlanError(
            f"late rows are asked for as `{column}`, which the rows do not carry",
            hint=f"they have the columns {', '.join(schema.names)}",
        )
