"""Chooses the parallelism of a run by its load: `--parallelism auto:2-64`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_WRITTEN = re.compile(r"auto:(\d+)-(\d+)")

_BUSY = 0.8
"""From this share of the rows that an epoch may take on, there is a backlog."""
_QUIET = 0.25
"""Up to this share, half as many subtasks are enough, with as much room again."""
_UP_EPOCHS = 3
_UP_SECONDS = 5.0
_DOWN_EPOCHS = 10
_DOWN_SECONDS = 60.0
"""For how many epochs and seconds a load must last: longer where a mistake costs more."""
_GAIN = 1.1
"""More subtasks that do not give this many times the rows per second are taken back."""
_REMEMBERED_SECONDS = 600.0
"""For how long a parallelism that was no use is not tried again."""


@dataclass(frozen=True)
class AutoParallelism:
    """The bounds of a parallelism that follows the load."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> AutoParallelism | None:
        """Read `auto:2-64`; None if it is something else.

        >>> AutoParallelism.parse("auto:2-64"), AutoParallelism.parse("auto:8-2")
        (AutoParallelism(low=2, high=64), None)
        """
        match = _WRITTEN.fullmatch(text.strip())
        low, high = (int(match[1]), int(match[2])) if match else (0, 0)
        return cls(low, high) if 0 < low <= high else None

    def __str__(self) -> str:
        return f"auto:{self.low}-{self.high}"

    def clamp(self, parallelism: int) -> int:
        """The nearest parallelism within the bounds."""
        return max(self.low, min(self.high, parallelism))


@dataclass(frozen=True)
class Decision:
    """Another parallelism, and why."""

    parallelism: int
    reason: str


@dataclass
class _Span:
    """Consecutive epochs with the same kind of load."""

    since: float
    epochs: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        self.epochs, self.rows, self.seconds = self.epochs + 1, self.rows + rows, self.seconds + seconds

    def lasted(self, epochs: int, seconds: float, now: float) -> bool:
        return self.epochs >= epochs and now - self.since >= seconds

    @property
    def rate(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass
class Autoscaler:
    """Decides after each epoch whether the next ones shall have another parallelism.

    A backlog that lasts doubles it, up to the cores that are there; if that was no gain, it is taken back,
    and not tried again for some time. With `grows` cores come when there are tasks for them, as those of
    dynamic allocation: then it may exceed them. Little load that lasts halves it, and executors that are
    gone bring it down to the cores that are left. Each decision starts the
    observation anew, so that none follows another at once.
    """

    bounds: AutoParallelism
    cores: Callable[[], int]
    grows: bool = False
    now: Callable[[], float] = time.monotonic
    _busy: _Span | None = field(default=None, init=False)
    _quiet: _Span | None = field(default=None, init=False)
    _trial: tuple[int, float] | None = field(default=None, init=False)
    """The parallelism before the last doubling, and its rows per second."""
    _useless: dict[int, float] = field(default_factory=dict, init=False)
    """When a parallelism was no gain."""

    def observe(self, parallelism: int, *, load: float, rows: int, seconds: float) -> Decision | None:
        """Take an epoch that ran with a parallelism; returns the one to go on with, None for the same.

        `load` is the share that it read of the rows that it could have taken.
        """
        now = self.now()
        self._busy = self._extended(self._busy, rows, seconds, now, holds=load >= _BUSY)
        self._quiet = self._extended(self._quiet, rows, seconds, now, holds=load <= _QUIET)
        if self._busy is None:
            self._trial = None  # it keeps up
        decision = self._decide(parallelism, now)
        if decision is not None:
            self._busy = self._quiet = None
        return decision

    @staticmethod
    def _extended(span: _Span | None, rows: int, seconds: float, now: float, *, holds: bool) -> _Span | None:
        if not holds:
            return None
        span = span or _Span(now - seconds)
        span.add(rows, seconds)
        return span

    def _decide(self, parallelism: int, now: float) -> Decision | None:
        cores = self.cores()
        within = self.bounds.clamp(parallelism)
        if within != parallelism:
            return Decision(within, f"{self.bounds} are the bounds")
        if self._busy is not None and self._busy.lasted(_UP_EPOCHS, _UP_SECONDS, now):
            return self._when_busy(parallelism, cores, self._busy.rate, now)
        if self._quiet is not None and self._quiet.lasted(_DOWN_EPOCHS, _DOWN_SECONDS, now):
            half = self.bounds.clamp(max(1, parallelism // 2))
            return None if half == parallelism else Decision(half, "there is little to read")
        return None

    def _when_busy(self, parallelism: int, cores: int, rate: float, now: float) -> Decision | None:
        if self._trial is not None:
            before, rate_before = self._trial
            self._trial = None
            if before < parallelism and rate < rate_before * _GAIN:
                self._useless[parallelism] = now
                return Decision(before, f"{parallelism} read {rate:,.0f} rows/s, {before} {rate_before:,.0f}")
        fewer = self.bounds.clamp(max(1, cores))
        if fewer < parallelism and not self.grows:
            return Decision(fewer, f"Spark has {cores} cores left")
        room = 2 * cores if self.grows else cores
        more = self.bounds.clamp(min(2 * parallelism, room))
        if more <= parallelism or now - self._useless.get(more, -_REMEMBERED_SECONDS) < _REMEMBERED_SECONDS:
            self._busy = None  # nothing to be gained: look again when this has lasted as long
            return None
        self._trial = (parallelism, rate)
        return Decision(more, "there is a backlog")
