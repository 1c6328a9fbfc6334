"""A process that is a source: what it sent is kept, whatever happens to the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.testing.dataflows import run_dataflow
from headrace.testing.in_process import CrashError
from tests.dataflow.writing import LOG, write_dataflow

SENDER = """
    import os

    import pyarrow as pa
    from dora import Node

    node = Node()
    for n in range(200):
        node.send_output("n", pa.array([n]), {"half": n / 2})
    print("all sent")
"""

DATAFLOW = """
    nodes:
      - id: sender
        path: sender.py
        outputs: [n]
      - id: log
        operator: {python: log.py, inputs: {n: sender/n}}
"""


def numbers(lines: list[str]) -> list[int]:
    return [json.loads(line)[1][0] for line in lines if "INPUT_CLOSED" not in line]


def test_what_a_process_sends_arrives_in_its_order_and_its_end_ends_the_run(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path, dataflow=DATAFLOW, sender=SENDER, log=LOG)
    outcome = run_dataflow(file, epoch_rows=30)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert numbers(outcome.logs["log"]) == list(range(200))
    assert outcome.logs["sender"] == ["all sent"]
    assert "INPUT_CLOSED" in outcome.logs["log"][-1]


@pytest.mark.parametrize("step", ["begin", "tasks_done", "metadata_written"])
def test_what_was_received_before_a_crash_is_handled_once_after_it(tmp_path: Path, step: str) -> None:
    file = write_dataflow(tmp_path / "flow", dataflow=DATAFLOW, sender=SENDER, log=LOG)

    def crash(name: str, _: int) -> None:
        if name == step:
            raise CrashError

    state = tmp_path / "state"
    with pytest.raises(CrashError):
        run_dataflow(file, state_dir=state, on_step=crash)
    assert list(state.glob("received/sender/*.arrow"))
    (file.parent / "sender.py").write_text("# It sends nothing again: what comes now was in the log.\n")
    outcome = run_dataflow(file, state_dir=state)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    found = numbers(outcome.logs["log"])
    assert found
    assert found == list(range(len(found)))


def test_a_process_that_fails_ends_the_run_with_what_it_said(tmp_path: Path) -> None:
    sender = SENDER + "    raise ValueError('boom')\n"
    file = write_dataflow(tmp_path, dataflow=DATAFLOW, sender=sender, log=LOG)
    outcome = run_dataflow(file)
    assert outcome.exit_code == 1
    assert "boom" in str(outcome.error)
    assert numbers(outcome.logs["log"]) == list(range(200))


def test_a_process_is_started_again_as_its_restart_policy_says(tmp_path: Path) -> None:
    sender = """
    import sys
    from pathlib import Path

    import pyarrow as pa
    from dora import Node

    node, tries = Node(), Path("tries")
    count = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (count + 1))
    node.send_output("n", pa.array([count]))
    sys.exit(1 if count < 2 else 0)
    """
    policy = DATAFLOW.replace(
        "outputs: [n]", "outputs: [n]\n        restart_policy: on-failure\n        max_restarts: 5"
    )
    file = write_dataflow(tmp_path, dataflow=policy, sender=sender, log=LOG)
    outcome = run_dataflow(file)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert numbers(outcome.logs["log"]) == [0, 1, 2]


def test_restarts_that_do_not_help_come_to_an_end(tmp_path: Path) -> None:
    policy = DATAFLOW.replace(
        "outputs: [n]", "outputs: [n]\n        restart_policy: always\n        max_restarts: 2"
    )
    file = write_dataflow(tmp_path, dataflow=policy, sender="import sys\nsys.exit(3)\n", log=LOG)
    outcome = run_dataflow(file)
    assert outcome.exit_code == 1
    assert "exit code 3" in str(outcome.error)
    assert sum("started again" in line.text for line in outcome.lines) == 2
