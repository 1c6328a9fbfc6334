"""Running totals stay; joins of streams forget; `updating_ttl` says otherwise for both."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.base.spans import Source
from headrace.cli.main import main
from headrace.model.plan import Plan
from headrace.operators.changes import EXPIRES
from headrace.testing.in_process import ManualClock, run_in_process

TABLES = """
CREATE TABLE a (counter BIGINT) WITH (connector = 'impulse', message_count = 40);
CREATE TABLE b (counter BIGINT) WITH (connector = 'impulse', message_count = 40);
"""
TOTALS = "SELECT counter % 2 AS k, count(*) AS n FROM a GROUP BY 1;"
TOP = "SELECT counter FROM a ORDER BY counter LIMIT 3;"
DISTINCT = "SELECT DISTINCT counter % 2 AS k FROM a;"
JOIN = "SELECT a.counter FROM a JOIN b ON a.counter = b.counter;"
OUTER_JOIN = "SELECT a.counter FROM a LEFT JOIN b ON a.counter = b.counter;"


def pipeline(sql: str) -> hr.Pipeline:
    source = Source("q.sql", TABLES + sql)
    return hr.Pipeline.from_sql([source], name="test", preview=lambda _: ("memory", {"name": "rows"}))


def expiry(plan: Plan) -> list[str]:
    return [value for node in plan.nodes for name, value in node.config if name == EXPIRES]


def standing(sql: str, state: Path) -> list[tuple[object, ...]]:
    clock = ManualClock()
    result = run_in_process(
        pipeline(sql),
        state,
        epoch_rows=10,
        clock=clock,
        on_progress=lambda _: clock.advance(timedelta(days=400).total_seconds()),
    )
    rows: list[tuple[object, ...]] = []
    for row in result.rows["rows"].to_pylist():
        values = tuple(value for name, value in row.items() if not name.startswith("_"))
        (rows.remove if row["_retract"] else rows.append)(values)
    return sorted(rows, key=str)


@pytest.mark.parametrize(
    ("sql", "rows"), [(TOTALS, [(0, 20), (1, 20)]), (TOP, [(0,), (1,), (2,)]), (DISTINCT, [(0,), (1,)])]
)
def test_results_stay_however_much_time_passes(tmp_path: Path, sql: str, rows: list[tuple[int, ...]]) -> None:
    assert standing(sql, tmp_path) == rows


def test_a_ttl_that_is_set_removes_what_is_older(tmp_path: Path) -> None:
    assert standing("SET updating_ttl = INTERVAL '1 day';" + TOTALS, tmp_path) == [(0, 5), (1, 5)]


@pytest.mark.parametrize("sql", [TOTALS, TOP, DISTINCT])
def test_results_have_no_ttl_unless_one_is_set(sql: str) -> None:
    assert expiry(pipeline(sql).plan()) == []
    assert expiry(pipeline("SET updating_ttl = INTERVAL '2 hours';" + sql).plan()) == ["retracted after 2h"]


@pytest.mark.parametrize(("sql", "expires"), [(JOIN, "forgotten"), (OUTER_JOIN, "retracted")])
def test_joins_of_streams_expire_after_a_day_unless_told_otherwise(sql: str, expires: str) -> None:
    assert expiry(pipeline(sql).plan()) == [f"{expires} after 24h"]
    assert expiry(pipeline("SET updating_ttl = INTERVAL '1 hour';" + sql).plan()) == [f"{expires} after 1h"]


@pytest.mark.parametrize("never", ["0", "'none'", "'0'", "INTERVAL '0 seconds'"])
def test_zero_and_none_keep_everything(never: str) -> None:
    assert expiry(pipeline(f"SET updating_ttl = {never};" + JOIN).plan()) == []


def test_check_names_what_expires_and_the_line_that_changes_it(tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text(TABLES + JOIN)
    note = CliRunner().invoke(main, ["check", str(file)]).stderr
    assert "rows in `query.join` are forgotten after 24h" in note
    assert "SET updating_ttl = 'none'" in note
    file.write_text(TABLES + TOTALS)
    assert CliRunner().invoke(main, ["check", str(file)]).stderr == ""
