"""Parses and formats durations such as `10s`, `1.5 minutes`, `250ms`, `1h 30m`."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.base.errors import ConfigurationError

_UNITS = {
    "ns": 1e-9, "nanosecond": 1e-9, "nanoseconds": 1e-9,
    "us": 1e-6, "µs": 1e-6, "micros": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6,
    "ms": 1e-3, "millis": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)", re.IGNORECASE)


def parse_duration(value: str | float | timedelta) -> timedelta:
    """Parse a duration; a bare number is seconds.

    >>> parse_duration("1h 30m")
    datetime.timedelta(seconds=5400)
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float):
        return timedelta(seconds=value)
    text = value.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return timedelta(seconds=float(text))
    total, position = 0.0, 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match.group(2).lower() not in _UNITS:
            raise ConfigurationError(
                f"`{value}` is not a duration",
                hint="write a number and a unit, such as `250ms`, `10s`, `5m`, `1h 30m`, `2d`",
            )
        total += float(match.group(1)) * _UNITS[match.group(2).lower()]
        position = match.end()
    if not text:
        raise ConfigurationError("an empty string is not a duration", hint="write it as `10s`")
    return timedelta(seconds=total)


def format_duration(value: timedelta) -> str:
    """A duration as a short string: `250ms`, `1.5s`, `2m 5s`, `3h 20m`.

    >>> format_duration(timedelta(seconds=125))
    '2m 5s'
    """
    seconds = value.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m" if minutes else f"{hours}h"
    return f"{minutes}m {rest}s" if rest else f"{minutes}m"


def nanoseconds(value: timedelta) -> int:
    """The duration as a whole number of nanoseconds, the unit of instants inside operators."""
    return (value.days * 86_400_000_000 + value.seconds * 1_000_000 + value.microseconds) * 1_000
