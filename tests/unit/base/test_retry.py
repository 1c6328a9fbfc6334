"""Trying again: what passes is waited for, and nothing else."""

import threading
from types import SimpleNamespace

import pytest

from headrace.base import retry
from headrace.base.errors import ExternalError, RefusedError
from headrace.base.retry import Backoff, is_retryable, with_retry

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


def test_an_attempt_may_take_longer_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline counts from the first failure: until then nothing was wrong."""
    action = Flaky(1)
    clock = SimpleNamespace(monotonic=lambda: 1000.0 * action.calls, sleep=lambda _pause: None)
    monkeypatch.setattr(retry, "time", clock)
    assert with_retry(action, is_transient=is_connection, backoff=QUICK, deadline=30) == "answer"


def test_an_action_that_gets_ahead_has_the_whole_deadline_again(monkeypatch: pytest.MonkeyPatch) -> None:
    action = Flaky(10)
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 20.0 * action.calls, sleep=pauses.append)
    monkeypatch.setattr(retry, "time", clock)
    ahead = {2: 1, 3: 1, 4: 2}
    with pytest.raises(ConnectionError, match="call 6"):
        with_retry(
            action,
            is_transient=is_connection,
            backoff=Backoff(first=1, jitter=0),
            deadline=30,
            progress=lambda: ahead.get(action.calls, 2 if action.calls > 4 else 0),
        )
    assert pauses == [1, 1, 2, 1, 2]


def test_the_pause_is_as_long_as_the_other_side_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    action = Flaky(2)
    pauses: list[float] = []
    monkeypatch.setattr(
        retry, "time", SimpleNamespace(monotonic=lambda: float(sum(pauses)), sleep=pauses.append)
    )
    answer = with_retry(
        action, is_transient=is_connection, backoff=QUICK, deadline=1, requested_pause=lambda _error: 60
    )
    assert (answer, pauses) == ("answer", [60, 60])


def test_only_an_error_that_says_so_is_retryable() -> None:
    assert is_retryable(ExternalError("gone"))
    assert not is_retryable(RefusedError("no"))
    assert not is_retryable(ConnectionError("gone"))


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
