"""Sinks that are `immediate` get messages while their epoch goes on, each at least once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.base.execution import ExecutionMode
from headrace.testing.dataflows import run_dataflow
from headrace.testing.in_process import CrashError
from tests.dataflow.test_crashes import STEPS
from tests.dataflow.writing import write_dataflow

COUNT = """
    import time

    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.n = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                self.n += 1
                send_output("row", pa.RecordBatch.from_pydict({"n": [self.n], "sent": [time.time()]}))
                if self.n == LAST:
                    return DoraStatus.STOP
            return DoraStatus.CONTINUE
"""
FLOW = """
    nodes:
      - id: count
        operator: {python: count.py, inputs: {tick: dora/timer/millis/20}, outputs: [row]}
      - id: out
        connector: webhook
        MORE
        options: {endpoint: "ADDRESS", format: json, max_in_flight: 1}
        inputs: {row: count/row}
"""


class Inbox(ThreadingHTTPServer):
    """Takes what is posted, with the time; refuses the first requests with 500."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rows: list[tuple[float, Any]] = []
        self.refuse = 0

    @property
    def numbers(self) -> list[int]:
        return [row["n"] for _, row in self.rows]


class Handler(BaseHTTPRequestHandler):
    server: Inbox

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.refuse -= 1
        taken = self.server.refuse < 0
        if taken:
            self.server.rows += [(time.time(), json.loads(line)) for line in body.splitlines()]
        self.send_response(200 if taken else 400)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with Inbox() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def written(directory: Path, inbox: Inbox, *, more: str = "immediate: true", last: int = 50) -> Path:
    text = FLOW.replace("ADDRESS", f"http://127.0.0.1:{inbox.server_port}/rows").replace("MORE", more)
    return write_dataflow(directory, dataflow=text, count=COUNT.replace("LAST", str(last)))


def test_rows_arrive_while_their_epoch_goes_on(tmp_path: Path, inbox: Inbox) -> None:
    outcome = run_dataflow(
        written(tmp_path / "flow", inbox, last=150), state_dir=tmp_path / "state", real_time=True
    )
    assert outcome.exit_code == 0, outcome.error
    assert inbox.numbers == list(range(1, 151))
    late = sorted(arrived - row["sent"] for arrived, row in inbox.rows)
    assert late[len(late) // 2] < 0.2, late  # an epoch takes half a second, and a commit comes after it


@pytest.mark.parametrize("step", [step for step in STEPS if not step.startswith("sink_")])
def test_after_a_crash_no_row_is_missing(tmp_path: Path, inbox: Inbox, step: str) -> None:
    file = written(tmp_path / "flow", inbox)

    def crash(reached: str, epoch: int) -> None:
        if (reached, epoch) == (step, 3):
            raise CrashError

    with pytest.raises(CrashError):
        run_dataflow(file, state_dir=tmp_path / "state", on_step=crash, epoch_rows=10)
    assert inbox.rows
    outcome = run_dataflow(file, state_dir=tmp_path / "state", epoch_rows=10)
    assert outcome.exit_code == 0, outcome.error
    assert sorted(set(inbox.numbers)) == list(range(1, 51))


def test_a_row_that_is_refused_fails_its_epoch_and_the_next_run_sends_it_again(
    tmp_path: Path, inbox: Inbox
) -> None:
    file = written(tmp_path / "flow", inbox)
    inbox.refuse = 1
    first = run_dataflow(file, state_dir=tmp_path / "state")
    assert first.exit_code == 1
    assert "400" in str(first.error)
    second = run_dataflow(file, state_dir=tmp_path / "state")
    assert second.exit_code == 0, second.error
    assert sorted(set(inbox.numbers)) == list(range(1, 51))


def test_two_immediate_sinks_of_one_output_get_all_rows(tmp_path: Path, inbox: Inbox) -> None:
    file = written(tmp_path / "flow", inbox, last=10)
    address = f"http://127.0.0.1:{inbox.server_port}/other"
    other = f"""
  - id: other
    connector: webhook
    immediate: true
    options: {{endpoint: "{address}", format: json}}
    inputs: {{row: count/row}}
"""
    file.write_text(file.read_text() + other)
    outcome = run_dataflow(file, state_dir=tmp_path / "state")
    assert outcome.exit_code == 0, outcome.error
    assert sorted(inbox.numbers) == sorted([*range(1, 11)] * 2)


REFUSED = {
    "a sink that writes with its epoch": ("connector: webhook", "connector: stdout", "writes with the epoch"),
    "rows of a connector": ("count/row}", "numbers/rows}", "whose rows come with their epoch"),
    "columns": ("inputs: {row", "schema: {n: BIGINT}\n    inputs: {row", "has a `schema`"),
    "a source": ("inputs: {row: count/row}", "", "`immediate` is for sinks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_immediate_is_refused_with_the_reason(name: str, tmp_path: Path, inbox: Inbox) -> None:
    old, new, reason = REFUSED[name]
    file = written(tmp_path, inbox)
    text = file.read_text().replace(old, new)
    if "stdout" in new:
        text = "\n".join(line for line in text.splitlines() if "options:" not in line)
    if "numbers" in new:
        text += "\n  - {id: numbers, connector: impulse, options: {event_rate: 10}}\n"
    file.write_text(text)
    outcome = run_dataflow(file)
    assert outcome.exit_code == 2
    assert reason in str(outcome.error)


@pytest.mark.parametrize("in_document", [True, False])
def test_immediate_and_epochs_exclude_each_other(tmp_path: Path, inbox: Inbox, in_document: bool) -> None:
    file = written(tmp_path, inbox)
    execution: ExecutionMode | None = "epochs"
    if in_document:
        file.write_text("execution: epochs\n" + file.read_text())
        execution = None
    outcome = run_dataflow(file, execution=execution)
    assert outcome.exit_code == 2
    assert "`out` is `immediate`, and `execution` is `epochs`" in str(outcome.error)
