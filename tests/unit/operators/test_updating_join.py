"""Inner joins without windows: at the end of any run the output holds the batch answer over the rows left."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import PlanError
from headrace.base.keys import hash_key
from headrace.model.fragments import Fragment
from headrace.operators.aggregation import Aggregation
from headrace.operators.updating_aggregate import UpdatingAggregate
from headrace.operators.updating_join import UpdatingJoin
from headrace.testing.in_process import ManualClock, run_in_process
from tests.unit.operators.updates import (
    Changes,
    answer,
    contents,
    metric,
    run_all_ways,
    signs,
    stream_schema,
)
from tests.unit.state.test_tables import colliding_pair

DAY = timedelta(days=1)
NAN = float("nan")
LEFT = pa.schema([("k", pa.int64()), ("x", pa.float64())])
RIGHT = pa.schema([("j", pa.int64()), ("y", pa.string())])


def left_row(random: np.random.Generator) -> tuple[Any, ...]:
    return [0, 1, 2, None][random.integers(4)], [None, NAN, 1.0, 2.0][random.integers(4)]


def right_row(random: np.random.Generator) -> tuple[Any, ...]:
    return [1, 2, 3, None][random.integers(4)], ["a", "b", None][random.integers(3)]


def join_fragment(left: pa.Schema, right: pa.Schema, *, updating: bool) -> Fragment:
    sign = ", l._retract <> r._retract AS _retract" if updating else ""
    return Fragment(
        f"SELECT l.k, l.x, r.y, greatest(l._timestamp, r._timestamp) AS _timestamp{sign}"
        " FROM input0 l JOIN input1 r ON l.k = r.j AND (r.y IS NULL OR r.y <> 'b' OR l.x > 1)",
        {
            "input0": stream_schema(left, updating=updating),
            "input1": stream_schema(right, updating=updating),
        },
    )


def join(left: pa.Table, right: pa.Table, *, ttl: timedelta = DAY) -> hr.Pipeline:
    p = hr.Pipeline("join")
    updating = ("_retract" in left.schema.names, "_retract" in right.schema.names)
    fragment = join_fragment(LEFT, RIGHT, updating=any(updating))
    one = p.source(hr.MemorySource(left), id="one").watermark().key_by("k")
    other = p.source(hr.MemorySource(right), id="other").watermark().key_by("j")
    one.apply(UpdatingJoin(fragment, (["k"], ["j"]), ttl=ttl, updating=updating), other).sink(
        hr.MemorySink("out")
    )
    return p


def batch_join(left: Changes, right: Changes) -> Counter[tuple[Any, ...]]:
    return answer(
        "SELECT l.k, l.x, r.y FROM l JOIN r ON l.k = r.j AND (r.y IS NULL OR r.y <> 'b' OR l.x > 1)",
        l=left.left(),
        r=right.left(),
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("updating", [(True, True), (True, False), (False, True), (False, False)])
def test_a_join_gives_the_batch_answer_over_the_rows_left(
    updating: tuple[bool, bool], seed: int, tmp_path: Path
) -> None:
    left, right = (
        Changes.random(schema, draw, seed=seed + index, count=70, retracts=0.4 if updating[index] else 0)
        for index, (schema, draw) in enumerate(((LEFT, left_row), (RIGHT, right_row)))
    )
    build = partial(join, left.table(updating=updating[0]), right.table(updating=updating[1]))
    assert run_all_ways(build, tmp_path) == batch_join(left, right)


def test_append_only_inputs_give_an_append_only_result(tmp_path: Path) -> None:
    left, right = Changes.of(LEFT, ("+", (1, 2.0))), Changes.of(RIGHT, ("+", (1, "a")), ("+", (1, "a")))
    result = run_in_process(join(left.table(updating=False), right.table(updating=False)), tmp_path)
    assert result.rows["out"].schema.names == ["k", "x", "y", "_timestamp"]
    assert result.rows["out"]["_timestamp"].cast(pa.int64()).to_pylist() == right.times


def test_pairs_that_come_and_go_in_one_epoch_are_not_shown(tmp_path: Path) -> None:
    """Both sides change at once: the new left row never meets the old right row."""
    left = Changes.of(LEFT, ("+", (1, 1.0)), ("-", (1, 1.0)), ("+", (1, 2.0)))
    right = Changes.of(RIGHT, ("+", (1, "a")), ("-", (1, "a")), ("+", (1, "c")))
    result = run_in_process(join(left.table(), right.table()), tmp_path)
    assert signs(result.rows["out"].to_pylist(), "x", "y") == [("+", 2.0, "c")]


def test_an_update_of_both_sides_retracts_the_old_pair_and_appends_the_new_one(tmp_path: Path) -> None:
    left = Changes.of(LEFT, ("+", (1, 1.0)), ("+", (7, 0.0)), ("-", (1, 1.0)), ("+", (1, 2.0)))
    right = Changes.of(RIGHT, ("+", (1, "a")), ("+", (8, "a")), ("-", (1, "a")), ("+", (1, "c")))
    result = run_in_process(join(left.table(), right.table()), tmp_path, epoch_rows=4)
    assert signs(result.rows["out"].to_pylist(), "x", "y") == [
        ("+", 1.0, "a"),
        ("-", 1.0, "a"),
        ("+", 2.0, "c"),
    ]


def test_a_retraction_of_a_row_that_is_not_there_retracts_nothing(tmp_path: Path) -> None:
    left = Changes.of(LEFT, ("+", (1, 1.0)), ("-", (1, 5.0)), ("-", (None, 5.0)))
    right = Changes.of(RIGHT, ("+", (1, "a")))
    result = run_in_process(join(left.table(), right.table()), tmp_path)
    assert contents(result) == Counter([(1, 1.0, "a")])
    assert metric(result, "unmatched_retractions") == 1


def test_a_row_of_an_expired_key_meets_nothing_and_old_pairs_stay(tmp_path: Path) -> None:
    left = Changes.of(LEFT, *[("+", (1, float(n))) for n in range(2, 6)])
    right = Changes.of(RIGHT, ("+", (1, "a")), ("+", (9, "a")), ("+", (9, "a")), ("+", (1, "c")))
    clock, sizes = ManualClock(), []

    def pass_time(progress: hr.Progress) -> None:
        clock.advance(6)
        sizes.append(progress.state_rows)

    result = run_in_process(
        join(left.table(updating=False), right.table(updating=False), ttl=timedelta(seconds=10)),
        tmp_path,
        epoch_rows=2,
        clock=clock,
        on_progress=pass_time,
    )
    pairs = [(row["x"], row["y"]) for row in result.rows["out"].to_pylist()]
    # A row of each side every 6 s: `a` meets the rows of 0 s and 6 s, `c` at 18 s those of 12 s and 18 s.
    assert sorted(pairs) == [(2.0, "a"), (3.0, "a"), (4.0, "c"), (5.0, "c")]
    assert sizes[-1] <= 4


def test_a_join_reads_the_updating_result_of_an_aggregate(tmp_path: Path) -> None:
    left = Changes.random(LEFT, left_row, seed=11, count=70)
    right = Changes.random(RIGHT, right_row, seed=12, count=40)
    counts = Aggregation(
        stream_schema(LEFT, updating=True), ("k",), complete=("CAST(count(*) AS DOUBLE) AS x",)
    )

    def build() -> hr.Pipeline:
        p = hr.Pipeline("join")
        one = p.source(hr.MemorySource(left.table()), id="one").key_by("k")
        one = one.apply(UpdatingAggregate(counts, ttl=DAY)).key_by("k")
        other = p.source(hr.MemorySource(right.table()), id="other").key_by("j")
        fragment = join_fragment(LEFT, RIGHT, updating=True)
        operator = UpdatingJoin(fragment, (["k"], ["j"]), ttl=DAY, updating=(True, True))
        one.apply(operator, other).sink(hr.MemorySink("out"))
        return p

    expected = answer(
        "SELECT c.k, c.x, r.y FROM (SELECT k, CAST(count(*) AS DOUBLE) AS x FROM l GROUP BY k) c"
        " JOIN r ON c.k = r.j AND (r.y IS NULL OR r.y <> 'b' OR c.x > 1)",
        l=left.left(),
        r=right.left(),
    )
    assert run_all_ways(build, tmp_path) == expected


def test_of_equal_rows_each_retraction_takes_one_back(tmp_path: Path) -> None:
    """Equal rows of one epoch and of several, told apart by nothing; what is left goes on meeting others."""
    same = (1, 2.0)
    left = Changes.of(
        LEFT, *[("+", same)] * 3, ("-", same), ("+", (7, 0.0)), ("+", same), ("-", same), ("-", same)
    )
    right = Changes.of(RIGHT, ("+", (1, "a")), ("+", (1, "a")), *[("+", (9, "z"))] * 5, ("+", (1, "c")))
    expected = Counter({(1, 2.0, "a"): 2, (1, 2.0, "c"): 1})
    assert run_all_ways(partial(join, left.table(), right.table()), tmp_path) == expected


@pytest.mark.parametrize("updating", [True, False])
def test_keys_of_one_hash_do_not_meet(updating: bool, tmp_path: Path) -> None:
    twin = colliding_pair(1, 2, 7)
    schemas = [pa.schema([(name, pa.int64()) for name in names]) for names in ("abx", "cdy")]
    left, right = (
        Changes.of(schema, ("+", (1, 2, 1)), ("+", (7, twin, 2)), ("+", (1, None, 3)), ("+", (1, 2, 4)))
        for schema in schemas
    )
    assert len(set(hash_key(left.table().slice(0, 2), ["a", "b"]).tolist())) == 1
    sign = ", l._retract <> r._retract AS _retract" if updating else ""
    fragment = Fragment(
        f"SELECT l.x, r.y, greatest(l._timestamp, r._timestamp) AS _timestamp{sign}"
        " FROM input0 l JOIN input1 r ON l.a = r.c AND l.b = r.d",
        {f"input{i}": stream_schema(schema, updating=updating) for i, schema in enumerate(schemas)},
    )

    def build() -> hr.Pipeline:
        p = hr.Pipeline("join")
        one, other = (
            p.source(hr.MemorySource(side.table(updating=updating)), id=name).key_by(*keys)
            for side, name, keys in ((left, "one", "ab"), (right, "other", "cd"))
        )
        operator = UpdatingJoin(fragment, ("ab", "cd"), ttl=DAY, updating=(updating, updating))
        one.apply(operator, other).sink(hr.MemorySink("out"))
        return p

    assert run_all_ways(build, tmp_path) == Counter([(1, 1), (1, 4), (4, 1), (4, 4), (2, 2)])


def test_no_rows_make_no_pairs(tmp_path: Path) -> None:
    assert run_in_process(join(Changes.of(LEFT).table(), Changes.of(RIGHT).table()), tmp_path).rows_out == 0


def test_a_join_without_an_equality_or_a_sign_is_refused() -> None:
    fragment = join_fragment(LEFT, RIGHT, updating=False)
    with pytest.raises(PlanError, match="cannot be compared"):
        UpdatingJoin(fragment, ([], []), ttl=DAY, updating=(False, False))
    with pytest.raises(PlanError, match="cannot be compared"):
        UpdatingJoin(fragment, (["k"], ["y"]), ttl=DAY, updating=(False, False))
    with pytest.raises(PlanError, match="`_retract` must be in both"):
        UpdatingJoin(fragment, (["k"], ["j"]), ttl=DAY, updating=(True, False))
    with pytest.raises(PlanError, match="greater than zero"):
        UpdatingJoin(fragment, (["k"], ["j"]), ttl=timedelta(0), updating=(False, False))
