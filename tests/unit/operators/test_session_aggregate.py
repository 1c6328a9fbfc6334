from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import PlanError
from headrace.operators import session_aggregate
from headrace.operators.aggregation import Aggregation
from headrace.operators.session_aggregate import PartialSession, SessionAggregate
from headrace.testing.in_process import run_in_process
from tests.unit.operators.windowing import (
    SCHEMA,
    SECOND,
    TIME,
    every_way,
    holistic,
    in_parts,
    pipeline,
    random_rows,
    table,
    to_rows,
)

GAP = 5 * SECOND


def flow(
    rows: pa.Table | list[pa.Table], aggregation: Aggregation, gap: int = GAP, *, lateness: str = "20s"
) -> hr.Pipeline:
    return pipeline(
        rows,
        SessionAggregate(aggregation, gap, window_column="w"),
        keys=aggregation.keys,
        before=[PartialSession(aggregation, gap)] if aggregation.in_parts else [],
        lateness=lateness,
    )


def expected(rows: pa.Table, items: str, *, gap: int = GAP, by: str = "k") -> list[dict[str, Any]]:
    """What DuckDB makes of the rows with the sessions they are in."""
    stamped = rows.set_column(0, "t", rows.column("_timestamp").cast(pa.int64()))  # noqa: F841 - by its name
    partition, keys = (f"PARTITION BY {by}", f"{by}, ") if by else ("", "")
    found = duckdb.sql(
        f"""
        WITH marked AS (
            SELECT *, coalesce(t - lag(t) OVER ({partition} ORDER BY t) >= {gap}, true) AS new FROM stamped
        ), numbered AS (
            SELECT *, sum(new::INT) OVER ({partition} ORDER BY t ROWS UNBOUNDED PRECEDING) AS session
            FROM marked
        )
        SELECT {keys}{items}, min(t) AS first, max(t) AS last FROM numbered GROUP BY {keys}session
        """
    )
    assert found is not None
    made: list[dict[str, Any]] = []
    for row in found.to_arrow_table().to_pylist():
        first, end = row.pop("first"), row.pop("last") + gap
        made.append({**row, "w": {"start": first, "end": end}, "_timestamp": end - 1})
    return made


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    return sorted(map(repr, found)) == sorted(map(repr, wanted))


def shown(result: hr.RunResult) -> list[tuple[float, float, int]]:
    """Each session as (first row, end, count) in seconds."""
    return [(row["w"]["start"] / SECOND, row["w"]["end"] / SECOND, row["n"]) for row in to_rows(result)]


PARTS = "count(*)::BIGINT AS n, sum(v)::BIGINT AS s, min(v) AS least, avg(v) AS mean"


@pytest.mark.parametrize("gap", [GAP, SECOND, 60 * SECOND], ids=["5s", "1s", "60s"])
def test_parts_give_what_duckdb_gives_however_they_come(gap: int, tmp_path: Path) -> None:
    rows = random_rows(400)
    whole = every_way(lambda: flow(rows, in_parts(), gap), tmp_path)
    assert same(to_rows(whole), expected(rows, PARTS, gap=gap))


@pytest.mark.parametrize("gap", [GAP, SECOND, 60 * SECOND], ids=["5s", "1s", "60s"])
def test_raw_rows_give_what_duckdb_gives_however_they_come(gap: int, tmp_path: Path) -> None:
    rows = random_rows(400, seed=1)
    whole = every_way(lambda: flow(rows, holistic(), gap), tmp_path)
    # Values of one instant stay in the order of the source.
    items = 'median(v) AS middle, list(v ORDER BY t, place) AS "all", count(*) AS n'
    placed = rows.append_column("place", pa.array(range(rows.num_rows)))
    assert same(to_rows(whole), expected(placed, items, gap=gap))


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_without_keys_all_rows_are_one_group(make: Any, tmp_path: Path) -> None:
    rows = random_rows(120, seed=2, span=600)
    whole = every_way(lambda: flow(rows, make(())), tmp_path, epoch_rows=21)
    found = [{name: row[name] for name in ("n", "w", "_timestamp")} for row in to_rows(whole)]
    assert len(found) > 5
    assert same(found, expected(rows, "count(*) AS n", by=""))


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_many_keys_with_many_sessions_each_keep_them_apart(make: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    times = np.sort(random.integers(0, 2000 * SECOND, 3000)) - random.integers(0, 8 * SECOND, 3000)
    rows = pa.table(
        {"_timestamp": pa.array(times).cast(TIME), "k": random.integers(0, 300, 3000), "v": range(3000)}
    )
    whole = every_way(lambda: flow(rows, make(), 60 * SECOND), tmp_path, epoch_rows=301)
    found = [{name: row[name] for name in ("k", "n", "w", "_timestamp")} for row in to_rows(whole)]
    assert same(found, expected(rows, "count(*) AS n", gap=60 * SECOND))


def test_lanes_that_overlap_in_time_share_sessions(tmp_path: Path) -> None:
    rows = [random_rows(150, seed=4), random_rows(200, seed=5, span=200), random_rows(10, seed=6)]
    whole = every_way(lambda: flow(rows, in_parts()), tmp_path)
    assert same(to_rows(whole), expected(pa.concat_tables(rows), PARTS))


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_without_rows_there_are_no_sessions(make: Any, tmp_path: Path) -> None:
    for keys in ((), ("k",)):
        result = run_in_process(flow(table([]), make(keys)), tmp_path / str(len(keys)))
        assert (result.reason, to_rows(result)) == ("finished", [])


@pytest.mark.parametrize("make", [in_parts, holistic])
@pytest.mark.parametrize("epoch_rows", [1, 100])
def test_a_row_exactly_a_gap_after_the_last_starts_a_new_session(
    make: Any, epoch_rows: int, tmp_path: Path
) -> None:
    build = flow(table([-7, -2.000000001, 3, 8]), make(), lateness="0s")
    result = run_in_process(build, tmp_path, parallelism=1, epoch_rows=epoch_rows)
    assert shown(result) == [(-7, pytest.approx(3), 2), (3, 8, 1), (8, 13, 1)]
    assert result.late_rows == 0


@pytest.mark.parametrize("make", [in_parts, holistic])
@pytest.mark.parametrize("epoch_rows", [1, 2, 100])
def test_a_row_between_two_sessions_makes_them_one(make: Any, epoch_rows: int, tmp_path: Path) -> None:
    build = flow(table([0, 8, 16, 4, 30, 12]), make(), lateness="40s")
    result = run_in_process(build, tmp_path, parallelism=1, epoch_rows=epoch_rows)
    assert shown(result) == [(0, 21, 5), (30, 35, 1)]


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_a_session_closes_when_the_watermark_has_come_to_its_end(make: Any, tmp_path: Path) -> None:
    build = flow(table([0, 4.9, 5, 1000]), make(), lateness="0s")
    first = run_in_process(build, tmp_path, parallelism=1, epoch_rows=1, max_epochs=3)
    assert shown(first) == []
    rest = run_in_process(build, tmp_path, parallelism=1, epoch_rows=1)
    assert shown(rest) == [(0, 10, 3), (1000, 1005, 1)]
    at_end = flow(table([0, 5, 1000]), make(), lateness="0s")
    closed = run_in_process(at_end, tmp_path / "end", parallelism=1, epoch_rows=1, max_epochs=2)
    assert shown(closed) == [(0, 5, 1)]


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_rows_behind_the_watermark_count_while_their_session_is_open(make: Any, tmp_path: Path) -> None:
    times = [0, 20, 100, 97, 93, 90, 50, 99]
    # One row per epoch. At watermark 100 the session of 100 is open: 97 joins it, then 93 and 90; not 50.
    result = run_in_process(flow(table(times), make(), lateness="0s"), tmp_path, parallelism=1, epoch_rows=1)
    assert shown(result) == [(0, 5, 1), (20, 25, 1), (90, 105, 5)]
    assert result.late_rows == 1


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_late_rows_do_not_depend_on_their_order_in_an_epoch(make: Any, tmp_path: Path) -> None:
    found = []
    for number, late in enumerate(([97, 93, 50, 51], [50, 93, 51, 97], [51, 50, 93, 97])):
        rows = table([0, 20, 60, 100, *late])
        build = flow(rows, make(), lateness="0s")
        result = run_in_process(build, tmp_path / str(number), parallelism=2, epoch_rows=4)
        found.append((shown(result), result.late_rows))
    assert found == [([(0, 5, 1), (20, 25, 1), (60, 65, 1), (93, 105, 3)], 2)] * 3


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_late_rows_are_emitted_where_they_are_asked_for(make: Any, tmp_path: Path) -> None:
    origin = pa.struct([("note", pa.string())])
    times: Sequence[float] = [100, 1, 98, 2]
    rows = table(times).append_column(
        pa.field("origin", origin), pa.array([{"note": f"at {t}"} for t in times], origin)
    )
    aggregation = make(schema=SCHEMA.append(pa.field("origin", origin)))
    operator = SessionAggregate(aggregation, GAP, window_column="w", late_column="origin")
    result = run_in_process(pipeline(rows, operator, lateness="0s"), tmp_path, parallelism=1, epoch_rows=1)
    found = to_rows(result)
    late = [row for row in found if row["origin"] is not None]
    assert [(row["origin"]["note"], row["_timestamp"]) for row in late] == [
        ("at 1", SECOND),
        ("at 2", 2 * SECOND),
    ]
    assert all(row[name] is None for row in late for name in row if name not in {"origin", "_timestamp"})
    assert [(row["n"], row["w"]["start"]) for row in found if row["origin"] is None] == [(2, 98 * SECOND)]
    assert result.late_rows == 2


def test_a_late_column_that_rows_do_not_carry_is_refused() -> None:
    with pytest.raises(PlanError, match="origin"):
        SessionAggregate(holistic(), GAP, late_column="origin")


def test_a_gap_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="greater than zero"):
        SessionAggregate(in_parts(), 0)


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_keys_of_several_columns_and_types_have_sessions_of_their_own(make: Any, tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    structs = pa.array([{"a": 1, "b": None}, None, {"a": 1, "b": "x"}] * 20, kind)
    lists = pa.array([[1.0, None], None, [-0.0]] * 20, pa.list_(pa.float64()))
    rows = pa.table(
        {
            "_timestamp": pa.array(np.arange(60) * SECOND).cast(TIME),
            "struct": structs,
            "list": lists,
            "v": pa.array(range(60)),
        }
    )
    aggregation = make(("struct", "list"), rows.schema)
    whole = every_way(lambda: flow(rows, aggregation, lateness="1s"), tmp_path, epoch_rows=14)
    assert sorted(row["n"] for row in to_rows(whole)) == [20, 20, 20]


def test_a_task_that_gathers_much_emits_early_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_aggregate, "GATHERED_ROWS", 16)
    rows = random_rows(500, seed=11)
    chunks = pa.Table.from_batches(rows.to_batches(max_chunksize=7))
    whole = run_in_process(flow(chunks, in_parts()), tmp_path)
    assert same(to_rows(whole), expected(rows, PARTS))


def test_state_is_empty_when_all_sessions_have_closed(tmp_path: Path) -> None:
    for make in (in_parts, holistic):
        rows = random_rows(300, seed=12)
        result = run_in_process(flow(rows, make()), tmp_path / make.__name__, epoch_rows=40)
        assert result.state_bytes == 0


def test_a_plan_shows_the_gap_and_the_keys() -> None:
    assert SessionAggregate(in_parts(), GAP).display() == "session(5s) by (k)"
    assert PartialSession(in_parts(()), 90 * SECOND).display() == "partial session(1m 30s)"


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_rows_that_are_centuries_apart_are_in_different_sessions(make: Any, tmp_path: Path) -> None:
    result = run_in_process(flow(table([-9.2e9, 9.2e9]), make()), tmp_path)
    assert [row["n"] for row in to_rows(result)] == [1, 1]
