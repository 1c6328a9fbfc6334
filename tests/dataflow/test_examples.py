"""Every dataflow among the examples, in this process; two of them run on Spark in tests/spark."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.dataflow.document.load import load_dataflow
from headrace.testing.dataflows import run_dataflow

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNTS = [f"count: {number}" for number in range(1, 21)]


def test_the_counter_counts_to_twenty_and_the_run_ends() -> None:
    result = run_dataflow(EXAMPLES / "dataflow-counter" / "dataflow.yml")
    assert (result.exit_code, result.reason) == (0, "finished")
    assert result.logs == {"counter": ["counted to 20"], "logger": COUNTS}


def test_a_single_operator_is_a_dataflow() -> None:
    result = run_dataflow(EXAMPLES / "dataflow-counter" / "single.yml")
    assert (result.exit_code, result.reason) == (0, "finished")
    assert result.logs == {"counter": ["counted to 20"]}


def test_the_count_goes_on_after_a_stop(tmp_path: Path) -> None:
    file = EXAMPLES / "dataflow-counter" / "dataflow.yml"
    first = run_dataflow(file, state_dir=tmp_path, stop_after=0.75)
    second = run_dataflow(file, state_dir=tmp_path)
    assert (first.reason, second.reason) == ("stopped", "finished")
    assert 0 < len(first.logs["logger"]) < len(COUNTS)
    assert first.logs["logger"] + second.logs["logger"] == COUNTS


def test_operators_of_one_node_and_of_others_read_each_other() -> None:
    result = run_dataflow(EXAMPLES / "dataflow-operators" / "dataflow.yml")
    assert (result.exit_code, result.reason) == (0, "finished")
    pairs = [(f"count: {number}", f"mean: {(number + 1) / 2}") for number in range(1, 11)]
    shown = [line for pair in pairs for line in pair]
    assert result.logs == {"logger": [*shown, "count has ended", "mean has ended"]}


def test_rows_go_through_sql_and_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_dataflow(EXAMPLES / "dataflow-sql" / "dataflow.yml")
    assert (result.exit_code, result.reason) == (0, "finished")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    levels = {
        second: [max(n for n in range(second * 10 + 200) if n % 3 == gate) for gate in range(3)]
        for second in (0, 20, 40)
    }
    expected = {
        (gate, f"2026-01-01T09:00:{second:02}", levels[second][gate] - levels.get(second - 20, [0] * 3)[gate])
        for second in levels
        for gate in range(3)
    }
    assert {(row["gate"], row["since"], row["rise"]) for row in rows} == expected
    assert len(rows) == 9


def test_scripts_in_processes_of_their_own_are_nodes() -> None:
    result = run_dataflow(EXAMPLES / "dataflow-nodes" / "dataflow.yml")
    assert (result.exit_code, result.reason) == (0, "finished")
    assert result.logs == {"report": ["alarm at 9 metre"] * 3 + ["station north: 30 levels, 3 alarms"]}


def test_the_operator_in_c_counts(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler: `cc` is not found")
    folder = tmp_path / "example"
    shutil.copytree(
        EXAMPLES / "dataflow-native", folder, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    build = load_dataflow(folder / "dataflow.yml").by_address["counter"].build
    assert build is not None
    subprocess.run(build, shell=True, cwd=folder, check=True)
    result = run_dataflow(folder / "dataflow.yml", stop_after=0.95, real_time=False)
    assert (result.exit_code, result.reason) == (0, "stopped")
    assert result.logs["logger"] == [f"count: [{number}]" for number in range(1, 11)]


def test_every_dataflow_among_the_examples_is_run_here() -> None:
    run = {"counter/dataflow", "counter/single", "operators/dataflow", "sql/dataflow", "nodes/dataflow"}
    run |= {"native/dataflow"}
    found = {f"{file.parent.name}/{file.stem}" for file in EXAMPLES.rglob("*.yml")}
    assert found == {f"dataflow-{name}" for name in run}
