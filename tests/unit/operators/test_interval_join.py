"""A join of rows near each other in event time keeps only the rows that can still find a partner."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing.in_process import run_in_process

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS, PER_EPOCH = 1000, 50
LATENESS = 5
"""Seconds that rows are out of order at most."""


def side(name: str, seed: int) -> list[dict[str, Any]]:
    """A row every second, out of order by less than the lateness."""
    chance = random.Random(seed)
    times = [second + chance.uniform(0, LATENESS - 1) for second in range(ROWS)]
    return [
        {"k": chance.randrange(4), name: n, f"{name}_at": START + timedelta(seconds=time)}
        for n, time in enumerate(times)
    ]


LEFT, RIGHT = side("l", 1), side("r", 2)


def expected(earliest: float, latest: float) -> set[tuple[int, int]]:
    """The pairs whose left row is between `earliest` and `latest` seconds later than the right one."""
    return {
        (left["l"], right["r"])
        for left in LEFT
        for right in RIGHT
        if left["k"] == right["k"] and earliest <= (left["l_at"] - right["r_at"]).total_seconds() <= latest
    }


def streams(pipeline: hr.Pipeline) -> tuple[hr.Stream, hr.Stream]:
    left, right = (
        pipeline.source("memory", rows=rows, id=name).watermark(f"{name}_at", lateness=f"{LATENESS}s")
        for name, rows in (("l", LEFT), ("r", RIGHT))
    )
    return left, right


def run(
    build: Callable[[hr.Stream, hr.Stream], hr.Stream], state_dir: Path, **options: Any
) -> tuple[set[tuple[int, int]], list[int]]:
    """The pairs of a join, each of which must come once, and the rows of state after each epoch."""
    pipeline = hr.Pipeline("near")
    build(*streams(pipeline)).sink("memory", name="out")
    sizes: list[int] = []
    result = run_in_process(
        pipeline,
        state_dir,
        epoch_rows=PER_EPOCH,
        clock=ticking(),
        on_progress=lambda progress: sizes.append(progress.state_rows),
        **options,
    )
    pairs = [(row["l"], row["r"]) for row in result.rows["out"].to_pylist()]
    assert len(pairs) == len(set(pairs))
    return set(pairs), sizes


def ticking() -> Callable[[], float]:
    """A clock that goes on whenever it is read, as time does between epochs."""
    return map(float, itertools.count(1_800_000_000 + next(_RUNS) * 1_000)).__next__


_RUNS = itertools.count()


def within(left: hr.Stream, right: hr.Stream) -> hr.Stream:
    return left.join(right, on="k", within="10s").select("l", "r")


BETWEEN = """
SELECT l, r FROM (SELECT k, l, row_time() AS a FROM input) AS x
JOIN (SELECT k, r, row_time() AS b FROM other) AS y
ON x.k = y.k AND a BETWEEN b - INTERVAL '3 seconds' AND b + INTERVAL '20 seconds'
"""
COMPARED = """
SELECT l, r FROM (SELECT k, l, row_time() AS a FROM input) AS x
JOIN (SELECT k, r, row_time() AS b FROM other) AS y
ON x.k = y.k AND a + INTERVAL '1 second' >= b AND b > a - INTERVAL '30 seconds'
"""


@pytest.mark.parametrize(
    ("build", "bounds"),
    [
        (within, (-10, 10)),
        (lambda left, right: left.sql(BETWEEN, other=right), (-3, 20)),
        (lambda left, right: left.sql(COMPARED, other=right), (-1, 30)),
    ],
    ids=["within", "between", "compared"],
)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_pairs_are_those_of_all_rows_and_state_stays_small(
    tmp_path: Path,
    build: Callable[[hr.Stream, hr.Stream], hr.Stream],
    bounds: tuple[float, float],
    parallelism: int,
) -> None:
    pairs, sizes = run(build, tmp_path, parallelism=parallelism)
    assert pairs == expected(*bounds)
    assert len(sizes) >= 2 * ROWS / PER_EPOCH - 1
    # Without the bounds every row of both sides would be there in the end.
    assert max(sizes) < ROWS / 2


def test_it_goes_on_after_a_stop_with_another_parallelism(tmp_path: Path) -> None:
    pairs: set[tuple[int, int]] = set()
    for parallelism, epochs in ((1, 7), (4, 7), (2, 7), (1, None)):
        more, sizes = run(within, tmp_path, parallelism=parallelism, max_epochs=epochs)
        assert not pairs & more
        assert max(sizes) < ROWS / 2
        pairs |= more
    assert pairs == expected(-10, 10)


def test_tables_of_sql_are_joined_by_their_event_time_columns(tmp_path: Path) -> None:
    for name, rows in (("l", LEFT), ("r", RIGHT)):
        lines = (
            f'{{"k": {row["k"]}, "{name}": {row[name]}, "{name}_at": "{row[f"{name}_at"].isoformat()}"}}\n'
            for row in rows
        )
        (tmp_path / f"{name}.json").write_text("".join(lines))
    tables = "".join(
        f"""CREATE TABLE {name} (k BIGINT, {name} BIGINT, {name}_at TIMESTAMP,
            WATERMARK FOR {name}_at AS {name}_at - INTERVAL '{LATENESS} seconds')
        WITH (connector = 'single_file', path = '{tmp_path / name}.json', format = 'json');"""
        for name in ("l", "r")
    )
    query = """SELECT l.l, r.r FROM l JOIN r ON l.k = r.k
        AND l.l_at BETWEEN r.r_at - INTERVAL '10 seconds' AND r.r_at + INTERVAL '10 seconds'"""
    pipeline = hr.Pipeline.from_sql(tables + query, preview=lambda _: ("memory", {"name": "out"}))
    sizes: list[int] = []
    result = run_in_process(
        pipeline,
        tmp_path / "state",
        epoch_rows=PER_EPOCH,
        clock=ticking(),
        on_progress=lambda progress: sizes.append(progress.state_rows),
    )
    assert {(row["l"], row["r"]) for row in result.rows["out"].to_pylist()} == expected(-10, 10)
    assert max(sizes) < ROWS / 2


@pytest.mark.parametrize(
    "condition",
    [
        "a >= b",  # no upper bound
        "a BETWEEN b - INTERVAL '1 month' AND b + INTERVAL '1 month'",  # of no fixed length
        "c BETWEEN b - INTERVAL '1 second' AND b + INTERVAL '1 second'",  # not event time
    ],
)
def test_conditions_that_do_not_bound_event_time_keep_all_rows(condition: str) -> None:
    pipeline = hr.Pipeline()
    left, right = streams(pipeline)
    query = f"""SELECT l, r FROM (SELECT k, l, row_time() AS a, l_at AS c FROM input) AS x
        JOIN (SELECT k, r, row_time() AS b FROM other) AS y ON x.k = y.k AND {condition}"""
    left.sql(query, other=right).sink("blackhole")
    join = next(node for node in pipeline.plan().nodes if node.id.endswith(".join"))
    assert [table.name for table in join.tables] == ["left", "right"]
