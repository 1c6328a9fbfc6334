"""Find the fields and values of many Protobuf messages at once.

All messages are read together: a step reads the next field of each. Since messages of one type mostly have
the same fields in the same order, a step mostly reads one field. The few remaining messages, such as long
ones, are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.formats._shared.wire import Bytes, Numbers, Places, read_varint, varints_at
from headrace.formats.base import LineError

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
"""The wire types."""

PADDING = 16
"""The padding after the last message, so that reading needs no bounds checks."""

_FEW = 8
_SMALL = 4096
_LAST_FIELD = 2**29 - 1


@dataclass(frozen=True)
class FieldValues:
    """Values of one field: the message of each, and its number or the position of its bytes."""

    wire: int
    rows: Places
    values: Any
    """The numbers of varints, or the offsets of other values."""
    lengths: Places
    steps: Places
    """The order of the values in a message."""


@dataclass
class Level:
    """Messages of one type in a buffer: the top-level messages, or those of a field."""

    buffer: Bytes
    starts: Places
    ends: Places
    owners: Places
    """The top-level message that each belongs to."""
    bad: dict[int, LineError]
    as_json: Callable[[str, bytes], str]
    """Converts a message without an Arrow type to JSON."""
    values: dict[int, list[FieldValues]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.starts)

    def blame(self, rows: Places, reason: str) -> None:
        """Mark the top-level messages of these as bad."""
        for owner in np.unique(self.owners[rows]).tolist():
            self.bad.setdefault(owner, LineError(reason))


def walk(level: Level, field_numbers: set[int]) -> None:
    """Find the values of some fields of all messages of a level."""
    rows = np.arange(level.count)
    at, step = level.starts.copy(), 0
    ends = level.ends
    left = at < ends
    if not left.all():
        rows, at, ends = rows[left], at[left], ends[left]
    while len(rows) > _FEW:
        before = at
        tags, at = read_varints(level, at, rows)
        at, odd = _step(level, rows, tags, at, field_numbers, step)
        over = at > ends
        if over.any():
            level.blame(rows[over], "the message ends too early")
        for row, offset in zip(rows[odd].tolist(), before[odd].tolist(), strict=True):
            _walk_message(level, row, offset, field_numbers, step)
        step += 1
        left = (at < ends) & ~odd
        if not left.all():
            rows, at, ends = rows[left], at[left], ends[left]
    for row, offset in zip(rows.tolist(), at.tolist(), strict=True):
        _walk_message(level, row, offset, field_numbers, step)


def _step(
    level: Level, rows: Places, tags: Numbers, at: Places, field_numbers: set[int], step: int
) -> tuple[Places, NDArray[np.bool_]]:
    """Read one field of each message; return the next offsets, and which messages to read singly.

    Those are messages with groups, which have no length.
    """
    odd = np.zeros(len(rows), bool)
    kinds = _distinct(tags)
    for tag in map(int, kinds):
        picked: Any = slice(None) if len(kinds) == 1 else np.flatnonzero(tags == tag)
        number, wire = tag >> 3, tag & 7
        places = at[picked]
        values: Any = places
        if wire == VARINT:
            values, after = read_varints(level, places, rows[picked])
            lengths = places
        elif wire in (FIXED64, FIXED32):
            lengths, after = places, places + (8 if wire == FIXED64 else 4)
        elif wire == BYTES:
            sizes, values = read_varints(level, places, rows[picked])
            lengths = np.minimum(sizes, np.uint64(len(level.buffer))).astype(np.int64)
            after = values + lengths
        else:
            odd[picked] = True
            continue
        if not 0 < number <= _LAST_FIELD:
            level.blame(rows[picked], f"a field has the number {number}")
        if number in field_numbers:
            mine = rows[picked]
            steps = np.full(len(mine), step)
            level.values.setdefault(number, []).append(FieldValues(wire, mine, values, lengths, steps))
        if len(kinds) == 1:
            return after, odd  # what was found may be a view of the places: they stay as they are
        at[picked] = after
    return at, odd


def _distinct(tags: Numbers) -> list[int]:
    if (tags == tags[0]).all():
        return [int(tags[0])]
    few = tags.max() < _SMALL
    return list(np.flatnonzero(np.bincount(tags.astype(np.int64))) if few else np.unique(tags))


def read_varints(level: Level, at: Places, rows: Places) -> tuple[Numbers, Places]:
    """Return the varints at some offsets, and the next offsets."""
    numbers, after, endless = varints_at(level.buffer, at)
    if len(endless):
        level.blame(rows[endless], "a number has more than 64 bits")
    return numbers, after


def _walk_message(level: Level, row: int, at: int, field_numbers: set[int], step: int) -> None:
    """Find the values of some fields of one message, from an offset on."""
    data, end = level.buffer.data, int(level.ends[row])
    occurrences: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    try:
        while at < end:
            number, wire, value, length, at = _read_field(data, at, end)
            if wire == END_GROUP:
                raise LineError("a group is ended that was not begun")  # noqa: TRY301 - one handler for all
            if number in field_numbers:
                occurrences.setdefault((number, wire), []).append((value, length, step))
            step += 1
    except LineError as error:
        level.blame(np.array([row]), error.reason)
    for (number, wire), values in occurrences.items():
        numbers = np.array([value for value, _, _ in values], np.uint64 if wire == VARINT else np.int64)
        lengths, steps = (np.array([entry[index] for entry in values], np.int64) for index in (1, 2))
        rows = np.full(len(values), row)
        level.values.setdefault(number, []).append(FieldValues(wire, rows, numbers, lengths, steps))


def _read_field(data: Any, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Return the field at an offset: number, wire type, value or offset, length, and the next offset."""
    tag, at = read_varint(data, at)
    number, wire = tag >> 3, tag & 7
    value, length = at, 0
    if wire == VARINT:
        value, at = read_varint(data, at)
    elif wire in (FIXED64, FIXED32):
        at += 8 if wire == FIXED64 else 4
    elif wire == BYTES:
        length, value = read_varint(data, at)
        at = value + length
    elif wire == GROUP:
        inside, before, last = -1, at, 0
        while inside != END_GROUP:
            before = at
            if at >= end:
                raise LineError("a group is not ended")
            last, inside, _, _, at = _read_field(data, at, end)
        length = before - value
        if last != number:
            raise LineError("a group is not ended")
    elif wire != END_GROUP:
        raise LineError(f"a field is written in a way that is not known, {wire}")
    if not 0 < number <= _LAST_FIELD:
        raise LineError(f"a field has the number {number}")
    if at > end:
        raise LineError("the message ends too early")
    return number, wire, value, length, at
