"""The base of message sinks: tasks encode rows as messages, and tasks of the commit send them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.base.columns import RETRACT
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import (
    APART,
    Connector,
    Refusal,
    accept_rows,
    by_subtask,
    deliver_once,
    shares_for_tasks,
    stage,
    staged_batches,
    to_ipc,
    unify_schemas,
    without_event_time,
)
from headrace.formats.base import Format
from headrace.formats.options import FormatOptions
from headrace.model.operator import (
    ArrowOperator,
    CheckpointBarrier,
    Collector,
    CommitData,
    OperatorContext,
)

VALUE = "value"
"""The column of staged messages with their content."""
RECHECK_SECONDS = 1.0
"""How long after a check a message may be sent: a run that was suspended meanwhile checks before the next."""


class StagingSink(Connector, ArrowOperator):
    """A sink whose tasks encode and stage the rows of an epoch, for the commit to write.

    The commit runs in one task, which has the rows in the order of subtasks. With `parallel` each subtask
    has a task of its own. What is small the driver writes itself.
    """

    options: Any
    STAGED: ClassVar[str] = "rows"
    """The name of the staged rows in the commit data."""
    parallel: ClassVar[bool] = False
    """Whether the rows of each subtask are committed independently of those of others."""
    asked_in_tasks = False
    asked_in_commits = True

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

    def misfits(self, staged: pa.RecordBatch, ctx: OperatorContext) -> Sequence[Refusal]:
        """Return which of the staged rows exceed limits that only the external system knows.

        If it does not answer here, it is not waited for: the commit does that.
        """
        return ()

    def accept(self, staged: Sequence[pa.RecordBatch], ctx: OperatorContext) -> Sequence[pa.RecordBatch]:
        """Return the staged rows without refused ones, which are handled as `bad_data` says."""
        where, bad_data = self.display(), self.options.bad_data
        accepted = [
            accept_rows(
                batch,
                [*self.refusals(batch), *self.misfits(batch, ctx)],
                ctx,
                where=where,
                bad_data=bad_data,
            )
            for batch in staged
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
            apart = {APART: True} if self.parallel else {}
            ctx.insert_committing_data(self.STAGED, stage(ctx, name, to_ipc(staged), **apart))

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        """Return a share for each subtask, or one for all; none if there is little to write."""
        return shares_for_tasks(self.parts(data), self.STAGED)

    def parts(self, data: CommitData) -> Sequence[CommitData]:
        """Return what is committed independently of each other."""
        return by_subtask(data, self.STAGED) if self.parallel else [data]


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
        """Send messages (`value` and the attributes), and return when they are acknowledged.

        They are those of the subtask `ctx.task_info.subtask`, or of all subtasks in their order. Raises an
        ExternalError if they are not acknowledged; the commit is then retried.
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

    def handle_commit(self, epoch: int, data: CommitData, ctx: OperatorContext) -> None:
        """Deliver the messages, in the order of subtasks, unless that was done before."""
        for part in self.parts(data):
            subtask = 0 if part is data else next(iter(part[self.STAGED]))
            self._deliver(part, replace(ctx, task_info=replace(ctx.task_info, subtask=subtask)))

    def _deliver(self, part: CommitData, ctx: OperatorContext) -> None:
        batches, attempts = staged_batches(part, self.STAGED, ctx)
        if batches:
            messages = pa.Table.from_batches(batches)
            deliver_once(ctx, attempts, lambda: self.deliver(messages, "-".join(attempts), ctx))
