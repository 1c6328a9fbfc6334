"""The outside systems of a pipeline are asked before it runs: all at once, and for as long as is allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError, RefusedError
from headrace.base.options import Options
from headrace.base.waits import Waits
from headrace.connectors.base import Connector
from headrace.connectors.http.webhook import WebhookSink
from headrace.connectors.postgres.lookup import PostgresLookup
from headrace.connectors.stdout import StdoutSink
from headrace.engine.context import EpochContext
from headrace.jobs import services
from headrace.jobs.services import ServiceWatch, WatchedExchange, check_services, connectors_of


class Service(Connector):
    """A connector whose system answers as a function says."""

    class Options(Options):
        """It has none."""

    def __init__(self, name: str, answer: Callable[[int], str]) -> None:
        super().__init__()
        self._name, self._answer = name, answer
        self.asked = 0

    def display(self) -> str:
        return self._name

    def reach(self) -> str:
        self.asked += 1
        return self._answer(self.asked)


def failing(error: HeadraceError, *, until: float = float("inf")) -> Callable[[int], str]:
    def answer(asked: int) -> str:
        if asked <= until:
            raise error
        return "there"

    return answer


def waits_of(stop: threading.Event | None = None) -> tuple[Waits, list[str]]:
    lines: list[str] = []
    return Waits(stop or threading.Event(), lines.append), lines


AWAY = ExternalError("db does not answer: refused", hint="check it")


def test_all_are_asked_and_those_that_need_nothing_are_not() -> None:
    pipeline = hr.Pipeline.from_sql(
        """
        CREATE TABLE numbers WITH (connector = 'impulse', type = 'source', message_count = '1');
        CREATE TABLE sent (n BIGINT) WITH (connector = 'webhook', type = 'sink', endpoint = 'http://127.0.0.1:1');
        CREATE TEMPORARY TABLE people (id BIGINT PRIMARY KEY, name TEXT) WITH (
          connector = 'postgres', type = 'lookup', 'table' = 'p', url = 'postgresql://127.0.0.1:1/d');
        INSERT INTO sent SELECT n.counter AS n FROM numbers n LEFT JOIN people p ON n.counter = p.id;
        """,
        name="asked",
    )
    connectors = connectors_of(pipeline.plan())
    assert {type(connector) for connector in connectors.values()} == {WebhookSink, PostgresLookup}
    assert StdoutSink.reach is Connector.reach


def test_one_that_is_away_is_asked_again_until_it_is_there() -> None:
    service, (waits, _) = Service("db", failing(AWAY, until=3)), waits_of()
    check_services({"db": service}, timeout=300.0, waits=waits)
    assert service.asked == 4
    assert waits.current == []


def test_one_that_stays_away_is_told_when_the_time_is_over() -> None:
    service, (waits, _) = Service("db", failing(AWAY)), waits_of()
    with pytest.raises(ExternalError, match="db does not answer: refused") as caught:
        check_services({"db": service}, timeout=0.0, waits=waits)
    assert service.asked == 1
    assert "check it; a server that starts later is waited for with --start-timeout" in str(caught.value.hint)
    assert caught.value.where == "operator db"


@pytest.mark.parametrize("error", [RefusedError("wrong password"), ConfigurationError("no such table")])
def test_what_no_waiting_helps_against_is_raised_at_once_with_what_else_is_wrong(
    error: HeadraceError,
) -> None:
    away, wrong = Service("db", failing(AWAY)), Service("other", failing(error))
    missing = Service("third", failing(RefusedError("no queue")))
    waits, _ = waits_of()
    with pytest.raises(type(error), match=error.message) as caught:
        check_services({"db": away, "other": wrong, "third": missing}, timeout=10**6, waits=waits)
    assert "no queue" in caught.value.message
    assert wrong.asked == 1


def test_sources_that_have_ended_are_not_asked() -> None:
    service, (waits, _) = Service("db", failing(AWAY)), waits_of()
    check_services({"db": service}, timeout=0.0, waits=waits, skip=["db"])
    assert not service.asked


def test_one_that_takes_its_time_is_told_and_does_not_hold_the_run_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(services, "SLOW_SECONDS", 0.3)
    done = threading.Event()
    service, (waits, _) = Service("db", lambda _: str(done.wait())), waits_of()
    try:
        check_services({"db": service}, timeout=0.1, waits=waits)
    finally:
        done.set()
    assert "db has not answered yet; the run goes on" in caplog.text


def test_a_run_that_is_told_to_stop_does_not_wait() -> None:
    stop = threading.Event()
    waits, _ = waits_of(stop)

    def answer(_: int) -> str:
        stop.set()
        raise AWAY

    check_services({"db": Service("db", answer)}, timeout=10**6, waits=waits)


class Tasks:
    """An exchange whose tasks last until they are cancelled or the test says so."""

    def __init__(self) -> None:
        self.done, self.cancelled = threading.Event(), threading.Event()

    def use(self, stages: Any) -> None:
        """Nothing is needed."""

    def check(self) -> None:
        """It is always there."""

    def run(self, tasks: Any, context: Any) -> list[Any]:
        while not self.done.wait(0.01):
            if self.cancelled.is_set():
                raise ExternalError("cancelled")
        return []

    def commit(self, tasks: Any, job: Any) -> list[Any]:
        return self.run(tasks, job)

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_LONG_EPOCH", 0.0)
    monkeypatch.setattr(services, "_ASK_MISSING_EVERY", 0.0)
    monkeypatch.setattr("headrace.base.waits.TELL_AFTER", 0.0)


CONTEXT: Any = EpochContext


@pytest.mark.usefixtures("_soon")
def test_what_slow_tasks_may_wait_for_is_asked_and_told() -> None:
    tasks, (waits, lines) = Tasks(), waits_of()

    def answer(asked: int) -> str:
        if asked > 3:
            tasks.done.set()
        raise AWAY

    with ServiceWatch({"db": Service("db", answer)}, waits) as watch:
        assert WatchedExchange(tasks, watch).run([], CONTEXT) == []
    assert any(line.startswith("waiting for db since") for line in lines)
    assert lines[-1].startswith("db is back after")
    assert not tasks.cancelled.is_set()


@pytest.mark.usefixtures("_soon")
def test_a_run_that_is_told_to_stop_does_not_wait_for_tasks_that_wait_for_a_server() -> None:
    stop = threading.Event()
    tasks, (waits, _) = Tasks(), waits_of(stop)

    def answer(asked: int) -> str:
        if asked > 1:
            stop.set()
        raise AWAY

    with (
        ServiceWatch({"db": Service("db", answer)}, waits) as watch,
        pytest.raises(ExternalError, match=r"stopped while waiting for db since .*: refused") as caught,
    ):
        WatchedExchange(tasks, watch).run([], CONTEXT)
    assert "the next run begins with it" in str(caught.value.hint)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_run_that_is_told_to_stop_ends_a_commit_that_waits_for_its_server(is_asked: bool) -> None:
    stop = threading.Event()
    tasks, (waits, _) = Tasks(), waits_of(stop)

    def answer(asked: int) -> str:
        if asked > 1:
            stop.set()
        raise AWAY

    sink = Service("db", answer)
    sink.asked_in_tasks, sink.asked_in_commits = False, is_asked
    if not is_asked:
        threading.Timer(0.3, tasks.done.set).start()
    with ServiceWatch({"db": sink}, waits) as watch:
        exchange = WatchedExchange(tasks, watch)
        if not is_asked:
            assert exchange.commit([], CONTEXT) == []
            return
        with pytest.raises(ExternalError, match=r"stopped while waiting for db since .*: refused") as caught:
            exchange.commit([], CONTEXT)
    assert "the epoch is saved: the next run commits it first" in str(caught.value.hint)


@pytest.mark.usefixtures("_soon")
def test_a_run_that_is_told_to_stop_lets_tasks_finish_whose_servers_answer() -> None:
    stop = threading.Event()
    tasks, (waits, _) = Tasks(), waits_of(stop)

    def answer(asked: int) -> str:
        stop.set()
        if asked > 3:
            tasks.done.set()
        return "there"

    with ServiceWatch({"db": Service("db", answer)}, waits) as watch:
        assert WatchedExchange(tasks, watch).run([], CONTEXT) == []
    assert not tasks.cancelled.is_set()
