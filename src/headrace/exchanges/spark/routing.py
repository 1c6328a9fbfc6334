"""Chooses values for a column by which Spark sends a row to a certain partition.

`repartition(n, column)` takes the partition from a hash of the column. A value whose hash falls into the
partition that is wanted names it as well as its number would, which servers before 4.1 do not take.
"""

from __future__ import annotations

import functools
from itertools import count

_SEED = 42
_MASK = 0xFFFFFFFF


@functools.cache
def values_by_hash(partitions: int) -> tuple[int, ...]:
    """For each partition a small integer that Spark's hash partitioning sends there.

    >>> values_by_hash(3)
    (0, 1, 11)
    """
    values: dict[int, int] = {}
    for value in count():
        values.setdefault(hash_int(value) % partitions, value)
        if len(values) == partitions:
            return tuple(values[partition] for partition in range(partitions))
    raise AssertionError("numbers do not end")


def hash_int(value: int) -> int:
    """Spark's `hash` of an INT column: Murmur3 with 32 bits, signed.

    >>> hash_int(0), hash_int(1)
    (933211791, -559580957)
    """
    mixed = _rotate(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    hashed = (_rotate(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    hashed ^= 4  # the length of an integer
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
