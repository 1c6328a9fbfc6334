"""Resident execution: a task that stays handles messages before their epoch is planned, and loses none."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from headrace.api.pipeline import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.errors import ConfigurationError, DataflowError
from headrace.base.execution import ExecutionMode
from headrace.dataflow.runtime.printed import Line
from headrace.engine.reports import EpochReport
from headrace.exchanges.link import Listener, TaskLink, connect
from headrace.testing.dataflows import collected_lines, run_dataflow
from headrace.testing.in_process import CrashError, run_in_process
from tests.dataflow.resident_worker import ProcessTask, run_with_worker
from tests.dataflow.test_crashes import COUNT, REPOSITORY, STEPS, numbered, rows
from tests.dataflow.writing import COUNT_AND_LOG, COUNTER, LOG, write_dataflow

ECHOES = """
    nodes:
      - id: beat
        operator: {python: beat.py, inputs: {tick: dora/timer/millis/20}, outputs: [n]}
      - id: node
        path: node.py
        inputs: {n: beat/n}
        outputs: [echo]
      - id: log
        operator: {python: check.py, inputs: {n: beat/n, echo: node/echo}}
"""
BEAT = """
    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.n = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                self.n += 1
                send_output("n", pa.array([self.n]))
                if self.n == 150:
                    return DoraStatus.STOP
            return DoraStatus.CONTINUE
"""
NODE = """
    from dora import Node

    node = Node()
    for event in node:
        if event["type"] == "INPUT":
            node.send_output("echo", event["value"])
"""
CHECK = """
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.sent, self.echoes = [], []

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                numbers = self.sent if dora_event["id"] == "n" else self.echoes
                numbers.append(dora_event["value"][0].as_py())
            elif dora_event["id"] == "echo":
                print(self.sent == list(range(1, 151)), self.echoes == self.sent, len(self.sent))
            return DoraStatus.CONTINUE
"""


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_an_epoch_loses_nothing_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "out.jsonl"))
    state = tmp_path / "state"
    for epoch in (2, 5, 6):

        def crash(name: str, at: int, epoch: int = epoch) -> None:
            if (name, at) == (step, epoch):
                raise CrashError

        with pytest.raises(CrashError):
            run_dataflow(COUNT, state_dir=state, on_step=crash, epoch_rows=20, execution="resident")
    outcome = run_dataflow(COUNT, state_dir=state, epoch_rows=20, execution="resident")
    assert (outcome.reason, outcome.exit_code) == ("finished", 0), outcome.error
    assert rows(tmp_path / "out.jsonl") == numbered(300)


def test_what_one_mode_has_written_the_other_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "out.jsonl"))
    modes: tuple[ExecutionMode, ...] = ("epochs", "resident", "epochs", "resident")
    for mode in modes:
        outcome = run_dataflow(COUNT, state_dir=tmp_path / "state", stop_after=0.5, execution=mode)
        assert (outcome.reason, outcome.exit_code) == ("stopped", 0), outcome.error
    outcome = run_dataflow(COUNT, state_dir=tmp_path / "state", execution="epochs")
    assert outcome.reason == "finished"
    assert rows(tmp_path / "out.jsonl") == numbered(300)


def test_a_run_that_is_stopped_has_committed_all_that_it_has_handled(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path, dataflow=COUNT_AND_LOG, counter=COUNTER, log=LOG)
    outcome = run_dataflow(file, state_dir=tmp_path / "state", stop_after=0.95, execution="resident")
    assert outcome.result is not None
    assert (outcome.reason, outcome.result.rows_in) == ("stopped", 10)
    assert [json.loads(line) for line in outcome.logs["log"]] == [
        *(["count", [n]] for n in range(1, 11)),
        ["MANUAL", "STOP"],
    ]
    again = run_dataflow(file, state_dir=tmp_path / "state", execution="resident")
    assert json.loads(again.logs["log"][0]) == ["count", [11]]
    assert again.reason == "finished"


@pytest.mark.parametrize("epoch_rows", [None, 3])
def test_an_epoch_takes_no_more_rows_than_it_may_and_the_last_epoch_is_the_last(
    tmp_path: Path, epoch_rows: int | None
) -> None:
    file = write_dataflow(tmp_path, dataflow=COUNT_AND_LOG, counter=COUNTER, log=LOG)
    outcome = run_dataflow(
        file, state_dir=tmp_path / "state", max_epochs=3, epoch_rows=epoch_rows, execution="resident"
    )
    assert outcome.result is not None
    assert outcome.reason == "max_epochs"
    counted = 1 + 2 * (epoch_rows or 5)
    assert outcome.result.rows_in == counted
    again = run_dataflow(file, state_dir=tmp_path / "state", execution="resident")
    assert json.loads(again.logs["log"][0]) == ["count", [counted + 1]]


def test_a_failure_ends_the_run_with_what_was_printed_and_the_next_begins_at_the_checkpoint(
    tmp_path: Path,
) -> None:
    failing = COUNTER.replace(
        "if self.count == 20", "1 // (self.count - 7)\n                if self.count == 20"
    )
    file = write_dataflow(tmp_path, dataflow=COUNT_AND_LOG, counter=failing, log=LOG)
    outcome = run_dataflow(file, state_dir=tmp_path / "state", execution="resident")
    assert outcome.exit_code == 1
    assert "`counter` raised ZeroDivisionError" in str(outcome.error)
    assert [json.loads(line)[1] for line in outcome.logs["log"]] == [
        *([n] for n in range(1, 8)),
        "INPUT_CLOSED",
    ]
    write_dataflow(tmp_path, dataflow=COUNT_AND_LOG, counter=COUNTER, log=LOG)
    again = run_dataflow(file, state_dir=tmp_path / "state", execution="resident")
    # The epoch that failed is not committed: what it had handled is handled again.
    assert json.loads(again.logs["log"][0])[1][0] <= 7
    assert json.loads(again.logs["log"][-2]) == ["count", [20]]


def test_a_reload_between_two_epochs_keeps_what_operators_remember(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path / "flow", dataflow=COUNT_AND_LOG, counter=COUNTER, log=LOG)
    lines: list[Line] = []

    def edit(last: object) -> None:
        if getattr(last, "epoch", 0) == 2:
            text = (tmp_path / "flow" / "counter.py").read_text()
            (tmp_path / "flow" / "counter.py").write_text(text.replace("[self.count]", "[-self.count]"))

    with collected_lines(lines):
        result = run_in_process(
            Pipeline.from_dataflow(file),
            tmp_path / "state",
            epoch_rows=4,
            watch=True,
            on_progress=edit,
            idle_epochs=10_000,
            options=RunOptions(execution="resident"),
        )
    assert result.reason == "finished"
    counts = [json.loads(line.text)[1][0] for line in lines if '"count", [' in line.text]
    assert [abs(count) for count in counts] == list(range(1, 21))
    assert counts[:5] == [1, 2, 3, 4, 5]
    assert counts[-8:] == [-n for n in range(13, 21)]


@pytest.mark.timeout(300)
def test_a_dataflow_whose_driver_is_killed_five_times_ends_with_the_exact_count(tmp_path: Path) -> None:
    state, out, chance = tmp_path / "state", tmp_path / "out.jsonl", random.Random(4)
    kills, said = 0, ""
    for _ in range(60):
        victim = subprocess.Popen(
            [sys.executable, "-m", "tests.dataflow.victim", str(COUNT), str(state)],
            cwd=REPOSITORY,
            env=os.environ | {"COUNT_FILE": str(out), "EXECUTION": "resident", "COUNT_TO": "600"},
            stdout=subprocess.PIPE,
            text=True,
        )
        with victim:
            before = set((state / "checkpoints").glob("*/metadata*"))
            while kills < 5 and victim.poll() is None:
                if set((state / "checkpoints").glob("*/metadata*")) - before:
                    time.sleep(chance.random() * 0.6)
                    victim.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.005)
            said = victim.communicate()[0]
        if victim.returncode == 0:
            break
        assert victim.returncode == -signal.SIGKILL, said
        kills += 1
    assert kills == 5, said
    assert rows(out) == numbered(600)


@pytest.mark.timeout(300)
def test_a_task_that_is_killed_again_and_again_begins_at_the_checkpoint_and_no_count_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "out.jsonl"))
    monkeypatch.setenv("COUNT_TO", "600")
    task, chance = ProcessTask(), random.Random(7)

    def kill(report: EpochReport) -> None:
        if report.epoch in {1, 2, 4, 5, 7, 9}:  # the task is in the next one by now
            time.sleep(0.2 * chance.random())
            task.workers[-1].kill()

    run_with_worker(COUNT, tmp_path / "state", task, on_epoch=kill, epoch_rows=50)
    assert [worker.returncode for worker in task.workers] == [*[-signal.SIGKILL] * 6, 0]
    assert rows(tmp_path / "out.jsonl") == numbered(600)


@pytest.mark.timeout(300)
def test_a_process_is_heard_at_once_and_its_killed_task_gives_it_every_message_again(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path, dataflow=ECHOES, beat=BEAT, node=NODE, check=CHECK)
    task, lines, killed = ProcessTask(), list[Line](), [False]
    begun = time.monotonic()

    def kill() -> None:
        if not killed[0] and time.monotonic() - begun > 1.5:
            killed[0] = True
            task.workers[-1].kill()

    with collected_lines(lines):
        run_with_worker(file, tmp_path / "state", task, wait=kill)
    assert len(task.workers) == 2
    said = [line.text for line in lines if (line.unit, line.stream) == ("log", "stdout")]
    assert said == ["True True 150"]


def test_the_messages_of_an_epoch_are_handled_before_it_ends(tmp_path: Path) -> None:
    beat = BEAT.replace("150", "1000").replace("self.n += 1", "self.n += 1; open('seen', 'a').write('x')")
    file = write_dataflow(tmp_path, dataflow=ECHOES, beat=beat, node=NODE, check=CHECK)
    stop, task, epochs = threading.Event(), ProcessTask(), list[int]()
    seen: dict[int, set[int]] = {}

    def look() -> None:
        seen.setdefault(len(epochs), set()).add((tmp_path / "seen").stat().st_size)
        if len(epochs) >= 6:
            stop.set()

    run_with_worker(
        file,
        tmp_path / "state",
        task,
        on_epoch=lambda report: epochs.append(report.epoch),
        wait=look,
        stop=stop,
    )
    # While the driver waited for one and the same epoch, the count went on.
    assert max(len(sizes) for sizes in seen.values()) >= 3, seen


REFUSED = {
    "a parallel unit": (
        """
        nodes:
          - id: counter
            operator: {python: counter.py, inputs: {tick: dora/timer/millis/100}, outputs: [count]}
          - id: log
            parallelism: 2
            partition_by: key
            operator: {python: log.py, inputs: {count: counter/count}}
        """,
        "`log` has a task of its own: all its units have to be in one runtime",
    ),
    "SQL with state before a unit": (
        """
        nodes:
          - id: numbers
            connector: impulse
            options: {event_rate: 10}
          - id: counts
            sql: SELECT count(*) AS n FROM numbers GROUP BY tumble(interval '1 second')
            inputs: {numbers: numbers/rows}
          - id: log
            operator: {python: log.py, inputs: {n: counts/rows}}
        """,
        "`runtime` reads `",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_document_that_cannot_be_resident_and_asks_for_it_is_refused_with_the_reason(
    name: str, tmp_path: Path
) -> None:
    text, reason = REFUSED[name]
    file = write_dataflow(tmp_path, dataflow=text, counter=COUNTER, log=LOG, node=NODE)
    outcome = run_dataflow(file, execution="resident")
    assert outcome.exit_code == 2
    assert f"`dataflow` cannot run resident: {reason}" in str(outcome.error)
    file.write_text("execution: resident\n" + file.read_text())
    asked = run_dataflow(file)
    assert (asked.exit_code, reason in str(asked.error)) == (2, True)


def test_a_pipeline_without_a_dataflow_cannot_be_resident(tmp_path: Path) -> None:
    pipeline = Pipeline("numbers")
    pipeline.source("memory", rows=[{"n": 1}]).sink("blackhole")
    with pytest.raises(
        ConfigurationError, match="cannot run resident: only the operators and processes of a"
    ):
        run_in_process(pipeline, tmp_path, options=RunOptions(execution="resident"))


def test_the_document_says_how_it_runs_and_a_setting_counts_more(tmp_path: Path) -> None:
    text = "execution: resident\n" + textwrap.dedent(COUNT_AND_LOG)
    file = write_dataflow(tmp_path, dataflow=text, counter=COUNTER, log=LOG)
    counts: dict[str, int] = {}
    modes: tuple[ExecutionMode | None, ...] = (None, "resident", "epochs")
    for mode in modes:
        outcome = run_dataflow(file, execution=mode)
        assert outcome.result is not None
        counts[str(mode)] = outcome.result.epochs
    assert counts["None"] == counts["resident"] < counts["epochs"]
    file.write_text(file.read_text().replace("resident", "residnet"))
    outcome = run_dataflow(file)
    assert isinstance(outcome.error, DataflowError)
    assert "resident" in str(outcome.error)


@pytest.mark.parametrize("attack", ["change", "repeat", "reflect", "insert"])
def test_a_message_that_somebody_changes_repeats_or_adds_on_its_way_is_not_read(attack: str) -> None:
    """Between the two ends sits somebody who passes on what proves who they are, and then does not."""
    listener = Listener("127.0.0.1")
    between = socket.create_server(("127.0.0.1", 0))
    links: dict[str, TaskLink | None] = {}

    def accept() -> None:
        links["driver"] = listener.accept(30)

    def connect_task() -> None:
        links["task"] = connect(between.getsockname(), listener.secret)

    threads = [threading.Thread(target=accept), threading.Thread(target=connect_task)]
    for thread in threads:
        thread.start()
    to_task, _ = between.accept()
    to_driver = socket.create_connection(("127.0.0.1", listener.port))
    for _ in range(2):  # the questions, and the answers
        for origin, target in ((to_task, to_driver), (to_driver, to_task)):
            target.sendall(origin.recv(32, socket.MSG_WAITALL))
    for thread in threads:
        thread.join()
    driver, task = links["driver"], links["task"]
    assert driver is not None
    assert task is not None
    task.send({"epoch": 1})
    sent = to_task.recv(10_000)
    to_driver.sendall(sent)
    assert driver.receive() == {"epoch": 1}
    receiver = driver
    if attack == "change":
        task.send({"epoch": 2})
        to_driver.sendall(to_task.recv(10_000).replace(b"\x02", b"\x03"))
    elif attack == "repeat":
        to_driver.sendall(sent)
    elif attack == "reflect":
        to_task.sendall(sent)
        receiver = task
    else:
        content = pickle.dumps({"epoch": 2})
        to_driver.sendall(len(content).to_bytes(4, "big") + content)
    with pytest.raises(PermissionError, match="was changed on its way"):
        receiver.receive()
    for end in (driver, task, to_driver, to_task, between, listener):
        end.close()


def test_only_who_knows_the_secret_is_answered() -> None:
    listener = Listener("127.0.0.1")
    links: list[TaskLink | None] = []

    def accept() -> None:
        links.append(listener.accept(10))

    waiting = threading.Thread(target=accept)
    waiting.start()
    with pytest.raises((PermissionError, EOFError, OSError)):
        connect(("127.0.0.1", listener.port), b"another secret")
    waiting.join()
    assert links.pop() is None
    waiting = threading.Thread(target=accept)
    waiting.start()
    task = connect(("127.0.0.1", listener.port), listener.secret)
    waiting.join()
    driver = links.pop()
    assert driver is not None
    task.send({"is": "known"})
    assert driver.receive() == {"is": "known"}
    task.close()
    driver.close()
    waiting = threading.Thread(target=accept)
    waiting.start()
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        waiting.join()
    assert links == [None]
    listener.close()
