"""All sources of a pipeline as one streaming source of Spark.

One source, whatever the number of tables: its offset is one JSON object over all of them, so a pipeline may
gain or lose a source, and only one planning process is started next to the driver.
"""

from __future__ import annotations

import base64
import pickle
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from headrace.errors import HeadraceError
from headrace.runtime.context import JobContext
from headrace.runtime.envelope import SPARK_SCHEMA
from headrace.runtime.offsets import EpochSize, OffsetPlanner
from headrace.runtime.stages import StagePlan
from headrace.runtime.task import SplitTask, run_split
from headrace.spark.workers import look_here_last

FORMAT = "headrace"
_FAILURE = "failure"
_PAUSES = (0.2, 1.0, 5.0)
"""Seconds between attempts to ask a source whose server does not answer."""
_FIRST_WAIT = 2.0
"""Seconds that the first epoch waits for something to read."""
_LOOK = 0.02


@dataclass(frozen=True)
class SourceJob:
    """What the planning process and the reading tasks need to know."""

    stages: StagePlan
    job: JobContext
    size: EpochSize
    epoch: int
    restored: Mapping[str, Any] | None
    code: tuple[str, ...] = ()
    """Archives and directories with the user's modules, on the driver's machine."""

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
            look_here_last()
            sys.path.extend(path for path in self._job.code if path not in sys.path)
            self._planner = OffsetPlanner(
                self._job.stages,
                size=self._job.size,
                restored=self._job.restored,
                epoch=self._job.epoch,
                job=self._job.job,
            )
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        try:
            return self.planner.initial()
        except HeadraceError as error:
            return _failed({"epoch": self._job.epoch}, error)

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        if _FAILURE in start:
            return {**start, "epoch": start["epoch"] + 1}
        for pause in (*_PAUSES, None):
            try:
                return self._latest(start)
            except HeadraceError as error:
                if pause is None or not error.retry:
                    return _failed(start, error)
                time.sleep(pause)
        raise AssertionError

    def _latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """How far to read; before the first epoch it is worth to wait for something to read.

        Spark runs its first batch even when there is nothing in it.
        """
        deadline = time.monotonic() + _FIRST_WAIT
        while True:
            latest = self.planner.latest(start)
            if latest != start or start["epoch"] != self._job.epoch or time.monotonic() > deadline:
                return latest
            time.sleep(_LOOK)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        try:
            if _FAILURE in end:
                raise pickle.loads(base64.b64decode(end[_FAILURE]))  # noqa: S301 - this process's own
            return [_Partition(task) for task in self.planner.tasks(start, end)]
        except HeadraceError as error:
            return [_Partition(SplitTask(0, end["epoch"], 0.0, None, None, None, error))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Partition):
            raise TypeError(f"not a partition of ours: {type(partition).__name__}")
        look_here_last()
        return run_split(self._job.stages, self._job.job, partition.task)


def _failed(start: Mapping[str, Any], error: HeadraceError) -> dict[str, Any]:
    """An offset that stands for a failure: its epoch's only task reports it to the driver.

    An exception raised here would end the query as an error of Spark's, without the words of ours.
    """
    text = base64.b64encode(pickle.dumps(error)).decode()
    return {**start, "epoch": start["epoch"] + 1, _FAILURE: text}


class HeadraceDataSource(DataSource):
    """The streaming source `headrace`; its only option is the job."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SPARK_SCHEMA

    def streamReader(self, schema: object) -> HeadraceReader:  # noqa: N802 - Spark's name
        return HeadraceReader(SourceJob.from_option(self.options["job"]))
