"""Functions over instants and intervals."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ExpressionError
from headrace.functions.postgres.overload import BOOLEAN, DOUBLE, INTEGER, INTERVAL, TEXT, TIMESTAMP, Overload

Interval = tuple[int, int, int]
"""Months, days, nanoseconds."""

MICROSECOND: Final = 1_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_DAYS_OF_A_MONTH: Final = 30
_DAYS_OF_A_YEAR: Final = 365.25
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - instants are UTC
_JULIAN_EPOCH: Final = 2_440_588
"""The Julian day of 1970-01-01."""


def _datetime(instant: int) -> tuple[dt.datetime, int]:
    """An instant to the microsecond, and the nanoseconds beyond it."""
    micros, rest = divmod(instant, MICROSECOND)
    return _EPOCH + dt.timedelta(microseconds=micros), rest


def _instant(moment: dt.datetime, nanoseconds: int = 0) -> int:
    return (moment - _EPOCH) // dt.timedelta(microseconds=1) * MICROSECOND + nanoseconds


# ------------------------------------------------------------------------------------------ as text


def interval_text(months: int, days: int, nanoseconds: int) -> str:
    """An interval as PostgreSQL writes it.

    >>> interval_text(14, -3, 3_723_500_000_000), interval_text(0, 0, 0)
    ('1 year 2 mons -3 days +01:02:03.5', '00:00:00')
    """
    parts: list[str] = []
    before = 0
    years, months = (
        int(math.copysign(abs(months) // 12, months)),
        int(math.copysign(abs(months) % 12, months)),
    )
    for number, name in ((years, "year"), (months, "mon"), (days, "day")):
        if number:
            sign = "+" if before < 0 < number else ""
            parts.append(f"{sign}{number} {name}{'' if number == 1 else 's'}")
            before = number
    if nanoseconds or not parts:
        sign = "-" if nanoseconds < 0 else "+" if before < 0 else ""
        seconds, fraction = divmod(abs(nanoseconds), SECOND)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        text = f"{sign}{hours:02}:{minutes:02}:{seconds:02}"
        parts.append(f"{text}.{fraction:09}".rstrip("0") if fraction else text)
    return " ".join(parts)


def timestamp_text(column: pa.Array) -> pa.Array:
    """Instants as PostgreSQL writes them, with as much of a fraction as there is.

    >>> timestamp_text(pa.array([0, 1_500_000_000], pa.timestamp("ns"))).to_pylist()
    ['1970-01-01 00:00:00', '1970-01-01 00:00:01.5']
    """
    texts = pc.strftime(column, format="%Y-%m-%d %H:%M:%S")
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")


# ------------------------------------------------------------------------------------------ parts


def interval_part(field: str, interval: Interval) -> float:
    """A field of an interval.

    >>> interval_part("epoch", (0, 1, 5 * SECOND)), interval_part("second", (0, 0, 65_500_000_000))
    (86405.0, 5.5)
    """
    months, days, nanoseconds = interval
    seconds = math.fmod(nanoseconds, MINUTE)
    years = int(months / 12)
    whole_days = years * _DAYS_OF_A_YEAR + math.fmod(months, 12) * _DAYS_OF_A_MONTH + days
    parts: dict[str, float] = {
        "epoch": whole_days * 86_400 + nanoseconds / SECOND,
        "millennium": int(years / 1000),
        "century": int(years / 100),
        "decade": int(years / 10),
        "year": years,
        "quarter": int(math.fmod(months, 12) / 3) + 1,
        "month": math.fmod(months, 12),
        "day": days,
        "hour": int(nanoseconds / HOUR),
        "minute": int(math.fmod(nanoseconds, HOUR) / MINUTE),
        "second": seconds / SECOND,
        "millisecond": seconds / 1_000_000,
        "microsecond": seconds / 1_000,
    }
    return parts[field if field in parts else field.removesuffix("s")]


def timestamp_part(field: str, instant: int) -> float:
    """A field of an instant that DataFusion does not know.

    >>> timestamp_part("century", _instant(dt.datetime(2001, 1, 1))), timestamp_part("decade", 0)
    (21, 197)
    """
    moment, _ = _datetime(instant)
    match field.lower():
        case "millennium":
            return (moment.year + 999) // 1000
        case "century":
            return (moment.year + 99) // 100
        case "decade":
            return moment.year // 10
        case "julian":
            return _JULIAN_EPOCH + instant / DAY
        case "timezone" | "timezone_hour" | "timezone_minute":
            return 0
    raise ExpressionError(f"`{field}` cannot be extracted from a TIMESTAMP")


MORE_FIELDS: Final = (
    "millennium",
    "century",
    "decade",
    "julian",
    "timezone",
    "timezone_hour",
    "timezone_minute",
)
"""What `timestamp_part` knows."""
INTERVAL_FIELDS: Final = (
    "epoch", "millennium", "century", "decade", "year", "quarter", "month", "day", "hour", "minute", "second",
    "millisecond", "microsecond",
)  # fmt: skip
"""What `interval_part` knows."""


def truncate_interval(unit: str, interval: Interval) -> Interval:
    """An interval without what is smaller than a unit.

    >>> truncate_interval("hour", (0, 2, HOUR + MINUTE))
    (0, 2, 3600000000000)
    """
    months, days, nanoseconds = interval
    units = {"millennium": 12_000, "century": 1_200, "decade": 120, "year": 12, "quarter": 3, "month": 1}
    if unit in units:
        return int(months / units[unit]) * units[unit], 0, 0
    if unit == "day":
        return months, days, 0
    times = {"hour": HOUR, "minute": MINUTE, "second": SECOND, "millisecond": 1_000_000, "microsecond": 1_000}
    if unit in times:
        return months, days, int(nanoseconds / times[unit]) * times[unit]
    raise ExpressionError(f"an INTERVAL cannot be truncated to `{unit}`")


def truncate_timestamp(unit: str, instant: int) -> int:
    """The beginning of a decade, century or millennium.

    >>> _datetime(truncate_timestamp("century", _instant(dt.datetime(2026, 5, 5))))[0].year
    2001
    """
    year = _datetime(instant)[0].year
    match unit:
        case "decade":
            year = year // 10 * 10
        case "century":
            year = (year + 99) // 100 * 100 - 99
        case "millennium":
            year = (year + 999) // 1000 * 1000 - 999
        case _:
            raise ExpressionError(f"a TIMESTAMP cannot be truncated to `{unit}`")
    return _instant(dt.datetime(year, 1, 1))  # noqa: DTZ001 - instants are UTC


LONG_UNITS: Final = ("decade", "century", "millennium")
"""What `truncate_timestamp` knows."""


# ------------------------------------------------------------------------------------------ made


def age(end: int, start: int) -> Interval:
    """The time from one instant to another in years, months and days, as a calendar counts them.

    >>> age(_instant(dt.datetime(2026, 3, 1)), _instant(dt.datetime(2026, 1, 31)))
    (1, 1, 0)
    """
    if end < start:
        months, days, nanoseconds = _age(start, end)
        return -months, -days, -nanoseconds
    return _age(end, start)


def _age(later: int, earlier: int) -> Interval:
    (last, _), (first, _) = _datetime(later), _datetime(earlier)
    nanoseconds = later % DAY - earlier % DAY
    days = last.day - first.day
    months = (last.year - first.year) * 12 + last.month - first.month
    if nanoseconds < 0:
        nanoseconds += DAY
        days -= 1
    if days < 0:
        # The days of the month of the earlier instant are what a month has.
        following = dt.date(first.year + first.month // 12, first.month % 12 + 1, 1)
        days += (following - dt.date(first.year, first.month, 1)).days
        months -= 1
    return months, days, nanoseconds


def make_timestamp(
    year: int, month: int, day: int, hour: int, minute: int, second: float, zone: str = "UTC"
) -> int:
    """An instant of its parts."""
    micros = round(second * 1_000_000)
    try:
        moment = dt.datetime(year, month, day, hour, minute)  # noqa: DTZ001 - instants are UTC
    except (ValueError, OverflowError):
        raise ExpressionError(
            f"there is no time {year}-{month}-{day} {hour}:{minute}:{second}",
            hint="year, month 1-12, day, hour 0-23, minute 0-59, second",
        ) from None
    if not 0 <= micros <= 60_000_000:
        raise ExpressionError(f"a minute has no second {second}", hint="it has 0 to 60")
    instant = _instant(moment) + micros * MICROSECOND
    return instant if zone == "UTC" else from_local_time(zone, instant)


def make_interval(*parts: float) -> Interval:
    """An interval of years, months, weeks, days, hours, minutes and seconds, of which the last can be absent.

    >>> make_interval(1, 2, 0, 3, 4)
    (14, 3, 14400000000000)
    """
    years, months, weeks, days, hours, minutes, seconds = (*parts, 0, 0, 0, 0, 0, 0, 0)[:7]
    time = int(hours) * HOUR + int(minutes) * MINUTE + round(seconds * 1_000_000) * MICROSECOND
    return int(years) * 12 + int(months), int(weeks) * 7 + int(days), time


def justify_hours(interval: Interval) -> Interval:
    """24 hours as days."""
    months, days, nanoseconds = interval
    whole = int(nanoseconds / DAY)
    days, nanoseconds = days + whole, nanoseconds - whole * DAY
    if days > 0 > nanoseconds:
        days, nanoseconds = days - 1, nanoseconds + DAY
    elif days < 0 < nanoseconds:
        days, nanoseconds = days + 1, nanoseconds - DAY
    return months, days, nanoseconds


def justify_days(interval: Interval) -> Interval:
    """30 days as months."""
    months, days, nanoseconds = interval
    whole = int(days / _DAYS_OF_A_MONTH)
    months, days = months + whole, days - whole * _DAYS_OF_A_MONTH
    if months > 0 > days:
        months, days = months - 1, days + _DAYS_OF_A_MONTH
    elif months < 0 < days:
        months, days = months + 1, days - _DAYS_OF_A_MONTH
    return months, days, nanoseconds


def justify_interval(interval: Interval) -> Interval:
    """Hours as days, days as months, and one sign for all.

    >>> justify_interval((1, 0, -HOUR))
    (0, 29, 82800000000000)
    """
    months, days, nanoseconds = justify_days(justify_hours(interval))
    if months > 0 and (days < 0 or (days == 0 and nanoseconds < 0)):
        months, days = months - 1, days + _DAYS_OF_A_MONTH
    elif months < 0 and (days > 0 or (days == 0 and nanoseconds > 0)):
        months, days = months + 1, days - _DAYS_OF_A_MONTH
    if days > 0 > nanoseconds:
        days, nanoseconds = days - 1, nanoseconds + DAY
    elif days < 0 < nanoseconds:
        days, nanoseconds = days + 1, nanoseconds - DAY
    return months, days, nanoseconds


_INTERVAL_TOKEN: Final = re.compile(
    r'"([^"]*)"|(FM)?(YYYY|MM|DDD|DD|HH24|HH12|HH|MI|SSSS|SS|MS|US|AM|PM)|(.)', re.DOTALL | re.IGNORECASE
)


def interval_to_char(interval: Interval, pattern: str) -> str:
    """An interval in a pattern of PostgreSQL.

    >>> interval_to_char((0, 1, 2 * HOUR + 90 * SECOND), "DD HH24:MI:SS")
    '01 02:01:30'
    """
    months, days, nanoseconds = interval
    sign = -1 if nanoseconds < 0 else 1
    rest = abs(nanoseconds)
    hours = sign * (rest // HOUR)
    numbers = {
        "YYYY": (int(months / 12), 4), "MM": (int(math.fmod(months, 12)), 2), "DD": (days, 2),
        "DDD": (days, 3),
        "HH24": (hours, 2), "HH12": (hours % 12 or 12, 2), "HH": (hours % 12 or 12, 2),
        "MI": (sign * (rest % HOUR // MINUTE), 2), "SS": (sign * (rest % MINUTE // SECOND), 2),
        "MS": (sign * (rest % SECOND // 1_000_000), 3), "US": (sign * (rest % SECOND // MICROSECOND), 6),
        "SSSS": (sign * (rest // SECOND), 1),
    }  # fmt: skip
    result = ""
    for quoted, unpadded, token, other in _INTERVAL_TOKEN.findall(pattern):
        if token.upper() in ("AM", "PM"):
            half = "PM" if hours % 24 >= 12 else "AM"
            result += half if token.isupper() else half.lower()
        elif token:
            number, width = numbers[token.upper()]
            width -= token.upper() in ("DD", "DDD") and number < 0  # the sign of days is within their width
            digits = str(abs(number)) if unpadded else f"{abs(number):0{width}}"
            result += "-" * (number < 0) + digits
        elif other.isalpha() and other != "T":
            hint = "an interval has YYYY, MM, DD, HH24, MI, SS, MS and US; a text stands in double quotes"
            raise ExpressionError(f"`{other}` in the pattern `{pattern}` is not supported", hint=hint)
        else:
            result += quoted or other
    return result


# ------------------------------------------------------------------------------------------ zones


def _zone(name: str) -> dt.tzinfo:
    """A time zone by its name; raises an ExpressionError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ExpressionError(
            f"there is no time zone `{name}`", hint="write a name such as 'Europe/Oslo' or 'UTC'"
        ) from None


def to_local_time(zone: str, instant: int) -> int:
    """The time that clocks show in a zone at an instant.

    >>> to_local_time("Europe/Oslo", 0) // HOUR
    1
    """
    moment, rest = _datetime(instant)
    offset = moment.replace(tzinfo=dt.UTC).astimezone(_zone(zone)).utcoffset() or dt.timedelta()
    return _instant(moment + offset, rest)


def from_local_time(zone: str, local: int) -> int:
    """The instant at which clocks in a zone show a time.

    >>> from_local_time("Europe/Oslo", HOUR)
    0
    """
    moment, rest = _datetime(local)
    offset = moment.replace(tzinfo=_zone(zone)).utcoffset() or dt.timedelta()
    return _instant(moment - offset, rest)


def check_zone(name: str) -> None:
    """Raise an ExpressionError if there is no such time zone."""
    _zone(name)


_CLOCK: Final = (INTEGER, INTEGER, INTEGER, INTEGER, INTEGER, DOUBLE)

TIME_FUNCTIONS: Final = (
    Overload("age", (TIMESTAMP, TIMESTAMP), INTERVAL, age),
    Overload("make_timestamp", _CLOCK, TIMESTAMP, make_timestamp),
    Overload("make_timestamptz", _CLOCK, TIMESTAMP, make_timestamp),
    Overload("make_timestamptz", (*_CLOCK, TEXT), TIMESTAMP, make_timestamp),
    *(Overload("make_interval", (DOUBLE,) * count, INTERVAL, make_interval) for count in range(1, 8)),
    Overload("justify_hours", (INTERVAL,), INTERVAL, justify_hours),
    Overload("justify_days", (INTERVAL,), INTERVAL, justify_days),
    Overload("justify_interval", (INTERVAL,), INTERVAL, justify_interval),
    Overload("isfinite", (TIMESTAMP,), BOOLEAN, lambda _: True),
    Overload("isfinite", (INTERVAL,), BOOLEAN, lambda _: True),
    Overload("timestamp_text", (TIMESTAMP,), TEXT, timestamp_text, internal=True, vectorized=True),
    Overload("interval_text", (INTERVAL,), TEXT, lambda parts: interval_text(*parts), internal=True),
    Overload("interval_to_char", (INTERVAL, TEXT), TEXT, interval_to_char, internal=True),
    Overload("interval_part", (TEXT, INTERVAL), DOUBLE, interval_part, internal=True),
    Overload("timestamp_part", (TEXT, TIMESTAMP), DOUBLE, timestamp_part, internal=True),
    Overload("truncate_interval", (TEXT, INTERVAL), INTERVAL, truncate_interval, internal=True),
    Overload("truncate_timestamp", (TEXT, TIMESTAMP), TIMESTAMP, truncate_timestamp, internal=True),
    Overload("to_local_time_of", (TEXT, TIMESTAMP), TIMESTAMP, to_local_time, internal=True),
    Overload("from_local_time_of", (TEXT, TIMESTAMP), TIMESTAMP, from_local_time, internal=True),
)
