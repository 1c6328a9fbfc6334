"""`headrace run` asks its servers before the first epoch, tells what it waits for, and stops in a wait."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.http import wait_for
from tests.servers.postgres import Database, PostgresServer, new_database, run_server
from tests.servers.processes import free_port

SOURCE = "CREATE TABLE numbers (n BIGINT) WITH (connector = 'single_file', type = 'source', path = '{path}');"
LIVE = "CREATE TABLE numbers WITH (connector = 'impulse', type = 'source', event_rate = '200');"
SINK = """
CREATE TABLE copied (n BIGINT) WITH (connector = 'postgres', type = 'sink', 'table' = 't', url = '{url}');
INSERT INTO copied SELECT {column} AS n FROM numbers;
"""
LOOKUP = """
CREATE TEMPORARY TABLE people (id BIGINT PRIMARY KEY, name TEXT) WITH (
  connector = 'postgres', type = 'lookup', 'table' = 'people', url = '{url}', 'lookup.cache.max_bytes' = '0');
CREATE TABLE found (counter BIGINT, name TEXT) WITH (connector = 'blackhole', type = 'sink');
INSERT INTO found SELECT n.counter, p.name FROM numbers n LEFT JOIN people p ON n.counter = p.id;
"""


class Run:
    """A `headrace run` in a process of its own, whose stderr is read as it comes."""

    def __init__(self, folder: Path, sql: str, *options: object) -> None:
        (folder / "pipeline.sql").write_text(sql)
        command = [sys.executable, "-m", "headrace", "run", "pipeline.sql", "-s", "state", "-p", "1"]
        self.process = subprocess.Popen(
            [*command, *map(str, options)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "1000"},
            start_new_session=True,
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.said += line

    def until(self, text: str) -> None:
        """Wait until it has said something that matches."""
        wait_for(
            lambda: re.search(text, self.said) or self.process.poll() is not None, f"`{text}`: {self.said}"
        )
        assert re.search(text, self.said), self.said

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(200)
        self._reader.join(10)
        return code


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of our own: it is stopped."""
    with run_server() as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    with new_database(server) as database:
        database.run("CREATE TABLE t (n bigint)")
        yield database


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start a run; it is ended with the test, whatever happens."""
    runs: list[Run] = []

    def started(sql: str, *options: object) -> Run:
        runs.append(Run(tmp_path, sql, *options))
        return runs[-1]

    yield started
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
        run.end()


def copying(folder: Path, url: str) -> str:
    (folder / "numbers.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(100)))
    return SOURCE.format(path=folder / "numbers.json") + SINK.format(url=url, column="n")


def test_a_wrong_password_is_told_before_anything_runs(
    database: Database, tmp_path: Path, start: Any
) -> None:
    url = database.server.url(database.name, password="open-sesame")
    run = start(copying(tmp_path, url), "--start-timeout", "1h")
    assert run.end() == 1
    assert "refuses the user" in run.said
    assert "check the user and the password" in run.said
    assert "open-sesame" not in run.said
    assert "waiting for" not in run.said
    assert "try 1 failed" not in run.said
    assert not list((tmp_path / "state").glob("checkpoints/*"))


def test_a_closed_port_is_told_with_its_address_and_what_to_do(tmp_path: Path, start: Any) -> None:
    address = f"127.0.0.1:{free_port()}/db"
    run = start(copying(tmp_path, f"postgresql://me@{address}"), "--start-timeout", "0s")
    assert run.end() == 1
    assert f"PostgreSQL at {address} does not answer" in run.said
    assert "check host and port" in run.said
    assert "--start-timeout" in run.said


def test_a_missing_table_is_told_before_anything_runs(database: Database, tmp_path: Path, start: Any) -> None:
    database.run("DROP TABLE t")
    run = start(copying(tmp_path, database.url), "--start-timeout", "0s")
    assert run.end() == 1
    assert "has no table `t`" in run.said
    assert not list((tmp_path / "state").glob("checkpoints/*"))


def test_a_server_that_starts_later_is_waited_for_aloud(
    database: Database, server: PostgresServer, tmp_path: Path, start: Any
) -> None:
    database.close()
    server.stop()
    try:
        run = start(copying(tmp_path, database.url), "--start-timeout", "200s")
        run.until(rf"waiting for PostgresSink\(t at 127\.0\.0\.1:{server.port}.* since .*: .*refused")
    finally:
        server.start()
    assert run.end() == 0, run.said
    assert "is back after" in run.said
    assert sorted(n for (n,) in database.rows("SELECT n FROM t")) == list(range(100))


def test_ctrl_c_ends_the_wait_for_a_server_that_never_starts(tmp_path: Path, start: Any) -> None:
    run = start(copying(tmp_path, f"postgresql://me@127.0.0.1:{free_port()}/db"), "--start-timeout", "1h")
    run.until("waiting for PostgresSink")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0, run.said
    assert "Traceback" not in run.said


def test_a_server_that_is_away_in_the_middle_is_told_and_so_is_its_return(
    database: Database, server: PostgresServer, start: Any
) -> None:
    run = start(LIVE + SINK.format(url=database.url, column="counter"))
    wait_for(lambda: database.rows("SELECT count(*) FROM t")[0][0] or run.process.poll() is not None, "a row")
    database.close()
    server.stop()
    try:
        run.until(rf"waiting for PostgreSQL at 127\.0\.0\.1:{server.port}.* since .*: ")
    finally:
        server.start()
    run.until(rf"PostgreSQL at 127\.0\.0\.1:{server.port}.* is back after")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0, run.said
    assert "was away for" in run.said, "the summary says so too"
    written = sorted(n for (n,) in database.rows("SELECT n FROM t"))
    assert written == list(range(len(written)))


def test_ctrl_c_ends_a_wait_in_a_commit_and_the_next_run_finishes_it(
    database: Database, server: PostgresServer, start: Any
) -> None:
    sql = LIVE + SINK.format(url=database.url, column="counter")
    run = start(sql)
    wait_for(lambda: database.rows("SELECT count(*) FROM t")[0][0] or run.process.poll() is not None, "a row")
    database.close()
    server.stop()
    try:
        run.until("waiting for PostgreSQL at")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 1, run.said
    finally:
        server.start()
    assert "does not answer" in run.said
    again = start(sql, "--max-epochs", "3")
    assert again.end() == 0, again.said
    written = sorted(n for (n,) in database.rows("SELECT n FROM t"))
    assert written == list(range(len(written)))


def test_a_server_that_tasks_wait_for_is_told_and_ctrl_c_leaves_the_epoch_to_the_next_run(
    database: Database, server: PostgresServer, tmp_path: Path, start: Any
) -> None:
    database.run("CREATE TABLE people (id bigint PRIMARY KEY, name text)")
    run = start(LIVE + LOOKUP.format(url=database.url))
    wait_for(
        lambda: list((tmp_path / "state").glob("checkpoints/*")) or run.process.poll() is not None, "an epoch"
    )
    database.close()
    server.stop()
    try:
        run.until(r"waiting for PostgresLookup\(people at 127\.0\.0\.1")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 1, run.said
    finally:
        server.start()
    assert "stopped while waiting for PostgresLookup" in run.said
    assert "the next run begins with it" in run.said
