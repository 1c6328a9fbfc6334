"""`headrace run` as people use it: quiet, resumable, and clear when something goes wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.canary.options import CANARY

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
        start_new_session=True,
    )


def write(path: Path, options: str, fail_at: int = -1) -> Path:
    path.write_text(PIPELINE.format(options=options, fail_at=fail_at))
    return path


def test_a_file_with_the_name_of_a_module_of_pythons_does_no_harm(tmp_path: Path) -> None:
    for name in ("types", "operator", "random"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the module')")
    (tmp_path / "beside.py").write_text("def same(batch):\n    return batch\n")
    file = write(tmp_path / "numbers_beside.py", "message_count=10")
    file.write_text(file.read_text().replace("return batch", "import beside\n    return beside.same(batch)"))
    command = [str(Path(sys.executable).with_name("headrace")), "run", file.name, "--parallelism", "1"]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )
    assert run.returncode == 0, run.stderr
    assert [json.loads(line)["counter"] for line in run.stdout.splitlines()] == list(range(10))


def test_a_bounded_run_prints_its_rows_and_nothing_of_sparks(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_quiet.py", "message_count=1000")
    run = headrace("run", file, "--parallelism", 2, "--epoch-rows", 400)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert [json.loads(line)["counter"] for line in out.splitlines()] == list(range(1000))
    for noise in ("WARN", "INFO", "log4j", "java", "Traceback", "FutureWarning"):
        assert noise not in err
    assert "finished" in err


def test_sigterm_to_all_processes_commits_and_the_next_run_goes_on_without_a_gap(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_live.py", "event_rate=2000")
    state = tmp_path / "state"
    run = headrace("run", file, "-s", state, "-p", 2)
    deadline = time.monotonic() + 200
    while not list(state.glob("checkpoints/*/committed.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
        assert run.poll() is None, run.communicate()
    os.killpg(run.pid, signal.SIGTERM)  # as `timeout` and supervisors do
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


def test_a_stop_that_ends_java_while_it_starts_is_a_stop_and_no_error(tmp_path: Path) -> None:
    file = write(tmp_path / "numbers_early.py", "event_rate=2000")
    java, started = tmp_path / "bin" / "java", tmp_path / "pid"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho $$ > {started}.part && mv {started}.part {started}\nexec sleep 300\n")
    java.chmod(0o755)
    run = headrace("run", file, "-p", 2, JAVA_HOME=str(tmp_path))
    deadline = time.monotonic() + 100
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
        assert run.poll() is None, run.communicate()
    group = os.getpgid(int(started.read_text()))
    assert group != run.pid
    for processes in (run.pid, group):
        os.killpg(processes, signal.SIGTERM)
        time.sleep(0.5)
    out, err = run.communicate(timeout=100)
    assert (run.returncode, out) == (0, ""), err
    assert "stopped" in err
    assert "error" not in err


@pytest.mark.parametrize("restarts", [0, 3])
def test_java_that_ends_while_there_is_nothing_to_read_is_started_again_if_it_may_be(
    tmp_path: Path, restarts: int
) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "a.json").write_text('{"n": 1}\n')
    file = tmp_path / "watched.sql"
    file.write_text(
        f"""CREATE TABLE t (n INT) WITH (connector = 'filesystem', type = 'source', path = '{rows}',
            format = 'json', 'source.watch_interval' = '1s');
        SELECT n FROM t;"""
    )
    run = headrace("run", file, "--parallelism", 1, HEADRACE__RUN__RESTARTS=str(restarts))
    assert run.stdout is not None
    assert json.loads(run.stdout.readline()) == {"n": 1}
    (java,) = [one for one in psutil.Process(run.pid).children() if one.name() == "java"]
    java.kill()
    if restarts:
        (rows / "b.json").write_text('{"n": 2}\n')
        assert json.loads(run.stdout.readline()) == {"n": 2}
        run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=200)
    assert run.returncode == (0 if restarts else 1), err
    assert "Spark's Java has ended: it was killed by SIGKILL" in err


@pytest.mark.parametrize("signals", [["SIGINT", "SIGINT"], ["SIGTERM"], ["SIGTERM", "SIGINT"]])
def test_signals_in_the_first_epoch_show_no_traceback(tmp_path: Path, signals: list[str]) -> None:
    file = write(tmp_path / "numbers_slow.py", "event_rate=100")
    at_work = tmp_path / "at-work"
    slow = f"open({str(at_work)!r}, 'w').close()\n    import time\n    time.sleep(5)\n    return batch"
    file.write_text(file.read_text().replace("return batch", slow))
    run = headrace("run", file, "-p", 1)
    deadline = time.monotonic() + 200
    while not at_work.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
        assert run.poll() is None, run.communicate()
    for name in signals:
        run.send_signal(signal.Signals[name])
        time.sleep(0.5)
    _, err = run.communicate(timeout=200)
    assert run.returncode == (0 if signals == ["SIGTERM"] else 130), err
    assert "Traceback" not in err
    assert "stopping after this epoch" in err


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
    from headrace.storage.open import open_storage

    file = write(tmp_path / "numbers_lock.py", "message_count=10")
    with StateLock(open_storage(str(tmp_path / "state"))):
        run = headrace("run", file, "-s", tmp_path / "state")
        _, err = run.communicate(timeout=100)
    assert run.returncode == 2
    assert str(os.getpid()) in err


QUERIES = """
create table numbers (n BIGINT) with (
    connector = 'single_file', path = '{folder}/{{{{ HEADRACE_TEST_CANARY }}}}.json', format = 'json'
);
select n from numbers where twice(n) > 90;
select n % 2 as k, count(*) as rows from numbers group by 1;
"""


@pytest.fixture
def queries(tmp_path: Path) -> list[object]:
    """The arguments that name a program with a secret, a function and two results."""
    (tmp_path / f"{CANARY}.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    (tmp_path / "queries.sql").write_text(QUERIES.format(folder=tmp_path))
    (tmp_path / "cli_factor.py").write_text("def factor():\n    return 2\n")
    (tmp_path / "functions.py").write_text(
        "import cli_factor\nfrom headrace import udf\n\n\n"
        "@udf\ndef twice(x: int) -> int:\n    return x * cli_factor.factor()\n"
    )
    return ["run", tmp_path / "queries.sql", "--udf", tmp_path / "functions.py", "-p", 2]


def test_rows_of_sql_are_json_lines_in_a_pipe_and_a_secret_is_nowhere(
    tmp_path: Path, queries: list[object]
) -> None:
    state = tmp_path / "state"
    first = headrace(
        *queries, "-s", state, "--epoch-rows", 20, "--max-epochs", 1, HEADRACE_TEST_CANARY=CANARY
    )
    out, err = first.communicate(timeout=200)
    assert first.returncode == 0, err
    assert "go on with: headrace run" in err
    second = headrace(*queries, "-s", state, "--epoch-rows", 20, HEADRACE_TEST_CANARY=CANARY)
    more, said = second.communicate(timeout=200)
    assert second.returncode == 0, said
    lines = [json.loads(line) for line in (out + more).splitlines()]
    assert [line["n"] for line in lines if "op" not in line] == [46, 47, 48, 49]
    counts: dict[int, int] = {}
    for line in lines:
        if "op" in line:
            counts[line["after"]["k"]] = line["after"]["rows"]
            assert (line["before"] is None) == (line["op"] == "c")
    assert counts == {0: 25, 1: 25}
    assert CANARY not in out + more + err + said
    files = [file for file in state.rglob("*") if file.is_file()]
    assert [file for file in files if CANARY.encode() in file.read_bytes()] == []


def test_rows_of_sql_are_tables_on_a_terminal(queries: list[object]) -> None:
    controller, terminal = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "headrace", *map(str, queries)],
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "HEADRACE_TEST_CANARY": CANARY, "COLUMNS": "80", "LINES": "30"},
    )
    os.close(terminal)
    written = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    assert run.wait(timeout=200) == 0, written
    os.close(controller)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).replace("\r", "")
    first = shown.rindex("query 1")
    final = [line.rstrip() for line in shown[first:].splitlines()]
    assert final[:7] == ["query 1", " n", "──", "46", "47", "48", "49"]
    assert "query 2" in final
    assert {"0     25", "1     25"} <= set(final)
    assert "finished: every source has come to its end" in final
    assert CANARY not in shown


def test_files_of_sql_are_tested_on_spark(tmp_path: Path) -> None:
    (tmp_path / "numbers.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    table = (
        "create table numbers (n BIGINT) with (connector='single_file', path='numbers.json', format='json');"
    )
    (tmp_path / "good.sql").write_text(f"{table} select n % 2 as k, count(*) as c from numbers group by 1")
    (tmp_path / "good.expected.jsonl").write_text('{"k": 0, "c": 25}\n{"k": 1, "c": 25}\n')
    (tmp_path / "wrong.sql").write_text(f"{table} select n from numbers where n < 1")
    (tmp_path / "wrong.expected.jsonl").write_text('{"n": 1}\n')
    run = headrace("test", "--spark", tmp_path)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 1, err
    assert "✓ good" in out
    assert "✗ wrong" in out
    assert "whole on Spark: rows missing 1, unexpected 1" in out
    assert err == ""
