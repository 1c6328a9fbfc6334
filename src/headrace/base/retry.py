"""Tries again what failed for a while: which errors pass, how long to wait, when to give up."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """The pauses between attempts, in seconds: each is `factor` times the one before, at most `longest`.

    Up to `jitter` of a pause is left out at random, so that many clients of one server do not return at once.
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 5.0
    jitter: float = 0.2

    def pauses(self) -> Iterator[float]:
        """The pauses, one after the other, without end."""
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
) -> T:
    """Do `action`, again after each error that `is_transient`, and return its result.

    Gives up with the last error when the next attempt would begin more than `deadline` seconds after the
    first one, after `attempts` attempts, or when `stop` is set; a pause ends at once when it is.
    `on_retry(error, n)` is called before the pause that follows attempt `n`.
    """
    ends = None if deadline is None else time.monotonic() + deadline
    for attempt, pause in enumerate((backoff or Backoff()).pauses(), start=1):
        try:
            return action()
        except Exception as error:
            late = ends is not None and time.monotonic() + pause > ends
            over = (
                late or (attempts is not None and attempt >= attempts) or (stop is not None and stop.is_set())
            )
            if over or not is_transient(error):
                raise
            if on_retry is not None:
                on_retry(error, attempt)
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise
    raise AssertionError("pauses never end")
