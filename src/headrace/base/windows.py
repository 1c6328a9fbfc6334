"""Windows of event time, in nanoseconds, aligned to the Unix epoch.

Tumbling, hopping, cumulating and instant windows are the same: a window of some width starts at every
multiple of a slide. Time is divided into panes, the longest intervals that are entirely inside or outside of
every window, so that rows can be aggregated by pane.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.base.errors import PlanError

Instants = npt.NDArray[np.int64]
AnyTime = TypeVar("AnyTime", int, Instants)

_LEAST, _MOST = -(2**63), 2**63 - 1

FIRST_EVENT_TIME = -9_214_560_000_000_000_000
"""The first event time that sources read, 1678-01-01: earlier ones are too near to what 64 bits can hold."""
LAST_EVENT_TIME = 9_214_646_399_999_999_999
"""The last event time that sources read, the end of 2261."""


def align(time: AnyTime, unit: int) -> AnyTime:
    """The last multiple of `unit` that is not after `time`, before 1970 too."""
    return time // unit * unit


def clamp(time: int) -> int:
    """The nearest instant of 64 bits."""
    return min(max(time, _LEAST), _MOST)


@dataclass(frozen=True)
class _Hopping:
    """The base of windows that start at every multiple of `slide`."""

    slide: int
    width: int

    def __post_init__(self) -> None:
        if self.slide <= 0 or self.width <= 0:
            raise PlanError(
                f"a window of {self.width} ns that starts every {self.slide} ns has no rows",
                hint="the width and the slide of a window must be greater than zero",
            )

    @property
    def pane(self) -> int:
        """The width of a pane."""
        return math.gcd(self.slide, self.width)

    @property
    def first_time(self) -> int:
        """The first instant whose windows all start at instants of 64 bits."""
        least = -(-_LEAST // self.slide) * self.slide
        return least + (self.width - self.slide if self.width >= self.slide else self.width)

    @property
    def last_time(self) -> int:
        """The last instant whose windows all end at instants of 64 bits."""
        return align(_MOST - self.width, self.slide) + min(self.slide, self.width) - 1

    @property
    def overlaps(self) -> bool:
        """Whether an instant can lie in more than one window."""
        return self.width > self.slide

    def first_open(self, watermark: int) -> int:
        """The start of the first window that ends after `watermark`; older rows are in closed windows."""
        return clamp(self.last_closed(watermark) + self.slide)

    def last_closed(self, watermark: int) -> int:
        """The start of the last window that ends at `watermark` or before."""
        return align(watermark - self.width, self.slide)

    def begins(self, starts: Instants) -> Instants:
        """Where the windows with these starts begin."""
        return starts

    def first_of(self, times: Instants) -> Instants:
        """The start of the first window of each instant; after `last_of` if there is none."""
        slides, rest = divmod(self.width, self.slide)
        # `times - width` would overflow before a window does.
        return ((times - rest) // self.slide - slides + 1) * self.slide

    def last_of(self, times: Instants) -> Instants:
        """The start of the last window of each instant."""
        return align(times, self.slide)


class Hop(_Hopping):
    """Windows of `width` that start every `slide`, which need not divide the width."""


class Cumulate(_Hopping):
    """Windows that begin every `width`, of which one ends after each `slide`, with all rows since its begin.

    A window has the start of the hopping window that ends with it, which is before its own begin.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.slide:
            raise PlanError(
                f"windows of {self.width} ns cannot be cumulated in steps of {self.slide} ns",
                hint="the size is a multiple of the step",
            )

    def begins(self, starts: Instants) -> Instants:
        return align(starts + (self.width - 1), self.width)

    def last_of(self, times: Instants) -> Instants:
        return align(times, self.width)


class Tumble(_Hopping):
    """Windows of `width`, each of which starts at the end of the previous one."""

    def __init__(self, width: int) -> None:
        super().__init__(slide=width, width=width)


class Instant(_Hopping):
    """One window for each instant: for rows that are themselves results of windows."""

    def __init__(self) -> None:
        super().__init__(slide=1, width=1)


@dataclass(frozen=True)
class Session:
    """Sessions of rows that are less than `gap` apart."""

    gap: int

    def __post_init__(self) -> None:
        if self.gap <= 0:
            raise PlanError(
                f"a session with a gap of {self.gap} ns has no rows",
                hint="the gap between sessions must be greater than zero",
            )

    @property
    def first_time(self) -> int:
        """The first instant that can be in a session."""
        return _LEAST

    @property
    def last_time(self) -> int:
        """The last instant for which the end of the session fits into 64 bits."""
        return _MOST - self.gap


AlignedWindow: TypeAlias = "Tumble | Hop | Cumulate | Instant"
Window: TypeAlias = "AlignedWindow | Session"
