"""Intervals in PostgreSQL's notations: `1-2`, `3 4:05:06`, `-00:00:01`, `P1Y2M10DT2H`."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = r"[+-]?\d+(?:\.\d+)?"
_ISO: Final = re.compile(
    rf"P(?:({_NUMBER})Y)?(?:({_NUMBER})M)?(?:({_NUMBER})W)?(?:({_NUMBER})D)?"
    rf"(?:T(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?"
)
_ISO_UNITS: Final = ("years", "months", "weeks", "days", "hours", "minutes", "seconds")
_CLOCK: Final = re.compile(r"([+-]?)(\d+):(\d{1,2})(?::(\d{1,2}(?:\.\d+)?))?")
_YEARS_MONTHS: Final = re.compile(r"([+-]?)(\d+)-(\d{1,2})")
_AGO: Final = re.compile(r"\s+ago$", re.IGNORECASE)
_UNIT: Final = re.compile(rf"({_NUMBER})\s*([a-zA-Zµ]+)")


def spelled_out(text: str) -> str | None:
    """An interval as numbers and units, which DataFusion reads; None if it needs no other spelling.

    >>> spelled_out("1-2")
    '1 years 2 months'
    >>> spelled_out("3 -4:05:06.5")
    '3 days -4 hours -5 minutes -6.5 seconds'
    >>> spelled_out("P1Y2M10DT2H")
    '1 years 2 months 10 days 2 hours'
    >>> spelled_out("1 day 2 hours ago")
    '-1 day -2 hours'
    >>> spelled_out("90 seconds") is None
    True
    """
    text = text.strip().removeprefix("@").strip()
    if re.search(r"\+\d", text):
        plain = re.sub(r"\+(?=\d)", "", text)
        return spelled_out(plain) or plain
    if text.upper().startswith("P") and len(text) > 1 and (match := _ISO.fullmatch(text.upper())):
        parts = zip(match.groups(), _ISO_UNITS, strict=True)
        return " ".join(f"{number} {unit}" for number, unit in parts if number is not None) or "0 seconds"
    is_ago = _AGO.search(text) is not None
    words = _AGO.sub("", text).split()
    spelled: list[str] = []
    changed = is_ago
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if match := _CLOCK.fullmatch(word):
            sign, hours, minutes, seconds = match.groups()
            parts = zip((hours, minutes, seconds or "0"), _ISO_UNITS[4:], strict=True)
            spelled += [f"{sign}{number.lstrip('0') or 0} {unit}" for number, unit in parts]
        elif match := _YEARS_MONTHS.fullmatch(word):
            sign, years, months = match.groups()
            spelled += [f"{sign}{years} years", f"{sign}{months} months"]
        elif re.fullmatch(_NUMBER, word) and _CLOCK.fullmatch(following):
            spelled.append(f"{word} days")
        else:
            spelled.append(word)
            continue
        changed = True
    result = " ".join(spelled)
    if is_ago:
        result = _UNIT.sub(lambda match: f"{_negated(match[1])} {match[2]}", result)
    return result if changed else None


def in_units(text: str, first: str, last: str) -> str:
    """The text of `INTERVAL '1:02' MINUTE TO SECOND` as one that needs no units behind it.

    >>> in_units("1:02", "MINUTE", "SECOND"), in_units("1 02", "DAY", "HOUR")
    ('1 minutes 02 seconds', '1 days 02 hours')
    """
    text, units = text.strip(), (first.upper(), last.upper())
    sign = "-" if text.startswith("-") else ""
    numbers = text.removeprefix("-").removeprefix("+")
    if units == ("MINUTE", "SECOND") and (match := re.fullmatch(r"(\d+):(\d+(?:\.\d*)?)", numbers)):
        return f"{sign}{match[1]} minutes {sign}{match[2]} seconds"
    if units == ("DAY", "HOUR") and (match := re.fullmatch(r"(\d+) +(\d+)", numbers)):
        return f"{sign}{match[1]} days {sign}{match[2]} hours"
    return text


def _negated(number: str) -> str:
    return number[1:] if number.startswith("-") else f"-{number.removeprefix('+')}"
