"""Exact, null-safe and vectorised equality and grouping of rows.

Hashes find candidates and equality decides: two keys with one hash are still two keys. Nulls are equal to
nulls, NaN to NaN and -0.0 to 0.0, as in `headrace.base.keys`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.intervals import INTERVAL, as_type, packed_type
from headrace.base.keys import Hashes, is_exact

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]

_MANY: Final = 64 * 1024
"""From this many hashes on it pays to sort them by 16 bits at a time."""


def single(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, with its dictionary or extension type resolved."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def equal_arrays(left: pa.Array, right: pa.Array) -> Mask:
    """Whether the values at each position are the same value, or both null."""
    kind = left.type
    if pa.types.is_null(kind):
        return np.ones(len(left), dtype=np.bool_)
    if pa.types.is_struct(kind):
        same = np.ones(len(left), dtype=np.bool_)
        for left_item, right_item in zip(left.flatten(), right.flatten(), strict=True):
            same &= equal_arrays(left_item, right_item)
        same &= _nulls(left) == _nulls(right)
        return same
    if pa.types.is_nested(kind):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array(
            [canonical(left_item) == canonical(right_item) for left_item, right_item in pairs], np.bool_
        )
    if kind == INTERVAL:
        left, right = (as_type(side, packed_type(kind)) for side in (left, right))
    same = _mask(pc.equal(left, right))
    if pa.types.is_floating(kind):
        same |= _mask(pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if left.null_count or right.null_count:
        same |= _nulls(left) & _nulls(right)
    return same


def _mask(array: pa.Array) -> Mask:
    if array.null_count:
        array = array.fill_null(False)
    mask: Mask = array.to_numpy(zero_copy_only=False)
    return mask if mask.flags.writeable else mask.copy()


def _nulls(array: pa.Array) -> Mask:
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def canonical(value: Any) -> Any:
    """Return a hashable form of a Python value; equal values have equal forms."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0  # noqa: PLR0124 - only NaN differs from itself
    if isinstance(value, list | tuple):
        return tuple(canonical(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, canonical(item)) for name, item in value.items())
    return value


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Whether the rows at each position are equal in every column."""
    same = equal_arrays(left[0], right[0])
    for left_column, right_column in zip(left[1:], right[1:], strict=True):
        same &= equal_arrays(left_column, right_column)
    return same


def hash_order(hashes: Hashes) -> Positions:
    """Return the order that sorts hashes; the sort is stable."""
    if len(hashes) < _MANY:
        return np.argsort(hashes, kind="stable")
    # Numpy sorts 16 bits at once in linear time; the upper half nearly always says it all.
    words = hashes.astype("<u8", copy=False).view("<u2").reshape(-1, 4)
    order: Positions = np.argsort(words[:, 2], kind="stable")
    order = order[np.argsort(words[order, 3], kind="stable")]
    ordered = hashes[order]
    falls = np.flatnonzero(ordered[1:] < ordered[:-1])
    if len(falls):
        upper = ordered >> np.uint64(32)
        open_places = np.flatnonzero(np.isin(upper, upper[falls]))
        order[open_places] = order[open_places][np.argsort(ordered[open_places], kind="stable")]
    return order


def group_rows(hashes: Hashes, columns: Sequence[pa.Array]) -> tuple[Positions, Positions]:
    """Group equal rows: return an order, and the number of the group of each row in that order.

    `hashes` are those of the columns. Inside a group the rows keep their order.
    """
    order = hash_order(hashes)
    ordered = hashes[order]
    new = np.ones(len(order), dtype=np.bool_)
    alike = ordered[1:] == ordered[:-1]
    if is_exact(columns):
        new[1:] = ~alike
        return order, np.cumsum(new) - 1
    pairs = np.flatnonzero(alike)
    if len(pairs):
        before, after = pa.array(order[pairs]), pa.array(order[pairs + 1])
        same = equal_rows(
            [column.take(before) for column in columns], [column.take(after) for column in columns]
        )
        new[pairs[same] + 1] = False
        if not same.all():
            for value in np.unique(ordered[pairs[~same]]):
                start = int(np.searchsorted(ordered, value, side="left"))
                stop = int(np.searchsorted(ordered, value, side="right"))
                _separate(order, new, columns, start=start, stop=stop)
    return order, np.cumsum(new) - 1


def _separate(order: Positions, new: Mask, columns: Sequence[pa.Array], *, start: int, stop: int) -> None:
    """Group rows of one hash that are not all equal; so rare that Python may do it."""
    members = order[start:stop]
    values = zip(*(column.take(pa.array(members)).to_pylist() for column in columns), strict=True)
    ids: dict[Any, int] = {}
    labels = np.array([ids.setdefault(canonical(value), len(ids)) for value in values])
    arrangement = np.argsort(labels, kind="stable")
    order[start:stop] = members[arrangement]
    labels = labels[arrangement]
    new[start] = True
    new[start + 1 : stop] = labels[1:] != labels[:-1]


def once_each(hashes: Hashes) -> Hashes:
    """Return the distinct hashes, sorted; faster than `np.unique`, which hashes the hashes."""
    ordered: Hashes = np.sort(hashes)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def is_among(
    hashes: Hashes,
    columns: Sequence[pa.Array],
    candidate_hashes: Hashes,
    candidates: Sequence[pa.Array],
) -> Mask:
    """Return which rows are equal to at least one of the candidates."""
    among = np.zeros(len(hashes), dtype=np.bool_)
    if len(candidate_hashes) == 0 or len(hashes) == 0:
        return among
    order = np.argsort(candidate_hashes, kind="stable")
    nearest = order[np.minimum(np.searchsorted(candidate_hashes[order], hashes), len(order) - 1)]
    hits = np.flatnonzero(candidate_hashes[nearest] == hashes)
    at, candidate_at = pa.array(hits), pa.array(nearest[hits])
    same = equal_rows(
        [column.take(at) for column in columns], [column.take(candidate_at) for column in candidates]
    )
    among[hits[same]] = True
    if not same.all():  # several keys have one hash: any of those that are wanted may be equal
        unsure = hits[~same]
        colliding = np.flatnonzero(np.isin(candidate_hashes, hashes[unsure]))
        among[unsure] = _is_among_all(
            hashes[unsure],
            [column.take(pa.array(unsure)) for column in columns],
            candidate_hashes[colliding],
            [column.take(pa.array(colliding)) for column in candidates],
        )
    return among


def _is_among_all(
    hashes: Hashes, columns: Sequence[pa.Array], candidate_hashes: Hashes, candidates: Sequence[pa.Array]
) -> Mask:
    joined = [pa.concat_arrays(pair) for pair in zip(columns, candidates, strict=True)]
    order, groups = group_rows(np.concatenate([hashes, candidate_hashes]), joined)
    hit = np.zeros(groups[-1] + 1, dtype=np.bool_)
    hit[groups[order >= len(hashes)]] = True
    among = np.empty(len(order), dtype=np.bool_)
    among[order] = hit[groups]
    return among[: len(hashes)]
