"""Find the Avro messages that are not records of their schema, for all messages at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.formats._shared.wire import Bytes, Places, parts_of, skip_varints, unzigzags, varints_at
from headrace.formats.avro.schema import AvroType

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_FEW = 8
"""Lists of so few messages are left to be read with the message."""
_LARGEST = 2**31 - 1
_BRANCHES = 64
"""The number of branches of a union whose number is a byte."""


def find_broken(messages: pa.Array, node: AvroType) -> NDArray[np.bool_]:
    """Return which messages are not exactly one record; some that are may be among them.

    Whether strings are UTF-8 is not looked at.
    """
    data, offsets = parts_of(messages)
    walk = _Walk(data if len(data) else np.zeros(1, np.uint8), offsets[1:], np.zeros(len(messages), np.bool_))
    at = walk.skip(node, np.arange(len(messages)), offsets[:-1].copy())
    walk.broken[at != walk.ends] = True
    return walk.broken


@dataclass(frozen=True)
class _Walk:
    """Messages in a buffer. Offsets never go back: one that has passed the end of its message stays there."""

    buffer: Bytes
    ends: Places
    broken: NDArray[np.bool_]

    def skip(self, node: AvroType, rows: Places, at: Places) -> Places:
        """Return the offsets after a value of a type, which is at these offsets of some messages."""
        if node.kind == "record":
            for _, member in node.fields:
                at = self.skip(member, rows, at)
            return at
        if node.kind == "union":
            return self._skip_union(node, rows, at)
        if node.kind in ("array", "map"):
            return self._skip_items(node, rows, at)
        if node.kind in _SIZES or node.kind == "fixed":
            return at + _SIZES.get(node.kind, node.size)
        if node.kind == "long":
            at, endless = skip_varints(self.buffer, at)
            self.broken[rows[endless]] = True
            return at
        numbers, at = self._longs(rows, at)
        if node.kind in ("bytes", "string"):
            self.broken[rows[numbers < 0]] = True
            return at + np.clip(numbers, 0, len(self.buffer))
        lowest, highest = (0, len(node.symbols) - 1) if node.kind == "enum" else (~_LARGEST, _LARGEST)
        self.broken[rows[(numbers < lowest) | (numbers > highest)]] = True
        return at

    def _longs(self, rows: Places, at: Places) -> tuple[NDArray[np.int64], Places]:
        numbers, after, endless = varints_at(self.buffer, at)
        self.broken[rows[endless]] = True
        return unzigzags(numbers), after

    def _skip_union(self, node: AvroType, rows: Places, at: Places) -> Places:
        # The number of a branch is a byte: one that is written with more is left to be read singly.
        numbers, at = self.buffer.take(at, mode="clip"), at + 1
        unmatched = len(rows)
        for index, (_, branch) in enumerate(node.fields[:_BRANCHES]):
            mine = np.flatnonzero(numbers == 2 * index)
            unmatched -= len(mine)
            if branch.kind == "null":
                continue
            if len(mine) == len(rows):
                return self.skip(branch, rows, at)
            at[mine] = self.skip(branch, rows[mine], at[mine])
        if unmatched:
            self.broken[rows[(numbers & 1 == 1) | (numbers >= 2 * min(len(node.fields), _BRANCHES))]] = True
        return at

    def _skip_items(self, node: AvroType, rows: Places, at: Places) -> Places:
        """Skip the blocks of arrays and maps: their items one after the other, of all messages at once."""
        assert node.item is not None
        entry = node.item
        if node.kind == "map":
            entry = AvroType("record", fields=[("key", AvroType("string")), ("value", node.item)])
        open_lists = np.arange(len(rows))
        while len(open_lists):
            counts, at[open_lists] = self._longs(rows[open_lists], at[open_lists])
            sized = counts < 0
            if sized.any():
                _, at[open_lists[sized]] = self._longs(rows[open_lists[sized]], at[open_lists[sized]])
            left = np.abs(counts)
            open_lists = open_lists[counts != 0]
            left = left[counts != 0]
            while len(open_lists) and left.any():
                busy = left > 0
                inside = at[open_lists] <= self.ends[rows[open_lists]]
                if np.count_nonzero(busy) <= _FEW:
                    inside[busy] = False
                if not inside.all():
                    self.broken[rows[open_lists[~inside]]] = True
                    open_lists, left, busy = open_lists[inside], left[inside], busy[inside]
                mine = open_lists[busy]
                at[mine] = self.skip(entry, rows[mine], at[mine])
                left[busy] -= 1
        return at
