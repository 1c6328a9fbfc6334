"""The first pipelines of the README and every example, on Spark, in one session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.dataflow.runtime.printed import Line
from headrace.testing.dataflows import collected_lines
from tests.unit.test_docs import blocks

pytestmark = pytest.mark.versions
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
Rows = list[dict[str, Any]]


def printed(capfd: pytest.CaptureFixture[str]) -> Rows:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Examples write into the current directory, and read what lies beside them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return tmp_path


@pytest.mark.parametrize(("file", "rows_in", "rows_out"), [("first.sql", 4, 3), ("first.py", 5, 5)])
def test_the_first_pipelines_of_the_readme_print_what_the_readme_shows(
    file: str, rows_in: int, rows_out: int, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = list(blocks(ROOT / "README.md"))
    for block in page:
        if name := block.word("file"):
            (elsewhere / name).write_text(block.text)
    shown = next(block.text for block in page if block.text.startswith(f"$ headrace run {file}"))
    result = hr.load_pipeline(file).run(parallelism=2)
    assert (result.reason, result.rows_in, result.rows_out) == ("finished", rows_in, rows_out)
    _command, _header, _line, *lines = shown.splitlines()
    assert sorted(" ".join(map(str, row.values())).replace("T", " ") for row in printed(capfd)) == sorted(
        " ".join(line.split()) for line in lines
    )


def test_the_demo_in_sql_closes_every_window_of_every_gate(capfd: pytest.CaptureFixture[str]) -> None:
    result = hr.load_pipeline("examples/demo.sql").run(parallelism=2, epoch_rows=2000)
    rows = printed(capfd)
    assert (result.reason, result.rows_in, result.late_rows) == ("finished", 5000, 0)
    assert len({row["since"] for row in rows}) == 5
    assert len(rows) == 15
    assert sum(int(str(row["readings"])) for row in rows) == 5000


def test_orders_go_on_after_a_stop_and_late_ones_are_kept(elsewhere: Path) -> None:
    path = "examples/orders.sql"
    hr.load_pipeline(path).run("state", parallelism=2, epoch_rows=8, max_epochs=2)
    result = hr.load_pipeline(path).run("state", parallelism=3, epoch_rows=8)
    assert (result.reason, result.late_rows) == ("finished", 1)
    cities, late = (
        [json.loads(line) for line in (elsewhere / name).read_text().splitlines()]
        for name in ("per_city.json", "late.json")
    )
    assert [row["id"] for row in late] == [31]
    assert len({(row["city"], row["minute"]) for row in cities}) == len(cities) == 13
    assert sum(row["orders"] for row in cities) == 39
    assert {"city": "Bath", "minute": "2026-01-01T09:00:00", "orders": 5, "amount": 301.5} in cities


def test_auctions_have_three_winners_a_window_and_one_row_a_category(
    capfd: pytest.CaptureFixture[str],
) -> None:
    result = hr.load_pipeline("examples/auctions.sql").run(parallelism=2, epoch_rows=10_000)
    assert (result.reason, result.rows_in) == ("finished", 20_000)
    rows = printed(capfd)
    windows = [row["since"] for row in rows if "since" in row]
    assert sorted(windows) == ["2026-01-01T09:00:00"] * 3 + ["2026-01-01T09:00:10"] * 3
    changes = [row for row in rows if "op" in row]
    assert [row["op"] for row in changes].count("c") == 5
    assert {row["after"]["category"] for row in changes} == {10, 11, 12, 13, 14}


def test_the_demo_closes_every_window_of_every_gate(capfd: pytest.CaptureFixture[str]) -> None:
    result = hr.load_pipeline(str(EXAMPLES / "demo.py")).run(parallelism=2, epoch_rows=2000)
    rows = printed(capfd)
    assert (result.reason, result.rows_in) == ("finished", 6000)
    assert result.epochs > 1
    assert len({row["window"] for row in rows}) == 6
    assert len(rows) == 18
    assert sum(int(str(row["readings"])) for row in rows) == 6000


def test_the_running_count_goes_on_after_a_stop(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(EXAMPLES / "running_count.py")
    hr.load_pipeline(path).run("state", parallelism=2, epoch_rows=400, max_epochs=1)
    result = hr.load_pipeline(path).run("state", parallelism=3)
    assert result.reason == "finished"
    visits = [json.loads(line) for line in (elsewhere / "visits.jsonl").read_text().splitlines()]
    assert len({(visit["user"], visit["visit"]) for visit in visits}) == len(visits) == 1000
    expected = [visit for visit in visits if visit["visit"] % 30 == 0]
    assert sorted(printed(capfd), key=str) == sorted(expected, key=str)
    assert len(expected) == 31


def test_two_inputs_meet_and_what_stays_alone_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    result = hr.load_pipeline(str(EXAMPLES / "two_inputs.py")).run(parallelism=2)
    assert result.reason == "finished"
    assert {row["order"]: row["state"] for row in printed(capfd)} == {
        1: "paid",
        2: "paid",
        3: "unpaid",
        4: "paid",
    }


def test_a_source_of_ones_own_is_read_to_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    result = hr.load_pipeline(str(EXAMPLES / "custom_source.py")).run(parallelism=2, epoch_rows=900)
    rows = printed(capfd)
    assert (result.reason, result.rows_in) == ("finished", 1800)
    assert {(row["gauge"], row["reading"]) for row in rows} == {
        (gauge, reading) for gauge in ("intake", "sluice", "tailrace") for reading in range(0, 600, 120)
    }
    assert len(rows) == 15


def test_a_sink_of_ones_own_publishes_every_epoch_once(elsewhere: Path) -> None:
    path = str(EXAMPLES / "custom_sink.py")
    first = hr.load_pipeline(path).run("state", parallelism=2, epoch_rows=3000, max_epochs=2)
    second = hr.load_pipeline(path).run("state", parallelism=3, epoch_rows=3000, from_epoch=1)
    assert (first.reason, second.reason, second.first_epoch) == ("max_epochs", "finished", 2)
    files = sorted((elsewhere / "numbers").iterdir())
    assert [file.name for file in files] == [f"epoch-{epoch:07}.parquet" for epoch in range(1, 5)]
    counters = [n for file in files for n in pq.read_table(file)["counter"].to_pylist()]
    assert sorted(counters) == list(range(10_000))


def test_a_dataflow_counts_to_twenty_and_ends() -> None:
    lines: list[Line] = []
    with collected_lines(lines):
        result = hr.load_pipeline("examples/dataflow-counter/dataflow.yml").run("state", parallelism=2)
    assert result.reason == "finished"
    shown = [line.text for line in lines if line.unit == "logger"]
    assert shown == [f"count: {number}" for number in range(1, 21)]


def test_rows_of_a_dataflow_go_through_sql_and_an_operator(capfd: pytest.CaptureFixture[str]) -> None:
    result = hr.load_pipeline("examples/dataflow-sql/dataflow.yml").run(parallelism=2, epoch_rows=200)
    rows = printed(capfd)
    assert (result.reason, result.rows_in, len(rows)) == ("finished", 600, 9)
    assert {row["gate"]: row["rise"] for row in rows if row["since"].endswith(":00:00")} == {
        0: 198,
        1: 199,
        2: 197,
    }
