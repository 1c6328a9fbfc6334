"""Watermarks: the progress of event time, per input and merged.

An instant is an integer: nanoseconds since 1970-01-01 UTC, the unit of the `_timestamp` column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Watermark:
    """A promise that no row older than `time` follows, or (time None) that the input is idle.

    Args:
        time: the event time in nanoseconds since 1970; None for an input that is idle.

    >>> import headrace as hr
    >>> hr.Watermark(5).is_idle, hr.IDLE.is_idle, hr.END_OF_TIME.is_end
    (False, True, True)
    >>> print(hr.Watermark(1_500_000_000), hr.IDLE, hr.END_OF_TIME, sep=", ")
    1970-01-01T00:00:01.5, idle, end of data
    >>> hr.Watermark.from_json(hr.Watermark(5).to_json())
    Watermark(time=5)
    """

    time: int | None

    def __post_init__(self) -> None:
        if self.time is not None:  # numpy's integers are not JSON
            object.__setattr__(self, "time", int(self.time))

    @property
    def is_idle(self) -> bool:
        """Whether the input is idle: it does not hold back the watermark of an operator."""
        return self.time is None

    @property
    def is_end(self) -> bool:
        """Whether no row follows at all."""
        return self.time == _END

    def to_json(self) -> int | str:
        """The watermark as JSON.

        Returns:
            The event time, or `idle`.
        """
        return "idle" if self.time is None else self.time

    @classmethod
    def from_json(cls, value: int | str) -> Watermark:
        """The watermark that `to_json` wrote.

        Args:
            value: the event time, or `idle`.

        Returns:
            The watermark.
        """
        return IDLE if value == "idle" else cls(int(value))

    def __str__(self) -> str:
        if self.time is None:
            return "idle"
        if self.is_end:
            return "end of data"
        return format_instant(self.time)


IDLE: Final = Watermark(None)
"""The watermark of an input that is idle."""
END_OF_TIME: Final = Watermark(_END)
"""The watermark after the last row: every window closes."""


def format_instant(time: int) -> str:
    """An instant as `2026-11-15T10:00:00.250`, UTC, the fraction only when there is one.

    >>> format_instant(250_000_000)
    '1970-01-01T00:00:00.25'
    """
    seconds, nanos = divmod(time, 1_000_000_000)
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(time)
    return f"{text}.{nanos:09d}".rstrip("0") if nanos else text


def merge(inputs: Iterable[Watermark | None]) -> Watermark | None:
    """The watermark of several inputs: their minimum, idle ones ignored.

    None while an input has no watermark yet; idle when every input is idle, or the others have ended: an idle
    input may become active again, so it is not the end of data.
    """
    lowest: Watermark | None = None
    idle = False
    for watermark in inputs:
        if watermark is None:
            return None
        idle = idle or watermark.is_idle
        if watermark.time is not None and (
            lowest is None or lowest.time is None or watermark.time < lowest.time
        ):
            lowest = watermark
        elif lowest is None:
            lowest = IDLE
    return IDLE if idle and lowest is not None and lowest.is_end else lowest


def before_end(watermark: Watermark) -> Watermark:
    """The watermark, or the last instant before the end of data, which only the engine may announce."""
    return Watermark(_END - 1) if watermark.is_end else watermark


def advance(previous: Watermark | None, new: Watermark | None) -> Watermark | None:
    """`new`, unless it would go back in event time behind `previous`."""
    if new is None:
        return previous
    if previous is None or previous.time is None or new.time is None:
        return new
    return new if new.time >= previous.time else previous


class WatermarkHolder:
    """The watermarks of an operator's inputs, and the operator's own.

    `current` may be idle; `last_present` is the last real event time and never goes back.
    """

    def __init__(self, inputs: int, *, last_present: int | None = None) -> None:
        self._inputs: list[Watermark | None] = [None] * inputs
        self.last_present: int | None = last_present
        self.current: Watermark | None = None if last_present is None else Watermark(last_present)

    def set(self, index: int, watermark: Watermark) -> Watermark | None:
        """Set the watermark of one input; return the operator's own, or None if there is none yet."""
        self._inputs[index] = advance(self._inputs[index], watermark)
        merged = merge(self._inputs)
        if merged is None:
            return None
        if merged.time is not None:
            if self.last_present is not None and merged.time < self.last_present:
                merged = Watermark(self.last_present)
            self.last_present = merged.time
        self.current = merged
        return merged
