"""Which rows are equal, which retraction takes which row, and what turns one multiset into another."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import PlanError
from headrace.operators.changes import (
    check_comparable,
    difference,
    expiry_tick,
    match_retractions,
    number_rows,
    pair_rows,
)
from headrace.state.rows import canonical

NAN = float("nan")


def table(*rows: tuple[Any, ...]) -> pa.Table:
    """Rows of (`a` float, `b` list of structs, `_timestamp` as a number)."""
    items = pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))
    return pa.table(
        {
            "a": pa.array([row[0] for row in rows], pa.float64(), from_pandas=False),
            "b": pa.array([row[1] for row in rows], items),
            "_timestamp": pa.array([row[2] for row in rows], pa.int64()).cast(pa.timestamp("ns")),
        }
    )


def values(rows: pa.Table) -> list[tuple[Any, ...]]:
    rows = rows.set_column(2, "_timestamp", rows["_timestamp"].cast(pa.int64()))
    return [canonical(tuple(row.values())) for row in rows.to_pylist()]


def test_equal_rows_have_one_number_and_the_first_of_each_is_known() -> None:
    column = pa.array(["a", None, "b", "a", None])
    numbers, firsts = number_rows([column], 5)
    assert numbers[0] == numbers[3]
    assert numbers[1] == numbers[4]
    assert len(set(numbers.tolist())) == 3
    assert [firsts[number] for number in numbers] == [0, 1, 2, 0, 1]


def test_rows_without_columns_are_all_equal() -> None:
    numbers, firsts = number_rows([], 3)
    assert (numbers.tolist(), firsts.tolist()) == ([0, 0, 0], [0])
    numbers, firsts = number_rows([], 0)
    assert (numbers.tolist(), firsts.tolist()) == ([], [])


def test_a_row_is_the_partner_of_one_row_at_most_and_the_first_are_paired() -> None:
    left = table((1.0, None, 0), (1.0, None, 1), (2.0, None, 2))
    right = table((3.0, None, 0), (1.0, None, 9))
    of_left, of_right = pair_rows(left, right, ["a", "b"])
    assert (of_left.tolist(), of_right.tolist()) == ([True, False, False], [False, True])


def test_a_retraction_takes_the_row_of_its_own_time_and_else_the_first() -> None:
    rows = table((1.0, None, 10), (1.0, None, 11), (1.0, None, 12))
    gone, found = match_retractions(rows, table((1.0, None, 99), (1.0, None, 10)), ["a", "b"])
    assert (gone.tolist(), found.tolist()) == ([True, True, False], [True, True])


def test_a_retraction_of_a_row_that_is_not_there_finds_nothing() -> None:
    gone, found = match_retractions(table((1.0, None, 1)), table((2.0, None, 1), (1.0, None, 5)), ["a", "b"])
    assert (gone.tolist(), found.tolist()) == ([True], [False, True])
    gone, found = match_retractions(table(), table((2.0, None, 1)), ["a", "b"])
    assert (gone.tolist(), found.tolist()) == ([], [False])


def test_nulls_nans_and_nested_values_are_equal_to_themselves() -> None:
    rows = table((None, None, 0), (NAN, [{"x": 1, "y": None}], 1), (0.0, [], 2))
    later = table((-0.0, [], 7), (NAN, [{"x": 1, "y": None}], 8), (None, None, 9))
    assert difference(rows, later).num_rows == 0


def test_a_difference_retracts_before_it_appends_and_counts_equal_rows() -> None:
    old = table((1.0, None, 0), (1.0, None, 0), (2.0, None, 0))
    new = table((1.0, None, 5), (3.0, [{"x": None, "y": "z"}], 5))
    changes = difference(old, new)
    assert changes["_retract"].to_pylist() == [True, True, False]
    assert changes["a"].to_pylist() == [1.0, 2.0, 3.0]


small = st.lists(
    st.tuples(
        st.sampled_from([None, NAN, 0.0, 1.0]),
        st.sampled_from([None, [], [{"x": 1, "y": "a"}], [{"x": None, "y": "a"}]]),
        st.integers(0, 2),
    ),
    max_size=12,
)


@given(old=small, new=small)
def test_old_rows_and_their_difference_to_new_rows_make_the_new_rows(
    old: list[tuple[Any, ...]], new: list[tuple[Any, ...]]
) -> None:
    changes = difference(table(*old), table(*new))
    held = Counter(row[:2] for row in values(table(*old)))
    for row, retract in zip(
        values(changes.drop_columns(["_retract"])), changes["_retract"].to_pylist(), strict=True
    ):
        assert not retract or held[row[:2]] > 0
        held[row[:2]] += -1 if retract else 1
    assert +held == Counter(row[:2] for row in values(table(*new)))


def test_a_type_that_cannot_be_compared_is_refused_by_name() -> None:
    schema = pa.schema([("a", pa.int64()), ("wait", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(PlanError, match="column `wait` of the left side is map<string, int64>"):
        check_comparable(schema, "the left side")
    check_comparable(table().schema, "the left side")


def test_expired_state_is_looked_for_every_tenth_of_its_life_within_bounds() -> None:
    assert expiry_tick(timedelta(seconds=2)) == timedelta(seconds=1)
    assert expiry_tick(timedelta(minutes=10)) == timedelta(minutes=1)
    assert expiry_tick(timedelta(days=1)) == timedelta(minutes=10)
    with pytest.raises(PlanError, match="greater than zero"):
        expiry_tick(timedelta(0))


def test_a_difference_of_many_rows_is_quick() -> None:
    numbers = pa.array(np.arange(200_000))
    old = pa.table({"a": numbers, "_timestamp": numbers.cast(pa.timestamp("ns"))})
    assert difference(old, old.slice(1)).num_rows == 1
