"""A changed program is compared with the state of its pipeline before anything is changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.server.changes import compare_program
from headrace.server.program import StoredProgram
from headrace.testing.in_process import run_in_process

TABLES = """
CREATE TABLE sales (shop TEXT, amount BIGINT)
  WITH (connector = 'single_file', path = '{file}', type = 'source', format = 'json');
"""
TOTALS = "CREATE VIEW totals AS SELECT shop, sum(amount) AS total FROM sales GROUP BY shop;"
SHOWN = "SELECT * FROM totals;"


@pytest.fixture
def sales(tmp_path: Path) -> str:
    """The table of a file with some sales."""
    file = tmp_path / "sales.json"
    file.write_text("".join(f"{json.dumps({'shop': shop, 'amount': 1})}\n" for shop in "ababc"))
    return TABLES.format(file=file)


def compared(query: str, state: Path) -> dict[str, Any]:
    return compare_program(StoredProgram("shops", "sql", query), 1, str(state))


def ran(query: str, state: Path, folder: Path) -> None:
    run_in_process(StoredProgram("shops", "sql", query).load(folder), str(state))


def test_without_a_checkpoint_everything_begins_without_state(sales: str, tmp_path: Path) -> None:
    change = compared(sales + TOTALS + SHOWN, tmp_path / "state")
    assert change["errors"] == []
    assert (change["epoch"], change["kept"], change["dropped"], change["refused"]) == (None, [], [], [])
    assert change["fresh"] == ["source_sales", "totals.aggregate"]


def test_a_query_that_is_added_leaves_the_state_of_the_others_as_it_is(sales: str, tmp_path: Path) -> None:
    ran(sales + TOTALS + SHOWN, tmp_path / "state", tmp_path)
    added = (
        "CREATE TABLE written (shop TEXT, amount BIGINT) WITH (connector = 'blackhole', type = 'sink');"
        "INSERT INTO written SELECT shop, amount FROM sales WHERE amount > 1;"
    )
    change = compared(sales + TOTALS + SHOWN + added, tmp_path / "state")
    assert change["epoch"] >= 1
    assert [(each["operator_id"], each["kind"]) for each in change["kept"]] == [
        ("source_sales", "position"),
        ("totals.aggregate", "state"),
    ]
    assert change["kept"][1]["rows"] >= 3
    assert change["kept"][1]["bytes"] > 0
    assert (change["fresh"], change["dropped"], change["refused"]) == ([], [], [])
    assert {"sink_written", "totals.aggregate"} <= {node["id"] for node in change["graph"]["nodes"]}


def test_a_query_that_is_taken_away_tells_what_would_be_lost(sales: str, tmp_path: Path) -> None:
    ran(sales + TOTALS + SHOWN, tmp_path / "state", tmp_path)
    change = compared(f"{sales} SELECT shop FROM sales;", tmp_path / "state")
    assert change["refused"] == []
    assert [each["operator_id"] for each in change["kept"]] == ["source_sales"]
    (lost,) = change["dropped"]
    assert "`totals.aggregate`" in lost
    assert "its state would be lost" in lost


def test_another_aggregate_cannot_go_on_with_the_state_of_the_old_one(sales: str, tmp_path: Path) -> None:
    ran(sales + TOTALS + SHOWN, tmp_path / "state", tmp_path)
    change = compared(sales + TOTALS.replace("sum(amount)", "max(amount)") + SHOWN, tmp_path / "state")
    assert change["refused"] != []
    assert all("totals.aggregate" in what for what in change["refused"])


def test_the_state_of_a_pipeline_of_another_name_is_refused(sales: str, tmp_path: Path) -> None:
    ran(sales + TOTALS + SHOWN, tmp_path / "state", tmp_path)
    program = StoredProgram("stores", "sql", sales + TOTALS + SHOWN)
    change = compare_program(program, 1, str(tmp_path / "state"))
    assert change["refused"] == ["the state belongs to the pipeline `shops`, not to `stores`"]


def test_a_program_with_mistakes_is_told_them_and_nothing_of_the_state(sales: str, tmp_path: Path) -> None:
    ran(sales + TOTALS + SHOWN, tmp_path / "state", tmp_path)
    change = compared(f"{sales} SELECT shp FROM sales;", tmp_path / "state")
    assert change["graph"] is None
    (error,) = change["errors"]
    assert "there is no column `shp`" in error["message"]
    assert error["span"]["start"]["line"] == 4
