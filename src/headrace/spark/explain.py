"""Shows Spark's own plan of an epoch."""

from __future__ import annotations

from headrace.runtime.stages import StagePlan
from headrace.settings import Settings
from headrace.spark.exchange import SparkExchange
from headrace.spark.session import Wanted, open_session


def explain_spark(stages: StagePlan, settings: Settings) -> str:
    """Spark's plan of one epoch of these stages: its RDDs, the last one first."""
    session = open_session(Wanted(None, settings.spark.memory, settings.spark.conf))
    return SparkExchange(session.spark, stages).lineage()
