"""The `blackhole` sink: discard rows and count them."""

from __future__ import annotations

import pyarrow as pa

from headrace.connectors.base import Connector, Delivery
from headrace.formats.options import FormatOptions
from headrace.model.operator import ArrowOperator, Collector, OperatorContext


class BlackholeSink(Connector, ArrowOperator):
    """Discards every row and counts them in the metric `rows`.

    It has no state and nothing to commit, so it runs in the task of its input, at any parallelism.
    Retractions are counted like other rows.

    Args:
        options: an `Options` object, or each option by its name.

    Raises:
        ConfigurationError: an option is wrong.

    >>> import headrace as hr, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> pipeline = hr.Pipeline()
    >>> pipeline.source("impulse", message_count=30).sink(hr.BlackholeSink(), id="nowhere")
    Stream(impulse_1: counter BIGINT, subtask_index BIGINT)
    >>> run_in_process(pipeline, tempfile.mkdtemp()).metrics["nowhere"]["rows"]
    30.0
    """

    accepts_updates = True

    deliveries = (Delivery("exactly once", "rows are counted once per epoch, and not written"),)

    class Options(FormatOptions):
        """Format options are checked and have no effect."""

    options: Options

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Count the rows."""
        ctx.metrics.add("rows", batch.num_rows)
