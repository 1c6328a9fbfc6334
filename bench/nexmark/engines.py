"""`python -m bench.nexmark.engines ENGINE QUERY …`: one run of a query, in a process of its own.

What it found is printed as one line of JSON. With `--rows FILE` the rows of the answer are written there, for
a comparison; without it they are thrown away as cheaply as the engine can.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.nexmark.data import Events
from bench.nexmark.queries import QUERIES, TABLE, VIEWS

CORES = 2
PER_BATCH = 4
"""Files in a micro-batch, and in an epoch."""

Batches = list[tuple[int, float]]
"""(events, seconds) of each micro-batch or epoch."""


def headrace(events: Events, query: str, rows: Path | None) -> Batches:
    """Headrace on local Spark, as `headrace run` starts it."""
    import headrace as hr

    sink = ("memory", {"name": "rows"}) if rows else ("blackhole", {})
    text = TABLE.format(path=events.folder) + VIEWS + QUERIES[query].stream + ";"
    pipeline = hr.Pipeline.from_sql(text, preview=lambda _: sink)
    batches: Batches = []
    per_file = events.count // len(list(events.folder.glob("*.parquet")))
    with tempfile.TemporaryDirectory() as state:
        result = pipeline.run(
            state,
            parallelism=CORES,
            master=f"local[{CORES}]",
            epoch_rows=PER_BATCH * per_file,
            on_progress=lambda progress: batches.append((progress.rows_in, progress.seconds)),
        )
    if rows:
        from headrace.operator import TIMESTAMP
        from headrace.operators.changes import RETRACT

        table = result.rows["rows"]
        columns = [name for name in table.column_names if name not in (TIMESTAMP, RETRACT)]
        change = pa.repeat(1, table.num_rows)
        if RETRACT in table.column_names:
            change = pc.if_else(table[RETRACT].fill_null(False), -1, 1)
        counted = table.select(columns).append_column("change", change)
        left = counted.group_by(columns).aggregate([("change", "sum")])
        assert pc.min(left["change_sum"]).as_py() >= 0
        again = [at for at, times in enumerate(left["change_sum"].to_pylist()) for _ in range(times)]
        pq.write_table(left.select(columns).take(again), rows)
    return batches


def spark(events: Events, query: str, rows: Path | None, *, rocksdb: bool = False) -> Batches:
    """Structured Streaming: 2 shuffle partitions for 2 cores, and the state store that is asked for."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as f

    from bench.nexmark.spark_queries import SPARK_QUERIES, Tables

    store = "RocksDBStateStoreProvider" if rocksdb else "HDFSBackedStateStoreProvider"
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", CORES)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.inferTimestampNTZ.enabled", "false")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            f"org.apache.spark.sql.execution.streaming.state.{store}",
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    made = SPARK_QUERIES[query]
    schema = session.read.parquet(str(events.folder)).schema
    folders = [events.folder, *([events.closing.parent] if made.windows else [])]
    source = session.readStream.schema(schema).option("maxFilesPerTrigger", PER_BATCH)
    stream = source.parquet(f"{events.folder.parent}/{{{','.join(one.name for one in folders)}}}")
    kept: list[pa.Table] = []

    def keep(batch: DataFrame, _: int) -> None:
        kept.append(batch.withColumn("batch", f.lit(len(kept))).toArrow())

    with tempfile.TemporaryDirectory() as state:
        writer = made.build(Tables(stream)).writeStream.outputMode(made.mode)
        writer = writer.foreachBatch(keep) if rows else writer.format("noop")
        running = writer.option("checkpointLocation", state).trigger(availableNow=True).start()
        running.awaitTermination()
        progress = running.recentProgress
    if rows:
        table = pa.concat_tables(kept)
        if made.keys:
            last = table.group_by(list(made.keys)).aggregate([("batch", "max")])
            last = last.rename_columns({"batch_max": "batch"})
            table = table.join(last, [*made.keys, "batch"], join_type="inner")
        pq.write_table(table.drop_columns(["batch"]), rows)
    return [(one["numInputRows"], one["durationMs"]["triggerExecution"] / 1000) for one in progress]


def datafusion(events: Events, query: str, rows: Path | None) -> Batches:
    """DataFusion over all events at once, twice: the first time it warms up."""
    from datafusion import SessionConfig, SessionContext

    context = SessionContext(SessionConfig().with_target_partitions(CORES))
    context.register_parquet("nexmark", str(events.folder))
    for statement in VIEWS.split(";")[:-1]:
        context.sql(statement)
    batches: Batches = []
    for _ in range(1 if rows else 3):
        begun = time.perf_counter()
        frame = context.sql(QUERIES[query].whole)
        if rows:
            pq.write_table(frame.to_arrow_table(), rows)
        else:
            for _batch in frame.execute_stream():
                pass
        batches.append((events.count, time.perf_counter() - begun))
    return batches


ENGINES: dict[str, Callable[[Events, str, Path | None], Batches]] = {
    "headrace": headrace,
    "spark": spark,
    "spark rocksdb": lambda events, query, rows: spark(events, query, rows, rocksdb=True),
    "datafusion": datafusion,
}


def main() -> int:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark.engines", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    begun = time.perf_counter()
    batches = ENGINES[given.engine](Events(given.folder, given.count), given.query, given.rows)
    found: dict[str, Any] = {"batches": batches, "seconds": time.perf_counter() - begun}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
