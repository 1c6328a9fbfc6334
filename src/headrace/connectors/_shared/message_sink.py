"""What sinks of messages share: rows become messages in the tasks, and are sent by the commit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from headrace.base.columns import RETRACT
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import (
    Connector,
    deliver_once,
    one_schema,
    stage,
    staged_batches,
    to_ipc,
    without_event_time,
)
from headrace.formats.base import Format
from headrace.formats.options import FormatOptions
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext

VALUE = "value"
"""The column of staged messages that holds their content."""


class StagingSink(Connector, ArrowOperator):
    """A sink that brings the rows of an epoch into a format in the tasks, for its commit to write."""

    options: Any
    STAGED: ClassVar[str] = "rows"
    """What the staged rows are called in the commit data."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        assert isinstance(self.options, FormatOptions)
        self._format: Format = self.options.format_for(self.options.columns)
        self._batches: list[pa.RecordBatch] = []
        if self._format.updating:
            # What became of a row is told by all its changes of the epoch together, in one place.
            self.max_parallelism = 1

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether the format can say that a row takes another one back."""
        return self._format.updating

    def check(self, schema: pa.Schema) -> None:
        """Raise unless rows with these columns can be written."""
        self._format.check(schema)

    @abstractmethod
    def write(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """What is staged for the rows of an epoch, which are at least one."""

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends."""
        self.check(batch.schema)
        ctx.metrics.add("rows", batch.num_rows)
        if batch.num_rows:
            self._batches.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage what the rows of the epoch come to."""
        batches, self._batches = self._batches, []
        staged = self.write(batches) if batches else []
        if staged:
            name = f"{self.STAGED}-{ctx.task_info.subtask}.arrow"
            ctx.insert_committing_data(self.STAGED, stage(ctx, name, to_ipc(staged)))


class MessageSink(StagingSink):
    """A sink that sends a message for each row, once the epoch of the row is past its commit point.

    A connector writes `deliver`, and `attributes` if its messages have more than content. A commit that is
    repeated after a crash delivers again only if the first one had not come to its end, so without more the
    promise is at least once. What makes it better is to deliver in a way that can be repeated: each attempt
    has the same messages in the same order under the same `batch_id`.
    """

    def attributes(self, rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """What each message has besides its content, such as a key: name → a value for each row.

        Not asked for rows that take back others: several of them become one message.
        """
        return {}

    @abstractmethod
    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        """Send messages (`value` and the attributes) on the driver, and return when they are safe there.

        Raises an ExternalError if they are not; the commit is then tried again.
        """

    def write(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """The messages of the epoch."""
        if any(RETRACT in batch.schema.names for batch in batches):
            changes = self._format.messages(without_event_time(pa.Table.from_batches(one_schema(batches))))
            return [pa.record_batch({VALUE: pa.array(changes, pa.binary())})]
        return [self._write(batch) for batch in batches]

    def _write(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.array(self._format.messages(without_event_time(rows)), pa.binary())
        return pa.record_batch({VALUE: values, **self.attributes(rows)})

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Deliver the messages of every subtask, in the order of subtasks, unless that was done before."""
        batches, attempts = staged_batches(data, self.STAGED, ctx)
        if batches:
            messages = pa.Table.from_batches(batches)
            deliver_once(ctx, attempts, lambda: self.deliver(messages, "-".join(attempts), ctx))
