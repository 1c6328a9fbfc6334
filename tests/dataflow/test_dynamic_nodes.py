"""`path: dynamic`: a process that is started by hand joins a dataflow that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Self

import pytest

from headrace.base.private import socket_addresses
from headrace.cli.main import main
from headrace.dataflow.document.load import load_dataflow
from headrace.dataflow.runtime.link import guest_name
from headrace.dataflow.runtime.process import PROVIDED
from headrace.testing.dataflows import DataflowResult, run_dataflow
from tests.dataflow.writing import LOG, write_dataflow

WITH_INPUTS = """
    nodes:
      - id: beat
        operator: {python: beat.py, inputs: {tick: dora/timer/millis/50}, outputs: [n]}
      - id: GUEST
        path: dynamic
        inputs: {n: beat/n}
        outputs: [echo]
      - id: log
        operator: {python: log.py, inputs: {echo: GUEST/echo}}
"""
BEAT = """
    from pathlib import Path
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.n = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                self.n += 1
                send_output("n", [self.n])
                if Path("enough").exists():
                    return DoraStatus.STOP
            return DoraStatus.CONTINUE
"""
ECHO = """
    import sys
    from pathlib import Path
    from dora import Node

    node = Node("GUEST")
    for event in node:
        if event["type"] == "INPUT":
            node.send_output("echo", event["value"])
            Path("enough").touch()
        else:
            print(event["type"], event["id"], flush=True)
"""
SOURCE = """
    nodes:
      - id: GUEST
        path: dynamic
        outputs: [n]
        RESTART
      - id: log
        operator: {python: log.py, inputs: {n: GUEST/n}}
"""
SEND = """
    import sys
    from dora import Node

    node = Node("GUEST")
    for number in range(5):
        node.send_output("n", [number])
"""


@pytest.fixture
def guest(request: pytest.FixtureRequest) -> str:
    """The id of a node that no other test of this user waits for."""
    return f"guest-{os.getpid()}-{abs(hash(request.node.name)) % 10_000}"


def write(directory: Path, guest: str, **files: str) -> Path:
    return write_dataflow(directory, **{name: text.replace("GUEST", guest) for name, text in files.items()})


class ByHand:
    """Starts a script as a user would, as soon as a dataflow waits for its node, `times` times."""

    def __init__(self, script: Path, guest: str, times: int = 1) -> None:
        self.ended: list[tuple[int, str, str]] = []
        self._script, self._guest, self._times = script, guest, times
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        for _ in range(self._times):
            while not socket_addresses(guest_name(self._guest)):
                time.sleep(0.02)
            command = [sys.executable, str(self._script)]
            env = os.environ | {"PYTHONPATH": str(PROVIDED)}
            done = subprocess.run(
                command, cwd=self._script.parent, env=env, capture_output=True, text=True, check=False
            )
            self.ended.append((done.returncode, done.stdout, done.stderr))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)


def logged(outcome: DataflowResult) -> list[object]:
    return [json.loads(line)[1] for line in outcome.logs.get("log", [])]


def test_a_process_that_is_started_by_hand_gets_what_comes_after_it_has_joined(
    tmp_path: Path, guest: str
) -> None:
    file = write(tmp_path, guest, dataflow=WITH_INPUTS, beat=BEAT, log=LOG, echo=ECHO)
    with ByHand(tmp_path / "echo.py", guest) as by_hand:
        outcome = run_dataflow(file)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    *echoes, last = logged(outcome)
    assert last == "INPUT_CLOSED"
    first = echoes[0][0]  # type: ignore[index]
    assert echoes == [[number] for number in range(first, first + len(echoes))]
    assert by_hand.ended == [(0, "INPUT_CLOSED n\nSTOP ALL_INPUTS_CLOSED\n", "")]
    said = [line.text for line in outcome.lines if (line.unit, line.stream) == (guest, "info")]
    assert said[0] == "a process has joined as this node"
    dropped = [] if first == 1 else [f"{first - 1} events that came before it had joined were dropped"]
    assert said[1:] == dropped


def test_a_source_that_is_started_by_hand_ends_when_its_process_does(tmp_path: Path, guest: str) -> None:
    file = write(tmp_path, guest, dataflow=SOURCE.replace("RESTART", ""), log=LOG, send=SEND)
    with ByHand(tmp_path / "send.py", guest) as by_hand:
        outcome = run_dataflow(file)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert logged(outcome) == [[0], [1], [2], [3], [4], "INPUT_CLOSED"]
    assert by_hand.ended == [(0, "", "")]


def test_with_a_restart_policy_another_process_may_join_when_one_has_gone(tmp_path: Path, guest: str) -> None:
    policy = "restart_policy: always\n        max_restarts: 2"
    file = write(tmp_path, guest, dataflow=SOURCE.replace("RESTART", policy), log=LOG, send=SEND)
    with ByHand(tmp_path / "send.py", guest, times=3) as by_hand:
        outcome = run_dataflow(file)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert logged(outcome) == [[0], [1], [2], [3], [4]] * 3 + ["INPUT_CLOSED"]
    assert [code for code, _, _ in by_hand.ended] == [0, 0, 0]


def test_a_dataflow_that_nobody_joins_can_be_stopped_and_says_what_was_dropped(
    tmp_path: Path, guest: str
) -> None:
    file = write(tmp_path, guest, dataflow=WITH_INPUTS, beat=BEAT, log=LOG, echo=ECHO)
    outcome = run_dataflow(file, stop_after=1.0)
    assert (outcome.exit_code, outcome.reason) == (0, "stopped"), outcome.error
    (said,) = [line.text for line in outcome.lines if (line.unit, line.stream) == (guest, "warning")]
    assert said.startswith("nobody has joined as this node: ")
    assert socket_addresses(guest_name(guest)) == []


def test_a_process_that_has_joined_hears_of_a_stop(tmp_path: Path, guest: str) -> None:
    echo = ECHO.replace('Path("enough").touch()', "pass")
    file = write(tmp_path, guest, dataflow=WITH_INPUTS, beat=BEAT, log=LOG, echo=echo)
    joined = time.monotonic()
    with ByHand(tmp_path / "echo.py", guest) as by_hand:
        outcome = run_dataflow(file, stop_after=3.0)
    assert (outcome.exit_code, outcome.reason) == (0, "stopped"), (outcome.error, joined)
    assert by_hand.ended == [(0, "STOP MANUAL\n", "")]


def test_a_process_that_nobody_waits_for_says_so(tmp_path: Path, guest: str) -> None:
    script = tmp_path / "echo.py"
    script.write_text(textwrap.dedent(ECHO.replace("GUEST", guest)))
    env = os.environ | {"PYTHONPATH": str(PROVIDED)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"no dataflow waits for a node `{guest}`: one that has it, with `path: dynamic`" in done.stderr


def test_the_command_starts_a_script_with_the_module_that_joins(tmp_path: Path, guest: str) -> None:
    file = write(tmp_path, guest, dataflow=SOURCE.replace("RESTART", ""), log=LOG, send=SEND)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        while not socket_addresses(guest_name(guest)):
            time.sleep(0.02)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-m", "headrace", "join", "send.py"]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env))

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    outcome = run_dataflow(file)
    thread.join(60)
    assert started[0].wait(60) == 0
    assert logged(outcome) == [[0], [1], [2], [3], [4], "INPUT_CLOSED"]


def test_a_script_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["join", str(tmp_path / "none.py")])
    assert ended.value.code == 2
    assert "there is no file" in capsys.readouterr().err


def test_what_only_a_started_process_could_have_is_a_warning(tmp_path: Path) -> None:
    document = """
        nodes:
          - id: a
            path: dynamic
            args: --fast
            env: {SPEED: 2}
            outputs: [n]
    """
    warnings = load_dataflow(write_dataflow(tmp_path, dataflow=document)).warnings
    why = "has no effect here: the process of a dynamic node is started by hand"
    assert [f"`{key}` {why}" in text for key, text in zip(["args", "env"], warnings, strict=True)] == [
        True,
        True,
    ]
