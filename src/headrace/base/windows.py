"""Windows of event time, in nanoseconds, aligned to the Unix epoch.

Tumbling, hopping and instant windows are one thing: a window of some width starts at every multiple of a
slide. What they have in common is cut into panes, the longest spans that lie whole inside or outside of
every window, so that rows need to be told apart by pane only.
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


def align(time: AnyTime, unit: int) -> AnyTime:
    """The last multiple of `unit` that is not after `time`, before 1970 too."""
    return time // unit * unit


def clamp(time: int) -> int:
    """An instant of 64 bits: the nearest to `time`."""
    return min(max(time, _LEAST), _MOST)


@dataclass(frozen=True)
class _Hopping:
    """What windows that start at every multiple of `slide` have in common."""

    slide: int
    width: int

    def __post_init__(self) -> None:
        if self.slide <= 0 or self.width <= 0:
            raise PlanError(
                f"a window of {self.width} ns that starts every {self.slide} ns has no rows",
                hint="the width and the slide of a window must be longer than nothing",
            )

    @property
    def pane(self) -> int:
        """The width of a pane."""
        return math.gcd(self.slide, self.width)

    @property
    def overlaps(self) -> bool:
        """Whether an instant can lie in more than one window."""
        return self.width > self.slide

    def first_open(self, watermark: int) -> int:
        """The start of the first window that ends after `watermark`; what is older is in closed ones only."""
        return clamp(self.last_closed(watermark) + self.slide)

    def last_closed(self, watermark: int) -> int:
        """The start of the last window that ends at `watermark` or before."""
        return align(watermark - self.width, self.slide)

    def first_of(self, times: Instants) -> Instants:
        """The start of the first window of each instant; after `last_of` if there is none."""
        return align(times - self.width, self.slide) + self.slide

    def last_of(self, times: Instants) -> Instants:
        """The start of the last window of each instant."""
        return align(times, self.slide)


class Hop(_Hopping):
    """Windows of `width` that start every `slide`, which need not divide the width."""


class Tumble(_Hopping):
    """Windows of `width`, each beginning where the last one ends."""

    def __init__(self, width: int) -> None:
        super().__init__(slide=width, width=width)


class Instant(_Hopping):
    """Each instant by itself: the windows of rows that are results of windows already."""

    def __init__(self) -> None:
        super().__init__(slide=1, width=1)


@dataclass(frozen=True)
class Session:
    """Rows with less than `gap` between one and the next."""

    gap: int

    def __post_init__(self) -> None:
        if self.gap <= 0:
            raise PlanError(
                f"a session with a gap of {self.gap} ns has no rows",
                hint="the gap between sessions must be longer than nothing",
            )


AlignedWindow: TypeAlias = "Tumble | Hop | Instant"
Window: TypeAlias = "AlignedWindow | Session"
