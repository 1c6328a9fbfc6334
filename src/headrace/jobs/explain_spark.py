"""Shows Spark's own plan of an epoch."""

from __future__ import annotations

from headrace.engine.stages import StagePlan
from headrace.exchanges.spark.rdd import RddExchange
from headrace.exchanges.spark.session import SparkRequest, open_spark
from headrace.jobs.settings import Settings


def explain_spark(stages: StagePlan, settings: Settings) -> str:
    """Spark's plan of one epoch of these stages: its RDDs, the last one first."""
    runtime = open_spark(SparkRequest(None, settings.spark.memory, settings.spark.conf))
    exchange = RddExchange(runtime)
    exchange.use(stages)
    return exchange.lineage()
