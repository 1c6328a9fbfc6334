"""A process with inputs that ends, is stopped or does not want to end: what the run says and what goes on."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest

from headrace.api.pipeline import Pipeline
from headrace.base.errors import OperatorError
from headrace.dataflow.runtime.keeper import owner_of_workers
from headrace.dataflow.runtime.printed import Line
from headrace.testing.dataflows import collected_lines, run_dataflow
from headrace.testing.in_process import run_in_process
from tests.dataflow.writing import LOG, write_dataflow

DATAFLOW = """
    nodes:
      - id: node
        path: node.py
        inputs: {tick: dora/timer/secs/60, answer: echo/answer}
        outputs: [n]
        finish_grace_secs: 2
      - id: log
        operator: {python: log.py, inputs: {n: node/n}}
      - id: echo
        operator: {python: echo.py, inputs: {n: node/n}, outputs: [answer]}
"""
ECHO = """
    from dora import DoraStatus

    class Operator:
        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "STOP":
                send_output("answer", [0])
            return DoraStatus.CONTINUE
"""
NODE = """
    import sys, time
    from pathlib import Path
    from dora import Node

    node = Node()
    node.send_output("n", [1])
    Path("sent").touch()
    for event in node:
        if event["type"] == "STOP":
            print("told", flush=True)
            AT_STOP
"""


def write(directory: Path, at_stop: str) -> Path:
    node = NODE.replace("AT_STOP", at_stop)
    return write_dataflow(directory, dataflow=DATAFLOW, node=node, log=LOG, echo=ECHO)


def run_until_sent(file: Path, state: Path) -> tuple[str, list[Line]]:
    """Run until the process has sent; returns how the run ended and what was printed."""
    sent, lines = file.parent / "sent", list[Line]()
    sent.unlink(missing_ok=True)
    with collected_lines(lines):
        pipeline = Pipeline.from_dataflow(file)
        result = run_in_process(pipeline, state, clock=time.time, idle_epochs=100_000, stop=sent.exists)
    return result.reason, lines


def logged(lines: list[Line]) -> list[object]:
    return [json.loads(line.text)[1] for line in lines if (line.unit, line.stream) == ("log", "stdout")]


def texts(lines: list[Line], stream: str) -> list[str]:
    return [line.text for line in lines if (line.unit, line.stream) == ("node", stream)]


def test_a_run_that_is_stopped_is_not_over_when_its_process_has_ended_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "break")
    for _ in range(2):
        reason, lines = run_until_sent(file, tmp_path / "state")
        assert reason == "stopped"
        assert texts(lines, "stdout") == ["told"]
        assert sorted(logged(lines), key=str) == ["STOP", [1]]  # nothing is closed: it goes on later


def test_a_process_that_ignores_its_stop_is_killed_after_its_grace_and_the_run_ends_well(
    tmp_path: Path,
) -> None:
    reason, lines = run_until_sent(write(tmp_path, "time.sleep(600)"), tmp_path / "state")
    assert reason == "stopped"
    assert texts(lines, "warning") == ["it has not ended within 2 s: SIGTERM"]
    assert "STOP" in logged(lines)


def test_a_process_that_fails_at_its_stop_fails_the_run_and_the_next_goes_on(tmp_path: Path) -> None:
    file = write(tmp_path, "sys.exit('cannot park')")
    with pytest.raises(OperatorError) as raised:
        run_until_sent(file, tmp_path / "state")
    said = "node `node` ended with exit code 1 after it was told to stop:\n  cannot park"
    assert raised.value.message == said
    assert raised.value.exit_code == 1
    assert not raised.value.traceback_text
    write(tmp_path, "break")
    reason, lines = run_until_sent(file, tmp_path / "state")
    assert reason == "stopped"
    assert [1] in logged(lines)


def test_a_process_that_dies_between_events_is_started_again_and_no_message_is_said_to_be_skipped(
    tmp_path: Path,
) -> None:
    node = """
        import sys
        from dora import Node

        node = Node()
        node.send_output("n", [node.restart_count()])
        if not node.is_restart():
            node.next()  # the first tick; the one after it is far away
        node.next(timeout=0.5)
        sys.exit(5 if node.restart_count() < 2 else 0)
    """
    policy = "restart_policy: on-failure\n        max_restarts: 3\n        finish_grace_secs"
    dataflow = DATAFLOW.replace("finish_grace_secs", policy)
    file = write_dataflow(tmp_path, dataflow=dataflow, node=node, log=LOG, echo=ECHO)
    outcome = run_dataflow(file)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert logged(outcome.lines) == [[0], [1], [2], "INPUT_CLOSED"]
    assert texts(outcome.lines, "error") == ["node `node` ended with exit code 5"] * 2
    assert texts(outcome.lines, "warning")[0] == "restarted, attempt 1"


@pytest.mark.parametrize("daemon", ["pyspark.daemon", "headrace.exchanges.spark.daemon"])
def test_all_workers_of_a_daemon_find_the_same_process_of_a_node(
    monkeypatch: pytest.MonkeyPatch, daemon: str
) -> None:
    assert owner_of_workers() == os.getpid()
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.util.find_spec(daemon))
    assert owner_of_workers() == os.getppid()


HUNG = """
    import sys, time
    from pathlib import Path
    from dora import Node

    node = Node()
    for event in node:
        if event["type"] == "INPUT" and not node.is_restart():
            print("took it", flush=True)
            time.sleep(600)
        node.send_output("n", [node.restart_count()])
        break
"""


def test_a_process_that_takes_an_event_and_never_asks_again_fails_after_its_health_check_timeout(
    tmp_path: Path,
) -> None:
    dataflow = DATAFLOW.replace("finish_grace_secs: 2", "health_check_timeout: 0.5")
    outcome = run_dataflow(write_dataflow(tmp_path, dataflow=dataflow, node=HUNG, log=LOG, echo=ECHO))
    assert outcome.exit_code == 1
    assert outcome.error is not None
    said = "node `node` has not asked for its next event for 0.5 s (`health_check_timeout`)"
    assert outcome.error.message == said


def test_a_process_that_hangs_is_started_again_by_its_restart_policy(tmp_path: Path) -> None:
    keys = "health_check_timeout: 10\n        restart_policy: on-failure\n        max_restarts: 1"
    dataflow = DATAFLOW.replace("finish_grace_secs: 2", keys).replace("secs/60", "secs/1")
    outcome = run_dataflow(write_dataflow(tmp_path, dataflow=dataflow, node=HUNG, log=LOG, echo=ECHO))
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert logged(outcome.lines) == [[1], "INPUT_CLOSED"]


def test_a_program_with_inputs_that_makes_no_node_fails_after_its_startup_timeout(tmp_path: Path) -> None:
    dataflow = DATAFLOW.replace("finish_grace_secs: 2", "startup_timeout: 0.5")
    node = "import time\ntime.sleep(600)\n"
    outcome = run_dataflow(write_dataflow(tmp_path, dataflow=dataflow, node=node, log=LOG, echo=ECHO))
    assert outcome.exit_code == 1
    assert outcome.error is not None
    assert outcome.error.message == "node `node` has made no `Node` within 0.5 s (`startup_timeout`)"


def test_an_idle_dataflow_has_few_epochs_and_what_a_process_sends_has_one_at_once(tmp_path: Path) -> None:
    dataflow = """
        nodes:
          - id: node
            path: node.py
            inputs: {tick: dora/timer/secs/60}
            outputs: [n]
          - id: log
            operator: {python: log.py, inputs: {n: node/n}}
    """
    node = """
        import time
        from pathlib import Path
        from dora import Node

        node = Node()
        node.next()  # the first tick
        node.next(timeout=3)
        for number in range(3):
            Path("sent").write_text(repr(time.time()))
            node.send_output("n", [number])
            while not Path(f"got {number}").exists():
                node.next(timeout=0.2)
    """
    log = """
        import time
        from pathlib import Path
        from dora import DoraStatus

        class Operator:
            def on_event(self, dora_event, send_output):
                if dora_event["type"] == "INPUT":
                    print(time.time() - float(Path("sent").read_text()))
                    Path(f"got {dora_event['value'][0].as_py()}").touch()
                return DoraStatus.CONTINUE
    """
    outcome = run_dataflow(write_dataflow(tmp_path, dataflow=dataflow, node=node, log=log))
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    waits = [float(text) for text in outcome.logs["log"]]
    assert len(waits) == 3
    assert outcome.result is not None
    # Ten a second would be more than thirty.
    assert outcome.result.epochs < 20, outcome.result
    # The least of three: the machine may stall, but a process that had to wait for the clock waits each time.
    assert min(waits) < 0.5, waits
