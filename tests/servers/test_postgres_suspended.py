"""SIGSTOP of a run inside its commit to PostgreSQL: the next run does not wait for it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.connectors.database import sink as database_sink
from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.postgres import sink as postgres_sink
from headrace.connectors.postgres import suspended
from headrace.connectors.postgres.sink import PostgresSink
from tests.servers.postgres import Database
from tests.servers.test_postgres_sink import batch
from tests.support import SinkDriver

SINKS: dict[str, Any] = {"postgres": PostgresSink, "database": DatabaseSink}
MODULES: dict[str, Any] = {"postgres": postgres_sink, "database": database_sink}
MOMENTS = [
    ("postgres", "behind the fence"),
    ("postgres", "in a COPY"),
    ("postgres", "before the commit"),
    ("database", "behind the fence"),
    ("database", "before the commit"),
]
IN_TIME = 120.0
LONG = 3600
"""The server does not end an idle session of the suspended process before: only the successor can."""

_processes = multiprocessing.get_context("spawn")


def commit_and_stop(sink: SinkDriver, data: Any, moment: str, talk: Connection) -> None:
    """Commit epoch 2 in a process that suspends itself at a moment of the commit; tell how it ended."""

    def suspend() -> None:
        talk.send("suspended")
        os.kill(os.getpid(), signal.SIGSTOP)

    suspended.SUSPENDED_SECONDS = LONG
    suspend_at(type(sink.make()), moment, suspend)
    try:
        sink.commit(2, data)
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        talk.send(type(error).__name__)
    else:
        talk.send("committed")


def suspend_at(kind: Any, moment: str, suspend: Any) -> None:
    times = []

    def once() -> None:
        times.append(moment)
        if len(times) == 1:
            suspend()

    if moment == "in a COPY":
        write = psycopg.Copy.write

        def write_a_part(self: Any, data: bytes) -> None:
            write(self, data[:3])
            once()
            write(self, data[3:])

        psycopg.Copy.write = write_a_part  # type: ignore[method-assign,assignment]
        return
    name = "_mark" if moment == "behind the fence" else ("_copy" if kind is PostgresSink else "_change")
    kept = getattr(kind, name)

    def method(self: Any, *arguments: Any) -> Any:
        if moment == "behind the fence":
            once()
        result = kept(self, *arguments)
        if moment == "before the commit":
            once()
        return result

    setattr(kind, name, method)


class Make:
    """Makes a sink, in any process."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url

    def __call__(self) -> Any:
        return SINKS[self.name](url=self.url, table="t")


@pytest.mark.parametrize(("name", "moment"), MOMENTS)
def test_the_next_run_ends_the_session_of_one_that_is_suspended_in_its_commit(
    postgres: Database, tmp_path: Path, name: str, moment: str
) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    check_suspended(postgres, postgres.url, tmp_path, name, moment)


@pytest.mark.parametrize("name", SINKS)
def test_so_it_does_where_the_login_sets_another_role(postgres: Database, tmp_path: Path, name: str) -> None:
    role = f"writer_{postgres.name}"
    postgres.run(f'CREATE ROLE "{role}"')
    postgres.run(f'GRANT CREATE, USAGE ON SCHEMA public TO "{role}"')
    postgres.run(f'SET ROLE "{role}"; CREATE TABLE t (n bigint)')
    url = f"{postgres.url}{'&' if '?' in postgres.url else '?'}options=-c%20role%3D{role}"
    check_suspended(postgres, url, tmp_path, name, "behind the fence")


def check_suspended(postgres: Database, url: str, tmp_path: Path, name: str, moment: str) -> None:
    sink = SinkDriver(Make(name, url), tmp_path)
    sink.take_over()
    sink.run(1, [batch([{"n": 1}])])
    data = sink.prepare(2, [batch([{"n": n} for n in range(2, 100)])])
    here, there = _processes.Pipe()
    replaced = _processes.Process(target=commit_and_stop, args=(sink, data, moment, there), daemon=True)
    replaced.start()
    try:
        assert here.poll(IN_TIME)
        assert here.recv() == "suspended"
        wait_until_stopped(replaced.pid)
        sink.take_over()
        sink.commit(2, data)
        sink.run(3, [batch([{"n": 100}])])
        assert replaced.is_alive()
        assert replaced.pid is not None
        os.kill(replaced.pid, signal.SIGCONT)
        assert here.poll(IN_TIME)
        assert here.recv() == "ReplacedError"
    finally:
        replaced.kill()
        replaced.join()
    assert postgres.rows("SELECT n FROM t ORDER BY n") == [(n,) for n in range(1, 101)]


def wait_until_stopped(pid: int | None) -> None:
    deadline = time.monotonic() + IN_TIME
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", SINKS)
def test_a_session_that_is_not_one_of_a_replaced_run_is_waited_for(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = SinkDriver(Make(name, postgres.url), tmp_path)
    sink.take_over()
    sink.run(1, [batch([{"n": 1}])])
    data = sink.prepare(2, [batch([{"n": 2}])])
    monkeypatch.setattr(MODULES[name], "FIRST_WAIT_SECONDS", 0.1)
    with closing(postgres.server.connect(postgres.name)) as rival:
        rival.execute("SET application_name = 'headrace commit 0123456789abcdef 00000000000000000000'")
        rival.execute("BEGIN")
        rival.execute("UPDATE headrace_epochs SET mark = mark WHERE epoch = -1")
        committing = threading.Thread(target=lambda: sink.commit(2, data))
        committing.start()
        time.sleep(1.0)
        assert postgres.rows("SELECT n FROM t") == [(1,)]
        rival.execute("COMMIT")
        committing.join(IN_TIME)
    assert postgres.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]
