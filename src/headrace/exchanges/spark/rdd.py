"""The exchange over Spark RDDs: an epoch is one Spark job that ends with the control records."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException

from headrace.base.errors import ExternalError, HeadraceError, InternalError, WorkerError
from headrace.base.start_guard import forbid_start
from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_stage
from headrace.exchanges.spark.session import is_lost
from headrace.exchanges.spark.workers import append_to_sys_path, freeze_loaded, keep_memory

Addressed = tuple[int, Envelope]
"""An envelope with the partition that it goes to."""

_TELLING = "Error: "
"""What a line of a Java stack trace has in it that says what went wrong."""


@functools.lru_cache(maxsize=8)
def _load_stages(blob: bytes) -> StagePlan:
    """The stages, unpickled once per Python worker; several pipelines may share the workers."""
    append_to_sys_path()
    keep_memory()
    forbid_start("a module starts a pipeline when a task imports it")
    stages: StagePlan = pickle.loads(blob)  # noqa: S301 - made by this job's own driver
    return stages


def _addressed(envelopes: Iterable[Envelope]) -> Iterator[Addressed]:
    for envelope in freeze_loaded(envelopes):
        yield envelope.to, envelope


def _own_number(to: int) -> int:
    return to


@dataclass(frozen=True)
class _Read:
    """Stage 0: each task reads one split."""

    plan: bytes
    epoch: bytes

    def __call__(self, partition: int, numbers: Iterable[int]) -> Iterator[Addressed]:
        for _ in numbers:
            pass  # a worker whose input was not read is not used again
        stages = _load_stages(self.plan)
        context, tasks = pickle.loads(self.epoch)  # noqa: S301 - made by this job's own driver
        return _addressed(run_split(stages, context.job, tasks[partition]))


@dataclass(frozen=True)
class _Run:
    """A later stage: each task is a subtask of its chains."""

    plan: bytes
    epoch: bytes
    stage: int

    def __call__(self, partition: int, arrived: Iterable[Addressed]) -> Iterator[Addressed]:
        stages = _load_stages(self.plan)
        context, _ = pickle.loads(self.epoch)  # noqa: S301 - made by this job's own driver
        envelopes = (envelope for _, envelope in arrived)
        return _addressed(run_stage(stages, self.stage, partition, context, envelopes))


class RddExchange:
    """Runs the tasks of each epoch as one Spark job.

    An epoch is made of RDDs: envelopes are sealed, and there is nothing that Spark SQL could plan, compile or
    read in them. `log_file` is where Spark's own log goes; errors name it.
    """

    def __init__(self, spark: SparkContext, *, log_file: str | None = None) -> None:
        self._spark = spark
        self._log_file = log_file
        self._numbers: dict[int, RDD[int]] = {}
        self._stages: StagePlan | None = None
        self._blob = b""

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._stages = stages
        self._blob = pickle.dumps(stages)

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        stages = self._stages_in_use()
        try:
            # A property of the calling thread: jobs of other pipelines have descriptions of their own.
            self._spark.setJobDescription(f"{stages.plan.name}, epoch {context.epoch}")
            records = self._records(stages, len(tasks), pickle.dumps((context, tasks)))
            return [envelope for _, envelope in records.collect()]
        except HeadraceError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def check(self) -> None:
        """Raise a WorkerError if Spark's Java has ended."""
        if is_lost():
            hint = "start the pipeline again"
            hint += "" if self._log_file is None else f"; Spark's log {self._log_file} may say why"
            raise WorkerError("Spark's Java has ended", hint=hint)

    def _translate(self, error: Exception) -> HeadraceError:
        """What Spark says, as an error of ours that names the log with the rest."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        telling = [line for line in lines if _TELLING in line]
        message = (telling or lines or [type(error).__name__])[0][:500]
        hint = None if self._log_file is None else f"Spark's log is {self._log_file}"
        if isinstance(error, PySparkException) or "Py4J" in type(error).__name__:
            return WorkerError(f"Spark could not run the epoch: {message}", hint=hint)
        return ExternalError(f"{type(error).__name__}: {message}", hint=hint)

    def lineage(self) -> str:
        """The RDDs of an epoch with a split for each subtask, as Spark describes them."""
        stages = self._stages_in_use()
        description = self._records(stages, stages.parallelism, b"").toDebugString()
        return (description or b"").decode()

    def _stages_in_use(self) -> StagePlan:
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        return self._stages

    def _records(self, stages: StagePlan, splits: int, epoch: bytes) -> RDD[Addressed]:
        """The control records of an epoch, not yet computed."""
        if splits not in self._numbers:
            self._numbers[splits] = self._spark.parallelize(range(splits), splits)
        records = self._numbers[splits].mapPartitionsWithIndex(_Read(self._blob, epoch))
        for stage in range(1, stages.depth + 1):
            arrived = records.partitionBy(stages.width(stage), _own_number)
            records = arrived.mapPartitionsWithIndex(_Run(self._blob, epoch, stage))
        return records
