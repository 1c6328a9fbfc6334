"""The exchange over Spark RDDs: an epoch is one Spark job that ends with the control records."""

from __future__ import annotations

import contextlib
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, Broadcast
from pyspark.errors import PySparkException
from pyspark.traceback_utils import SCCallSiteSync

from headrace.base.errors import ExternalError, HeadraceError, InternalError, SparkEndedError, WorkerError
from headrace.engine.commits import CommitTask, run_commit
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.parts import PackedEpoch
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_subtasks, widths
from headrace.exchanges.spark.exits import describe_exit, hint_for_exit
from headrace.exchanges.spark.failures import epoch_failure, joined
from headrace.exchanges.spark.preflight import Preflight
from headrace.exchanges.spark.session import SparkRuntime
from headrace.exchanges.spark.tasks import load_stages, pack_stages
from headrace.exchanges.spark.workers import freeze_loaded

Addressed = tuple[int, Envelope]
"""An envelope with the partition that it goes to."""

Shipped: TypeAlias = bytes | Broadcast[bytes]
"""Bytes that every task gets: with its function, or, if they are many, once per executor."""

_EXIT_SECONDS = 5.0
"""How long Java may take to end after it has closed its connections."""
EPOCHS_UNTIL_FORGOTTEN = 1_000
"""How many epochs Java may remember the sockets of."""
_STAGE_NAME = "callSite.short"
"""The property of a thread that names the stages of RDDs that it makes."""
_MAX_INLINE = 500_000
"""PySpark makes a file of a function with a megabyte, and leaves it there for as long as Java likes."""


def _bytes(shipped: Shipped) -> bytes:
    return shipped if isinstance(shipped, bytes) else shipped.value


def _epoch(shipped: Shipped) -> PackedEpoch:
    epoch: PackedEpoch = pickle.loads(_bytes(shipped))  # noqa: S301 - made by this job's own driver
    return epoch


def _addressed(envelopes: Iterable[Envelope]) -> Iterator[Addressed]:
    for envelope in freeze_loaded(envelopes):
        yield envelope.to, envelope


def _own_number(to: int) -> int:
    return to


@dataclass(frozen=True)
class _Read:
    """Stage 0: each task reads one split."""

    plan: Shipped
    epoch: Shipped

    def __call__(self, partition: int, numbers: Iterable[int]) -> Iterator[Addressed]:
        for _ in numbers:
            pass  # a worker whose input was not read is not used again
        stages = load_stages(_bytes(self.plan))
        job, task = _epoch(self.epoch).split(partition)
        return _addressed(run_split(stages, job, task))


@dataclass(frozen=True)
class _Run:
    """A later stage: each of so many tasks runs one or more subtasks of its chains."""

    plan: Shipped
    epoch: Shipped
    stage: int
    tasks: int

    def __call__(self, partition: int, arrived: Iterable[Addressed]) -> Iterator[Addressed]:
        stages = load_stages(_bytes(self.plan))
        subtasks = range(partition, stages.width(self.stage), self.tasks)
        envelopes = (envelope for _, envelope in arrived)
        return _addressed(run_subtasks(stages, self.stage, subtasks, _epoch(self.epoch).context, envelopes))


@dataclass(frozen=True)
class _Commit:
    """A commit: each task publishes one share."""

    plan: Shipped
    commit: Shipped

    def __call__(self, partition: int, numbers: Iterable[int]) -> Iterator[Addressed]:
        for _ in numbers:
            pass  # as above
        stages = load_stages(_bytes(self.plan))
        job, tasks = pickle.loads(_bytes(self.commit))  # noqa: S301 - made by this job's own driver
        return _addressed(run_commit(stages, job, tasks[partition]))


class RddExchange:
    """Runs the tasks of each epoch as one Spark job.

    An epoch is made of RDDs: envelopes are sealed, and there is nothing that Spark SQL could plan, compile or
    read in them. With its job it is over: its shuffle files and broadcasts are removed, which Spark itself
    does only when Java looks for garbage. When Java has ended, the epoch fails, and the next attempt starts
    it again by `reopen`, if that is given and nothing else was lost with it. `preflight` asks executors that
    come later what they have.
    """

    def __init__(
        self,
        runtime: SparkRuntime,
        *,
        reopen: Callable[[], SparkRuntime] | None = None,
        preflight: Preflight | None = None,
    ) -> None:
        self._runtime = runtime
        self._reopen = reopen
        self._preflight = preflight
        self._has_ended = False
        self._epochs = 0
        self._numbers: dict[int, RDD[int]] = {}
        self._stages: StagePlan | None = None
        self._plan: Shipped = b""
        self._group = f"headrace-{uuid.uuid4().hex[:12]}"
        self._cancelled = False

    @property
    def log_file(self) -> str | None:
        """Where Spark's log is; another file may be in use after Java was started again."""
        return self._runtime.log_file

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._open_again()
        self._remove(self._plan)
        self._stages, self._plan = stages, b""
        try:
            self._plan = self._ship_plan(stages)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        self._open_again()
        if self._preflight is not None:
            self._preflight.check(self._runtime)
        stages = self._stages_in_use()
        description = f"{stages.plan.name}, epoch {context.epoch}"
        content = pickle.dumps(PackedEpoch.of(stages, context, tasks))
        return self._run_job(
            description,
            content,
            lambda epoch: self._records(stages, len(tasks), epoch, widths(stages, tasks, self._cores)),
        )

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Let tasks publish their shares of an epoch, as one job of a single stage."""
        self._open_again()
        description = f"{self._stages_in_use().plan.name}, commit of epoch {tasks[0].epoch}"
        return self._run_job(
            description,
            pickle.dumps((job, tasks)),
            lambda shipped: self._numbered(len(tasks)).mapPartitionsWithIndex(_Commit(self._plan, shipped)),
        )

    def _run_job(
        self, description: str, content: bytes, records_of: Callable[[Shipped], RDD[Addressed]]
    ) -> list[Envelope]:
        """Run one Spark job whose tasks get `content`."""
        self._cancelled = False
        shipped: Shipped = b""
        records: RDD[Addressed] | None = None
        try:
            # A property of the calling thread: jobs of other pipelines have descriptions of their own.
            self._runtime.spark.setJobGroup(self._group, description)
            shipped = self._ship(content)
            with self._named_stages():
                records = records_of(shipped)
                return [envelope for _, envelope in records.collect()]
        except HeadraceError:
            raise
        except Exception as error:
            if self._cancelled:
                raise ExternalError("the tasks of the epoch were cancelled") from error
            raise self._translate(error) from error
        finally:
            self._remove(shipped)
            if records is not None and self._stages_in_use().depth:
                self._remove_shuffles(records)
            self._epochs += 1
            if self._epochs % EPOCHS_UNTIL_FORGOTTEN == 0:
                self._runtime.forget_sockets()

    def check(self) -> None:
        """Raise a WorkerError if Spark's Java has ended; when called again, start it again."""
        self._open_again()
        code = self._runtime.exit_code()
        if code is not None:
            raise self._java_ended(code)

    def _open_again(self) -> None:
        """Start Spark again if the last attempt has found that it has ended."""
        if self._has_ended and self._reopen is not None:
            self._runtime = self._reopen()
            self._has_ended = False
            self._numbers.clear()
            self._plan = self._ship_plan(self._stages_in_use())

    def _java_ended(self, code: int) -> HeadraceError:
        """The error for the end of Java; the epoch is retried if Spark can be started again."""
        self._has_ended = True
        message = f"Spark's Java has ended: it {describe_exit(code)}"
        hints = [hint_for_exit(code), self._see_log("may say more")]
        if self._reopen is None or not self._runtime.can_restart:
            hints.insert(1, "start the pipeline again")
            return SparkEndedError(message, hint=joined(hints))
        return WorkerError(message, hint=joined(hints))

    def cancel(self) -> None:
        """Cancel the job of the epoch; its Python workers are ended."""
        self._cancelled = True
        self._runtime.spark.cancelJobGroup(self._group)

    def _translate(self, error: Exception) -> HeadraceError:
        """Spark's error as an error of Headrace that names the log file."""
        if isinstance(error, Py4JError | OSError | EOFError) and not isinstance(error, Py4JJavaError):
            code = self._runtime.exit_code(within=_EXIT_SECONDS)
            if code is not None:
                return self._java_ended(code)
        return epoch_failure(
            error, is_spark=isinstance(error, PySparkException | Py4JError), see_log=self._see_log()
        )

    def _see_log(self, verb: str = "is here") -> str | None:
        return None if self.log_file is None else f"Spark's log {verb}: {self.log_file}"

    @contextlib.contextmanager
    def _named_stages(self) -> Iterator[None]:
        """Let Spark's web pages, if it has any, name stages as `_name_stage` does, not after lines."""
        if not self._has_pages:
            yield
            return
        SCCallSiteSync._spark_stack_depth += 1  # noqa: SLF001 - it leaves the name alone within another call
        try:
            yield
        finally:
            SCCallSiteSync._spark_stack_depth -= 1  # noqa: SLF001 - as above
            self._runtime.spark.setLocalProperty(_STAGE_NAME, None)

    def _name_stage(self, stages: StagePlan, stage: int) -> None:
        """Name the stage whose RDDs come next after its operators."""
        if self._has_pages:
            operators = ", ".join(node for chain in stages.at(stage) for node in chain.nodes)
            self._runtime.spark.setLocalProperty(_STAGE_NAME, f"{stages.plan.name}: {operators}")

    @property
    def _has_pages(self) -> bool:
        return self._runtime.ui_url is not None

    def _ship_plan(self, stages: StagePlan) -> Shipped:
        question = None if self._preflight is None else self._preflight.question_for(self._runtime)
        return self._ship(pack_stages(stages, question))

    def _ship(self, content: bytes) -> Shipped:
        if len(content) <= _MAX_INLINE:
            return content
        shipped: Broadcast[bytes] = self._runtime.spark.broadcast(content)
        return shipped

    def _remove(self, shipped: Shipped) -> None:
        """Let Spark forget what no later task needs; an epoch that failed may have lost it with Java."""
        if not isinstance(shipped, bytes) and not self._has_ended:
            with contextlib.suppress(Py4JError, OSError):
                shipped.destroy()

    def _remove_shuffles(self, records: RDD[Any]) -> None:
        if not self._has_ended:
            with contextlib.suppress(Py4JError, OSError):
                records._jrdd.rdd().cleanShuffleDependencies(False)  # noqa: SLF001 - no public way

    def lineage(self) -> str:
        """The RDDs of an epoch with a split for each subtask, as Spark describes them."""
        stages = self._stages_in_use()
        receivers = widths(stages, (), lambda: None)
        description = self._records(stages, stages.parallelism, b"", receivers).toDebugString()
        return (description or b"").decode()

    def _stages_in_use(self) -> StagePlan:
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        return self._stages

    def _numbered(self, tasks: int) -> RDD[int]:
        """An RDD with a partition for each of so many tasks."""
        if tasks not in self._numbers:
            self._numbers[tasks] = self._runtime.spark.parallelize(range(tasks), tasks)
        return self._numbers[tasks]

    def _cores(self) -> int | None:
        """How many tasks Spark runs at once; None if it adds executors when there are more tasks."""
        return None if self._runtime.grows else self._runtime.cores

    def _records(
        self, stages: StagePlan, splits: int, epoch: Shipped, receivers: Sequence[int]
    ) -> RDD[Addressed]:
        """The control records of an epoch, not yet computed. `receivers`: how many tasks run later stages."""
        numbers = self._numbered(splits)
        self._name_stage(stages, 0)
        records = numbers.mapPartitionsWithIndex(_Read(self._plan, epoch))
        for stage, width in enumerate(receivers, start=1):
            arrived = records.partitionBy(width, _own_number)
            self._name_stage(stages, stage)
            records = arrived.mapPartitionsWithIndex(_Run(self._plan, epoch, stage, width))
        return records
