"""Operators whose files change are reloaded between two epochs, and keep what they remember."""

from __future__ import annotations

from pathlib import Path

from headrace.api.pipeline import Pipeline
from headrace.dataflow.runtime.printed import Line
from headrace.jobs.progress import Progress
from headrace.testing.dataflows import collected_lines
from headrace.testing.in_process import run_in_process
from tests.dataflow.writing import COUNT_AND_LOG, LOG, write_dataflow

COUNTER = """
    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.count = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "RELOAD":
                print("reloaded", dora_event["id"], self.count)
            if dora_event["type"] == "INPUT":
                self.count += 1
                send_output("count", pa.array([self.count * STEP]))
                if self.count == 20:
                    return DoraStatus.STOP
            return DoraStatus.CONTINUE

    STEP = 1
"""


def run_with(file: Path, state: Path, edits: dict[int, str]) -> list[Line]:
    """Run a dataflow whose `counter.py` gets another text before some epochs."""
    lines: list[Line] = []

    def edit(last: Progress) -> None:
        if last.epoch + 1 in edits:
            staged = file.parent / "edited"
            staged.write_text(edits[last.epoch + 1])
            staged.rename(file.parent / "counter.py")  # as most editors save

    with collected_lines(lines):
        pipeline = Pipeline.from_dataflow(file)
        result = run_in_process(
            pipeline, state, epoch_rows=5, watch=True, on_progress=edit, idle_epochs=10_000
        )
    assert result.reason == "finished"
    return lines


def counts(lines: list[Line]) -> list[int]:
    return [int(line.text.split("[")[2].rstrip("]")) for line in lines if '"count", [' in line.text]


def test_a_changed_operator_goes_on_with_what_it_remembers(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path / "flow", dataflow=COUNT_AND_LOG, counter=COUNTER, log=LOG)
    text = (file.parent / "counter.py").read_text()
    lines = run_with(file, tmp_path / "state", {8: text.replace("STEP = 1", "STEP = 100")})
    seen = counts(lines)
    assert len(seen) == 20
    changed = next(n for n, count in enumerate(seen) if count >= 100)
    assert 0 < changed < 20
    assert seen == [n * (1 if n <= changed else 100) for n in range(1, 21)]
    assert [line.text for line in lines if line.text.startswith("reloaded op")] == [f"reloaded op {changed}"]


def test_a_file_that_is_no_operator_any_more_is_reported_and_the_old_one_runs_on(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path / "flow", dataflow=COUNT_AND_LOG, counter=COUNTER, log=LOG)
    text = (file.parent / "counter.py").read_text()
    lines = run_with(file, tmp_path / "state", {4: "class Operator(:", 8: "x = 1\n", 12: text})
    assert counts(lines) == list(range(1, 21))
    errors = [line.text for line in lines if line.stream == "error"]
    assert len(errors) == 2
    assert "not reloaded" in errors[0]
    assert "invalid syntax" in errors[0]
    assert "no class `Operator`" in errors[1]


def test_a_file_that_raises_when_it_is_loaded_is_reported_and_the_old_one_runs_on(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path / "flow", dataflow=COUNT_AND_LOG, counter=COUNTER, log=LOG)
    text = (file.parent / "counter.py").read_text()
    lines = run_with(file, tmp_path / "state", {6: text + "\nraise ValueError('not today')\n"})
    assert counts(lines) == list(range(1, 21))
    assert any("not today" in line.text and line.stream == "error" for line in lines)
