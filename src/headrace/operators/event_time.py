"""Event times as numbers, and what becomes of rows that come too late."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import PlanError
from headrace.base.windows import Instants
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


@dataclass(frozen=True)
class LateRows:
    """Counts rows that come too late; where the user asks for them, sends them on.

    A row that is sent on has the columns of `output`: all null but `column`, which it carries from its
    source, and its `_timestamp`.
    """

    output: pa.Schema
    column: str | None = None

    def take(self, rows: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Count these rows, and send them on if there is a column for them."""
        if not rows.num_rows:
            return
        ctx.metrics.add("late_rows", rows.num_rows)
        if self.column is not None:
            carried = (self.column, TIMESTAMP)
            arrays = [
                rows.column(one.name) if one.name in carried else pa.nulls(rows.num_rows, one.type)
                for one in self.output
            ]
            collector.collect(pa.RecordBatch.from_arrays(arrays, schema=self.output))


def check_late_column(column: str | None, schema: pa.Schema) -> None:
    """Refuse a column for late rows that the rows do not carry."""
    if column is not None and column not in schema.names:
        raise PlanError(
            f"late rows are asked for as `{column}`, which the rows do not carry",
            hint=f"they have the columns {', '.join(schema.names)}",
        )
