"""One epoch as one Spark job: splits are read, the stages follow, control records come back to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark import RDD, SparkContext

from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_stage
from headrace.exchanges.spark.workers import keep_memory, look_here_last, settled

Addressed = tuple[int, Envelope]
"""An envelope with the partition that it goes to."""

_PLANS: dict[bytes, StagePlan] = {}


def _plan(blob: bytes) -> StagePlan:
    """The stages, unpickled once per Python worker."""
    if blob not in _PLANS:
        look_here_last()
        keep_memory()
        _PLANS.clear()
        _PLANS[blob] = pickle.loads(blob)  # noqa: S301 - made by this job's own driver
    return _PLANS[blob]


def _addressed(envelopes: Iterable[Envelope]) -> Iterator[Addressed]:
    for envelope in settled(envelopes):
        yield envelope.to, envelope


def _itself(to: int) -> int:
    return to


@dataclass(frozen=True)
class _Read:
    """Stage 0: each task reads one split."""

    plan: bytes
    epoch: bytes

    def __call__(self, partition: int, numbers: Iterable[int]) -> Iterator[Addressed]:
        for _ in numbers:
            pass  # a worker whose input was not read is not used again
        stages = _plan(self.plan)
        context, tasks = pickle.loads(self.epoch)  # noqa: S301 - made by this job's own driver
        return _addressed(run_split(stages, context.job, tasks[partition]))


@dataclass(frozen=True)
class _Run:
    """A later stage: each task is a subtask of its chains."""

    plan: bytes
    epoch: bytes
    stage: int

    def __call__(self, partition: int, arrived: Iterable[Addressed]) -> Iterator[Addressed]:
        stages = _plan(self.plan)
        context, _ = pickle.loads(self.epoch)  # noqa: S301 - made by this job's own driver
        envelopes = (envelope for _, envelope in arrived)
        return _addressed(run_stage(stages, self.stage, partition, context, envelopes))


class SparkExchange:
    """Runs the stages of a plan on Spark.

    An epoch is made of RDDs: envelopes are sealed, and there is nothing that Spark SQL could plan, compile or
    read in them.
    """

    def __init__(self, spark: SparkContext, stages: StagePlan) -> None:
        self._spark = spark
        self._stages = stages
        self._blob = pickle.dumps(stages)
        self._numbers: dict[int, RDD[int]] = {}

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run the epoch and return what its tasks reported."""
        self._spark.setJobDescription(f"{self._stages.plan.name}, epoch {context.epoch}")
        records = self._records(len(tasks), pickle.dumps((context, tasks)))
        return [envelope for _, envelope in records.collect()]

    def lineage(self) -> str:
        """The RDDs of an epoch with a split for each subtask, as Spark describes them."""
        described = self._records(self._stages.parallelism, b"").toDebugString()
        return (described or b"").decode()

    def _records(self, splits: int, epoch: bytes) -> RDD[Addressed]:
        """The control records of an epoch, not yet computed."""
        if splits not in self._numbers:
            self._numbers[splits] = self._spark.parallelize(range(splits), splits)
        records = self._numbers[splits].mapPartitionsWithIndex(_Read(self._blob, epoch))
        for stage in range(1, self._stages.depth + 1):
            arrived = records.partitionBy(self._stages.width(stage), _itself)
            records = arrived.mapPartitionsWithIndex(_Run(self._blob, epoch, stage))
        return records
