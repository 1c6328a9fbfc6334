"""Intervals as bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.intervals import INTERVAL, as_type, packed_schema, packed_type, with_types
from headrace.base.keys import hash_array
from headrace.state.rows import equal_arrays

VALUES = [pa.MonthDayNano([1, -2, 3]), None, pa.MonthDayNano([0, 1, 0]), pa.MonthDayNano([1, -2, 3])]
KINDS = [
    (INTERVAL, VALUES),
    (pa.list_(pa.field("item", INTERVAL)), [VALUES, None, [], [None]]),
    (pa.struct([("a", INTERVAL), ("b", pa.int64())]), [{"a": v, "b": i} for i, v in enumerate(VALUES)]),
    (pa.list_(pa.field("item", pa.struct([("a", INTERVAL)]))), [[{"a": VALUES[0]}, None], None, [], []]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (1, 4), (2, 3)])
def test_intervals_come_back_from_parquet(
    kind: pa.DataType, values: list[object], start: int, stop: int, tmp_path: Path
) -> None:
    array = pa.array(values, kind)[start:stop]
    rows = pa.record_batch([array], names=["x"])
    pq.write_table(pa.table(with_types(rows, packed_schema(rows.schema))), tmp_path / "rows.parquet")
    (read,) = pq.read_table(tmp_path / "rows.parquet").to_batches()
    assert with_types(read, rows.schema).column(0).to_pylist() == values[start:stop]


def test_a_type_without_intervals_stays_as_it_is() -> None:
    kind = pa.list_(pa.field("item", pa.struct([("a", pa.int64())])))
    assert packed_type(kind) == kind
    array = pa.array([1])
    assert as_type(array, pa.int64()) is array


def test_equal_intervals_have_equal_hashes_and_are_equal() -> None:
    array = pa.array(VALUES, INTERVAL)
    hashes = hash_array(array)
    assert hashes[0] == hashes[3]
    assert len({int(value) for value in hashes}) == 3
    assert equal_arrays(array, array).tolist() == [True] * 4
    other = pa.array([VALUES[2], VALUES[2], VALUES[2], None], INTERVAL)
    assert equal_arrays(array, other).tolist() == [False, False, True, False]
