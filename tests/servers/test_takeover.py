"""Two runs on one state directory in an object store: one is suspended, the other takes over and finishes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.state import inspect
from headrace.storage.open import open_storage
from tests.servers.sleeper import ROWS

REPOSITORY = Path(__file__).parents[2]


def test_of_creators_in_the_same_moment_one_wins(atomic_s3_url: str) -> None:
    storage = open_storage(atomic_s3_url)
    with ThreadPoolExecutor(8) as pool:
        for number in range(3):
            path = f"generation-{number}"
            won = list(
                pool.map(lambda data, path=path: storage.create(path, data), [b"%d" % n for n in range(8)])
            )
            assert won.count(True) == 1
            assert storage.read(path) == b"%d" % won.index(True)


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own; whatever happens, it does not outlive the test."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=out, stderr=out, text=True
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


def wait_until_suspended(process: subprocess.Popen[str], log: Path) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        process.returncode = os.waitstatus_to_exitcode(status)
        pytest.fail(f"it was not suspended:\n{log.read_text()}")


def check_rows(out: Path, objects: str) -> None:
    """Every row is in each of the three sinks, once."""
    lines = (out / "numbers.json").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == list(range(ROWS))
    storage = open_storage(objects)
    files = [path for path in storage.list("") if not path.startswith(".staged/")]
    rows = [json.loads(line)["n"] for path in files for line in storage.read(path).splitlines()]
    assert sorted(rows) == list(range(ROWS))
    with contextlib.closing(sqlite3.connect(out / "numbers.db")) as database:
        assert database.execute("select n from numbers order by n").fetchall() == [(n,) for n in range(ROWS)]


STEPS = ["tasks_done", "operators_written", "metadata_written", "sink_committed:file", "committed"]


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_suspended_past_a_takeover_ends_and_every_row_is_there_once(
    step: str, atomic_s3_url: str, tmp_path: Path
) -> None:
    state, objects, log = f"{atomic_s3_url}/state", f"{atomic_s3_url}/out", tmp_path / "log"
    run = [sys.executable, "-m", "tests.servers.sleeper", state, str(tmp_path), objects]
    with started([*run, step, "3"], log) as sleeper:
        wait_until_suspended(sleeper, log)
        # It goes on for more epochs than are kept: nothing that the sleeper knows of is left.
        subprocess.run(run, cwd=REPOSITORY, check=True, timeout=300)
        check_rows(tmp_path, objects)
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(300) == 1, log.read_text()
    assert "ReplacedError: another run, process" in log.read_text()
    assert "has taken over the state directory" in log.read_text()
    check_rows(tmp_path, objects)
    assert all(not result.problems for result in inspect.verify(open_storage(state)))


PIPELINE = """
import os

from tests.servers.sleeper import SleepInCommit, build

asleep = os.environ.get("ASLEEP_AT")
pipeline = build({out!r}, {objects!r}, SleepInCommit(int(asleep) if asleep else None))
"""


@pytest.mark.spark
def test_a_driver_on_spark_that_is_suspended_between_commit_point_and_sinks_publishes_nothing(
    atomic_s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, objects, log = f"{atomic_s3_url}/state", f"{atomic_s3_url}/out", tmp_path / "log"
    (tmp_path / "numbers.py").write_text(PIPELINE.format(out=str(tmp_path), objects=objects))
    (tmp_path / "headrace.toml").write_text("[state]\nkeep_checkpoints = 2\n")
    run = [sys.executable, "-m", "headrace", "run", str(tmp_path / "numbers.py"), "-s", state]
    run += ["-c", str(tmp_path / "headrace.toml"), "-p", "1", "--epoch-rows", "25", "--master", "local[1]"]
    monkeypatch.setenv("ASLEEP_AT", "3")
    with started(run, log) as sleeper:
        wait_until_suspended(sleeper, log)
        monkeypatch.delenv("ASLEEP_AT")
        with started(run, tmp_path / "other-log") as other:
            assert other.wait(300) == 0, (tmp_path / "other-log").read_text()
        check_rows(tmp_path, objects)
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.wait(300) == 1, log.read_text()
    assert "has taken over the state directory" in log.read_text()
    check_rows(tmp_path, objects)
    assert all(not result.problems for result in inspect.verify(open_storage(state)))
