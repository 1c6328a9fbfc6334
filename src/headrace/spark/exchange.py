"""One epoch as one Spark job: splits are read, the stages follow, control records come back to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.runtime.context import EpochContext
from headrace.runtime.envelope import SPARK_SCHEMA, Envelope, read_envelopes
from headrace.runtime.stages import StagePlan
from headrace.runtime.task import SplitTask, run_split, run_stage
from headrace.spark.workers import look_here_last, settled

_PLANS: dict[bytes, StagePlan] = {}


def _plan(blob: bytes) -> StagePlan:
    """The stages, unpickled once per Python worker."""
    if blob not in _PLANS:
        look_here_last()
        _PLANS.clear()
        _PLANS[blob] = pickle.loads(blob)  # noqa: S301 - made by this job's own driver
    return _PLANS[blob]


def _partition() -> int:
    task = TaskContext.get()
    return 0 if task is None else task.partitionId()


@dataclass(frozen=True)
class _Read:
    """Stage 0: each task reads one split."""

    plan: bytes
    context: bytes
    tasks: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass  # a worker whose input was not read is not used again
        stages, task = _plan(self.plan), pickle.loads(self.tasks[_partition()])  # noqa: S301 - our driver's
        epoch: EpochContext = pickle.loads(self.context)  # noqa: S301
        return settled(run_split(stages, epoch.job, task))


@dataclass(frozen=True)
class _Run:
    """A later stage: each task is a subtask of its chains."""

    plan: bytes
    context: bytes
    stage: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        epoch: EpochContext = pickle.loads(self.context)  # noqa: S301 - made by this job's own driver
        return settled(run_stage(_plan(self.plan), self.stage, _partition(), epoch, batches))


class SparkExchange:
    """Runs the stages of a plan on Spark."""

    def __init__(self, spark: SparkSession, stages: StagePlan) -> None:
        self._spark = spark
        self._stages = stages
        self._blob = pickle.dumps(stages)
        self._schema = cast("StructType", StructType.fromDDL(SPARK_SCHEMA))

    def frame(self, tasks: Sequence[SplitTask], context: EpochContext) -> DataFrame:
        """The epoch as a DataFrame of control records, not yet run."""
        blob = pickle.dumps(context)
        read = _Read(self._blob, blob, tuple(pickle.dumps(task) for task in tasks))
        frame = self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, self._schema)
        for stage in range(1, self._stages.depth + 1):
            frame = frame.repartitionById(self._stages.width(stage), "to").mapInArrow(
                _Run(self._blob, blob, stage), self._schema
            )
        return frame

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run the epoch and return what its tasks reported."""
        self._spark.sparkContext.setJobDescription(f"{self._stages.plan.name}, epoch {context.epoch}")
        table = self.frame(tasks, context).toArrow()
        return [envelope for batch in table.to_batches() for envelope in read_envelopes(batch)]
