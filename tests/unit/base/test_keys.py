"""Key hashes are part of the format of state on disk: these numbers may never change."""

from __future__ import annotations

import decimal
from datetime import date
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import PlanError
from headrace.base.keys import hash_array, hash_key, hash_value, key_range, subtask_of

PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
NULL = 0xA0761D6478BD642F
VECTORS = {
    "texts": (
        pa.array(["", "a", "abcdefg", "abcdefgh", "abcdefghi", "x" * 33, "żółw 🐢", None]),
        [
            0xE220A8397B1DCDAF, 0xBAE771F095DB8F0F, 0x8B92D005F3F6745A, 0xAEBCE12433287CC5,
            0x7B7C6177FDCCAC29, 0xF925B7577F118C5E, 0xAF0EBCD94241DB96, NULL,
        ],
    ),
    "bytes": (
        pa.array([b"", b"a", b"\x00"]),
        [0xE220A8397B1DCDAF, 0xBAE771F095DB8F0F, 0x789E0E6C4149B3D9],
    ),
    "int64": (
        pa.array([0, 1, -1, 2**63 - 1, -(2**63), None], pa.int64()),
        [
            0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20, 0x2A67D7552E039EA7,
            0x481EC0A212A9F3DB, NULL,
        ],
    ),
    "uint64": (
        pa.array([0, 1, 2**63, 2**64 - 1], pa.uint64()),
        [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0x481EC0A212A9F3DB, 0xE4D971771B652C20],
    ),
    "floats": (
        pa.array([0.0, -0.0, 1.5, float("inf"), float("nan"), None]),
        [
            0xE220A8397B1DCDAF, 0xE220A8397B1DCDAF, 0xD6DAB18E1392608A, 0x249E5410C2F97D99,
            0xC72971D82E15BB46, NULL,
        ],
    ),
    "booleans": (pa.array([False, True, None]), [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, NULL]),
    "instants": (
        pa.array([0, 1_700_000_000_000_000_000], pa.timestamp("ns")),
        [0xE220A8397B1DCDAF, 0x95A5379A336C8E0],
    ),
    "dates": (pa.array([date(2026, 11, 15)]), [0x5B35A7791BB8B4B1]),
    "decimals": (
        pa.array([Decimal("1.50"), Decimal("-100.00"), Decimal("0.00")], pa.decimal128(38, 2)),
        [0xE3D1F16D90477DDF, 0x8FC4F17D88DA6A6, 0xD0E59A492BFFDCC5],
    ),
    "structs": (
        pa.array([{"a": 1, "b": "x"}, {"a": None, "b": ""}, None], PAIR),
        [0x56D8632A41B8A61, 0x550C08E3D05CD4BD, NULL],
    ),
    "lists": (
        pa.array([[], [1], [1, 2], [2, 1], [None], None], pa.list_(pa.int64())),
        [0xE220A8397B1DCDAF, 0x3067F308D06AB313, 0xF1937B151D61D860, 0xDE5095256A02F424,
            0x949DACD7E6727B1D, NULL],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_hashes_are_fixed_for_ever(name: str) -> None:
    array, expected = VECTORS[name]
    assert hash_array(array).tolist() == expected


@pytest.mark.parametrize("name", VECTORS)
def test_a_slice_and_chunks_hash_as_the_whole_does(name: str) -> None:
    array, expected = VECTORS[name]
    padded = pa.concat_arrays([array, array])
    assert hash_array(padded[1 : 1 + len(array)]).tolist() == [*expected[1:], expected[0]]
    assert hash_array(pa.chunked_array([array[:1], array[1:]])).tolist() == expected
    assert hash_array(array[:0]).tolist() == []


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()])
def test_integers_of_every_width_hash_alike(kind: pa.DataType) -> None:
    values = [0, 1, 100, None] if pa.types.is_unsigned_integer(kind) else [0, 1, -100, None]
    expected = hash_array(pa.array(values, pa.int64())).tolist()
    assert hash_array(pa.array(values, kind)).tolist() == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.large_string()),
        (pa.string(), pa.string_view()),
        (pa.string(), pa.dictionary(pa.int8(), pa.string())),
        (pa.string(), pa.binary()),
    ],
)
def test_texts_of_every_kind_hash_alike(one: pa.DataType, other: pa.DataType) -> None:
    array = pa.array(["a", None, "żółw", ""], one)
    assert hash_array(array).tolist() == hash_array(array.cast(other)).tolist()


def test_instants_of_every_unit_hash_alike() -> None:
    seconds = pa.array([0, 1_700_000_000, None], pa.timestamp("s"))
    for unit in ("ms", "us", "ns"):
        assert hash_array(seconds.cast(pa.timestamp(unit))).tolist() == hash_array(seconds).tolist()
    assert len(hash_array(pa.array([2**60], pa.timestamp("s")))) == 1  # beyond nanoseconds, and fine


def test_a_decimal_hashes_by_its_value_in_any_context() -> None:
    long = Decimal("12345678901234567890123456789012345.6")
    expected = hash_array(pa.array([long, Decimal("1.5")], pa.decimal128(38, 1))).tolist()
    with decimal.localcontext(prec=3):
        again = hash_array(pa.array([long, Decimal("1.5")], pa.decimal128(38, 1))).tolist()
    assert again == expected
    assert hash_array(pa.array([Decimal("1.500")], pa.decimal128(9, 3))).tolist() == expected[1:]


def test_a_null_is_not_the_value_that_stands_in_for_it() -> None:
    assert hash_array(pa.array([None, 0], pa.int64())).tolist()[0] == NULL
    assert hash_array(pa.nulls(2)).tolist() == [NULL, NULL]


def test_the_order_of_key_columns_counts_and_one_value_hashes_as_its_row() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    assert hash_key(batch, ["a", "b"]).tolist() != hash_key(batch, ["b", "a"]).tolist()
    assert int(hash_key(batch, ["a", "b"])[0]) == hash_value(1, "x")
    assert int(hash_key(batch, ["a", "b"])[1]) == hash_value(2, None)
    assert hash_key(batch, []).tolist() == [0, 0]


def test_a_type_that_cannot_be_a_key_is_named() -> None:
    with pytest.raises(PlanError, match="map<string, int64>"):
        hash_array(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 7, 8, 16, 100, 997, 4096, 65_537])
def test_ranges_cover_the_key_space_and_agree_with_the_router(parallelism: int) -> None:
    ranges = [key_range(subtask, parallelism) for subtask in range(parallelism)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64 - 1
    assert all(one[1] + 1 == other[0] for one, other in pairwise(ranges))
    borders = np.array(ranges, dtype=np.uint64)
    expected = np.arange(parallelism)
    assert (subtask_of(borders[:, 0], parallelism) == expected).all()
    assert (subtask_of(borders[:, 1], parallelism) == expected).all()


@given(st.integers(0, 2**64 - 1), st.integers(1, 10_000))
def test_every_hash_is_in_the_range_of_its_subtask(value: int, parallelism: int) -> None:
    subtask = int(subtask_of(np.array([value], dtype=np.uint64), parallelism)[0])
    low, high = key_range(subtask, parallelism)
    assert low <= value <= high
