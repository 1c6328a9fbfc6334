from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import PlanError
from headrace.base.watermarks import END_OF_TIME, IDLE, Watermark
from headrace.base.windows import Tumble
from headrace.operators.watermark import CHUNK, ExpressionWatermark
from headrace.operators.window_aggregate import WindowAggregate
from headrace.testing.in_process import run_in_process
from tests.support import ListCollector
from tests.unit.operators.windowing import SECOND, TIME, holistic, random_rows, to_rows


def batch(values: Any, kind: pa.DataType = TIME) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "_timestamp": pa.array(range(count), pa.int64()).cast(TIME),
            "w": pa.array(values, pa.int64()).cast(kind),
        }
    )


def times(*batches: pa.RecordBatch, operator: ExpressionWatermark | None = None) -> list[int | None]:
    collector = ListCollector()
    for one in batches:
        (operator or ExpressionWatermark("w")).process_batch(one, None, collector)  # type: ignore[arg-type]
    return [watermark.time for watermark in collector.watermarks]


def test_the_watermark_is_the_least_value_of_rows_next_to_each_other() -> None:
    assert times(batch([5, 3, 9])) == [3]


def test_in_a_long_batch_it_is_the_greatest_of_the_least_values_of_its_chunks() -> None:
    values = np.concatenate([np.full(CHUNK, 10), np.full(CHUNK, 30), np.full(5, 20)])
    assert times(batch(values)) == [30]
    values[CHUNK + 7] = 1
    assert times(batch(values)) == [20]


def test_it_is_what_a_loop_over_the_chunks_gives() -> None:
    random = np.random.default_rng(0)
    for count in (1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3):
        values = np.sort(random.integers(-1000, 1000, count)) - random.integers(0, 50, count)
        chunks = [values[first : first + CHUNK] for first in range(0, count, CHUNK)]
        assert times(batch(values)) == [max(int(chunk.min()) for chunk in chunks)]


def test_rows_without_a_value_say_nothing() -> None:
    assert times(batch([None, 7, None])) == [7]
    assert times(batch([None, None])) == []
    assert times(batch([None] * CHUNK + [4])) == [4]


def test_the_column_is_dropped_unless_it_is_wanted() -> None:
    collector = ListCollector()
    ExpressionWatermark("w").process_batch(batch([1]), None, collector)  # type: ignore[arg-type]
    ExpressionWatermark("w", drop=False).process_batch(batch([1]), None, collector)  # type: ignore[arg-type]
    assert [one.schema.names for one in collector.batches] == [["_timestamp"], ["_timestamp", "w"]]


def test_a_fixed_lateness_is_taken_from_the_least_value() -> None:
    operator = ExpressionWatermark("w", drop=False, lateness=2 * SECOND)
    assert times(batch([5 * SECOND, 3 * SECOND]), operator=operator) == [SECOND]
    assert times(batch([-(2**63)]), operator=operator) == [-(2**63)]
    assert operator.display() == "watermark(w - 2s)"


def test_other_units_and_zones_are_the_same_instants() -> None:
    assert times(batch([3, 2], pa.timestamp("s", "Europe/Berlin"))) == [2 * SECOND]


def test_the_end_and_idleness_are_forwarded_and_other_watermarks_are_not() -> None:
    operator, collector = ExpressionWatermark("w"), ListCollector()
    forwarded = [
        operator.handle_watermark(one, None, collector)  # type: ignore[arg-type]
        for one in (END_OF_TIME, IDLE, Watermark(5))
    ]
    assert forwarded == [END_OF_TIME, IDLE, None]
    assert operator.stateless


def test_what_cannot_be_a_watermark_is_refused() -> None:
    with pytest.raises(PlanError, match="there is no column `x`"):
        times(batch([1]), operator=ExpressionWatermark("x"))
    with pytest.raises(PlanError, match="not a timestamp"):
        times(batch([1], pa.int64()))
    with pytest.raises(PlanError, match="drop"):
        ExpressionWatermark("_timestamp")


def test_no_row_is_late_because_of_the_rows_it_comes_with_and_the_watermark_never_goes_back(
    tmp_path: Path,
) -> None:
    rows = random_rows(300, disorder=40)
    rows = rows.append_column("w", rows.column("_timestamp"))
    p = hr.Pipeline("expression")
    windows = WindowAggregate(holistic(), Tumble(SECOND))
    p.source(hr.MemorySource(rows)).apply(ExpressionWatermark("w")).key_by("k").apply(windows).sink(
        hr.MemorySink("out")
    )
    seen: list[int] = []
    result = run_in_process(
        p,
        tmp_path,
        parallelism=1,
        epoch_rows=150,
        on_progress=lambda progress: seen.append(progress.watermark or 0),
    )
    first = int(rows.slice(0, 150).column("w").cast(pa.int64()).to_numpy().min())
    assert seen[0] == first
    assert seen == sorted(seen)
    assert sum(row["n"] for row in to_rows(result)) + result.late_rows == 300


def test_the_greatest_instant_is_a_value_and_not_a_missing_one() -> None:
    assert times(batch([2**63 - 1])) == times(batch([None, 2**63 - 1]))
    assert times(batch([None] * CHUNK + [2**63 - 1])) == times(batch([2**63 - 1]))


def last_watermark(pipeline: hr.Pipeline, state_dir: Path) -> int | None:
    """The watermark after the first epoch, before the end of the source ends event time."""
    seen: list[int | None] = []
    run_in_process(
        pipeline,
        state_dir,
        parallelism=1,
        epoch_rows=3,
        max_epochs=1,
        on_progress=lambda progress: seen.append(progress.watermark),
    )
    return seen[0]


@pytest.mark.parametrize("stamps", [[10, 20, 10**18], [30, 10, 20], [5, 5, 5]])
def test_python_and_sql_give_the_same_watermark_for_the_same_rows(stamps: list[int], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    stamped = [*stamps, 10**18]  # a row for the next epoch, so that the source has not ended
    file.write_text("".join(f'{{"at": {stamp}}}\n' for stamp in stamped))
    sql = hr.Pipeline.from_sql(
        f"""CREATE TABLE rows (
              at BIGINT,
              ts TIMESTAMP GENERATED ALWAYS AS (to_timestamp_nanos(at)),
              WATERMARK FOR ts AS ts
            ) WITH (connector = 'single_file', path = '{file}');
            SELECT * FROM rows;""",
        preview=lambda _: ("blackhole", {}),
    )
    python = hr.Pipeline("python")
    rows = pa.table({"ts": pa.array(stamped, pa.int64()).cast(TIME)})
    python.source(hr.MemorySource(rows)).watermark("ts").sink("blackhole")
    assert last_watermark(python, tmp_path / "python") == min(stamps)
    assert last_watermark(sql, tmp_path / "sql") == min(stamps)
