"""Divides the positions that an epoch reads among its tasks."""

from __future__ import annotations

from collections.abc import Sequence


def even_ranges(first: int, last: int, count: int) -> Sequence[tuple[int, int]]:
    """Return `count` contiguous ranges of about equal length; the end of each is not in it.

    >>> even_ranges(10, 20, 3)
    [(10, 13), (13, 16), (16, 20)]
    """
    length = last - first
    return [
        (first + length * index // count, first + length * (index + 1) // count) for index in range(count)
    ]
