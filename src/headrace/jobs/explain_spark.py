"""Shows Spark's own plan of an epoch."""

from __future__ import annotations

from headrace.engine.stages import StagePlan
from headrace.exchanges.spark.rdd import SparkExchange
from headrace.exchanges.spark.session import Wanted, open_session
from headrace.jobs.settings import Settings


def explain_spark(stages: StagePlan, settings: Settings) -> str:
    """Spark's plan of one epoch of these stages: its RDDs, the last one first."""
    session = open_session(Wanted(None, settings.spark.memory, settings.spark.conf))
    return SparkExchange(session.spark, stages).lineage()
