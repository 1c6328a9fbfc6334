"""Outer interval joins and as-of joins give the rows of a batch database, and their state stays small."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

import headrace as hr
from headrace.state import inspect
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process

START = datetime(2026, 1, 1)  # noqa: DTZ001 - as JSON has it
ROWS, PER_EPOCH, LATENESS = 240, 30, 5

Pairs = Counter[tuple[int | None, int | None]]


def side(name: str, seed: int) -> list[dict[str, Any]]:
    """A row every second, out of order by less than the lateness; times of one side are different."""
    chance = random.Random(seed)
    return [
        {
            "k": chance.choice([0, 1, 2, 3, None]),
            name: n,
            f"{name}_at": (START + timedelta(seconds=n + chance.uniform(0, LATENESS - 1))).isoformat(),
        }
        for n in range(ROWS)
    ]


LEFT, RIGHT = side("l", 1), side("r", 2)
TABLES = "".join(
    f"""CREATE TABLE {name} (k BIGINT, {name} BIGINT, {name}_at TIMESTAMP NOT NULL,
        WATERMARK FOR {name}_at AS {name}_at - INTERVAL '{LATENESS} seconds')
    WITH (connector = 'single_file', path = '{{folder}}/{name}.json', format = 'json');"""
    for name in ("l", "r")
)
NEAR = "l.k = r.k AND l_at BETWEEN r_at - INTERVAL '3 seconds' AND r_at + INTERVAL '8 seconds'"
QUERIES = {
    "interval left": f"SELECT l, r FROM l LEFT JOIN r ON {NEAR}",
    "interval right": f"SELECT l, r FROM l RIGHT JOIN r ON {NEAR}",
    "interval full": f"SELECT l, r FROM l FULL JOIN r ON {NEAR}",
    "interval of the past": "SELECT l, r FROM l FULL JOIN r ON l.k = r.k "
    "AND l_at > r_at + INTERVAL '2 seconds' AND r_at >= l_at - INTERVAL '4 seconds'",
    "interval without equality": "SELECT l, r FROM l FULL JOIN r ON l_at >= r_at "
    "AND l_at <= r_at + INTERVAL '1 second' AND l % 3 = r % 3 + 0 * l",
    "as of": "SELECT l, r FROM l ASOF JOIN r ON l.k = r.k AND l_at >= r_at",
    "as of left": "SELECT l, r FROM l ASOF LEFT JOIN r ON l.k = r.k AND l_at > r_at",
    "as of ahead": "SELECT l, r FROM l ASOF LEFT JOIN r ON l.k = r.k AND l_at <= r_at",
    "as of ahead, strictly": "SELECT l, r FROM l ASOF JOIN r ON l.k = r.k AND l_at < r_at",
    "as of some time ago": "SELECT l, r FROM l ASOF LEFT JOIN r ON l.k = r.k "
    "AND l_at >= r_at + INTERVAL '7 seconds'",
    "as of a time to come": "SELECT l, r FROM l ASOF LEFT JOIN r ON l.k = r.k "
    "AND l_at >= r_at - INTERVAL '7 seconds'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sides")
    for name, rows in (("l", LEFT), ("r", RIGHT)):
        (path / f"{name}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def expected(query: str, folder: Path) -> Pairs:
    """What DuckDB gives for all rows at once."""
    with duckdb.connect() as database:
        for name in ("l", "r"):
            columns = f"{{k: 'BIGINT', {name}: 'BIGINT', {name}_at: 'TIMESTAMP'}}"
            path = folder / f"{name}.json"
            database.execute(f"CREATE TABLE {name} AS FROM read_json('{path}', columns = {columns})")
        return Counter(database.sql(query).fetchall())


def pipeline_of(query: str, folder: Path) -> hr.Pipeline:
    text = TABLES.format(folder=folder) + query
    return hr.Pipeline.from_sql(text, preview=lambda _: ("memory", {"name": "out"}))


def live_rows(directory: Path) -> int:
    """The rows of all tables; what was removed stays in the files until these are merged."""
    storage = open_storage(str(directory))
    return sum(
        inspect.table_rows(storage, operator.operator_id, table.name).num_rows
        for operator in inspect.show(storage).operators
        for table in operator.tables
    )


def rows_of(result: hr.RunResult) -> Pairs:
    table = result.rows["out"]
    assert "_retract" not in table.schema.names
    return Counter((row["l"], row["r"]) for row in table.to_pylist())


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_are_those_of_a_batch_database_and_state_stays_small(
    tmp_path: Path, folder: Path, query: str, parallelism: int
) -> None:
    sizes: list[int] = []
    result = run_in_process(
        pipeline_of(query, folder),
        tmp_path,
        parallelism=parallelism,
        epoch_rows=PER_EPOCH,
        on_progress=lambda _: sizes.append(live_rows(tmp_path)),
    )
    assert rows_of(result) == expected(query, folder)
    assert result.late_rows == 0
    assert len(sizes) >= 2 * ROWS / PER_EPOCH - 1
    # If nothing were removed, every row of both sides would be there in the end.
    assert 0 < max(sizes) < 0.25 * 2 * ROWS


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_run_that_is_killed_and_rescaled_gives_the_same_rows(
    tmp_path: Path, folder: Path, query: str
) -> None:
    pipeline, rows = pipeline_of(query, folder), Pairs()
    for parallelism, epochs in ((1, 3), (4, 3), (2, 3)):
        rows += rows_of(
            run_in_process(
                pipeline, tmp_path, parallelism=parallelism, epoch_rows=PER_EPOCH, max_epochs=epochs
            )
        )
    steps = itertools.count()

    def crash(step: str, _: int) -> None:
        if step == "tasks_done" and next(steps) == 2:
            raise CrashError

    with pytest.raises(CrashError):
        run_in_process(pipeline, tmp_path, parallelism=3, epoch_rows=PER_EPOCH, on_step=crash)
    # What the killed run had committed is given with the rows of the last one.
    rows += rows_of(run_in_process(pipeline, tmp_path, parallelism=1, epoch_rows=PER_EPOCH))
    assert rows == expected(query, folder)
