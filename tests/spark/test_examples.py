"""The first pipeline of the README and every example, on Spark, in one session."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import headrace as hr
from tests.unit.test_docs import blocks

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
Rows = list[dict[str, object]]


def printed(capfd: pytest.CaptureFixture[str]) -> Rows:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Examples write into the current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_pipeline_of_the_readme_prints_what_the_readme_shows(
    elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program, shown = (
        next(b.text for b in blocks(ROOT / "README.md") if b.language == language)
        for language in ("python", "console")
    )
    (elsewhere / "first.py").write_text(program)
    result = hr.load_pipeline("first.py").run(parallelism=2)
    assert (result.reason, result.rows_in, result.rows_out) == ("finished", 5, 5)
    _command, _header, _line, *lines = shown.splitlines()
    assert sorted(" ".join(map(str, row.values())) for row in printed(capfd)) == sorted(
        " ".join(line.split()) for line in lines
    )


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
