"""Find the few records of a batch that cannot be read, without reading the others one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

T = TypeVar("T")
_PIECE = 256
_WINDOW = 512
_REPEATED = 3
"""The number of distinct values that are left out of all values before they are looked at in parts."""
_TEXT = re.compile(
    r"Failed to parse string: '(.*)' as a scalar of type"
    r"|The string '(.*)' is not a valid decimal"
    r"|Failed to parse value: (.*)$",
    re.DOTALL,
)
_INTEGER = re.compile(r"Integer value (-?\d+) not in range|timestamp: (-?\d+)$|would lose data: (-?\d+)$")
"""Errors of Arrow that name a value that is refused."""
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


def errors_of(size: int, read: Callable[[int, int], Any]) -> dict[int, ValueError]:
    """Return the errors of the records that `read` refuses, by position, however many they are.

    `read` takes the begin and the end of a range, and raises a ValueError if any record of it is refused.
    """
    positions: Iterable[int]
    try:
        _, positions = read_accepted(size, read)
    except TooManyRefusedError:
        positions = range(size)
    errors: dict[int, ValueError] = {}
    for position in positions:
        try:
            read(position, position + 1)
        except ValueError as error:
            errors[position] = error
    return errors


def convert_accepted(
    values: pa.Array, convert: Callable[[pa.Array], pa.Array]
) -> tuple[pa.Array, dict[int, ValueError]]:
    """Convert values; those that `convert` refuses are null. Returns also their errors, by position.

    `convert` raises a ValueError if any of its values is refused; each value is good or bad by itself, and a
    null is good. Where the error names a value, it is left out; otherwise ranges are halved.
    """
    converted, values, refused = _leave_out(values, convert, most=_REPEATED)
    if converted is not None:
        return converted, refused
    for begin in range(0, len(values), _WINDOW):
        part = values[begin : begin + _WINDOW]
        converted, part, errors = _leave_out(part, convert, most=len(part))
        if converted is None:
            errors |= _halved(part, convert)
        refused |= {begin + index: error for index, error in errors.items()}
    left_out = np.zeros(len(values), np.bool_)
    left_out[list(refused)] = True
    return convert(pc.if_else(pa.array(left_out), pa.scalar(None, values.type), values)), refused


def _leave_out(
    values: pa.Array, convert: Callable[[pa.Array], pa.Array], *, most: int
) -> tuple[pa.Array | None, pa.Array, dict[int, ValueError]]:
    """Let values that errors name be null, so many distinct ones at most.

    Returns the others converted, or None if one is still refused, the values without them, and their errors.
    """
    refused: dict[int, ValueError] = {}
    for _ in range(most + 1):
        try:
            return convert(values), values, refused
        except ValueError as error:
            named = _named(values, str(error))
        cause = None if named is None else _error_of(values.filter(named)[:1], convert)
        if cause is None:
            break
        refused |= dict.fromkeys(pc.indices_nonzero(named).to_pylist(), cause)
        values = pc.if_else(named, pa.scalar(None, values.type), values)
    return None, values, refused


def _error_of(value: pa.Array, convert: Callable[[pa.Array], Any]) -> ValueError | None:
    try:
        convert(value)
    except ValueError as error:
        return error
    return None


def _halved(values: pa.Array, convert: Callable[[pa.Array], Any]) -> dict[int, ValueError]:
    return errors_of(len(values), lambda begin, end: convert(values[begin:end]))


def _named(values: pa.Array, message: str) -> pa.Array | None:
    """Return which values are the one that an error of Arrow names; None if it names none of them."""
    if (match := _TEXT.match(message)) and pa.types.is_string(values.type):
        same = pc.equal(values, match[1] or match[2] or match[3] or "")
    elif (match := _INTEGER.search(message)) and (
        pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type)
    ):
        numbers = values if pa.types.is_integer(values.type) else values.cast(pa.int64())
        try:
            number = pa.scalar(int(match[1] or match[2] or match[3]), numbers.type)
        except (pa.ArrowInvalid, OverflowError):
            return None
        same = pc.equal(numbers, number)
    elif "Invalid UTF8" in message and pa.types.is_binary(values.type):
        mask = np.zeros(len(values), np.bool_)
        mask[not_utf8_values(values)] = True
        same = pc.and_(pa.array(mask), values.is_valid())
    else:
        return None
    named = pc.fill_null(same, False)
    return named if pc.any(named).as_py() else None


def not_utf8_values(values: pa.Array) -> NDArray[np.int64]:
    """Return which binary values are not UTF-8."""
    places = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    offsets = places.astype(np.int64)
    return not_utf8(values.buffers()[2], offsets[:-1], offsets[1:])


def not_utf8(data: Any, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of the slices of some bytes, in order and not overlapping, are not UTF-8."""
    buffer, view = np.frombuffer(data, np.uint8), memoryview(data)
    count, invalid = len(begins), []
    # One that begins in the middle of a character is no text, even if it continues the one before it.
    inside = np.flatnonzero((begins < ends) & (buffer.take(begins, mode="clip") & 0xC0 == 0x80))
    index = 0
    for torn in (*inside.tolist(), count):
        while index < torn:
            stop = min(index + _PIECE, torn) - 1
            try:
                str(view[begins[index] : ends[stop]], "utf-8")
                index = stop + 1
            except UnicodeDecodeError as error:  # it names its position
                index = int(np.searchsorted(ends, begins[index] + error.start, side="right"))
                invalid.append(index)
                index += 1
        if torn < count:
            invalid.append(torn)
        index = torn + 1
    return np.array(invalid, np.int64)
