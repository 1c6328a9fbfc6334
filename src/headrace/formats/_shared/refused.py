"""Find the few records of a batch that cannot be read, without reading the others one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_PIECE = 256
_OTHERS = 8
"""At most one in this many records may be refused: with more, it is not worth looking for them."""


class TooManyRefusedError(ValueError):
    """So many records are refused that each one should be read on its own."""


def read_accepted(
    size: int, read: Callable[[int, int], T], *, piece: int = _PIECE
) -> tuple[list[T], list[int]]:
    """Read ranges of records; return what could be read, in order, and the positions of refused records.

    `read` takes the begin and the end of a range, and raises a ValueError if any record of it is refused.
    Ranges that are refused are halved. Raises a TooManyRefusedError if that takes too long.
    """
    results: list[T] = []
    refused: list[int] = []
    ranges = [(begin, min(begin + piece, size)) for begin in range(0, size, piece)][::-1]
    while ranges:
        begin, end = ranges.pop()
        try:
            results.append(read(begin, end))
        except ValueError as error:
            if end - begin == 1:
                refused.append(begin)
                if len(refused) * _OTHERS > size:
                    raise TooManyRefusedError from error
                continue
            middle = (begin + end) // 2
            ranges += [(middle, end), (begin, middle)]
    return results, refused
