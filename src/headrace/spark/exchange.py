"""One epoch as one Spark job: the stages one after the other, control records back to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from headrace.runtime.context import EpochContext
from headrace.runtime.envelope import SPARK_SCHEMA, Envelope, read_envelopes
from headrace.runtime.stages import StagePlan
from headrace.runtime.task import run_stage
from headrace.spark.workers import look_here_last

_PLANS: dict[bytes, StagePlan] = {}


def _plan(blob: bytes) -> StagePlan:
    """The stages, unpickled once per Python worker."""
    if blob not in _PLANS:
        look_here_last()
        _PLANS.clear()
        _PLANS[blob] = pickle.loads(blob)  # noqa: S301 - made by this job's own driver
    return _PLANS[blob]


def _task(
    plan: bytes, context: bytes, stage: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        partition = 0 if task is None else task.partitionId()
        epoch: EpochContext = pickle.loads(context)  # noqa: S301 - made by this job's own driver
        return run_stage(_plan(plan), stage, partition, epoch, batches)

    return run


class SparkExchange:
    """Runs the stages of a plan on Spark."""

    def __init__(self, stages: StagePlan) -> None:
        self._stages = stages
        self._blob = pickle.dumps(stages)

    def frame(self, envelopes: DataFrame, context: EpochContext) -> DataFrame:
        """The epoch as a DataFrame of control records, not yet run."""
        blob = pickle.dumps(context)
        frame = envelopes
        for stage in range(1, self._stages.depth + 1):
            frame = frame.repartitionById(self._stages.width(stage), "to").mapInArrow(
                _task(self._blob, blob, stage), SPARK_SCHEMA
            )
        return frame

    def run(self, envelopes: DataFrame, context: EpochContext) -> list[Envelope]:
        """Run the epoch and return what its tasks reported."""
        table = self.frame(envelopes, context).toArrow()
        return [envelope for batch in table.to_batches() for envelope in read_envelopes(batch)]
