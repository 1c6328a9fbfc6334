"""Retry transient errors with backoff, jitter and a deadline."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headrace.base.errors import HeadraceError

T = TypeVar("T")


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
            yield pause * (1 - self.jitter * random.random())  # noqa: S311 - no secret depends on it
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
) -> T:
    """Run `action`, with retries after each error that `is_transient`, and return its result.

    Gives up with the last error when the next attempt would begin more than `deadline` seconds after the
    first failure, after `attempts` attempts, or when `stop` is set; a pause ends at once when it is.
    `on_retry(error, n)` is called before the pause that follows attempt `n`.

    An action that does a part of its work before it fails reports that by `progress()`: if its value changed
    since the last attempt, the deadline and the pauses start again. `requested_pause(error)` is how many
    seconds the server asks to wait; the pause is at least that long, and the deadline is extended by it.
    """
    backoff = backoff or Backoff()
    pauses, ends, attempt = backoff.pauses(), None, 0
    while True:
        attempt += 1
        before = None if progress is None else progress()
        try:
            return action()
        except Exception as error:
            if progress is not None and progress() != before:
                pauses, ends = backoff.pauses(), None
            pause, now = next(pauses), time.monotonic()
            if deadline is not None:
                ends = now + deadline if ends is None else ends
            if requested_pause is not None:
                requested = requested_pause(error)
                pause, ends = max(pause, requested), None if ends is None else ends + requested
            is_over = (
                (ends is not None and now + pause > ends)
                or (attempts is not None and attempt >= attempts)
                or (stop is not None and stop.is_set())
            )
            if is_over or not is_transient(error):
                raise
            if on_retry is not None:
                on_retry(error, attempt)
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise


def is_retryable(error: Exception) -> bool:
    """Whether an error is marked as worth another attempt."""
    return isinstance(error, HeadraceError) and error.retry
