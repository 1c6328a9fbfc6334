"""Resident execution with other sources than timers: the task is handed what they have, as it comes."""

from __future__ import annotations

import random
import signal
import threading
import time
from itertools import accumulate
from pathlib import Path

import pytest

from headrace.api.pipeline import Pipeline
from headrace.api.run_options import RunOptions
from headrace.engine.reports import EpochReport
from headrace.model.ahead import may_stay
from headrace.testing.dataflows import run_dataflow
from headrace.testing.in_process import CrashError
from tests.dataflow.resident_worker import ProcessTask, run_with_worker
from tests.dataflow.test_crashes import STEPS, rows
from tests.dataflow.writing import COUNT_AND_LOG, COUNTER, LOG, write_dataflow

CAMERA = """
    execution: resident
    nodes:
      - id: camera
        path: camera.py
        outputs: [n]
      - id: sum
        operator: {python: sum.py, inputs: {n: camera/n}, outputs: [total]}
      - id: file
        connector: single_file
        options: {path: "{{ OUT_FILE }}", format: json}
        schema: {n: BIGINT, total: BIGINT}
        inputs: {total: sum/total}
"""
SUM = """
    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.total = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                n = dora_event["value"][0].as_py()
                self.total += n
                send_output("total", pa.RecordBatch.from_pylist([{"n": n, "total": self.total}]))
            return DoraStatus.CONTINUE
"""
PACED = """
    import time

    import pyarrow as pa
    from dora import Node

    node = Node()
    for n in range(1, 301):
        node.send_output("n", pa.array([n]))
        time.sleep(0.005)
"""
NUMBERS = """
    execution: resident
    nodes:
      - id: numbers
        connector: impulse
        options: {event_rate: 200, message_count: 300}
      - id: odd
        sql: SELECT counter FROM numbers WHERE counter % 2 = 1
        inputs: {numbers: numbers/rows}
      - id: sum
        operator: {python: sum.py, inputs: {n: odd/rows}, outputs: [total]}
      - id: file
        connector: single_file
        options: {path: "{{ OUT_FILE }}", format: json}
        schema: {n: BIGINT, total: BIGINT}
        inputs: {total: sum/total}
"""
SUM_OF_ROWS = """
    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.total = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                for n in dora_event["value"].field("counter").to_pylist():
                    self.total += n
                    send_output("total", pa.RecordBatch.from_pylist([{"n": n, "total": self.total}]))
            return DoraStatus.CONTINUE
"""


def totals(numbers: list[int]) -> list[dict[str, int]]:
    return [{"n": n, "total": total} for n, total in zip(numbers, accumulate(numbers), strict=True)]


def test_what_a_process_sends_is_handled_once_and_its_end_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT_FILE", str(tmp_path / "out.jsonl"))
    file = write_dataflow(tmp_path, dataflow=CAMERA, camera=PACED, sum=SUM)
    outcome = run_dataflow(file, state_dir=tmp_path / "state")
    assert (outcome.reason, outcome.exit_code) == ("finished", 0), outcome.error
    assert rows(tmp_path / "out.jsonl") == totals(list(range(1, 301)))


def test_rows_of_a_connector_are_handled_behind_sql_before_their_epoch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT_FILE", str(tmp_path / "out.jsonl"))
    counted = SUM_OF_ROWS.replace("self.total += n", "self.total += n; open('seen', 'a').write('x')")
    file = write_dataflow(tmp_path, dataflow=NUMBERS, sum=counted)
    seen: dict[int, set[int]] = {}
    epochs = list[int]()

    def look() -> None:
        size = (tmp_path / "seen").stat().st_size if (tmp_path / "seen").exists() else 0
        seen.setdefault(len(epochs), set()).add(size)

    run_with_worker(
        file,
        tmp_path / "state",
        ProcessTask(),
        on_epoch=lambda report: epochs.append(report.epoch),
        wait=look,
    )
    # While the driver waited for one and the same epoch, the count went on.
    assert max(len(sizes) for sizes in seen.values()) >= 3, seen
    assert rows(tmp_path / "out.jsonl") == totals(list(range(1, 300, 2)))


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_an_epoch_loses_no_row_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setenv("OUT_FILE", str(tmp_path / "out.jsonl"))
    file = write_dataflow(tmp_path, dataflow=NUMBERS, sum=SUM_OF_ROWS)
    for epoch in (2, 4, 5):

        def crash(name: str, at: int, epoch: int = epoch) -> None:
            if (name, at) == (step, epoch):
                raise CrashError

        with pytest.raises(CrashError):
            run_dataflow(file, state_dir=tmp_path / "state", on_step=crash, epoch_rows=20)
    outcome = run_dataflow(file, state_dir=tmp_path / "state", epoch_rows=20)
    assert (outcome.reason, outcome.exit_code) == ("finished", 0), outcome.error
    assert rows(tmp_path / "out.jsonl") == totals(list(range(1, 300, 2)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("source", ["camera", "numbers"])
def test_a_task_that_is_killed_again_and_again_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("OUT_FILE", str(tmp_path / "out.jsonl"))
    file = write_dataflow(
        tmp_path,
        dataflow=CAMERA if source == "camera" else NUMBERS.replace(", message_count: 300", ""),
        camera=PACED.replace("301", "1_000_000"),
        sum=SUM if source == "camera" else SUM_OF_ROWS,
    )
    task, chance, stop = ProcessTask(), random.Random(7), threading.Event()

    def kill(report: EpochReport) -> None:
        if report.epoch in {1, 2, 3}:  # the task is in the next one by now
            time.sleep(0.15 * chance.random())
            task.workers[-1].kill()
        elif report.epoch == 6:
            stop.set()

    run_with_worker(file, tmp_path / "state", task, on_epoch=kill, stop=stop)
    assert [worker.returncode for worker in task.workers] == [*[-signal.SIGKILL] * 3, 0]
    written = rows(tmp_path / "out.jsonl")
    step = 1 if source == "camera" else 2
    assert len(written) > 100
    assert written == totals(list(range(1, step * len(written) + 1, step)))


def test_a_process_that_fails_ends_the_run_after_what_it_has_sent_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = PACED.replace("range(1, 301)", "range(1, 101)") + '    raise SystemExit("no camera found")\n'
    monkeypatch.setenv("OUT_FILE", str(tmp_path / "out.jsonl"))
    file = write_dataflow(tmp_path, dataflow=CAMERA, camera=failing, sum=SUM)
    outcome = run_dataflow(file, state_dir=tmp_path / "state")
    assert outcome.exit_code == 1
    assert "no camera found" in str(outcome.error)
    assert rows(tmp_path / "out.jsonl") == totals(list(range(1, 101)))


def test_a_range_that_cannot_be_read_is_an_error_of_the_run_and_not_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataflow = """
        execution: resident
        nodes:
          - id: beat
            operator: {python: log.py, inputs: {tick: dora/timer/millis/20}}
          - id: lines
            connector: single_file
            options: {path: "{{ IN_FILE }}", format: json}
            schema: {n: BIGINT}
          - id: log
            operator: {python: log.py, inputs: {rows: lines/rows}}
    """
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"n": "no number"}\n')
    monkeypatch.setenv("IN_FILE", str(tmp_path / "in.jsonl"))
    file = write_dataflow(tmp_path, dataflow=dataflow, log=LOG)
    outcome = run_dataflow(file, state_dir=tmp_path / "state", stop_after=5)
    assert outcome.exit_code != 0
    assert "no number" in str(outcome.error)


def test_a_source_that_no_unit_of_the_runtime_reads_is_refused(tmp_path: Path) -> None:
    dataflow = """
        nodes:
          - id: beat
            operator: {python: log.py, inputs: {tick: dora/timer/millis/20}}
          - id: numbers
            connector: impulse
            options: {event_rate: 10}
          - id: nowhere
            connector: blackhole
            inputs: {rows: numbers/rows}
    """
    file = write_dataflow(tmp_path, dataflow=dataflow, log=LOG)
    outcome = run_dataflow(file, execution="resident")
    assert outcome.exit_code == 2
    assert "no unit of its runtime reads the source `source_numbers`" in str(outcome.error)


def test_a_dataflow_of_operators_and_processes_stays_by_itself_and_one_with_sql_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT_FILE", str(tmp_path / "out.jsonl"))
    files = {"camera": PACED, "sum": SUM, "counter": COUNTER, "log": LOG}
    plain = write_dataflow(tmp_path / "plain", dataflow=COUNT_AND_LOG, **files)
    camera = write_dataflow(
        tmp_path / "camera", dataflow=CAMERA.replace("execution: resident", "env: {}"), **files
    )
    sql = write_dataflow(
        tmp_path / "sql", dataflow=NUMBERS.replace("execution: resident", "env: {}"), **files
    )
    expected = {plain: True, camera: True, sql: False}
    for file, stays in expected.items():
        plan = Pipeline.from_dataflow(file).plan()
        assert may_stay(plan, "auto") is stays
        assert not may_stay(plan, "epochs")
        assert not may_stay(plan, "auto", available_now=True)
    local = RunOptions(engine="local")
    epochs = RunOptions(engine="local", execution="epochs")
    counts = [Pipeline.from_dataflow(plain).run(options=options).epochs for options in (local, epochs)]
    # Twenty ticks in two seconds: an epoch each, or one each half second.
    assert counts[0] < counts[1] / 2, counts
