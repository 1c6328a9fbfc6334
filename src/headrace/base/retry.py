"""Retry transient errors with backoff, jitter and a deadline."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.waits import STOP_GRACE, Waits, current_waits

T = TypeVar("T")

_SLICE = 0.1
"""Seconds between two looks at whether the run is told to stop."""


_JITTER = random.Random()  # noqa: S311 - no secret depends on it
"""Its own generator: the shared one may be seeded by the user's program, and threads wait at any time."""


@dataclass(frozen=True)
class Backoff:
    """The pauses between attempts, in seconds: each is `factor` times the one before, at most `longest`.

    Up to `jitter` of a pause is subtracted at random, so that the clients of a server do not return at once.
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 5.0
    jitter: float = 0.2

    def pauses(self) -> Iterator[float]:
        """Yield the pauses, without end."""
        pause = self.first
        while True:
            yield pause * (1 - self.jitter * _JITTER.random())
            pause = min(pause * self.factor, self.longest)


def with_retry(
    action: Callable[[], T],
    *,
    is_transient: Callable[[Exception], bool],
    backoff: Backoff | None = None,
    deadline: float | None = None,
    attempts: int | None = None,
    stop: threading.Event | None = None,
    on_retry: Callable[[Exception, int], None] | None = None,
    progress: Callable[[], object] | None = None,
    requested_pause: Callable[[Exception], float] | None = None,
    waits_for: str | None = None,
) -> T:
    """Run `action`, with retries after each error that `is_transient`, and return its result.

    Gives up with the last error when the next attempt would begin more than `deadline` seconds after the
    first failure, after `attempts` attempts, or when `stop` is set; a pause ends at once when it is.
    `on_retry(error, n)` is called before the pause that follows attempt `n`.

    An action that does a part of its work before it fails reports that by `progress()`: if its value changed
    since the last attempt, the deadline and the pauses start again. `requested_pause(error)` is how many
    seconds the server asks to wait; the pause is at least that long, and the deadline is extended by it.

    `waits_for` names the server and its address: the run tells what it waits for. When the run is told to
    stop, a moment is left for what is over soon.
    """
    waits = None if waits_for is None else current_waits()
    stop_ends: float | None = None
    backoff = backoff or Backoff()
    pauses, ends, attempt = backoff.pauses(), None, 0
    while True:
        attempt += 1
        before = None if progress is None else progress()
        try:
            result = action()
        except Exception as error:
            if progress is not None and progress() != before:
                pauses, ends = backoff.pauses(), None
            pause, now = next(pauses), time.monotonic()
            if deadline is not None:
                ends = now + deadline if ends is None else ends
            if requested_pause is not None:
                requested = requested_pause(error)
                pause, ends = max(pause, requested), None if ends is None else ends + requested
            if waits is not None and waits.is_stopping:
                stop_ends = now + STOP_GRACE if stop_ends is None else stop_ends
            is_over = (
                (ends is not None and now + pause > ends)
                or (stop_ends is not None and now + pause > stop_ends)
                or (attempts is not None and attempt >= attempts)
                or (stop is not None and stop.is_set())
            )
            if is_over or not is_transient(error):
                raise
            if on_retry is not None:
                on_retry(error, attempt)
            if waits is not None and waits_for is not None:
                waits.failed(waits_for, error)
            if _pause(pause, stop, waits):
                raise
        else:
            if waits is not None and waits_for is not None and waits_for in waits:
                waits.answered(waits_for)
            return result


def _pause(seconds: float, stop: threading.Event | None, waits: Waits | None) -> bool:
    """Sleep, but only briefly once the run is stopping; return whether `stop` was set."""
    if waits is None:
        if stop is None:
            time.sleep(seconds)
            return False
        return stop.wait(seconds)
    ends = time.monotonic() + seconds
    own = stop or threading.Event()
    while (left := ends - time.monotonic()) > 0:
        if own.wait(min(left, _SLICE)):
            return True
        if waits.is_stopping:
            return own.wait(min(left, STOP_GRACE / 2))
    return False


def is_retryable(error: Exception) -> bool:
    """Whether an error is marked as worth another attempt."""
    return isinstance(error, HeadraceError) and error.retry
