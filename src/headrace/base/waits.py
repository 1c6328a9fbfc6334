"""Tracks the servers that a run is waiting for, and reports them to the user.

Clients wait for their servers by themselves, deep inside a commit or a question to a source. What they wait
for is noted in the `Waits` of the run, which the code around them has made the current one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from headrace.base.errors import HeadraceError

TELL_AFTER = 1.0
"""Seconds after which a wait is told: most are over by then."""
TELL_EVERY = 10.0
"""Seconds until it is told again."""
STOP_GRACE = 1.0
"""Seconds that a wait may still last when the run is told to stop."""


@dataclass(frozen=True)
class Wait:
    """A server that a run waits for.

    Attributes:
        name: the server and its address.
        error: what went wrong the last time.
        since: when it went wrong first, in seconds since 1970.

    >>> import headrace as hr
    >>> wait = hr.Wait("PostgreSQL at db:5432", "connection refused", since=0.0)
    >>> wait.name
    'PostgreSQL at db:5432'
    """

    name: str
    error: str
    since: float

    def __str__(self) -> str:
        began = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"waiting for {self.name} since {began} ({time.time() - self.since:.0f} s): {self.error}"


class Waits:
    """The servers that a run is waiting for, by name; `tell` receives a line while and after a wait.

    All of it may be called from any thread; `tick` a few times a second by the one that watches the run.
    `stop` ends the waits of the run.
    """

    def __init__(self, stop: threading.Event, tell: Callable[[str], None]) -> None:
        self._stop = stop
        self._tell = tell
        self._lock = threading.Lock()
        self._open: dict[str, Wait] = {}
        self._told: dict[str, float] = {}
        self._over: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._open

    @property
    def is_stopping(self) -> bool:
        """Whether the run is stopping, so that waits end."""
        return self._stop.is_set()

    @property
    def current(self) -> list[Wait]:
        """What is being waited for, the oldest first."""
        with self._lock:
            return list(self._open.values())

    def failed(self, name: str, error: object) -> None:
        """Note that a server has not answered, and that it is tried again."""
        text = _line(error).removeprefix(name).removeprefix(" does not answer").lstrip(": ")
        with self._lock:
            earlier = self._open.get(name)
            self._open[name] = Wait(name, text, time.time() if earlier is None else earlier.since)

    def answered(self, name: str) -> None:
        """Record that a server answers; no effect if nothing was waiting for it."""
        with self._lock:
            wait, reported = self._open.pop(name, None), self._told.pop(name, None)
            if wait is None or reported is None:
                return
            seconds = time.time() - wait.since
            self._over.append(f"{name} was away for {seconds:.0f} s: {wait.error}")
        self._tell(f"{name} is back after {seconds:.0f} s")

    def take_over(self) -> list[str]:
        """Return the waits that ended since the last call, one line for each that was reported."""
        with self._lock:
            over, self._over = self._over, []
            return over

    def tick(self) -> None:
        """Tell the waits that are due."""
        due, now = [], time.time()
        with self._lock:
            for name, wait in self._open.items():
                last = self._told.get(name)
                if now >= (wait.since + TELL_AFTER if last is None else last + TELL_EVERY):
                    self._told[name] = now
                    due.append(wait)
        for wait in due:
            self._tell(str(wait))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current one of the thread within the block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[Waits | None] = ContextVar("headrace_waits", default=None)


def current_waits() -> Waits | None:
    """Return the waits of the run that the calling thread works for; None in a task on a worker.

    A thread that is started for a run has to be given its context: `contextvars.copy_context().run`.
    """
    return _CURRENT.get()


def _line(error: object) -> str:
    text = error.message if isinstance(error, HeadraceError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
