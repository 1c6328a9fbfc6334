"""All sources of a pipeline as one streaming source of Spark.

One source, whatever the number of tables: its offset is one JSON object over all of them, so a pipeline may
gain or lose a source, and only one planning process is started next to the driver.
"""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from headrace.runtime.context import JobContext
from headrace.runtime.envelope import SPARK_SCHEMA
from headrace.runtime.offsets import EpochSize, OffsetPlanner
from headrace.runtime.stages import StagePlan
from headrace.runtime.task import SplitTask, run_split

FORMAT = "headrace"


@dataclass(frozen=True)
class SourceJob:
    """What the planning process and the reading tasks need to know."""

    stages: StagePlan
    job: JobContext
    size: EpochSize
    epoch: int
    restored: Mapping[str, Any] | None

    def to_option(self) -> str:
        return base64.b64encode(zlib.compress(pickle.dumps(self), 1)).decode()

    @classmethod
    def from_option(cls, text: str) -> SourceJob:
        job = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301 - our own driver's
        if not isinstance(job, cls):
            raise TypeError(f"not a job: {type(job).__name__}")
        return job


class _Partition(InputPartition):
    """One task of stage 0."""

    def __init__(self, task: SplitTask) -> None:
        super().__init__(None)
        self.task = task


class HeadraceReader(DataSourceStreamReader):
    """Plans epochs in a process next to the driver and reads splits in the workers."""

    def __init__(self, job: SourceJob) -> None:
        self._job = job
        self._planner: OffsetPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job, "_planner": None}

    @property
    def planner(self) -> OffsetPlanner:
        if self._planner is None:
            self._planner = OffsetPlanner(
                self._job.stages,
                size=self._job.size,
                restored=self._job.restored,
                epoch=self._job.epoch,
            )
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self.planner.initial()

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        return self.planner.latest(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        return [_Partition(task) for task in self.planner.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Partition):
            raise TypeError(f"not a partition of ours: {type(partition).__name__}")
        return run_split(self._job.stages, self._job.job, partition.task)


class HeadraceDataSource(DataSource):
    """The streaming source `headrace`; its only option is the job."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SPARK_SCHEMA

    def streamReader(self, schema: object) -> HeadraceReader:  # noqa: N802 - Spark's name
        return HeadraceReader(SourceJob.from_option(self.options["job"]))
