"""The load of a Spark application, as its driver reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SparkUsage:
    """What the executors of a SparkContext have done since it started."""

    cores: int
    active_tasks: int
    task_seconds: float
    gc_seconds: float
    failed_tasks: int
    web_url: str | None = None
    """Where its web pages are, if it serves them."""


def usage_of(spark: Any) -> SparkUsage:
    """Ask a SparkContext; executors that have ended count with what they did."""
    executors = spark._jsc.sc().statusStore().executorList(False)  # noqa: SLF001 - there is no public way
    cores = active = failed = 0
    task_milliseconds = gc_milliseconds = 0
    for index in range(executors.size()):
        executor = executors.apply(index)
        if executor.isActive():
            cores += executor.totalCores()
            active += executor.activeTasks()
        failed += executor.failedTasks()
        task_milliseconds += executor.totalDuration()
        gc_milliseconds += executor.totalGCTime()
    url = spark.uiWebUrl
    return SparkUsage(cores, active, task_milliseconds / 1e3, gc_milliseconds / 1e3, failed, url)
