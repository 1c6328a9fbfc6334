"""SQL over rows kept by key: at the end of any run the output holds the batch answer over the rows left."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.base.errors import PlanError
from headrace.model.fragments import Fragment
from headrace.operators.updating_fragment import UpdatingFragment
from headrace.testing.in_process import ManualClock, run_in_process
from tests.unit.operators.updates import (
    Changes,
    answer,
    contents,
    metric,
    run_all_ways,
    run_by_the_clock,
    signs,
    stream_schema,
)

DAY = timedelta(days=1)
NAN = float("nan")
LEFT = pa.schema([("k", pa.int64()), ("x", pa.float64())])
RIGHT = pa.schema([("j", pa.int64()), ("y", pa.string())])
SCORES = pa.schema([("team", pa.string()), ("player", pa.int64()), ("score", pa.int64())])


def left_row(random: np.random.Generator) -> tuple[Any, ...]:
    return [0, 1, 2, 3, None][random.integers(5)], [None, NAN, 1.0, 2.0][random.integers(4)]


def right_row(random: np.random.Generator) -> tuple[Any, ...]:
    return [2, 3, 4, 5, None][random.integers(5)], ["a", "b", None][random.integers(3)]


def score(random: np.random.Generator) -> tuple[Any, ...]:
    return ["red", "blue", None][random.integers(3)], int(random.integers(6)), int(random.integers(4))


def single(
    fragment: Fragment, key: list[str], rows: pa.Table, *, prune: Fragment | None = None
) -> hr.Pipeline:
    p = hr.Pipeline("fragment")
    updating = ["_retract" in rows.schema.names]
    operator = UpdatingFragment(fragment, [key], ttl=DAY, updating=updating, prune=prune)
    p.source(hr.MemorySource(rows)).key_by(*key).apply(operator).sink(hr.MemorySink("out"))
    return p


# ------------------------------------------------------------------------------------------ outer joins


def join_fragment(kind: str) -> Fragment:
    return Fragment(
        "SELECT l.k, l.x, r.j, r.y, greatest(l._timestamp, r._timestamp) AS _timestamp"
        f" FROM input0 l {kind} JOIN input1 r ON l.k = r.j AND (r.y <> 'b' OR l.x IS NULL)",
        {
            "input0": stream_schema(LEFT, updating=False),
            "input1": stream_schema(RIGHT, updating=False),
        },
    )


def outer_join(kind: str, left: pa.Table, right: pa.Table) -> hr.Pipeline:
    p = hr.Pipeline("outer")
    one = p.source(hr.MemorySource(left), id="one").key_by("k")
    other = p.source(hr.MemorySource(right), id="other").key_by("j")
    updating = ["_retract" in table.schema.names for table in (left, right)]
    operator = UpdatingFragment(join_fragment(kind), [["k"], ["j"]], ttl=DAY, updating=updating)
    one.apply(operator, other).sink(hr.MemorySink("out"))
    return p


def batch_join(kind: str, left: Changes, right: Changes) -> Counter[tuple[Any, ...]]:
    return answer(
        f"SELECT l.k, l.x, r.j, r.y FROM l {kind} JOIN r ON l.k = r.j AND (r.y <> 'b' OR l.x IS NULL)",
        l=left.left(),
        r=right.left(),
    )


@pytest.mark.parametrize("kind", ["LEFT", "RIGHT", "FULL"])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_outer_join_gives_the_batch_answer_over_the_rows_left(
    kind: str, seed: int, tmp_path: Path
) -> None:
    left = Changes.random(LEFT, left_row, seed=seed, count=60)
    right = Changes.random(RIGHT, right_row, seed=seed + 50, count=50)
    build = partial(outer_join, kind, left.table(), right.table())
    assert run_all_ways(build, tmp_path) == batch_join(kind, left, right)


def test_one_side_of_an_outer_join_may_be_append_only(tmp_path: Path) -> None:
    left = Changes.random(LEFT, left_row, seed=3, count=60, retracts=0)
    right = Changes.random(RIGHT, right_row, seed=4, count=50)
    build = partial(outer_join, "FULL", left.table(updating=False), right.table())
    assert run_all_ways(build, tmp_path) == batch_join("FULL", left, right)


def test_a_left_join_replaces_the_row_without_partner_when_a_partner_comes(tmp_path: Path) -> None:
    left = Changes.of(LEFT, ("+", (1, 1.0)), ("+", (0, 1.0)))
    right = Changes.of(RIGHT, ("+", (9, "a")), ("+", (1, "a")))
    pipeline = outer_join("LEFT", left.table(), right.table())
    epochs: list[list[tuple[Any, ...]]] = []
    for _ in range(2):
        result = run_in_process(pipeline, tmp_path, epoch_rows=2, max_epochs=1)
        epochs.append(sorted(signs(result.rows["out"].to_pylist(), "k", "y"), key=str))
    assert epochs == [[("+", 1, None)], [("+", 0, None), ("+", 1, "a"), ("-", 1, None)]]


# ------------------------------------------------------------------------------------- window functions

RANKED = (
    "SELECT team, player, score, row_number() OVER w AS place, lag(player) OVER w AS ahead, _timestamp"
    " FROM input0 WINDOW w AS (PARTITION BY team ORDER BY score DESC, _sequence)"
)


def sequenced(schema: pa.Schema) -> pa.Schema:
    return stream_schema(schema, updating=False).append(pa.field("_sequence", pa.int64()))


def numbered(changes: Changes) -> pa.Table:
    table = changes.left()
    return table.append_column("n", pa.array(range(table.num_rows)))


@pytest.mark.parametrize("seed", range(2))
def test_window_functions_give_the_batch_answer_over_the_rows_left(seed: int, tmp_path: Path) -> None:
    changes = Changes.random(SCORES, score, seed=seed, count=120)
    build = partial(single, Fragment(RANKED, {"input0": sequenced(SCORES)}), ["team"], changes.table())
    expected = answer(
        "SELECT team, player, score, row_number() OVER w, lag(player) OVER w FROM t"
        " WINDOW w AS (PARTITION BY team ORDER BY score DESC, n)",
        t=numbered(changes),
    )
    assert run_all_ways(build, tmp_path) == expected


def test_without_keys_all_rows_are_one_group(tmp_path: Path) -> None:
    changes = Changes.random(SCORES, score, seed=7, count=80)
    sql = "SELECT player, rank() OVER (ORDER BY score) AS place, _timestamp FROM input0"
    fragment = Fragment(sql, {"input0": stream_schema(SCORES, updating=False)})
    expected = answer("SELECT player, rank() OVER (ORDER BY score) FROM t", t=changes.left())
    assert run_all_ways(partial(single, fragment, [], changes.table()), tmp_path) == expected


# ------------------------------------------------------------------------------------------------ top n

BEST = (
    "SELECT {columns} FROM (SELECT *, row_number() OVER"
    " (PARTITION BY team ORDER BY score DESC, _sequence) AS place FROM input0) WHERE place <= 2"
)


def top(columns: str) -> Fragment:
    return Fragment(BEST.format(columns=columns), {"input0": sequenced(SCORES)})


def best(rows: pa.Table) -> hr.Pipeline:
    fragment = top("team, player, score, place, _timestamp")
    return single(fragment, ["team"], rows, prune=top("team, _sequence"))


def test_a_pruned_top_n_gives_the_batch_answer(tmp_path: Path) -> None:
    changes = Changes.random(SCORES, score, seed=1, count=150, retracts=0)
    expected = answer(
        "SELECT team, player, score, row_number() OVER w AS place FROM t"
        " WINDOW w AS (PARTITION BY team ORDER BY score DESC, n) QUALIFY place <= 2",
        t=numbered(changes),
    )
    assert run_all_ways(partial(best, changes.table(updating=False)), tmp_path) == expected


def test_the_state_of_a_pruned_top_n_is_as_small_as_its_result(tmp_path: Path) -> None:
    changes = Changes.random(SCORES, score, seed=2, count=600, retracts=0)
    sizes: list[int] = []
    run_in_process(
        best(changes.table(updating=False)),
        tmp_path,
        parallelism=1,
        epoch_rows=50,
        options=hr.RunOptions(compact_after=2),
        on_progress=lambda progress: sizes.append(progress.state_rows),
    )
    assert max(sizes) <= 4 * 3 * 2


def test_only_a_single_append_only_input_can_be_pruned() -> None:
    fragment = top("team, _timestamp")
    with pytest.raises(PlanError, match="without retractions"):
        UpdatingFragment(fragment, [["team"]], ttl=DAY, updating=[True], prune=fragment)


# ------------------------------------------------------------------------- retractions, expiry, mistakes


def distinct(rows: pa.Table) -> hr.Pipeline:
    sql = "SELECT team, count(DISTINCT player) AS n, max(_timestamp) AS _timestamp FROM input0 GROUP BY team"
    fragment = Fragment(sql, {"input0": stream_schema(SCORES, updating=False)})
    return single(fragment, ["team"], rows)


def test_a_retraction_of_a_row_that_is_not_there_is_ignored_and_counted(tmp_path: Path) -> None:
    changes = Changes.of(
        SCORES, ("+", ("red", 1, 0)), ("-", ("red", 2, 0)), ("-", ("blue", 1, 0)), ("-", ("red", 1, 9))
    )
    result = run_in_process(distinct(changes.table()), tmp_path, epoch_rows=1)
    assert metric(result, "unmatched_retractions") == 3
    assert contents(result) == Counter([("red", 1)])


def test_a_retraction_and_its_row_may_come_in_one_epoch_in_any_order(tmp_path: Path) -> None:
    changes = Changes.of(SCORES, ("-", ("red", 1, 0)), ("+", ("red", 1, 0)), ("+", ("red", 2, 0)))
    result = run_in_process(distinct(changes.table()), tmp_path)
    assert contents(result) == Counter([("red", 1)])
    assert metric(result, "unmatched_retractions") == 0


def test_a_global_aggregate_has_no_result_before_the_first_row_and_after_the_last(tmp_path: Path) -> None:
    fragment = Fragment(
        "SELECT count(*) AS n, max(_timestamp) AS _timestamp FROM input0",
        {"input0": stream_schema(SCORES, updating=False)},
    )
    changes = Changes.of(SCORES, ("+", ("red", 1, 0)), ("-", ("red", 1, 0)))
    result = run_in_process(single(fragment, [], changes.table()), tmp_path, epoch_rows=1)
    assert signs(result.rows["out"].to_pylist(), "n") == [("+", 1), ("-", 1)]


def test_no_rows_make_no_result(tmp_path: Path) -> None:
    assert run_in_process(distinct(Changes.of(SCORES).table()), tmp_path).rows_out == 0


def expiring(*changes: tuple[str, tuple[Any, ...]]) -> hr.Pipeline:
    p = hr.Pipeline("expiring")
    sql = "SELECT team, count(*) AS n, max(_timestamp) AS _timestamp FROM input0 GROUP BY team"
    fragment = Fragment(sql, {"input0": stream_schema(SCORES, updating=False)})
    operator = UpdatingFragment(fragment, [["team"]], ttl=timedelta(seconds=10), updating=[True])

    def without_noise(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.not_equal(batch.column("team"), "noise"))

    stream = p.source(hr.MemorySource(Changes.of(SCORES, *changes).table())).map(without_noise)
    stream.key_by("team").apply(operator).sink(hr.MemorySink("out"))
    return p


TICK = ("+", ("noise", 0, 0))


def test_each_row_expires_by_itself_and_what_it_contributed_is_retracted(tmp_path: Path) -> None:
    epochs = run_by_the_clock(
        expiring(("+", ("red", 1, 1)), ("+", ("red", 2, 2)), TICK, TICK, TICK, ("+", ("red", 3, 3))),
        tmp_path,
        step=4,
    )
    assert [signs(rows, "n") for rows in epochs] == [
        [("+", 1)],
        [("-", 1), ("+", 2)],
        [],
        [("-", 2), ("+", 1)],
        [("-", 1)],
        [("+", 1)],
    ]


def test_expired_rows_leave_nothing_behind_in_state(tmp_path: Path) -> None:
    clock, sizes = ManualClock(), []

    def pass_time(progress: hr.Progress) -> None:
        sizes.append(progress.state_rows)
        clock.advance(4)

    rows = [("+", ("red", player, 0)) for player in range(3)]
    run_in_process(expiring(*rows, *[TICK] * 4), tmp_path, epoch_rows=1, clock=clock, on_progress=pass_time)
    assert max(sizes) == 3
    assert sizes[-1] == 0


def test_a_retraction_of_an_expired_row_finds_nothing(tmp_path: Path) -> None:
    epochs = run_by_the_clock(
        expiring(("+", ("red", 1, 1)), ("+", ("red", 2, 2)), ("-", ("red", 1, 1))), tmp_path, step=6
    )
    assert [signs(rows, "n") for rows in epochs] == [[("+", 1)], [("-", 1), ("+", 2)], [("-", 2), ("+", 1)]]


def test_keys_of_different_types_are_refused() -> None:
    fragment = Fragment(
        "SELECT l.k, l._timestamp FROM input0 l LEFT JOIN input1 r ON l.k = r.j",
        {
            "input0": stream_schema(pa.schema([("k", pa.int64())]), updating=False),
            "input1": stream_schema(pa.schema([("j", pa.int32())]), updating=False),
        },
    )
    with pytest.raises(PlanError, match="different types"):
        UpdatingFragment(fragment, [["k"], ["j"]], ttl=DAY, updating=[False, False])
    with pytest.raises(PlanError, match="1 lists of keys"):
        UpdatingFragment(fragment, [["k"]], ttl=DAY, updating=[False])
