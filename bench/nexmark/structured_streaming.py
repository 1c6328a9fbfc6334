"""Runs a query in Structured Streaming: as many shuffle partitions as cores, and a state store of choice."""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.nexmark.engines import write_rows
from bench.nexmark.queries import COLUMNS
from bench.nexmark.spark_queries import SPARK_QUERIES, SparkQuery, Tables
from bench.nexmark.task import Batches, Task

_STATE = "org.apache.spark.sql.execution.streaming.state"


def run_streaming(task: Task, *, rocksdb: bool = False, literal: bool = False) -> None:
    """Run all streams of a query, started together, until all events are processed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    store = "RocksDBStateStoreProvider" if rocksdb else "HDFSBackedStateStoreProvider"
    session = (
        SparkSession.builder.master(f"local[{task.cores}]")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", task.cores)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stateStore.providerClass", f"{_STATE}.{store}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    spark_query = SPARK_QUERIES[task.name]
    builds = (spark_query.literal,) if literal and spark_query.literal else spark_query.builds
    data = task.query.data
    folder = task.events.closed if spark_query.windows else task.events.folder
    reader = session.readStream.schema(COLUMNS[data.table].replace("TEXT", "STRING"))
    stream = reader.option("maxFilesPerTrigger", task.events.per_batch).format(data.format).load(str(folder))
    outputs: list[list[pa.Table]] = [[] for _ in builds]
    with tempfile.TemporaryDirectory() as state:
        running = []
        for number, build in enumerate(builds):
            writer = build(Tables(stream)).writeStream.outputMode(spark_query.mode)
            writer = writer.foreachBatch(_keep(outputs[number])) if task.rows else writer.format("noop")
            writer = writer.option("checkpointLocation", f"{state}/{number}")
            running.append(writer.trigger(availableNow=True).start())
        for query in running:
            while not query.awaitTermination(1):
                _note(task, [query.recentProgress for query in running])
        _note(task, [query.recentProgress for query in running])
    if task.rows:
        write_rows([_answer(tables, spark_query) for tables in outputs], task.rows)


def _keep(batches_of_query: list[pa.Table]) -> Any:
    def keep(batch: DataFrame, _: int) -> None:
        batches_of_query.append(batch.withColumn("batch", f.lit(len(batches_of_query))).toArrow())

    return keep


def _answer(batches_of_query: list[pa.Table], spark_query: SparkQuery) -> pa.Table:
    """All rows, or the last of each key."""
    table = pa.concat_tables(batches_of_query)
    if spark_query.keys:
        last = table.group_by(list(spark_query.keys)).aggregate([("batch", "max")])
        last = last.rename_columns({"batch_max": "batch"})
        table = table.join(last, [*spark_query.keys, "batch"], join_type="inner")
    return table.drop_columns(["batch"])


def _note(task: Task, progress: list[list[Any]]) -> None:
    """Report the batches so far, counting each event once: a self-join reads the stream twice."""
    measured = batches(progress)
    if measured:
        first = task.events.per_batch * task.events.count // len(list(task.events.folder.iterdir()))
        scans = max(1, round(measured[0][0] / first))
        task.batches[:] = [(rows // scans, seconds) for rows, seconds in measured]


def batches(progress: list[list[Any]]) -> Batches:
    """The batches that all streams have done; each takes from the end of the one before to its own end."""
    together = list(zip(*progress, strict=False))
    if not together:
        return []
    ends = [
        max(_begin(batch) + batch["durationMs"]["triggerExecution"] / 1000 for batch in row)
        for row in together
    ]
    ends = [min(_begin(batch) for batch in together[0]), *ends]
    return [
        (row[0]["numInputRows"], end - begin)
        for row, (begin, end) in zip(together, pairwise(ends), strict=True)
    ]


def _begin(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()
