"""Which rows are the same, and the order that brings them together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.keys import hash_array, is_exact
from headrace.state.rows import group_rows, hash_order
from tests.unit.state.test_tables import HASHED_LIKE_NULL

MANY = 100_000


def hashes_of(kind: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    random = np.random.default_rng(7)
    spans = {"spread": 2**64, "upper half mostly alike": 2**36, "upper half alike": 2**30, "few": 50}
    return random.integers(0, spans[kind], MANY, dtype=np.uint64)


@pytest.mark.parametrize("kind", ["spread", "upper half mostly alike", "upper half alike", "few"])
def test_many_hashes_are_sorted_as_few_are_and_equal_ones_stay_in_order(kind: str) -> None:
    hashes = hashes_of(kind)
    assert (hash_order(hashes) == np.argsort(hashes, kind="stable")).all()
    assert (hash_order(hashes[:10]) == np.argsort(hashes[:10], kind="stable")).all()


def test_whole_numbers_have_a_hash_each_and_a_null_does_not() -> None:
    assert is_exact([pa.array([1, 2])])
    assert is_exact([pa.array([1, 2], pa.uint8())])
    assert not is_exact([pa.array([1, None])])
    assert not is_exact([pa.array(["1"])])
    assert not is_exact([pa.array([1.0])])
    assert not is_exact([pa.array([1]), pa.array([2])])


def test_a_number_that_is_hashed_like_a_null_is_another_group() -> None:
    column = pa.array([HASHED_LIKE_NULL, None, 1, HASHED_LIKE_NULL, None, 1])
    assert len(set(hash_array(column).tolist())) == 2
    order, groups = group_rows(hash_array(column), [column])
    found = {tuple(column.take(pa.array(order[groups == group])).to_pylist()) for group in range(3)}
    assert found == {(HASHED_LIKE_NULL, HASHED_LIKE_NULL), (None, None), (1, 1)}
