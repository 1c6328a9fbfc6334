"""The exchange over Spark Connect: an epoch is one query of DataFrames that ends with the control records."""

from __future__ import annotations

import pickle
import secrets
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from headrace.base.errors import ExternalError, HeadraceError, InternalError
from headrace.base.private import process_directory
from headrace.engine.commits import CommitTask
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.parts import PackedEpoch
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, widths
from headrace.exchanges.spark.connect_session import ROWS_PER_BATCH, ConnectSession, failure, is_lost, within
from headrace.exchanges.spark.connect_tasks import (
    NUMBERS,
    PAYLOAD,
    Commit,
    FilePlan,
    ReadSplit,
    RunStage,
    from_rows,
)
from headrace.exchanges.spark.probe import Question
from headrace.exchanges.spark.routing import values_by_hash
from headrace.exchanges.spark.tasks import pack_stages

_ROWS = StructType(
    [*(StructField(name, IntegerType()) for name in NUMBERS), StructField(PAYLOAD, BinaryType())]
)
_MAX_INLINE = 500_000
"""A plan with more bytes than this is a file of the session, not a part of every query."""
_KEEP_ALIVE = 30.0
"""Seconds between calls to the server while there is nothing to run: it ends sessions that are not used."""
_INTERRUPT_SECONDS = 2.0


class ConnectExchange:
    """Runs the tasks of each epoch as one query of a Spark Connect server.

    An epoch is `range`, and for each stage `mapInArrow` behind a repartitioning by a column: there are no
    RDDs and no SparkContext. When the session or its server is gone, the epoch fails, and the next attempt
    goes on in a new session, which `reopen` opens. Each worker
    asks itself `question` before its first task.
    """

    log_file = None
    """The log of Spark is where the server is."""

    def __init__(
        self,
        session: ConnectSession,
        *,
        reopen: Callable[[ConnectSession], ConnectSession],
        question: Question | None = None,
    ) -> None:
        self.session = session
        self._question = question
        self._reopen = reopen
        self._has_ended = False
        self._stages: StagePlan | None = None
        self._plan: bytes | FilePlan = b""
        self._numbers: dict[int, Any] = {}
        self._tag = f"headrace-{uuid.uuid4().hex[:12]}"
        self._cancelled = False
        self._last_call = time.monotonic()
        _exchanges.add(self)

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._stages = stages
        if self._has_ended:
            self._open_again()
            return
        with self._calls():
            self._plan = self._ship(stages)

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        stages = self._stages_in_use()
        self._open_again()
        self._cancelled = False
        with self._calls(), self._tagged(f"{stages.plan.name} epoch {context.epoch}"):
            records = self._records(stages, tasks, context).toArrow()
            return list(from_rows(records.to_batches()))

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Let tasks publish their shares of an epoch, as one query."""
        stages = self._stages_in_use()
        self._open_again()
        self._cancelled = False
        with self._calls(), self._tagged(f"{stages.plan.name} commit of epoch {tasks[0].epoch}"):
            commit = Commit(self._plan, pickle.dumps((job, tasks)))
            records = self._numbered(len(tasks)).mapInArrow(commit, _ROWS).toArrow()
            return list(from_rows(records.to_batches()))

    def check(self) -> None:
        """Raise a WorkerError if the session is lost; the next call opens a new one."""
        self._open_again()
        if time.monotonic() - self._last_call > _KEEP_ALIVE:
            with self._calls():
                self.session.spark.conf.get(ROWS_PER_BATCH)

    def cancel(self) -> None:
        """Interrupt the query of the epoch on the server."""
        self._cancelled = True
        self.session.spark.interruptTag(self._tag)

    def _open_again(self) -> None:
        """Open a new session if the last attempt has found that this one is lost."""
        if self._has_ended:
            self.session = self._reopen(self.session)
            self._has_ended = False
            self._numbers.clear()
            with self._calls():
                self._plan = self._ship(self._stages_in_use())

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Translate what the client raises within the block."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            if self._cancelled:
                raise ExternalError("the tasks of the epoch were cancelled") from error
            self._has_ended = is_lost(error)
            raise failure(error, self.session.address) from error
        finally:
            self._last_call = time.monotonic()

    @contextmanager
    def _tagged(self, description: str) -> Iterator[None]:
        """Mark the queries of this thread, for interrupts and for Spark's pages."""
        tags = (self._tag, description.replace(",", " "))
        for tag in tags:
            self.session.spark.addTag(tag)
        try:
            yield
        finally:
            for tag in tags:
                self.session.spark.removeTag(tag)

    def _ship(self, stages: StagePlan) -> bytes | FilePlan:
        # As many envelopes as a task holds before a shuffle: see `seal_bytes`.
        self.session.set(ROWS_PER_BATCH, str(min(10 * stages.parallelism, 1000)))
        content = pack_stages(stages, self._question)
        if len(content) <= _MAX_INLINE:
            return content
        path = Path(process_directory(), f"headrace-plan-{secrets.token_hex(6)}")
        path.touch(mode=0o600)
        path.write_bytes(content)
        try:
            self.session.add_file(str(path), file=True)
        finally:
            path.unlink()
        return FilePlan(path.name)

    def _stages_in_use(self) -> StagePlan:
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        return self._stages

    def _targets(self, width: int) -> Sequence[int]:
        """The values of the column that send a row to each of so many partitions."""
        return range(width) if self.session.routes_by_number else values_by_hash(width)

    def _cores(self) -> int | None:
        """How many tasks the server runs at once; None if it adds executors when there are more tasks."""
        return None if self.session.grows else self.session.cores

    def _numbered(self, tasks: int) -> Any:
        """A DataFrame with a partition for each of so many tasks."""
        if tasks not in self._numbers:
            self._numbers[tasks] = self.session.spark.range(0, tasks, 1, tasks)
        return self._numbers[tasks]

    def _records(self, stages: StagePlan, tasks: Sequence[SplitTask], context: EpochContext) -> Any:
        """The control records of an epoch, not yet computed."""
        epoch = pickle.dumps(PackedEpoch.of(stages, context, tasks))
        receivers = [*widths(stages, tasks, self._cores), 1]
        read = ReadSplit(self._plan, epoch, self._targets(receivers[0]))
        records = self._numbered(len(tasks)).mapInArrow(read, _ROWS)
        for stage, (width, following) in enumerate(pairwise(receivers), start=1):
            if self.session.routes_by_number:
                arrived = records.repartitionById(width, NUMBERS[0])
            else:
                arrived = records.repartition(width, NUMBERS[0])
            run = RunStage(self._plan, epoch, self._targets(following), stage, width)
            records = arrived.mapInArrow(run, _ROWS)
        return records


_exchanges: weakref.WeakSet[ConnectExchange] = weakref.WeakSet()


def interrupt_all() -> None:
    """Interrupt what servers run for this process, which is about to end at once."""
    for exchange in list(_exchanges):
        with suppress(Exception):
            within(_INTERRUPT_SECONDS, exchange.cancel)
