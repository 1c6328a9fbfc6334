"""`headrace run` as people use it: quiet, resumable, and clear when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PIPELINE = """
import pyarrow as pa
import headrace as hr


def halve(batch):
    if FAIL_AT in batch.column("counter").to_pylist():
        raise ValueError("no more numbers, please")
    return batch


FAIL_AT = {fail_at}
pipeline = hr.Pipeline("numbers")
source = hr.ImpulseSource({options})
pipeline.source(source).map(halve).sink("stdout")
"""


def headrace(*arguments: object, **environment: str | None) -> subprocess.Popen[str]:
    merged = {**os.environ, **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in merged.items() if value is not None},
    )


def write(path: Path, options: str, fail_at: int = -1) -> Path:
    path.write_text(PIPELINE.format(options=options, fail_at=fail_at))
    return path


def test_a_bounded_run_prints_its_rows_and_nothing_of_sparks(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_quiet.py", "message_count=1000")
    run = headrace("run", file, "--parallelism", 2, "--epoch-rows", 400)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert [json.loads(line)["counter"] for line in out.splitlines()] == list(range(1000))
    for noise in ("WARN", "INFO", "log4j", "java", "Traceback", "FutureWarning"):
        assert noise not in err
    assert "finished" in err


def test_sigterm_commits_and_the_next_run_goes_on_without_a_gap(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_live.py", "event_rate=2000")
    state = tmp_path / "state"
    run = headrace("run", file, "-s", state, "-p", 2)
    deadline = time.monotonic() + 200
    while not list(state.glob("checkpoints/*/committed.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
        assert run.poll() is None, run.communicate()
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert "stopped" in err
    first = [json.loads(line)["counter"] for line in out.splitlines()]
    again = headrace("run", file, "-s", state, "-p", 3, "--max-epochs", 2)
    out, err = again.communicate(timeout=200)
    assert again.returncode == 0, err
    second = [json.loads(line)["counter"] for line in out.splitlines()]
    assert first + second == list(range(len(first) + len(second)))
    assert first
    assert second


def test_a_raise_in_the_users_function_is_shown_as_the_users_and_exits_1(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_fail.py", "message_count=1000", fail_at=700)
    run = headrace("run", file, "--epoch-rows", 500, "-p", 1)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 1
    assert [json.loads(line)["counter"] for line in out.splitlines()] == list(range(500))
    assert "no more numbers, please" in err
    assert "operator halve_1, subtask 0, epoch 2" in err
    assert 'raise ValueError("no more numbers, please")' in err
    assert "py4j" not in err
    assert "log" in err


def test_a_reader_that_has_enough_ends_the_run_quietly(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_head.py", "event_rate=100000")
    with headrace("run", file, "-p", 2) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert json.loads(run.stdout.readline())["counter"] == 0
        run.stdout.close()
        err = run.stderr.read()
        assert run.wait(timeout=100) == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PATH": "/nowhere", "JAVA_HOME": None}, "Java was not found"),
        ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere"),
    ],
)
def test_without_java_a_run_says_so_and_exits_2(
    tmp_path: Path, environment: dict[str, str | None], expected: str
) -> None:
    file = write(tmp_path / "numbers_java.py", "message_count=10")
    run = headrace("run", file, **environment)
    _, err = run.communicate(timeout=100)
    assert run.returncode == 2
    assert expected in err
    assert "doctor" in err
    assert "Traceback" not in err


def test_a_state_directory_that_is_a_file_is_refused_with_exit_2(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_state.py", "message_count=10")
    (tmp_path / "state").write_text("not a directory")
    run = headrace("run", file, "-s", tmp_path / "state")
    _, err = run.communicate(timeout=100)
    assert run.returncode == 2
    assert "state" in err
    assert "Traceback" not in err


def test_a_state_directory_in_use_is_refused_with_the_process_that_holds_it(tmp_path: Path) -> None:
    from headrace.state.lock import StateLock
    from headrace.state.storage import open_storage

    file = write(tmp_path / "numbers_lock.py", "message_count=10")
    with StateLock(open_storage(str(tmp_path / "state"))):
        run = headrace("run", file, "-s", tmp_path / "state")
        _, err = run.communicate(timeout=100)
    assert run.returncode == 2
    assert str(os.getpid()) in err
