"""Trying again: what passes is waited for, and nothing else."""

import threading

import pytest

from headrace.base.retry import Backoff, with_retry

QUICK = Backoff(first=0.001, longest=0.002)


class Flaky:
    """Fails some times, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"call {self.calls}")
        return "answer"


def is_connection(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


def test_a_transient_error_is_tried_again_and_told() -> None:
    action, told = Flaky(3), []
    answer = with_retry(
        action,
        is_transient=is_connection,
        backoff=QUICK,
        on_retry=lambda error, attempt: told.append((str(error), attempt)),
    )
    assert (answer, action.calls) == ("answer", 4)
    assert told == [("call 1", 1), ("call 2", 2), ("call 3", 3)]


def test_another_error_is_raised_at_once() -> None:
    action = Flaky(3)
    with pytest.raises(ConnectionError, match="call 1"):
        with_retry(action, is_transient=lambda _error: False, backoff=QUICK)
    assert action.calls == 1


def test_the_number_of_attempts_is_kept() -> None:
    action = Flaky(10)
    with pytest.raises(ConnectionError, match="call 4"):
        with_retry(action, is_transient=is_connection, backoff=QUICK, attempts=4)


def test_no_attempt_begins_behind_the_deadline() -> None:
    action = Flaky(10)
    with pytest.raises(ConnectionError, match="call 1"):
        with_retry(action, is_transient=is_connection, backoff=Backoff(first=60), deadline=30)


def test_a_stop_ends_a_pause() -> None:
    action, stop = Flaky(10), threading.Event()
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(ConnectionError, match="call 1"):
        with_retry(action, is_transient=is_connection, backoff=Backoff(first=500), stop=stop)
    assert action.calls == 1


def test_pauses_grow_to_the_longest_and_differ_by_the_jitter() -> None:
    pauses = Backoff(first=1, factor=2, longest=6, jitter=0.5).pauses()
    for whole in (1, 2, 4, 6, 6):
        assert whole / 2 <= next(pauses) <= whole
