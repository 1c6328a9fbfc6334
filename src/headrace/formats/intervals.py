"""Intervals as strings: `1 mons 2 days 3 hours 4 mins 5.5 secs` as in SQL; ISO 8601 is read too."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa

_SECOND = 10**9
_MONTHS = {"year": 12, "yr": 12, "mon": 1, "month": 1}
_DAYS = {"week": 7, "day": 1}
_NANOSECONDS = {
    "hour": 3600 * _SECOND, "hr": 3600 * _SECOND, "minute": 60 * _SECOND, "min": 60 * _SECOND,
    "second": _SECOND, "sec": _SECOND, "millisecond": 10**6, "microsecond": 10**3, "nanosecond": 1,
}  # fmt: skip
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-z]+?)s?(?=[\s\d+-]|$)", re.IGNORECASE)
_ISO_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)([YMWDHS])")
_ISO_DATE = {"Y": "year", "M": "month", "W": "week", "D": "day"}
_ISO_TIME = {"H": "hour", "M": "minute", "S": "second"}


def format_interval(value: pa.MonthDayNano) -> str:
    """Format an interval of months, days and nanoseconds.

    >>> format_interval(pa.MonthDayNano([1, -2, 90_500_000_000]))
    '1 mons -2 days 1 mins 30.5 secs'
    """
    months, days, nanoseconds = value
    sign, rest = ("-" if nanoseconds < 0 else ""), abs(nanoseconds)
    hours, rest = divmod(rest, 3600 * _SECOND)
    minutes, rest = divmod(rest, 60 * _SECOND)
    seconds, fraction = divmod(rest, _SECOND)
    parts = [f"{months} mons"] * bool(months) + [f"{days} days"] * bool(days)
    parts += [f"{sign}{hours} hours"] * bool(hours) + [f"{sign}{minutes} mins"] * bool(minutes)
    if rest or not parts:
        decimals = f".{fraction:09d}".rstrip("0") if fraction else ""
        parts.append(f"{sign}{seconds}{decimals} secs")
    return " ".join(parts)


def parse_interval(text: str) -> pa.MonthDayNano:
    """Parse an interval; raises a ValueError.

    >>> parse_interval("1 mons 2 days 1 mins 30.5 secs") == parse_interval("P1M2DT1M30.5S")
    True
    """
    months = days = nanoseconds = Decimal(0)
    for amount, unit in _iso_parts(text) if text.lstrip().startswith("P") else _parts(text):
        if unit in _MONTHS:
            months += amount * _MONTHS[unit]
        elif unit in _DAYS:
            days += amount * _DAYS[unit]
        elif unit in _NANOSECONDS:
            nanoseconds += amount * _NANOSECONDS[unit]
        else:
            raise _not_an_interval(text)
    if any(part != int(part) for part in (months, days, nanoseconds)):
        raise _not_an_interval(text)
    return pa.MonthDayNano([int(months), int(days), int(nanoseconds)])


def _parts(text: str) -> list[tuple[Decimal, str]]:
    parts, position = [], 0
    while text[position:].strip():
        match = _PART.match(text, position)
        if match is None:
            raise _not_an_interval(text)
        parts.append((Decimal(match.group(1)), match.group(2).lower()))
        position = match.end()
    if not parts:
        raise _not_an_interval(text)
    return parts


def _iso_parts(text: str) -> list[tuple[Decimal, str]]:
    date, _, time = text.strip().removeprefix("P").partition("T")
    parts = []
    for part, units in ((date, _ISO_DATE), (time, _ISO_TIME)):
        if _ISO_PART.sub("", part):
            raise _not_an_interval(text)
        parts += [(Decimal(amount), units.get(unit, "")) for amount, unit in _ISO_PART.findall(part)]
    if not parts:
        raise _not_an_interval(text)
    return parts


def _not_an_interval(text: str) -> ValueError:
    return ValueError(f"`{text}` is not an interval such as `1 mons 2 days 3 hours`")
