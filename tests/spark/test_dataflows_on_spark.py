"""Dataflows on Spark: the same operators in Spark's workers, killed, stopped and failing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dataflow.test_crashes import COUNT, numbered, rows
from tests.dataflow.writing import COUNT_AND_LOG, COUNTER, LOG, write_dataflow

pytestmark = pytest.mark.spark


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
    state, out, err = tmp_path / "state", tmp_path / "out.jsonl", ""
    for end in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, None):
        run = headrace("run", COUNT, "--state-dir", state, COUNT_FILE=str(out), COUNT_TO="900")
        if end is not None:
            wait_for_epochs(state, run, 2)
            run.send_signal(end)
        _, err = run.communicate(timeout=300)
        assert run.returncode == (-signal.SIGKILL if end is signal.SIGKILL else 0), err
    assert "finished: every operator has ended" in err
    assert rows(out) == numbered(900)


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
