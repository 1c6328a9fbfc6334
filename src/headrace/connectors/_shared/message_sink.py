"""The base of message sinks: tasks encode rows as messages, the commit sends them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from headrace.base.columns import RETRACT
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import (
    Connector,
    Refusal,
    accept_rows,
    deliver_once,
    stage,
    staged_batches,
    to_ipc,
    unify_schemas,
    without_event_time,
)
from headrace.formats.base import Format
from headrace.formats.options import FormatOptions
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext

VALUE = "value"
"""The column of staged messages with their content."""
RECHECK_SECONDS = 1.0
"""How long after a check a message may be sent: a run that was suspended meanwhile checks before the next."""


class StagingSink(Connector, ArrowOperator):
    """A sink whose tasks encode and stage the rows of an epoch, for the commit to write."""

    options: Any
    STAGED: ClassVar[str] = "rows"
    """The name of the staged rows in the commit data."""
    asked_in_tasks = False

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
        """Whether the format can express retractions."""
        return self._format.updating

    def check(self, schema: pa.Schema) -> None:
        """Raise unless rows with these columns can be written."""
        self._format.check(schema)

    @abstractmethod
    def write(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return what to stage for the rows of an epoch, at least one."""

    def refusals(self, staged: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which of the staged rows the external system would refuse because of a value."""
        return ()

    def accept(self, staged: Sequence[pa.RecordBatch], ctx: OperatorContext) -> Sequence[pa.RecordBatch]:
        """Return the staged rows without refused ones, which `bad_data` says what to do with."""
        where, bad_data = self.display(), self.options.bad_data
        accepted = [
            accept_rows(batch, self.refusals(batch), ctx, where=where, bad_data=bad_data) for batch in staged
        ]
        return [batch for batch in accepted if batch.num_rows]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends."""
        self.check(batch.schema)
        ctx.metrics.add("rows", batch.num_rows)
        if batch.num_rows:
            self._batches.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage the encoded rows of the epoch."""
        batches, self._batches = self._batches, []
        staged = self.accept(self.write(batches), ctx) if batches else []
        if staged:
            name = f"{self.STAGED}-{ctx.task_info.subtask}.arrow"
            ctx.insert_committing_data(self.STAGED, stage(ctx, name, to_ipc(staged)))


class MessageSink(StagingSink):
    """A sink that sends a message for each row after the commit point of its epoch.

    A connector implements `deliver`, and `attributes` if its messages have more than content. A commit that
    is retried after a crash delivers again only if the first attempt was not complete, so the guarantee is at
    least once. A `deliver` that is idempotent makes it exactly once: each attempt has the same messages in
    the same order under the same `batch_id`. It calls `ctx.check_generation(every=RECHECK_SECONDS)` before
    each message that it sends.
    """

    def attributes(self, rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """Return the attributes of messages, such as a key: name → a value for each row.

        Not called for rows with retractions: several of them become one message.
        """
        return {}

    @abstractmethod
    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        """Send messages (`value` and the attributes) on the driver, and return when they are acknowledged.

        Raises an ExternalError if they are not; the commit is then retried.
        """

    def write(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return the messages of the epoch."""
        if any(RETRACT in batch.schema.names for batch in batches):
            changes = self._format.messages(without_event_time(pa.Table.from_batches(unify_schemas(batches))))
            return [pa.record_batch({VALUE: pa.array(changes, pa.binary())})]
        return [self._write(batch) for batch in batches]

    def _write(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.array(self._format.messages(without_event_time(rows)), pa.binary())
        return pa.record_batch({VALUE: values, **self.attributes(rows)})

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Deliver the messages of all subtasks, in the order of subtasks, unless that was done before."""
        batches, attempts = staged_batches(data, self.STAGED, ctx)
        if batches:
            messages = pa.Table.from_batches(batches)
            deliver_once(ctx, attempts, lambda: self.deliver(messages, "-".join(attempts), ctx))
