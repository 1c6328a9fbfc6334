"""Hashes of keys, and the subtasks that own them.

`hash_key` is part of the format of the state on disk: the same values have the same 64-bit hash in every
process, on every machine and in every version. `tests/unit/base/test_keys.py` has fixed vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import PlanError
from headrace.base.intervals import INTERVAL, as_type, packed_type

Hashes = npt.NDArray[np.uint64]

KEY_SPACE = 2**64
_SEED = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xA0761D6478BD642F)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_COMBINE = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(32)
ROUTE_BITS = ~np.uint64(0) << _HALF
"""The bits of a hash that determine the subtask that owns it, at any parallelism."""


def _mix(values: Hashes) -> Hashes:
    """The finaliser of SplitMix64: every bit of the input affects every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLY_1
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLY_2
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def _hash_bytes(array: pa.Array) -> Hashes:
    """Hash byte strings eight bytes at a time, vectorized over all rows."""
    array = array.cast(pa.large_binary())
    rows = len(array)
    if rows == 0:  # an empty array may have no offset buffer
        return np.empty(0, dtype=np.uint64)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[array.offset : array.offset + rows + 1]
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes: Hashes = _mix(lengths.astype(np.uint64) + _SEED)
    if data_buffer is None or lengths.max() == 0:
        return hashes
    low, high = int(offsets[0]), int(offsets[-1])
    data = np.zeros(high - low + 8, dtype=np.uint8)
    data[: high - low] = np.frombuffer(data_buffer, dtype=np.uint8)[low:high]
    words = np.ndarray(shape=(high - low + 1,), dtype="<u8", buffer=data.data, strides=(1,))
    active = np.flatnonzero(lengths > 0)
    position = 0
    while len(active):
        left = lengths[active] - position
        word = words[starts[active] - low + position].astype(np.uint64)
        tail = left < 8
        if tail.any():
            bits = (left[tail] * 8).astype(np.uint64)
            word[tail] &= (np.uint64(1) << bits) - np.uint64(1)
        hashes[active] = _mix((hashes[active] ^ word) * _COMBINE + _SEED)
        active = active[left > 8]
        position += 8
    return hashes


def _integers(array: pa.Array) -> pa.Array | None:
    """Values of fixed width as integers, times in nanoseconds; None for other types."""
    kind = array.type
    if pa.types.is_integer(kind):
        return array
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8())
    # Unchecked casts: an instant beyond the range of nanoseconds wraps, which is as good a hash.
    if pa.types.is_timestamp(kind):
        return array.cast(pa.timestamp("ns", kind.tz), safe=False).cast(pa.int64())
    if pa.types.is_duration(kind):
        return array.cast(pa.duration("ns"), safe=False).cast(pa.int64())
    if pa.types.is_time(kind):
        return array.cast(pa.time64("ns")).cast(pa.int64())
    if pa.types.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32())
    return None


def _words(array: pa.Array) -> Hashes | None:
    """Values of fixed width as 64-bit words, undefined for nulls; None for other types."""
    integers = _integers(array)
    if integers is not None:
        if integers.null_count:
            integers = integers.fill_null(0)
        values = integers.to_numpy(zero_copy_only=False)
        signed = values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)
        words: Hashes = signed.view(np.uint64)
        return words
    if pa.types.is_floating(array.type):
        floats = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        floats = floats + 0.0  # -0.0 and 0.0 are one key
        floats = np.where(np.isnan(floats), np.nan, floats)
        return floats.view(np.uint64)
    return None


def hash_array(array: pa.Array | pa.ChunkedArray) -> Hashes:
    """One stable 64-bit hash per value; equal integers of different widths have equal hashes."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return np.full(len(array), _NULL, dtype=np.uint64)
    words = _words(array)
    hashes = _hash_long(array) if words is None else _mix(words + _SEED)
    if array.null_count:
        hashes = np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _hash_long(array: pa.Array) -> Hashes:
    """The hashes of values that do not fit a word."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_binary(kind):
        return _hash_bytes(array)
    if pa.types.is_decimal(kind):
        texts = [None if value is None else _decimal_text(value) for value in array.to_pylist()]
        return _hash_bytes(pa.array(texts, pa.string()))
    if kind == INTERVAL:
        return _hash_bytes(as_type(array, packed_type(kind)))
    if pa.types.is_struct(kind) and kind.num_fields:
        return hash_columns(array.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _hash_lists(array)
    raise PlanError(
        f"a column of type {kind} cannot be a key",
        hint="use numbers, texts, bytes, booleans, dates, times, intervals, structs or lists of these",
    )


def _decimal_text(value: Decimal) -> str:
    """A decimal without its trailing zeros, so that 1.5 and 1.50 are one key.

    Not `Decimal.normalize`, which rounds to the precision of the caller's decimal context.
    """
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )


def _hash_lists(array: pa.Array) -> Hashes:
    """Fold the hashes of a list's items in order."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    items = hash_array(array.flatten())
    ends = np.cumsum(lengths)
    starts = ends - lengths
    hashes: Hashes = _mix(lengths.astype(np.uint64) + _SEED)
    for position in range(int(lengths.max()) if len(lengths) else 0):
        active = np.flatnonzero(lengths > position)
        hashes[active] = _mix(hashes[active] * _COMBINE ^ items[starts[active] + position])
    return hashes


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """One hash per row over several columns, in their order."""
    combined = hash_array(columns[0])
    for column in columns[1:]:
        combined = _mix(combined * _COMBINE ^ hash_array(column))
    return combined


def is_exact(columns: Sequence[pa.Array]) -> bool:
    """Whether rows that differ in these columns have different hashes: mixing one word is a bijection."""
    return len(columns) == 1 and pa.types.is_integer(columns[0].type) and not columns[0].null_count


def hash_key(batch: pa.RecordBatch | pa.Table, keys: Sequence[str]) -> Hashes:
    """The key hash of every row of `batch`; without keys every row has hash 0.

    Args:
        batch: the rows.
        keys: the columns.

    Returns:
        The hashes, as numpy's `uint64`: equal keys have equal hashes, in every process and version.

    >>> import headrace as hr, pyarrow as pa
    >>> batch = pa.record_batch({"shop": ["mill", "weir", "mill"]})
    >>> first, _, third = hr.hash_key(batch, ["shop"])
    >>> bool(first == third)
    True
    """
    if not keys:
        return np.zeros(batch.num_rows, dtype=np.uint64)
    return hash_columns([batch.column(name) for name in keys])


def hash_value(*values: object) -> int:
    """The hash of one key as Python values, equal to that of `hash_key` for its row."""
    return int(hash_columns([pa.array([value]) for value in values])[0])


def hash_below(routes: Hashes, rest: Hashes) -> Hashes:
    """Hashes that belong to the subtasks of `routes`, and differ where `rest` does."""
    return (routes & ROUTE_BITS) | (rest >> _HALF)


def subtask_of(hashes: Hashes, parallelism: int) -> npt.NDArray[np.int64]:
    """Which of `parallelism` subtasks owns each hash: equal, contiguous ranges of the key space."""
    scaled = (hashes >> _HALF) * np.uint64(parallelism)
    return (scaled >> _HALF).astype(np.int64)


def key_range(subtask: int, parallelism: int) -> tuple[int, int]:
    """The first and last hash that `subtask_of` assigns to this subtask."""
    low = -(-(subtask * 2**32) // parallelism)
    high = -(-((subtask + 1) * 2**32) // parallelism)
    return low << 32, (high << 32) - 1
