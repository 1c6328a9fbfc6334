"""One epoch as one Spark job: splits are read, the stages follow, control records come back to the driver."""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.errors import InternalError
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


_EPOCH = "headrace.epoch"
"""The property of a Spark job with what its tasks have to know of the epoch."""


def _epoch() -> tuple[int, EpochContext, Sequence[SplitTask]]:
    """In a task: its partition, the epoch, and the splits."""
    task = TaskContext.get()
    if task is None:
        raise InternalError("outside of a task of Spark")
    text = task.getLocalProperty(_EPOCH) or ""
    context, tasks = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301 - our own driver's
    return task.partitionId(), context, tasks


@dataclass(frozen=True)
class _Read:
    """Stage 0: each task reads one split."""

    plan: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass  # a worker whose input was not read is not used again
        stages = _plan(self.plan)
        partition, context, tasks = _epoch()
        return settled(run_split(stages, context.job, tasks[partition]))


@dataclass(frozen=True)
class _Run:
    """A later stage: each task is a subtask of its chains."""

    plan: bytes
    stage: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stages = _plan(self.plan)
        partition, context, _ = _epoch()
        return settled(run_stage(stages, self.stage, partition, context, batches))


class SparkExchange:
    """Runs the stages of a plan on Spark."""

    def __init__(self, spark: SparkSession, stages: StagePlan) -> None:
        self._spark = spark
        self._stages = stages
        self._blob = pickle.dumps(stages)
        self._schema = cast("StructType", StructType.fromDDL(SPARK_SCHEMA))
        self._frames: dict[int, DataFrame] = {}

    def frame(self, splits: int) -> DataFrame:
        """An epoch of so many splits as a DataFrame of control records, not yet run; made once."""
        if splits not in self._frames:
            frame = self._spark.range(0, splits, 1, splits).mapInArrow(_Read(self._blob), self._schema)
            for stage in range(1, self._stages.depth + 1):
                frame = frame.repartitionById(self._stages.width(stage), "to").mapInArrow(
                    _Run(self._blob, stage), self._schema
                )
            self._frames[splits] = frame
        return self._frames[splits]

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run the epoch and return what its tasks reported."""
        spark = self._spark.sparkContext
        spark.setJobDescription(f"{self._stages.plan.name}, epoch {context.epoch}")
        told = zlib.compress(pickle.dumps((context, tasks)), 1)  # every task gets it, with all paths of files
        spark.setLocalProperty(_EPOCH, base64.b64encode(told).decode())
        # By another name it is planned anew: a frame that has run before would read its old shuffle files.
        table = self.frame(len(tasks)).alias("epoch").toArrow()
        return [envelope for batch in table.to_batches() for envelope in read_envelopes(batch)]
