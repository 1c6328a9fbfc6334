"""What the tests of operators over windows share: rows, aggregations, pipelines and ways to run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.model.operator import ArrowOperator
from headrace.operators.aggregation import Aggregation
from headrace.testing.in_process import run_in_process

SECOND = 1_000_000_000
TIME = pa.timestamp("ns")
SCHEMA = pa.schema([("_timestamp", TIME), ("k", pa.int64()), ("v", pa.int64())])

Build = Callable[[], hr.Pipeline]


def table(times: Sequence[float], k: Sequence[Any] | None = None, v: Sequence[Any] | None = None) -> pa.Table:
    """Rows at instants given in seconds."""
    count = len(times)
    return pa.table(
        {
            "_timestamp": pa.array([int(t * SECOND) for t in times], pa.int64()).cast(TIME),
            "k": pa.array([0] * count if k is None else k, pa.int64()),
            "v": pa.array(list(range(count)) if v is None else v, pa.int64()),
        },
        schema=SCHEMA,
    )


def random_rows(
    count: int, *, seed: int = 0, span: int = 300, disorder: int = 8, start: int = -100
) -> pa.Table:
    """Rows over `span` seconds from `start`, up to `disorder` seconds out of order, with nulls among them."""
    random = np.random.default_rng(seed)
    ordered = np.sort(random.uniform(start, start + span, count))
    # A few instants fall on whole seconds, where windows meet.
    ordered = np.where(random.random(count) < 0.3, np.floor(ordered), ordered)
    times = np.round((ordered - random.uniform(0, disorder, count)) * SECOND).astype(np.int64)
    whole = random.random(count) < 0.3
    times = np.where(whole, times // SECOND * SECOND, times)
    return pa.table(
        {
            "_timestamp": pa.array(times).cast(TIME),
            "k": pa.array(random.integers(0, 6, count), mask=random.random(count) < 0.1),
            "v": pa.array(random.integers(-50, 50, count), mask=random.random(count) < 0.1),
        },
        schema=SCHEMA,
    )


def in_parts(keys: Sequence[str] = ("k",), schema: pa.Schema = SCHEMA) -> Aggregation:
    """count(*), sum, min and avg of v."""
    return Aggregation(
        schema=schema,
        keys=tuple(keys),
        complete=(
            'count(*) AS "n"',
            'sum("v") AS "s"',
            'min("v") AS "least"',
            'avg("v") AS "mean"',
        ),
        partial=(
            'count(*) AS "p0"',
            'sum("v") AS "p1"',
            'min("v") AS "p2"',
            'count("v") AS "p3"',
        ),
        merge=(
            'sum("p0") AS "p0"',
            'sum("p1") AS "p1"',
            'min("p2") AS "p2"',
            'sum("p3") AS "p3"',
        ),
        final=(
            '"p0" AS "n"',
            '"p1" AS "s"',
            '"p2" AS "least"',
            'CASE WHEN "p3" > 0 THEN CAST("p1" AS DOUBLE) / "p3" END AS "mean"',
        ),
    )


def holistic(keys: Sequence[str] = ("k",), schema: pa.Schema = SCHEMA) -> Aggregation:
    """What can only be computed from all rows: the median, and all values in order of time."""
    return Aggregation(
        schema=schema,
        keys=tuple(keys),
        complete=('median("v") AS "middle"', 'array_agg("v") AS "all"', 'count(*) AS "n"'),
    )


def pipeline(
    rows: pa.Table | list[pa.Table],
    *operators: ArrowOperator,
    keys: Sequence[str] = ("k",),
    lateness: str = "10s",
    before: Sequence[ArrowOperator] = (),
) -> hr.Pipeline:
    """source → watermark → `before` → shuffled by `keys` → operators → sink `out`."""
    p = hr.Pipeline("windows")
    source = hr.MemorySource(lanes=rows) if isinstance(rows, list) else hr.MemorySource(rows)
    stream = p.source(source).watermark(lateness=lateness)
    for operator in before:
        stream = stream.apply(operator)
    stream = stream.key_by(*keys)
    for operator in operators:
        stream = stream.apply(operator)
    stream.sink(hr.MemorySink("out"))
    return p


def multiset(*results: hr.RunResult) -> Counter[Any]:
    return Counter(row for result in results for row in map(repr, to_rows(result)))


def to_rows(result: hr.RunResult) -> list[dict[str, Any]]:
    """The rows of the sink, instants as integers."""
    return plain(result.rows["out"]) if "out" in result.rows else []


def plain(rows: pa.Table) -> list[dict[str, Any]]:
    columns = [_numbers(column.combine_chunks()) for column in rows.columns]
    made: list[dict[str, Any]] = pa.table(columns, names=rows.schema.names).to_pylist()
    return made


def _numbers(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_struct(column.type):
        fields = [_numbers(one) for one in column.flatten()]
        names = [one.name for one in column.type]
        return pa.StructArray.from_arrays(fields, names, mask=column.is_null())
    return column


def every_way(build: Build, tmp_path: Path, *, epoch_rows: int = 41) -> hr.RunResult:
    """Run whole, in small epochs, and stopped and resumed at another parallelism: the rows must be equal."""
    whole = run_in_process(build(), tmp_path / "whole", parallelism=1)
    small = run_in_process(build(), tmp_path / "small", parallelism=2, epoch_rows=epoch_rows, seed=1)
    stopped = run_in_process(
        build(), tmp_path / "cut", parallelism=2, epoch_rows=epoch_rows - 8, max_epochs=4, seed=2
    )
    resumed = run_in_process(build(), tmp_path / "cut", parallelism=3, epoch_rows=epoch_rows + 5, seed=3)
    assert [one.late_rows for one in (whole, small, stopped, resumed)] == [0, 0, 0, 0]
    assert small.epochs > 3
    assert stopped.reason == "max_epochs"
    assert multiset(small) == multiset(whole)
    assert multiset(stopped, resumed) == multiset(whole)
    return whole
