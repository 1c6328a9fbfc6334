"""A running count per key in Python: an operator of Headrace, and a processor of Structured Streaming."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import headrace as hr


class RunningCount(hr.ArrowOperator):
    """Emits the new count of every key that it saw."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("key", pa.int64()), ("num", pa.int64())])
        return [hr.keyed_table_config("counts", "rows so far", schema, key=["key"])]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table = ctx.keyed_table("counts")
        new = pa.table(batch).group_by("key").aggregate([([], "count_all")]).combine_chunks()
        saved, _ = table.get(new.select(["key"]))
        total = pc.add(saved["num"].fill_null(0), new["count_all"].chunk(0))
        result = pa.record_batch({"key": new["key"].chunk(0), "num": total})
        table.put(result)
        collector.collect(result)


def running_count(folder: Path, sink: str, options: dict[str, str]) -> hr.Pipeline:
    """The pipeline around the operator."""
    pipeline = hr.Pipeline("stateful")
    rows = pipeline.source("filesystem", path=str(folder), format="parquet", timestamp_column="ts")
    rows.key_by("key").apply(RunningCount(), id="count").sink(sink, **options)
    return pipeline


class CountProcessor(StatefulProcessor):
    """The same for `transformWithState`, which calls it for each key of a micro-batch.

    With rows: `transformWithStateInPandas` makes a frame of the few rows of every key, which is slower.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "num long")

    def handleInputRows(  # noqa: N802 - the name is PySpark's
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        saved = self.count.get()
        total = (saved[0] if saved else 0) + sum(1 for _ in rows)
        self.count.update((total,))
        yield Row(key=key[0], num=total)

    def close(self) -> None:
        pass


def count_keys(rows: DataFrame) -> DataFrame:
    """The stream around the processor."""
    return rows.groupBy("key").transformWithState(
        CountProcessor(), outputStructType="key long, num long", outputMode="Update", timeMode="None"
    )
