"""The exchange over Spark RDDs: an epoch is one Spark job that ends with the control records."""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD
from pyspark.core.broadcast import Broadcast
from pyspark.errors import PySparkException

from headrace.base.errors import ExternalError, HeadraceError, InternalError, SparkEndedError, WorkerError
from headrace.base.start_guard import forbid_start
from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_stage
from headrace.exchanges.spark.exits import describe_exit, hint_for_exit, worker_exit
from headrace.exchanges.spark.preflight import executor_problem
from headrace.exchanges.spark.session import SparkRuntime
from headrace.exchanges.spark.workers import (
    POSITION_OF,
    append_to_sys_path,
    freeze_loaded,
    keep_memory,
    leave_position,
)

Addressed = tuple[int, Envelope]
"""An envelope with the partition that it goes to."""

Shipped: TypeAlias = bytes | Broadcast[bytes]
"""Bytes that every task gets: with its function, or, if they are many, once per executor."""

_TELLING = "Error: "
"""What a line of a Java stack trace has in it that says what went wrong."""
_WORKER_ENDED = "Python worker exited unexpectedly"
"""What Spark says when it waits for an answer of a worker that has ended."""
_POSITION = re.compile(rf"^.*{_WORKER_ENDED} \(crashed\): *(.*?) *\n{POSITION_OF} (\d+)\n", re.MULTILINE)
_CRASH = re.compile(r"^Fatal Python error: .*\n(?:(?!\tat |Extension modules).*\n){,30}", re.MULTILINE)
_EXIT_SECONDS = 5.0
"""How long Java may take to end after it has closed its connections, and the daemon to note an exit."""
EPOCHS_UNTIL_FORGOTTEN = 1_000
"""How many epochs Java may remember the sockets of."""
_MAX_INLINE = 500_000
"""PySpark makes a file of a function with a megabyte, and leaves it there for as long as Java likes."""


@functools.lru_cache(maxsize=8)
def _load_stages(blob: bytes) -> StagePlan:
    """The stages, unpickled once per Python worker; several pipelines may share the workers."""
    append_to_sys_path()
    keep_memory()
    leave_position()
    forbid_start("a module starts a pipeline when a task imports it")
    stages: StagePlan = pickle.loads(blob)  # noqa: S301 - made by this job's own driver
    return stages


def _bytes(shipped: Shipped) -> bytes:
    return shipped if isinstance(shipped, bytes) else shipped.value


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
        stages = _load_stages(_bytes(self.plan))
        context, tasks = pickle.loads(_bytes(self.epoch))  # noqa: S301 - made by this job's own driver
        return _addressed(run_split(stages, context.job, tasks[partition]))


@dataclass(frozen=True)
class _Run:
    """A later stage: each task is a subtask of its chains."""

    plan: Shipped
    epoch: Shipped
    stage: int

    def __call__(self, partition: int, arrived: Iterable[Addressed]) -> Iterator[Addressed]:
        stages = _load_stages(_bytes(self.plan))
        context, _ = pickle.loads(_bytes(self.epoch))  # noqa: S301 - made by this job's own driver
        envelopes = (envelope for _, envelope in arrived)
        return _addressed(run_stage(stages, self.stage, partition, context, envelopes))


class RddExchange:
    """Runs the tasks of each epoch as one Spark job.

    An epoch is made of RDDs: envelopes are sealed, and there is nothing that Spark SQL could plan, compile or
    read in them. With its job it is over: its shuffle files and broadcasts are removed, which Spark itself
    does only when Java looks for garbage. When Java has ended, the epoch fails, and the next attempt starts
    it again by `reopen`, if that is given and nothing else was lost with it.
    """

    def __init__(self, runtime: SparkRuntime, *, reopen: Callable[[], SparkRuntime] | None = None) -> None:
        self._runtime = runtime
        self._reopen = reopen
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
        self._remove(self._plan)
        self._stages = stages
        self._plan = self._ship(pickle.dumps(stages))

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        stages = self._stages_in_use()
        self._open_again()
        self._cancelled = False
        epoch: Shipped = b""
        records: RDD[Addressed] | None = None
        try:
            # A property of the calling thread: jobs of other pipelines have descriptions of their own.
            self._runtime.spark.setJobGroup(self._group, f"{stages.plan.name}, epoch {context.epoch}")
            epoch = self._ship(pickle.dumps((context, tasks)))
            records = self._records(stages, len(tasks), epoch)
            return [envelope for _, envelope in records.collect()]
        except HeadraceError:
            raise
        except Exception as error:
            if self._cancelled:
                raise ExternalError("the tasks of the epoch were cancelled") from error
            raise self._translate(error) from error
        finally:
            self._remove(epoch)
            if records is not None and stages.depth:
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
            self._plan = self._ship(pickle.dumps(self._stages_in_use()))

    def _java_ended(self, code: int) -> HeadraceError:
        """What to say about Java's end; the epoch is tried again if Spark can be started again."""
        self._has_ended = True
        message = f"Spark's Java has ended: it {describe_exit(code)}"
        hints = [hint_for_exit(code), self._see_log("may say more")]
        if self._reopen is None or not self._runtime.can_restart:
            hints.insert(1, "start the pipeline again")
            return SparkEndedError(message, hint=_joined(hints))
        return WorkerError(message, hint=_joined(hints))

    def _worker_ended(self, text: str) -> HeadraceError:
        """What to say about a Python worker that has ended: how, and in which operator."""
        position = _POSITION.search(text)
        code = None if position is None else worker_exit(int(position[2]), within=_EXIT_SECONDS)
        crash = _CRASH.search(text)
        error = WorkerError(
            f"a Python worker {'ended without an answer' if code is None else describe_exit(code)}",
            where=None if position is None else position[1] or None,
            hint=_joined([None if code is None else hint_for_exit(code), self._see_log()]),
        )
        error.traceback_text = "" if crash is None else crash[0]
        return error

    def cancel(self) -> None:
        """Cancel the job of the epoch; its Python workers are ended."""
        self._cancelled = True
        self._runtime.spark.cancelJobGroup(self._group)

    def _translate(self, error: Exception) -> HeadraceError:
        """What Spark says, as an error of ours that names the log with the rest."""
        if isinstance(error, Py4JError | OSError | EOFError) and not isinstance(error, Py4JJavaError):
            code = self._runtime.exit_code(within=_EXIT_SECONDS)
            if code is not None:
                return self._java_ended(code)
        text = str(error)
        if _WORKER_ENDED in text:
            return self._worker_ended(text)
        problem = executor_problem(text)
        if problem is not None:
            return problem
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if _TELLING in line]
        message = (telling or lines or [type(error).__name__])[0][:500]
        if isinstance(error, PySparkException | Py4JError):
            return WorkerError(f"Spark could not run the epoch: {message}", hint=self._see_log())
        return ExternalError(f"{type(error).__name__}: {message}", hint=self._see_log())

    def _see_log(self, verb: str = "is here") -> str | None:
        return None if self.log_file is None else f"Spark's log {verb}: {self.log_file}"

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
        description = self._records(stages, stages.parallelism, b"").toDebugString()
        return (description or b"").decode()

    def _stages_in_use(self) -> StagePlan:
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        return self._stages

    def _records(self, stages: StagePlan, splits: int, epoch: Shipped) -> RDD[Addressed]:
        """The control records of an epoch, not yet computed."""
        if splits not in self._numbers:
            self._numbers[splits] = self._runtime.spark.parallelize(range(splits), splits)
        records = self._numbers[splits].mapPartitionsWithIndex(_Read(self._plan, epoch))
        for stage in range(1, stages.depth + 1):
            arrived = records.partitionBy(stages.width(stage), _own_number)
            records = arrived.mapPartitionsWithIndex(_Run(self._plan, epoch, stage))
        return records


def _joined(hints: Iterable[str | None]) -> str | None:
    return "; ".join(filter(None, hints)) or None
