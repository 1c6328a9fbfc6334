from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.base.errors import ExpressionError, PlanError
from headrace.model.fragments import Fragment
from headrace.operators.project import Project
from headrace.testing.in_process import run_in_process
from tests.unit.operators.windowing import SCHEMA, every_way, random_rows, table, to_rows


def flow(sql: str, rows: object) -> hr.Pipeline:
    p = hr.Pipeline("project")
    p.source(hr.MemorySource(rows)).apply(Project(Fragment(sql, {"input": SCHEMA}))).sink(
        hr.MemorySink("out")
    )
    return p


SQL = "SELECT _timestamp, k * 2 AS double, upper(CAST(v AS TEXT)) AS text FROM input WHERE v > 0"


def test_columns_are_computed_and_rows_left_out_however_they_come(tmp_path: Path) -> None:
    rows = random_rows(300)
    whole = every_way(lambda: flow(SQL, rows), tmp_path)
    kept = [row for row in rows.to_pylist() if row["v"] is not None and row["v"] > 0]
    assert [(row["double"], row["text"]) for row in to_rows(whole)] == [
        (None if row["k"] is None else 2 * row["k"], str(row["v"])) for row in kept
    ]


def test_the_result_has_the_declared_types_when_every_row_is_left_out(tmp_path: Path) -> None:
    operator = Project(Fragment(SQL, {"input": SCHEMA}))
    assert operator.output.names == ["_timestamp", "double", "text"]
    result = run_in_process(flow(SQL, table([1, 2], v=[-1, None])), tmp_path)
    assert to_rows(result) == []


def test_a_row_that_cannot_be_computed_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ExpressionError, match=r"(?i)division by zero"):
        run_in_process(flow("SELECT _timestamp, 1 / v AS x FROM input", table([1], v=[0])), tmp_path)


def test_a_fragment_over_other_tables_is_refused() -> None:
    with pytest.raises(PlanError, match="left"):
        Project(Fragment('SELECT 1 AS one FROM "left"', {"left": SCHEMA}))


def test_a_plan_shows_the_query() -> None:
    assert Project(Fragment(SQL, {"input": SCHEMA})).details() == {"sql": SQL}


def test_it_runs_in_the_task_of_its_source() -> None:
    assert Project(Fragment(SQL, {"input": SCHEMA})).stateless
