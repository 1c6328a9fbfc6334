"""Find the ends of CSV rows: line breaks outside of quoted values."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from headrace.formats.base import line_ends

LONGEST = 1024 * 1024
"""The most bytes of a row with line breaks in its values: an open quote ends there."""

_NEWLINE = 10
_RETURN = 13


class CsvRowEnds:
    """Finds the ends of rows, independent of how a file is split.

    A quote opens a value only at its start, and closes it only at its end. A row that violates this, or is
    longer than `LONGEST`, is its first line alone: the lines after it are rows again.
    """

    longest = LONGEST

    def __init__(self, delimiter: str, quote: str) -> None:
        self._delimiter, self._quote = delimiter.encode(), quote.encode()
        comma, mark = re.escape(self._delimiter), re.escape(self._quote)
        value = b"(?:%b[^%b]*+(?:%b%b[^%b]*+)*+%b[ \t]*+(?=%b|\r?\n|\\Z)|(?!%b)[^%b\n]*+)" % (
            *(mark,) * 6,
            comma,
            mark,
            comma,
        )
        self._row = re.compile(b"(?:\xef\xbb\xbf)?+%b(?:%b%b)*+\r?+(\n|\\Z)" % (value, comma, value))

    def __call__(self, data: bytes, *, last: bool) -> NDArray[np.int64]:
        """Return the ends of rows in bytes that start with a row; without `last`, more bytes may follow."""
        if self._quote not in data:
            return line_ends(data, last=last)
        buffer = np.frombuffer(data, np.uint8)
        quotes, breaks = np.flatnonzero(buffer == self._quote[0]), np.flatnonzero(buffer == _NEWLINE)
        ends = breaks[np.searchsorted(quotes, breaks) % 2 == 0] + 1
        if self._in_order(buffer, quotes) and not (np.diff(ends, prepend=0) > LONGEST).any():
            rest = int(ends[-1]) if len(ends) else 0
        else:
            ends, rest = np.zeros(0, np.int64), 0
        return np.concatenate([ends, np.array(self._find_singly(data, rest, last=last), np.int64)])

    def _in_order(self, buffer: NDArray[np.uint8], quotes: NDArray[np.int64]) -> bool:
        """Whether every quote opens or closes a value, or is an escaped one."""
        opening, closing = quotes[::2], quotes[1::2]
        before = buffer[opening[opening > 0] - 1]
        after = buffer[closing[closing < len(buffer) - 1] + 1]
        common = [self._delimiter[0], self._quote[0], _NEWLINE]
        return bool(np.isin(before, common).all() and np.isin(after, [*common, _RETURN]).all())

    def _find_singly(self, data: bytes, start: int, *, last: bool) -> list[int]:
        ends: list[int] = []
        while start < len(data):
            match = self._row.match(data, start, start + LONGEST)
            if match is not None and (match[1] or (last and match.end() == len(data))):
                start = match.end()
            elif not last and len(data) - start < LONGEST:
                break  # it may go on
            else:
                line = data.find(b"\n", start)
                if line < 0 and not last:
                    break
                start = len(data) if line < 0 else line + 1
            ends.append(start)
        return ends
