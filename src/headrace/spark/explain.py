"""Shows Spark's own plan of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headrace.runtime.context import EpochContext, JobContext
from headrace.runtime.stages import StagePlan
from headrace.runtime.task import SplitTask
from headrace.settings import Settings
from headrace.spark.exchange import SparkExchange
from headrace.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def explain_spark(stages: StagePlan, settings: Settings) -> None:
    """Write Spark's plan of one epoch of these stages to standard output."""
    session = open_session(
        master=None, memory=settings.spark.memory, conf=settings.spark.conf, log_dir=None, verbose=False
    )
    job = JobContext(job_id="explain", state_url="", started=0.0)
    context = EpochContext(job=job, epoch=1, min_epoch=1, time=0.0, previous_time=None)
    spark = cast("SparkSession", session.spark)
    task = SplitTask(index=0, epoch=1, time=0.0, source=None, split=None, signals=None)
    SparkExchange(spark, stages).frame([task], context).explain(mode="formatted")
