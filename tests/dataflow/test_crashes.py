"""Whatever happens to a dataflow, each message counts once in its operators and in its sinks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.testing.dataflows import run_dataflow
from headrace.testing.in_process import CrashError

REPOSITORY = Path(__file__).parents[2]
COUNT = Path(__file__).parent / "flows" / "count" / "dataflow.yml"
STEPS = ["begin", "tasks_done", "operators_written", "metadata_written", "sink_committed:file", "committed"]


def numbered(last: int) -> list[dict[str, int]]:
    return [{"count": n, "double": 2 * n, "seen": n} for n in range(1, last + 1)]


def rows(file: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_an_epoch_loses_nothing_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "out.jsonl"))
    for epoch in (2, 5, 6):

        def crash(name: str, at: int, epoch: int = epoch) -> None:
            if (name, at) == (step, epoch):
                raise CrashError

        with pytest.raises(CrashError):
            run_dataflow(COUNT, state_dir=tmp_path / "state", on_step=crash, epoch_rows=20)
    outcome = run_dataflow(COUNT, state_dir=tmp_path / "state", epoch_rows=20)
    assert (outcome.reason, outcome.exit_code) == ("finished", 0), outcome.error
    assert rows(tmp_path / "out.jsonl") == numbered(300)


def test_a_dataflow_that_is_stopped_and_resumed_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "out.jsonl"))
    for life in range(5):
        outcome = run_dataflow(COUNT, state_dir=tmp_path / "state", stop_after=0.25 + life / 10)
        assert (outcome.reason, outcome.exit_code) == ("stopped", 0), outcome.error
    outcome = run_dataflow(COUNT, state_dir=tmp_path / "state")
    assert outcome.reason == "finished"
    assert rows(tmp_path / "out.jsonl") == numbered(300)
    again = run_dataflow(COUNT, state_dir=tmp_path / "state")
    assert (again.reason, again.exit_code) == ("finished", 0)
    assert rows(tmp_path / "out.jsonl") == numbered(300)


def test_a_counting_dataflow_killed_twenty_times_ends_with_the_exact_count(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out.jsonl"
    chance = random.Random(4)
    kills = lives = 0
    while True:
        lives += 1
        assert lives < 60, "it makes no progress"
        victim = subprocess.Popen(
            [sys.executable, "-m", "tests.dataflow.victim", str(COUNT), str(state)],
            cwd=REPOSITORY,
            env=os.environ | {"COUNT_FILE": str(out)},
            stdout=subprocess.PIPE,
            text=True,
        )
        with victim:
            if kills < 20:
                _wait_for_epoch(state, victim)
                time.sleep(chance.random() * 0.1)
                victim.send_signal(signal.SIGKILL)
            said = victim.communicate()[0]
        if victim.returncode == 0:
            break
        assert victim.returncode == -signal.SIGKILL, said
        kills += 1
    assert kills == 20, f"it ended after {kills} kills: {said}"
    assert rows(out) == numbered(300)


def _wait_for_epoch(state: Path, victim: subprocess.Popen[str]) -> None:
    """Until the run has committed another epoch."""
    before = set((state / "checkpoints").glob("*/metadata*")) if state.exists() else set()
    while victim.poll() is None:
        if set((state / "checkpoints").glob("*/metadata*")) - before:
            return
        time.sleep(0.005)
