"""A column that was dropped or not selected reaches neither the next operator nor a sink."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing.in_process import run_in_process


def names_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = ",".join(name for name in batch.schema.names if name != "_timestamp")
    return pa.record_batch({"names": [names], "_timestamp": batch["_timestamp"]})


@pytest.mark.parametrize(
    "narrow",
    [
        lambda stream: stream.drop("secret"),
        lambda stream: stream.select("a"),
        lambda stream: stream.sql("SELECT a FROM input"),
        lambda stream: stream.drop("secret").filter("a > 0"),
    ],
)
def test_a_dropped_column_goes_no_further(narrow: Callable[[hr.Stream], hr.Stream], tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    stream = narrow(pipeline.source("memory", rows=[{"a": 1, "secret": "x"}]))
    stream.sink("memory", name="sink")
    stream.map(names_of).sink("memory", name="map")
    rows = run_in_process(pipeline, tmp_path).rows
    assert "secret" not in rows["sink"].column_names
    assert rows["map"]["names"].to_pylist() == ["a"]


def test_what_several_read_is_computed_once(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    stream = pipeline.source("memory", rows=[{"id": 1}, {"id": 2}]).with_columns(u="uuid()")
    stream.filter("id > 0").sink("memory", name="filtered")
    stream.sink("memory", name="first")
    stream.sink("memory", name="second")
    rows = run_in_process(pipeline, tmp_path).rows
    values = [sorted(rows[name]["u"].to_pylist()) for name in ("filtered", "first", "second")]
    assert values[0] == values[1] == values[2]


def test_any_number_of_projections_may_follow_each_other(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    stream = pipeline.source("memory", rows=[{"id": 1}])
    for number in range(60):
        stream = stream.with_columns(**{f"c{number}": f"id + {number}"})
    stream.sink("memory", name="out")
    (row,) = run_in_process(pipeline, tmp_path).rows["out"].to_pylist()
    assert row["c59"] == 60
