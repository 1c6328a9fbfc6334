"""Vectorised reading and writing of bytes: varints, and slices of a buffer."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.formats.base import LineError

BYTES = pa.large_binary()

_LONGEST_VARINT = 10

Bytes: TypeAlias = NDArray[np.uint8]
Places: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.uint64]


def varint(number: int) -> bytes:
    r"""Encode a number of at least 0 as a varint.

    >>> varint(300)
    b'\xac\x02'
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int = 0) -> tuple[int, int]:
    """Decode the varint at an offset; return it and the next offset. Raises a LineError."""
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise LineError("the message ends too early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise LineError("a number has more than 64 bits")


def zigzag(number: int) -> bytes:
    """Encode a signed 64-bit number as a zigzag varint, like Avro."""
    return varint((number << 1) ^ (number >> 63))


def zigzags(numbers: NDArray[np.int64]) -> Numbers:
    """Return the zigzag form of each number, before the varint encoding."""
    return ((numbers << np.int64(1)) ^ (numbers >> np.int64(63))).view(np.uint64)


def unzigzags(numbers: Numbers) -> NDArray[np.int64]:
    """Return the numbers that were passed to `zigzags`."""
    return (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)


def varints(numbers: Numbers) -> pa.Array:
    r"""Encode each number as a varint.

    >>> varints(np.array([1, 300], np.uint64)).to_pylist()
    [b'\x01', b'\xac\x02']
    """
    if len(numbers) == 0 or (largest := int(numbers.max())) < 0x80:
        return sized(numbers.astype(np.uint8), 1)
    width = -(-largest.bit_length() // 7)
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    groups = (numbers[:, None] >> shifts).astype(np.uint8) & np.uint8(0x7F)
    # Of each number the groups up to the last that is not zero are written.
    lengths = np.where(groups != 0, np.arange(1, width + 1), 1).max(axis=1)
    written = np.arange(width) < lengths[:, None]
    groups |= np.where(np.arange(1, width + 1) < lengths[:, None], np.uint8(0x80), np.uint8(0))
    return bytes_array(groups[written], offsets_of(lengths))


def varints_at(buffer: Bytes, at: Places) -> tuple[Numbers, Places, Places]:
    """Return the varints at some offsets, the next offsets, and which varints have more than 64 bits.

    An offset after the end of the buffer is read as if it were the last byte.
    """
    first = buffer.take(at, mode="clip")
    numbers = (first & 0x7F).astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(first & 0x80)
    shift = 7
    while len(more) and shift < 7 * _LONGEST_VARINT:
        places = after[more]
        byte = buffer.take(places, mode="clip")
        numbers[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] = places + 1
        more = more[byte >= 0x80]
        shift += 7
    return numbers, after, more


def skip_varints(buffer: Bytes, at: Places) -> tuple[Places, Places]:
    """Return the offsets after the varints at some offsets, and which varints have more than 64 bits.

    They are those of `varints_at`, several times faster where varints are long.
    """
    after = at + 1
    long = np.flatnonzero(buffer.take(at, mode="clip") >= 0x80)
    # Eight bytes at once: the lowest bit of these is in the last byte of the varint.
    words = np.ndarray((max(len(buffer) - 7, 0),), "<u8", np.ascontiguousarray(buffer).data, strides=(1,))
    within = at[long] < len(words)
    last_bits = ~words[at[long[within]]] & np.uint64(0x8080_8080_8080_8080)
    lowest = last_bits & (~last_bits + np.uint64(1))
    # The exponent of a power of two as a float tells which bit it is; that of zero is none.
    bits = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023
    after[long[within]] = at[long[within]] + (bits + 1) // 8
    within[within] = last_bits != 0
    others = long[~within]
    _, after[others], endless = varints_at(buffer, at[others])
    return after, others[endless]


@functools.cache
def nothing() -> pa.Scalar:
    """Return an empty bytes scalar. Created on demand: Arrow loads pandas for its first scalar."""
    return pa.scalar(b"", BYTES)


def offsets_of(lengths: NDArray[Any]) -> Places:
    """Return the offsets of values of these lengths, and the end of the last one."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def bytes_array(data: Any, offsets: Places) -> pa.Array:
    """Return the consecutive values of a buffer."""
    return pa.Array.from_buffers(
        BYTES, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def sized(data: Any, size: int) -> pa.Array:
    """Return the consecutive values of one size in a buffer."""
    buffer = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    return bytes_array(buffer, np.arange(0, len(buffer) + 1, size, dtype=np.int64))


def join(*parts: Any) -> pa.Array:
    """Concatenate the parts of each row; a part may be bytes, the same for all rows."""
    arrays = [pa.scalar(part, BYTES) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*arrays, nothing())


def join_lists(lists: pa.Array, items: pa.Array) -> pa.Array:
    """Concatenate the items of each list; `items` are the flat values of the lists. Null has none."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(offsets_of(lengths))
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), nothing())


def with_lengths(values: pa.Array, *, signed: bool = False) -> pa.Array:
    """Prefix each value with its length as a varint, zigzag if `signed`."""
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False)
    return join(varints(lengths.astype(np.uint64) << np.uint64(signed)), values)


def parts_of(values: pa.Array) -> tuple[Bytes, Places]:
    """Return the bytes of all values of an array of `BYTES`, and their offsets."""
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset :][: len(values) + 1]
    data = values.buffers()[2]
    return np.frombuffer(b"" if data is None else data, np.uint8), offsets


def without_first(values: pa.Array, count: int) -> pa.Array:
    """Return the values without their first `count` bytes; shorter ones are empty."""
    data, offsets = parts_of(values)
    starts = offsets[:-1]
    cut = np.minimum(np.diff(offsets), count)
    mask = np.zeros(len(data), bool)
    mask[offsets[0] if len(offsets) else 0 : offsets[-1] if len(offsets) else 0] = True
    for index in range(count):
        mask[(starts + index)[cut > index]] = False
    return bytes_array(data[mask], offsets_of(np.diff(offsets) - cut))


def content(values: pa.Array) -> memoryview:
    """Return the concatenated bytes of all values of an array of `BYTES`."""
    data, offsets = parts_of(values)
    return data[offsets[0] : offsets[-1]].data


def gather(buffer: Bytes, starts: Places, lengths: Places) -> tuple[Bytes, Places]:
    """Return concatenated slices of a buffer, and their offsets."""
    offsets = offsets_of(lengths)
    places = np.repeat(starts - offsets[:-1], lengths)
    places += np.arange(len(places))
    return buffer.take(places), offsets
