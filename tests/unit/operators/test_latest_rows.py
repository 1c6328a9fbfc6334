"""Upserts become changes: whatever the epochs are, what stands at the end is the last row of each key."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.model.operator import ArrowOperator, Collector, OperatorContext
from headrace.operators.latest_rows import LatestRows
from headrace.testing.in_process import run_in_process

SCHEMA = pa.schema(
    {"k": pa.int64(), "v": pa.string(), "_timestamp": pa.timestamp("ns"), "_retract": pa.bool_()}
)


class Deletes(ArrowOperator):
    """Takes rows without a value as those that delete."""

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        gone = batch.column("v").is_null()
        collector.collect(batch.append_column("_retract", gone).select(SCHEMA.names).cast(SCHEMA))


def pipeline(upserts: list[tuple[int, str | None]]) -> hr.Pipeline:
    flow = hr.Pipeline("upserts")
    rows = [{"k": k, "v": v} for k, v in upserts]
    source = flow.source("memory", rows=rows)
    deletes = source.apply(Deletes(), id="deletes").key_by("k")
    deletes.apply(LatestRows(SCHEMA, ["k"]), id="latest").sink("memory", name="out")
    return flow


def changes(result: hr.RunResult) -> list[tuple[int, str, bool]]:
    return [(row["k"], row["v"], row["_retract"]) for row in result.rows["out"].to_pylist()]


@pytest.mark.parametrize("epoch_rows", [1, 3, 100])
@pytest.mark.parametrize("seed", range(3))
def test_what_stands_is_the_last_row_of_each_key(tmp_path: Path, epoch_rows: int, seed: int) -> None:
    rng = random.Random(seed)
    upserts = [(rng.randrange(4), rng.choice(["a", "b", "c", None])) for _ in range(40)]
    expected: dict[int, str] = {}
    standing: list[tuple[int, str]] = []
    for k, v in upserts:
        expected.pop(k, None)
        if v is not None:
            expected[k] = v
    for k, v, retracted in changes(
        run_in_process(pipeline(upserts), tmp_path, epoch_rows=epoch_rows, parallelism=2)
    ):
        if retracted:
            standing.remove((k, v))  # only what stands is taken back
        else:
            standing.append((k, v))
    assert sorted(standing) == sorted(expected.items())


def test_a_row_that_is_as_it_was_and_a_key_that_is_not_there_change_nothing(tmp_path: Path) -> None:
    upserts: list[tuple[int, str | None]] = [(1, "a"), (1, "a"), (2, None), (1, "b"), (1, None), (1, None)]
    assert changes(run_in_process(pipeline(upserts), tmp_path, epoch_rows=1, parallelism=1)) == [
        (1, "a", False),
        (1, "a", True),
        (1, "b", False),
        (1, "b", True),
    ]


def test_of_rows_of_one_key_in_an_epoch_the_last_counts(tmp_path: Path) -> None:
    upserts: list[tuple[int, str | None]] = [(1, "a"), (1, None), (1, "c"), (2, "x"), (2, None)]
    assert changes(run_in_process(pipeline(upserts), tmp_path, epoch_rows=100, parallelism=1)) == [
        (1, "c", False)
    ]
