"""The base of operators that reduce the rows of a task before they are shuffled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from headrace.model.fragments import BATCH_ROWS
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext

_BUFFERED_ROWS = 8 * BATCH_ROWS


class BufferedOperator(ArrowOperator):
    """Buffers the rows of an epoch and emits what is left of them, at the latest when the epoch ends.

    It has no state: what it buffers in an epoch is emitted in that epoch.
    """

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _BUFFERED_ROWS:
            self._emit(collector)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        if self._rows:
            self._emit(collector)

    def _emit(self, collector: Collector) -> None:
        self.reduce(self._batches, collector)
        self._batches, self._rows = [], 0

    @abstractmethod
    def reduce(self, batches: Sequence[pa.RecordBatch], collector: Collector) -> None:
        """Emit what is needed of the buffered rows."""
