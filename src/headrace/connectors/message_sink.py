"""What sinks of messages share: rows become messages in the tasks, and are sent by the commit."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.connectors.base import (
    Connector,
    from_ipc,
    one_schema,
    stage,
    to_ipc,
    unstage,
    without_event_time,
)
from headrace.formats.base import RETRACT, Format
from headrace.formats.options import FormatOptions
from headrace.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.options import Options as DeclaredOptions

VALUE = "value"
"""The column of staged messages that holds their content."""


class MessageSink(Connector, ArrowOperator):
    """A sink that sends a message for each row, once the epoch of the row is past its commit point.

    A connector writes `deliver`, and `attributes` if its messages have more than content. A commit that is
    repeated after a crash delivers again only if the first one had not come to its end, so without more the
    promise is at least once. What makes it better is to deliver in a way that can be repeated: each attempt
    has the same messages in the same order under the same `batch_id`.
    """

    options: Any

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

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends."""
        self._format.check(batch.schema)
        ctx.metrics.add("rows", batch.num_rows)
        if batch.num_rows:
            self._batches.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage the messages of the epoch."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        if any(RETRACT in batch.schema.names for batch in batches):
            changes = self._format.messages(without_event_time(pa.Table.from_batches(one_schema(batches))))
            messages = [pa.record_batch({VALUE: pa.array(changes, pa.binary())})]
        else:
            messages = [self._write(batch) for batch in batches]
        name = f"messages-{ctx.task_info.subtask}.arrow"
        ctx.insert_committing_data("rows", stage(ctx, name, to_ipc(messages)))

    def _write(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.array(self._format.messages(without_event_time(rows)), pa.binary())
        return pa.record_batch({VALUE: values, **self.attributes(rows)})

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Deliver the messages of every subtask, in the order of subtasks, unless that was done before."""
        staged = [unstage(ctx, one) for _, one in sorted(data.get("rows", {}).items())]
        if not staged:
            return
        batches = [batch for payload, _ in staged for batch in from_ipc(payload)]
        attempts = [described["id"] for _, described in staged]
        marker = f"delivered/{ctx.task_info.operator_id}.json"
        if ctx.storage.exists(marker) and json.loads(ctx.storage.read(marker)) == attempts:
            return
        self.deliver(pa.Table.from_batches(batches), "-".join(attempts), ctx)
        ctx.storage.write(marker, json.dumps(attempts).encode())
