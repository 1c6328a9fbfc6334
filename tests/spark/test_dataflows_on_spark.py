"""Dataflows on Spark: the same operators in Spark's workers, killed, stopped and failing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.dataflow.test_crashes import COUNT, numbered, rows
from tests.dataflow.writing import COUNT_AND_LOG, COUNTER, LOG, write_dataflow
from tests.servers.http import Answer, run_http

pytestmark = pytest.mark.spark

DAEMON = "headrace.exchanges.spark.daemon"
"""In the command of Spark's Python workers, and of the process that they are forks of."""


def headrace(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def wait_for_epochs(state: Path, run: subprocess.Popen[str], count: int) -> None:
    """Until the run has committed so many more epochs."""
    before = len(list((state / "checkpoints").glob("*/metadata*"))) if state.exists() else 0
    while run.poll() is None and len(list((state / "checkpoints").glob("*/metadata*"))) < before + count:
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # several lives, each with its own limit
def test_a_dataflow_that_is_killed_and_stopped_on_spark_ends_with_every_number_once(tmp_path: Path) -> None:
    # Its timer ticks for 30 seconds, over all lives: the first three are over before that.
    state, out, err = tmp_path / "state", tmp_path / "out.jsonl", ""
    for end in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, None):
        arguments = ("run", COUNT, "--state-dir", state, "--execution", "epochs")
        run = headrace(*arguments, COUNT_FILE=str(out), COUNT_TO="3000")
        if end is not None:
            wait_for_epochs(state, run, 2)
            run.send_signal(end)
        _, err = run.communicate(timeout=300)
        assert run.returncode == (-signal.SIGKILL if end is signal.SIGKILL else 0), err
    # By the last life, or on a slow machine by the one that was to be stopped.
    assert "finished: every operator has ended" in err or "finished before: " in err
    assert rows(out) == numbered(3000)


def worker_of(run: subprocess.Popen[str]) -> psutil.Process:
    """The Python worker in which the resident task runs: the one that is connected to the driver."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                ports = {one.laddr.port for one in psutil.Process(run.pid).net_connections("tcp")}
                peers = {getattr(one.raddr, "port", None) for one in child.net_connections("tcp")}
                if DAEMON in child.cmdline() and ports & peers:
                    return child
        time.sleep(0.05)
    raise AssertionError("there is no worker")


@pytest.mark.timeout(600)
def test_a_resident_dataflow_whose_worker_and_driver_are_killed_on_spark_has_every_number_once(
    tmp_path: Path,
) -> None:
    state, out, err = tmp_path / "state", tmp_path / "out.jsonl", ""
    for end in ("the worker", "the driver", "stopped", None):
        arguments = ("run", COUNT, "--state-dir", state, "--execution", "resident")
        run = headrace(*arguments, COUNT_FILE=str(out), COUNT_TO="3000")
        if end is not None:
            wait_for_epochs(state, run, 3)
        if end == "the worker":
            worker_of(run).kill()
            wait_for_epochs(state, run, 3)
        if end is not None:
            run.send_signal(signal.SIGKILL if end == "the driver" else signal.SIGTERM)
        _, err = run.communicate(timeout=300)
        assert run.returncode == (-signal.SIGKILL if end == "the driver" else 0), err
        if end == "the worker":
            assert "killed by SIGKILL" in err
    assert "finished" in err  # by the last life, or on a slow machine by the one that was to be stopped
    assert rows(out) == numbered(3000)


def test_a_resident_dataflow_that_has_the_only_core_commits_what_a_task_would_commit_otherwise(
    tmp_path: Path,
) -> None:
    text = """
        nodes:
          - id: counter
            operator: {python: counter.py, inputs: {tick: dora/timer/millis/20}, outputs: [rows]}
          - id: hook
            connector: webhook
            options: {endpoint: "{{ ENDPOINT }}", format: json}
            schema: {n: BIGINT, text: TEXT}
            inputs: {rows: counter/rows}
    """
    rows_of_noise = """
                import os
                row = {"n": self.count, "text": os.urandom(30_000).hex()}
                send_output("rows", pa.RecordBatch.from_pylist([row]))"""
    large = COUNTER.replace('send_output("count", pa.array([self.count]))', rows_of_noise.strip())
    with run_http(lambda _: Answer()) as server:
        file = write_dataflow(tmp_path, dataflow=text, counter=large)
        run = headrace(*("run", file, "--execution", "resident", "--master", "local[1]"), ENDPOINT=server.url)
        _, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
        sent = [json.loads(request.body)["n"] for request in server.requests if request.method == "POST"]
        assert sorted(sent) == list(range(1, 21))


def test_processes_parallel_units_and_sql_run_in_sparks_workers(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - id: source
            path: source.py
            outputs: [n]
          - id: square
            path: square.py
            inputs: {n: source/n}
            outputs: [square]
          - id: keyed
            parallelism: 3
            partition_by: key
            operator:
              python: keyed.py
              inputs: {square: square/square}
              outputs: [rows]
          - id: even
            sql: SELECT key, seen, square FROM rows WHERE square % 2 = 0
            inputs: {rows: keyed/rows}
          - id: log
            operator: {python: log.py, inputs: {rows: even/rows}}
        """,
        source="""
        from dora import Node

        node = Node()
        for n in range(40):
            node.send_output("n", [n], {"key": str(n % 4)})
        """,
        square="""
        from dora import Node

        node = Node()
        for event in node:
            if event["type"] == "INPUT":
                node.send_output("square", [event["value"][0].as_py() ** 2], event["metadata"])
        """,
        keyed="""
        import pyarrow as pa
        from dora import DoraStatus

        class Operator:
            def __init__(self):
                self.seen = {}

            def on_event(self, dora_event, send_output):
                if dora_event["type"] == "INPUT":
                    key = dora_event["metadata"]["key"]
                    self.seen[key] = self.seen.get(key, 0) + 1
                    row = {"key": key, "seen": self.seen[key], "square": dora_event["value"][0].as_py()}
                    send_output("rows", pa.RecordBatch.from_pylist([row]))
                return DoraStatus.CONTINUE
        """,
        log=LOG,
    )
    run = headrace("run", file, "--quiet", "-p", 2)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    lines = [json.loads(line.removeprefix("log: ")) for line in out.splitlines() if line.startswith("log: ")]
    assert lines[-1] == ["rows", "INPUT_CLOSED"]
    found = [(row["key"], row["seen"], row["square"]) for _, value in lines[:-1] for row in value]
    assert sorted(found) == sorted((str(n % 4), n // 4 + 1, n * n) for n in range(0, 40, 2))


def test_a_raise_shows_what_was_printed_and_its_traceback_and_the_next_run_goes_on(tmp_path: Path) -> None:
    counter = COUNTER.replace(
        "self.count += 1", "self.count += 1\n                print('at', self.count)"
    ).replace(
        "if self.count == 20:",
        "if self.count == 7 and FAIL:\n                    raise ValueError('seven')\n"
        "                if self.count == 20:",
    )
    file = write_dataflow(
        tmp_path / "flow", dataflow=COUNT_AND_LOG, counter=counter + "\n    FAIL = True\n", log=LOG
    )
    run = headrace("run", file, "--state-dir", tmp_path / "state")
    out, err = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "`counter` raised ValueError: seven" in err
    assert 'counter.py", line' in err
    assert "headrace/dataflow" not in err
    assert "counter: at 7" in out
    operator = file.parent / "counter.py"
    operator.write_text(operator.read_text().replace("FAIL = True", "FAIL = False"))
    run = headrace("run", file, "--state-dir", tmp_path / "state")
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert "counter: at 7" in out
    assert "counter: at 1\n" not in out
    assert out.splitlines()[-1] == 'log: ["count", "INPUT_CLOSED"]'
    entries = (tmp_path / "state" / "logs" / "log.jsonl").read_text().splitlines()
    assert json.loads(entries[-1])["message"] == '["count", "INPUT_CLOSED"]'


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("execution", ["epochs", "resident"])
def test_ctrl_c_ends_a_run_whose_process_takes_an_event_and_never_asks_again_and_the_next_goes_on(
    tmp_path: Path, execution: str
) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - id: node
            path: node.py
            inputs: {tick: dora/timer/millis/100}
            outputs: [n]
            finish_grace_secs: 2
          - id: log
            operator: {python: log.py, inputs: {n: node/n}}
        """,
        node="""
        import os, time
        from pathlib import Path
        from dora import Node

        Path("pid").write_text(str(os.getpid()))
        node = Node()
        for number, event in enumerate(node):
            if number == 5 and not Path("mended").exists():
                Path("hangs").touch()
                time.sleep(3600)
            node.send_output("n", [number])
            if number == 20:
                break
        """,
        log=LOG,
    )
    state = tmp_path / "state"
    run = headrace("run", file, "--state-dir", state, "--execution", execution)
    while run.poll() is None and not (tmp_path / "hangs").exists():
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=300)
    assert run.returncode == 1, err
    assert "stopped in the middle of an epoch: `runtime(node, log)` did not finish it in time" in err
    assert "Traceback" not in err
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.05)
    (tmp_path / "mended").touch()
    again = headrace("run", file, "--state-dir", state, "--execution", execution)
    out, err = again.communicate(timeout=300)
    assert '["n", [20]]' in out, err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recording_on_spark_that_is_killed_in_the_middle_is_complete_and_its_replay_is_equal(
    tmp_path: Path,
) -> None:
    state, out, recording = tmp_path / "state", tmp_path / "out.jsonl", tmp_path / "recording"
    environment = {"COUNT_FILE": str(out), "COUNT_TO": "200"}
    arguments = ["record", COUNT, "--out", recording, "--state-dir", state]
    run = headrace(*arguments, **environment)
    wait_for_epochs(state, run, 3)
    run.kill()
    run.communicate(timeout=300)
    run = headrace(*arguments, **environment)
    _, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert rows(out) == numbered(200)
    replayed = headrace("replay", recording, "--compare", **environment)
    text, err = replayed.communicate(timeout=300)
    assert replayed.returncode == 0, text + err
    assert "equal: every message and row is as it was recorded" in err
    assert rows(out) == numbered(200)  # nothing was written to the sink
