"""Shows Spark's own plan of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headrace.runtime.stages import StagePlan
from headrace.settings import Settings
from headrace.spark.exchange import SparkExchange
from headrace.spark.session import Wanted, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def explain_spark(stages: StagePlan, settings: Settings) -> None:
    """Write Spark's plan of one epoch of these stages to standard output."""
    session = open_session(Wanted(None, settings.spark.memory, settings.spark.conf))
    exchange = SparkExchange(cast("SparkSession", session.spark), stages)
    exchange.frame(stages.parallelism).explain(mode="formatted")
