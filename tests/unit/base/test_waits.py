"""What a run waits for is told while it lasts, and a wait ends when the run is to stop."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

from headrace.base.errors import ExternalError
from headrace.base.retry import Backoff, with_retry
from headrace.base.waits import Waits, current_waits

SERVER = "a server at host:1"


class Telling:
    """Waits, with what they tell."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.lines: list[str] = []
        self.waits = Waits(self.stop, self.lines.append)


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Telling:
    """The clock of the waits stands still until a test puts it forward."""
    now = [1000.0]
    monkeypatch.setattr("headrace.base.waits.time.time", lambda: now[0])
    telling = Telling()
    telling.now = now  # type: ignore[attr-defined]
    return telling


def test_a_wait_is_told_after_a_second_and_every_ten_and_at_its_end(telling: Telling) -> None:
    now: list[float] = telling.now  # type: ignore[attr-defined]
    waits = telling.waits
    waits.failed(SERVER, ExternalError(f"{SERVER} does not answer: refused", hint="look"))
    waits.tick()
    assert telling.lines == []
    for seconds, lines in ((1.0, 1), (5.0, 1), (5.0, 2), (9.0, 2), (1.0, 3)):
        now[0] += seconds
        waits.failed(SERVER, OSError("still refused"))
        waits.tick()
        assert len(telling.lines) == lines
    assert f"waiting for {SERVER} since " in telling.lines[0]
    assert telling.lines[0].endswith("(1 s): still refused")
    waits.answered(SERVER)
    assert telling.lines[-1] == f"{SERVER} is back after 21 s"
    assert waits.take_over() == [f"{SERVER} was away for 21 s: still refused"]
    assert waits.take_over() == []
    assert waits.current == []


def test_a_short_wait_is_not_told(telling: Telling) -> None:
    telling.waits.failed(SERVER, OSError("busy"))
    telling.waits.tick()
    telling.waits.answered(SERVER)
    telling.waits.answered("another")
    assert telling.lines == telling.waits.take_over() == []


def test_a_retry_notes_what_it_waits_for_until_there_is_an_answer() -> None:
    telling, seen = Telling(), []

    def action() -> str:
        seen.append([wait.error for wait in telling.waits.current])
        if len(seen) < 3:
            raise ExternalError(f"{SERVER} does not answer: refused {len(seen)}")
        return "there"

    with telling.waits.active():
        result = with_retry(
            action, is_transient=lambda _: True, backoff=Backoff(first=0.01), waits_for=SERVER
        )
    assert result == "there"
    assert seen == [[], ["refused 1"], ["refused 2"]]
    assert telling.waits.current == []
    assert current_waits() is None


def test_an_answer_at_the_first_attempt_ends_the_wait_of_an_earlier_one() -> None:
    telling = Telling()
    telling.waits.failed(SERVER, OSError("refused"))
    with telling.waits.active():
        with_retry(lambda: None, is_transient=lambda _: True, waits_for=SERVER)
    assert telling.waits.current == []


def test_a_run_that_is_told_to_stop_ends_a_long_pause() -> None:
    telling = Telling()

    def action() -> None:
        telling.stop.set()
        raise ExternalError("refused")

    with telling.waits.active(), pytest.raises(ExternalError, match="refused"):
        with_retry(
            action, is_transient=lambda _: True, backoff=Backoff(first=10**6, longest=10**6), waits_for=SERVER
        )


def test_a_run_that_is_told_to_stop_leaves_a_moment_for_what_is_over_soon() -> None:
    telling, attempts = Telling(), []
    telling.stop.set()

    def action() -> int:
        attempts.append(time.monotonic())
        if len(attempts) < 3:
            raise ExternalError("a conflict")
        return len(attempts)

    with telling.waits.active():
        assert (
            with_retry(action, is_transient=lambda _: True, backoff=Backoff(first=0.01), waits_for=SERVER)
            == 3
        )


def test_a_thread_with_the_context_of_the_run_tells_it_too() -> None:
    telling, found = Telling(), []
    with telling.waits.active():
        context = contextvars.copy_context()
    for run in (context.run, lambda work: work()):
        thread = threading.Thread(target=run, args=(lambda: found.append(current_waits()),))
        thread.start()
        thread.join()
    assert found == [telling.waits, None]
