"""PostgreSQL's patterns for times, `YYYY-MM-DD HH24:MI:SS`, in the terms of strftime and SQL."""

from __future__ import annotations

import re
from typing import Final

from headrace.base.errors import ExpressionError, suggest
from headrace.model.fragments import literal

_STRFTIME: Final = {
    "YYYY": "%Y", "YY": "%y", "IYYY": "%G", "IY": "%g", "MM": "%m", "DD": "%d", "DDD": "%j",
    "HH24": "%H", "HH12": "%I", "HH": "%I", "MI": "%M", "SS": "%S", "MS": "%3f", "US": "%6f",
    "AM": "%p", "PM": "%p", "am": "%P", "pm": "%P", "Mon": "%b", "Dy": "%a", "IW": "%V", "ID": "%u",
    "TZ": "UTC", "OF": "+00",
}  # fmt: skip
_UNPADDED: Final = {
    "MM": "%-m", "DD": "%-d", "DDD": "%-j", "HH24": "%-H", "HH12": "%-I", "HH": "%-I", "MI": "%-M",
    "SS": "%-S", "Month": "%B", "Day": "%A", "YYYY": "%-Y", "IW": "%-V",
}  # fmt: skip
_NAMES: Final = {"MON": "%b", "mon": "%b", "DY": "%a", "dy": "%a"}
_LONG_NAMES: Final = {"MONTH": "%B", "Month": "%B", "month": "%B", "DAY": "%A", "Day": "%A", "day": "%A"}
_COMPUTED: Final = {
    "Q": "CAST(date_part('quarter', {0}) AS TEXT)",
    "D": "CAST(date_part('dow', {0}) + 1 AS TEXT)",
    "W": "CAST(CAST((date_part('day', {0}) - 1) / 7 + 1 AS INT) AS TEXT)",
    "WW": "lpad(CAST(CAST((date_part('doy', {0}) - 1) / 7 + 1 AS INT) AS TEXT), 2, '0')",
    "CC": "lpad(CAST(CAST((date_part('year', {0}) + 99) / 100 AS INT) AS TEXT), 2, '0')",
    "J": "CAST(CAST(floor(date_part('epoch', {0}) / 86400) AS BIGINT) + 2440588 AS TEXT)",
}
_ORDINAL: Final = (
    "({0} || CASE WHEN right({0}, 2) IN ('11', '12', '13') THEN '{1}' WHEN right({0}, 1) = '1' THEN '{2}' "
    "WHEN right({0}, 1) = '2' THEN '{3}' WHEN right({0}, 1) = '3' THEN '{4}' ELSE '{1}' END)"
)
_UNKNOWN: Final = (
    "SSSSS", "SSSS", "Y,YYY", "YYY", "IYY", "IDDD", "A.M.", "P.M.", "a.m.", "p.m.", "AD", "BC", "RM", "Y",
    "A.D.", "B.C.", "I", "TM", "TZH", "TZM", "FF1", "FF2", "FF3", "FF4", "FF5", "FF6",
)  # fmt: skip
_TOKENS: Final = tuple(
    sorted({*_STRFTIME, *_NAMES, *_LONG_NAMES, *_COMPUTED, *_UNKNOWN}, key=len, reverse=True)
)
_TOKEN: Final = re.compile(
    rf'"([^"]*)"|(FM)?({"|".join(map(re.escape, _TOKENS))})(TH)?|(.)', re.DOTALL | re.IGNORECASE
)
_EXTRACTS: Final = ("%Y", "%y", "%m", "%d", "%j", "%H", "%I", "%M", "%S", "%p", "%P", "%b", "%a", "%B", "%A")
"""What times are read with."""


def is_strftime(pattern: str) -> bool:
    """Whether a pattern is one of strftime, `%Y-%m-%d`."""
    return "%" in pattern


def to_char(value: str, pattern: str) -> str:
    """The SQL that formats a time; raises an ExpressionError for what cannot be formatted.

    >>> to_char("ts", "YYYY-MM-DD")
    "to_char(ts, '%Y-%m-%d')"
    """
    pieces: list[str] = []
    run = ""
    for quoted, unpadded, word, suffix, other in _TOKEN.findall(pattern):
        token = _known(word)
        direct = _UNPADDED.get(token) if unpadded else None
        direct = direct or _STRFTIME.get(token)
        if suffix and (direct or token in _COMPUTED):
            text = _piece(value, token, padded=not unpadded) if direct is None else _formatted(value, direct)
            endings = [ending.upper() if suffix.isupper() else ending for ending in ("th", "st", "nd", "rd")]
            pieces += [*([_formatted(value, run)] if run else []), _ORDINAL.format(text, *endings)]
            run = ""
            continue
        if not token or direct is not None:
            run += direct or (quoted or other).replace("%", "%%")
            continue
        if run:
            pieces.append(_formatted(value, run))
            run = ""
        pieces.append(_piece(value, token, padded=not unpadded))
        run += suffix
    if run or not pieces:
        pieces.append(_formatted(value, run))
    return pieces[0] if len(pieces) == 1 else f"({' || '.join(pieces)})"


def strftime_pattern(pattern: str) -> str:
    """The pattern of strftime that reads what a pattern of PostgreSQL writes; raises an ExpressionError.

    >>> strftime_pattern("DD Mon YYYY HH24:MI")
    '%d %b %Y %H:%M'
    """
    result = ""
    for quoted, _, word, suffix, other in _TOKEN.findall(pattern):
        token = _known(word)
        if suffix:
            raise ExpressionError(f"the suffix `{suffix}` of a pattern is not read", hint="leave it out")
        direct = _STRFTIME.get(token) or _NAMES.get(token) or _LONG_NAMES.get(token)
        if token and direct not in _EXTRACTS:
            raise ExpressionError(f"`{token}` cannot be read from a string", hint="use strftime's %Y-%m-%d")
        result += direct or quoted or other
    return result


def _known(word: str) -> str:
    """A token as the tables have it; raises an ExpressionError for one that is not supported."""
    written = {*_STRFTIME, *_NAMES, *_LONG_NAMES, *_COMPUTED}
    token = word if word in written else word.upper()
    if token in _UNKNOWN:
        raise ExpressionError(
            f"the pattern `{word}` is not supported",
            hint=suggest(token, _STRFTIME) or "strftime's %Y-%m-%d is; a text stands in double quotes",
        )
    return token


def _formatted(value: str, pattern: str) -> str:
    return f"to_char({value}, {literal(pattern)})"


def _piece(value: str, token: str, *, padded: bool) -> str:
    if token in _COMPUTED:
        return _COMPUTED[token].format(f"({value})")
    text = _formatted(value, _NAMES.get(token) or _LONG_NAMES[token])
    if token.isupper():
        text = f"upper({text})"
    elif token.islower():
        text = f"lower({text})"
    return f"rpad({text}, 9)" if padded and token in _LONG_NAMES else text
