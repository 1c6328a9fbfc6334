"""`python by_hand.py QUERY INPUT [OUTPUT]`: the queries in Structured Streaming, written by hand.

It imports nothing of Headrace. `first` prints the rows of its first micro-batch; `stateless` and `windowed`
write files with the file sink until they are stopped. The trigger is the default one: the next micro-batch
begins when the last has ended and there is something to read.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def main() -> None:
    """Run one query until the process is ended."""
    query, folder, *rest = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    events = spark.readStream.schema("id BIGINT, key BIGINT, created BIGINT").json(folder)
    if query == "first":
        stream = _filtered(events).writeStream.foreachBatch(_print)
    else:
        rows = _filtered(events) if query == "stateless" else _counted(events)
        output = rest[0]
        stream = rows.writeStream.format("json").option("path", output)
        stream = stream.option("checkpointLocation", f"{output}-checkpoint")
    stream.start().awaitTermination()


def _filtered(events: DataFrame) -> DataFrame:
    return events.where("key < 50").select("id", "key", "created")


def _counted(events: DataFrame) -> DataFrame:
    timed = events.select("key", f.timestamp_micros("created").alias("at")).withWatermark("at", "0 seconds")
    counts = timed.groupBy(f.window("at", "1 second"), "key").agg(f.count("*").alias("n"))
    return counts.select("key", "n", f.unix_micros("window.end").alias("created"))


def _print(frame: DataFrame, _batch: int) -> None:
    for row in frame.toJSON().collect():
        print(row, flush=True)


if __name__ == "__main__":
    main()
