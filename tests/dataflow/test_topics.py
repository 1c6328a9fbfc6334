"""Looking at a running dataflow: its messages, its inputs, its lines and its graph."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.api.pipeline import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.execution import ExecutionMode
from headrace.dataflow.runtime import topics
from headrace.dataflow.runtime.printed import Line, publish
from headrace.dataflow.runtime.topics import TopicReader
from headrace.jobs.control import ControlSocket
from headrace.testing.dataflows import collected_lines
from headrace.testing.in_process import run_in_process
from tests.dataflow.writing import write_dataflow

DATAFLOW = """
    nodes:
      - id: cam
        path: cam.py
        outputs: [image, unread]
      - id: beat
        operator:
          python: beat.py
          inputs: {tick: dora/timer/millis/20, image: cam/image}
          outputs: [n, large]
      - id: last
        operator:
          python: last.py
          inputs: {n: {source: beat/n, queue_policy: drop_oldest, queue_size: 1}}
"""
CAM = """
    from dora import Node

    node = Node()
    while node.next(timeout=0.05)["type"] != "STOP":
        node.send_output("image", b"abc", {"camera": 1})
        node.send_output("unread", [True])
"""
BEAT = """
    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.n = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT" and dora_event["id"] == "tick":
                for _ in range(3):
                    self.n += 1
                    send_output("n", [self.n])
                send_output("large", pa.nulls(100_000, pa.int64()).fill_null(1))
            return DoraStatus.CONTINUE
"""
LAST = """
    from dora import DoraStatus

    class Operator:
        def on_event(self, dora_event, send_output):
            print(dora_event["type"])
            return DoraStatus.CONTINUE
"""
SIMPLE = """
    nodes:
      - id: beat
        operator: {python: beat.py, inputs: {tick: dora/timer/millis/20}, outputs: [n, large]}
      - id: last
        operator: {python: last.py, inputs: {n: beat/n}}
"""


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs of others on this machine are not seen."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="h") as short:  # sockets need short paths
        monkeypatch.setenv("XDG_CACHE_HOME", short)
        monkeypatch.setenv("TMPDIR", short)
        yield


@contextmanager
def running(directory: Path, dataflow: str, execution: ExecutionMode = "epochs") -> Iterator[str]:
    """A dataflow that runs in a thread, with the socket that a run has; gives its job."""
    file = write_dataflow(directory, dataflow=dataflow, cam=CAM, beat=BEAT, last=LAST)
    over, lines = threading.Event(), list[Line]()
    pipeline = Pipeline.from_dataflow(file)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with collected_lines(lines):
                run_in_process(
                    pipeline,
                    directory / "state",
                    clock=time.time,
                    idle_epochs=1_000_000,
                    stop=over.is_set,
                    options=RunOptions(execution=execution),
                )
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    identity = directory / "state" / "pipeline.json"
    while not identity.exists() and thread.is_alive():
        time.sleep(0.02)
    assert not failed, failed
    job = json.loads(identity.read_text())["job_id"]

    def status() -> dict[str, Any]:
        plain = {"name": pipeline.name, "job": job, "pid": os.getpid(), "started": 1.0, "state": "running"}
        return {**plain, "message": "epoch 7", "metrics": {"runtime": {"events": 1.0}}, "progress": None}

    questions: dict[str, Callable[..., Any]] = pipeline._questions()
    try:
        with ControlSocket(status, over.set, questions=questions):
            yield job
    finally:
        over.set()
        thread.join(60)
    assert not failed, failed


def headrace(*args: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as from another terminal: units print in this one."""
    command = [sys.executable, "-m", "headrace", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("execution", ["epochs", "resident"])
def test_messages_of_units_are_shown_as_they_are_sent(tmp_path: Path, execution: ExecutionMode) -> None:
    with running(tmp_path, SIMPLE, execution):
        shown = headrace("topic", "echo", "beat/n", "-n", "40", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    messages = [json.loads(line) for line in shown.stdout.splitlines()]
    numbers = [message["value"][0] for message in messages]
    assert numbers == sorted(set(numbers))
    # A terminal that stalls for long misses some, and is told.
    assert numbers[-1] - numbers[0] == 39 or "came too fast" in shown.stderr
    assert {message["output"] for message in messages} == {"beat/n"}
    assert messages[0]["type"] == "int64"
    assert messages[0]["length"] == 1


def test_what_processes_send_is_shown_too_and_what_nobody_reads(tmp_path: Path) -> None:
    with running(tmp_path, DATAFLOW):
        shown = headrace("topic", "echo", "cam/image", "cam/unread", "-n", "6")
    assert shown.returncode == 0, shown.stderr
    assert set(shown.stdout.splitlines()) == {
        'cam/image  uint8[3] [97, 98, 99]  {"camera": 1}',
        "cam/unread  bool[1] [true]",
    }


def test_of_a_large_message_only_its_type_and_size_are_shown(tmp_path: Path) -> None:
    with running(tmp_path, SIMPLE):
        shown = headrace("topic", "echo", "beat/large", "-n", "1")
    assert shown.stdout.startswith("beat/large  int64[100000] [1, 1, 1"), shown.stderr
    assert shown.stdout.endswith("1, …]\n")


def test_a_rate_is_that_of_what_is_sent(tmp_path: Path) -> None:
    with running(tmp_path, SIMPLE, "resident"):
        shown = headrace("topic", "hz", "beat/n", "--duration", "6")
    assert shown.returncode == 0, shown.stderr
    rate = float(shown.stdout.splitlines()[-1].split()[1])
    assert 1 < rate < 2000, shown.stderr  # 150, on a machine that may stall


def test_a_topic_that_is_not_there_suggests_one_that_is(tmp_path: Path) -> None:
    with running(tmp_path, SIMPLE):
        shown = headrace("topic", "echo", "beat/m")
    assert shown.returncode == 2
    assert "there is no topic `beat/m`" in shown.stderr
    assert "did you mean `beat/n`" in shown.stderr


def test_topics_are_listed_with_who_reads_them_and_the_graph_is_drawn(tmp_path: Path) -> None:
    with running(tmp_path, SIMPLE):
        listed, graph = headrace("topic", "list"), headrace("graph")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["TOPIC", "READ", "BY"],
        ["beat/n", "last/n"],
        ["beat/large", "-"],
    ]
    assert graph.stdout.startswith("flowchart TB\n")
    assert graph.stdout == headrace("graph", str(tmp_path / "dataflow.yml")).stdout


def test_top_shows_what_the_inputs_of_units_do(tmp_path: Path) -> None:
    with running(tmp_path, DATAFLOW):
        row = last_input()
        deadline = time.monotonic() + 300
        while not (row and row.events and row.dropped) and time.monotonic() < deadline:  # the first may be 0
            row = last_input()
    assert row is not None
    assert row.unit == "ms"
    assert row.events > 0
    assert row.queue == 1
    assert row.dropped > 0
    assert row.age >= 0


class InputRow(NamedTuple):
    """A line of `top`."""

    events: int
    queue: int
    dropped: int
    age: float
    unit: str


def last_input() -> InputRow | None:
    """What `top` shows of the input `n` of `last`, once an epoch has ended in time."""
    for line in headrace("top", "--once").stdout.splitlines():
        if line.split()[0] == "last/n":
            _, events, _, queue, dropped, age, unit, _, _ = line.replace(",", "").split()
            return InputRow(int(events), int(queue), int(dropped), float(age), unit)
    return None


def test_lines_are_shown_from_the_last_ones_on(tmp_path: Path) -> None:
    with running(tmp_path, SIMPLE):
        publish([Line("last", "stdout", f"line {number}", 1.0) for number in range(5)])
        shown = headrace("logs", "last", "--tail", "2").stdout.splitlines()
        other = headrace("logs", "beat").stdout
        wrong = headrace("logs", "lost")
        severe = headrace("logs", "last", "--level", "error").stdout
    assert len(shown) == 2
    assert all(" last: " in line for line in shown)
    assert " last: " not in other
    assert (wrong.returncode, severe) == (2, "")
    assert "there is no node `lost`" in wrong.stderr


def test_a_pipeline_that_is_no_dataflow_has_no_topics() -> None:
    status = {"name": "clicks", "job": "c", "pid": os.getpid(), "started": 1.0, "state": "running"}
    with ControlSocket(lambda: status, print):
        shown = headrace("topic", "list")
    assert shown.returncode == 2
    assert "`clicks` is not a dataflow" in shown.stderr


def test_a_reader_that_takes_nothing_holds_nobody_up_and_counts_what_it_lost(tmp_path: Path) -> None:
    with running(tmp_path, SIMPLE, "resident") as job, TopicReader(job, ["beat/n"]) as reader:
        first = reader.receive(60)
        time.sleep(4)  # some 600 messages; a socket holds a few hundred
        received = [first]
        while (message := reader.receive(0.5)) is not None and len(received) < 800:
            received.append(message)
        numbers = [message["value"][0] for message in received if message is not None]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] - numbers[0] + 1 == len(numbers) + reader.lost


def test_a_reader_that_has_gone_is_forgotten() -> None:
    looking = topics.Topics("job-1")
    with TopicReader("job-1", ["a/b"]), TopicReader("job-2", ["a/b"]):
        assert looking.look()
        assert looking.has_readers
    assert looking.look()
    assert not looking.has_readers
    assert not looking.look()
