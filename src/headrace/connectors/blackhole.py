"""`blackhole`: takes rows and keeps nothing but their number."""

from __future__ import annotations

import pyarrow as pa

from headrace.connectors.base import Connector, Delivery
from headrace.formats.options import FormatOptions
from headrace.model.operator import ArrowOperator, Collector, OperatorContext


class BlackholeSink(Connector, ArrowOperator):
    """Discards every row and counts them in the metric `rows`.

    It has no state and nothing to commit, so it runs inside the task of whatever is before it, at any
    parallelism; there is nothing to resume. Rows that take back earlier ones are counted like all others.
    """

    accepts_updates = True

    deliveries = (Delivery("exactly once", "rows are counted with their epoch, and nobody sees them"),)

    class Options(FormatOptions):
        """The options of formats are checked and have no effect."""

    options: Options

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Count the rows."""
        ctx.metrics.add("rows", batch.num_rows)
