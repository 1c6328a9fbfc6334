"""GROUP BY without windows: at the end of any run the output holds the batch answer over the rows left."""

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
from headrace.operators.aggregation import Aggregation, Distinct
from headrace.operators.updating_aggregate import PartialUpdatingAggregate, UpdatingAggregate
from headrace.testing.in_process import CrashError, run_in_process
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
KEYED = pa.schema([("k", pa.string()), ("v", pa.int64())])
FLOATS = pa.schema([("k", pa.string()), ("v", pa.float64())])

SIGN = 'CASE WHEN "_retract" THEN -1 ELSE 1 END'


def sums(*keys: str, updating: bool = True, schema: pa.Schema = KEYED) -> Aggregation:
    """count(*), count(v), sum(v) and avg(v), in parts."""
    sign = SIGN if updating else "1"
    return Aggregation(
        stream_schema(schema, updating=updating),
        keys,
        complete=("count(*) AS n", "count(v) AS c", "sum(v) AS s", "avg(v) AS a"),
        partial=(
            f"sum({sign}) AS p0",
            f"sum(CASE WHEN v IS NULL THEN 0 ELSE {sign} END) AS p1",
            f"sum(coalesce(v, 0) * {sign}) AS p2",
        ),
        merge=("sum(p0) AS p0", "sum(p1) AS p1", "sum(p2) AS p2"),
        final=(
            "p0 AS n",
            "p1 AS c",
            "CASE WHEN p1 > 0 THEN p2 END AS s",
            "CASE WHEN p1 > 0 THEN CAST(p2 AS DOUBLE) / p1 END AS a",
        ),
    )


def holistic(
    *keys: str, updating: bool = True, schema: pa.Schema = FLOATS, complete: tuple[str, ...]
) -> Aggregation:
    return Aggregation(stream_schema(schema, updating=updating), keys, complete=complete)


def counted(*keys: str, updating: bool = True) -> Aggregation:
    """count(*), count(DISTINCT v) and count(DISTINCT k) of some rows, in parts."""
    sign = SIGN if updating else "1"
    return Aggregation(
        stream_schema(KEYED, updating=updating),
        keys,
        complete=("count(*) AS n", "count(DISTINCT v) AS s", "count(DISTINCT k) FILTER (WHERE v > 1) AS t"),
        partial=(f"sum({sign}) AS p0",),
        merge=("sum(p0) AS p0", "sum(p1) AS p1", "sum(p2) AS p2"),
        final=("p0 AS n", "p1 AS s", "p2 AS t"),
        distinct=(Distinct("p1", "v"), Distinct("p2", "k", "v > 1")),
    )


COUNTED = "count(*), count(DISTINCT v), count(DISTINCT k) FILTER (WHERE v > 1) FROM t"


def pipeline(aggregation: Aggregation, rows: pa.Table, *, ttl: timedelta = DAY) -> hr.Pipeline:
    p = hr.Pipeline("updating")
    stream = p.source(hr.MemorySource(rows)).watermark()
    if aggregation.in_parts:
        stream = stream.apply(PartialUpdatingAggregate(aggregation))
    stream.key_by(*aggregation.keys).apply(UpdatingAggregate(aggregation, ttl=ttl)).sink(hr.MemorySink("out"))
    return p


def draw(random: np.random.Generator, *, values: list[Any]) -> tuple[Any, ...]:
    keys = ["a", "b", "c", None, "d", "e"]
    return keys[int(random.integers(len(keys)))], values[int(random.integers(len(values)))]


INTEGERS = partial(draw, values=[1, 2, 3, None, -7])
NUMBERS = partial(draw, values=[0.5, 2.0, None, NAN, -1.25])


@pytest.mark.parametrize("seed", range(2))
def test_parts_give_the_batch_answer_over_the_rows_left(seed: int, tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=seed, count=150)
    expected = answer(
        "SELECT k, count(*), count(v), CAST(sum(v) AS BIGINT), avg(v) FROM t GROUP BY k", t=changes.left()
    )
    assert run_all_ways(partial(pipeline, sums("k"), changes.table()), tmp_path) == expected


@pytest.mark.parametrize("seed", range(2))
def test_distinct_values_that_are_left_are_counted(seed: int, tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=seed, count=150, retracts=0.45)
    expected = answer(f"SELECT k, {COUNTED} GROUP BY k", t=changes.left())
    assert run_all_ways(partial(pipeline, counted("k"), changes.table()), tmp_path / "keyed") == expected
    expected = answer(f"SELECT {COUNTED}", t=changes.left())
    assert run_all_ways(partial(pipeline, counted(), changes.table()), tmp_path / "all") == expected


def test_distinct_values_of_append_only_rows_are_counted(tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=7, count=120, retracts=0)
    expected = answer(f"SELECT k, {COUNTED} GROUP BY k", t=changes.left())
    rows = changes.table(updating=False)
    assert run_all_ways(partial(pipeline, counted("k", updating=False), rows), tmp_path) == expected


def test_a_value_counts_until_its_last_occurrence_is_retracted(tmp_path: Path) -> None:
    changes = Changes.of(
        KEYED,
        ("+", ("a", 1)),
        ("+", ("a", 1)),
        ("+", ("a", 2)),
        ("-", ("a", 1)),
        ("-", ("a", 1)),
        ("+", ("a", None)),
        ("-", ("a", 2)),
        ("-", ("a", None)),
        ("+", ("a", 1)),
    )
    epochs = run_by_the_clock(pipeline(counted("k"), changes.table()), tmp_path, step=1)
    assert [[sign for sign in signs(rows, "n", "s") if sign[0] == "+"] for rows in epochs] == [
        [("+", 1, 1)],
        [("+", 2, 1)],
        [("+", 3, 2)],
        [("+", 2, 2)],
        [("+", 1, 1)],
        [("+", 2, 1)],
        [("+", 1, 0)],
        [],
        [("+", 1, 1)],
    ]


def test_values_that_are_known_are_not_written_again(tmp_path: Path) -> None:
    """What an epoch costs goes by its rows, not by the values that the group has."""
    values = [*range(50), *range(40), 1000]
    changes = Changes.of(KEYED, *[("+", ("a", value)) for value in values])
    sizes: list[int] = []
    run_in_process(
        pipeline(counted("k", updating=False), changes.table(updating=False)),
        tmp_path,
        epoch_rows=10,
        options=hr.RunOptions(compact_after=100),
        on_progress=lambda progress: sizes.append(progress.state_rows),
    )
    # Each epoch writes the group, and its new values; `k` has one value above 1.
    assert sizes == [10 * n + n + 1 for n in range(1, 6)] + [56 + n for n in range(1, 5)] + [62]


@pytest.mark.parametrize("seed", range(2))
def test_whole_groups_give_the_batch_answer_over_the_rows_left(seed: int, tmp_path: Path) -> None:
    changes = Changes.random(FLOATS, NUMBERS, seed=seed, count=150)
    aggregation = holistic(
        "k", complete=("count(DISTINCT v) AS d", "median(v) FILTER (WHERE NOT isnan(v)) AS m", "sum(v) AS s")
    )
    expected = answer(
        "SELECT k, count(DISTINCT v), median(v) FILTER (WHERE NOT isnan(v)), sum(v) FROM t GROUP BY k",
        t=changes.left(),
    )
    assert run_all_ways(partial(pipeline, aggregation, changes.table()), tmp_path) == expected


def test_equal_values_count_as_often_as_they_occur(tmp_path: Path) -> None:
    rows = [("+", ("a", value)) for value in (1.0, 1.0, 1.0, 9.0)]
    changes = Changes.of(FLOATS, *rows, ("-", ("a", 1.0)))
    run = run_in_process(pipeline(holistic("k", complete=("avg(v) AS m",)), changes.table()), tmp_path)
    assert contents(run) == Counter([("a", 11 / 3)])


def test_append_only_rows_need_no_signs(tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=9, count=120, retracts=0)
    expected = answer(
        "SELECT k, count(*), count(v), CAST(sum(v) AS BIGINT), avg(v) FROM t GROUP BY k", t=changes.left()
    )
    rows = changes.table(updating=False)
    assert run_all_ways(partial(pipeline, sums("k", updating=False), rows), tmp_path) == expected


def test_an_aggregate_without_keys_is_one_row(tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=5, count=80)
    expected = answer("SELECT count(*), count(v), CAST(sum(v) AS BIGINT), avg(v) FROM t", t=changes.left())
    assert run_all_ways(partial(pipeline, sums(), changes.table()), tmp_path / "parts") == expected
    aggregation = holistic(complete=("count(*) AS n", "max(v) AS m"), schema=KEYED)
    expected = answer("SELECT count(*), max(v) FROM t", t=changes.left())
    assert run_all_ways(partial(pipeline, aggregation, changes.table()), tmp_path / "whole") == expected


@pytest.mark.parametrize("aggregation", [sums(), holistic(complete=("sum(v) AS s",), schema=KEYED)])
def test_an_aggregate_without_keys_is_one_row_even_of_no_rows(
    aggregation: Aggregation, tmp_path: Path
) -> None:
    empty = run_in_process(pipeline(aggregation, Changes.of(KEYED).table()), tmp_path / "none")
    assert empty.rows_out == 1
    changes = Changes.of(KEYED, ("+", ("a", 1)), ("-", ("a", 1)))
    result = run_in_process(pipeline(aggregation, changes.table()), tmp_path / "gone", epoch_rows=1)
    assert contents(result) == contents(empty)


def test_a_group_without_rows_has_no_row(tmp_path: Path) -> None:
    changes = Changes.of(KEYED, ("+", ("a", 1)), ("-", ("a", 1)))
    result = run_in_process(pipeline(sums("k"), changes.table()), tmp_path, epoch_rows=1)
    assert contents(result) == Counter()


def test_distinct_keys_need_no_aggregate(tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=3, count=60)
    expected = answer("SELECT DISTINCT k FROM t", t=changes.left())
    assert (
        run_all_ways(partial(pipeline, holistic("k", complete=(), schema=KEYED), changes.table()), tmp_path)
        == expected
    )


def test_a_group_changes_once_per_epoch_and_only_if_its_result_does(tmp_path: Path) -> None:
    changes = Changes.of(
        KEYED, ("+", ("a", 1)), ("+", ("a", 2)), ("+", ("b", 0)), ("-", ("a", 1)), ("+", ("a", 1))
    )
    aggregation = holistic("k", complete=("max(v) AS m",), schema=KEYED)
    result = run_in_process(pipeline(aggregation, changes.table()), tmp_path, epoch_rows=2, parallelism=1)
    assert signs(result.rows["out"].to_pylist(), "k", "m") == [("+", "a", 2), ("+", "b", 0)]


def test_nulls_and_nans_that_stay_are_no_change(tmp_path: Path) -> None:
    changes = Changes.of(FLOATS, *[("+", (key, value)) for key in "ab" for value in (None, NAN, NAN, NAN)])
    aggregation = holistic("k", complete=("sum(v) AS s", "min(k) FILTER (WHERE v < -1e9) AS nothing"))
    result = run_in_process(pipeline(aggregation, changes.table()), tmp_path, epoch_rows=1)
    assert result.rows_out == 2 * (1 + 2)
    assert contents(result) == Counter([("a", "nan", None), ("b", "nan", None)])


def test_a_result_has_the_latest_event_time_of_its_group(tmp_path: Path) -> None:
    changes = Changes.of(KEYED, ("+", ("a", 1)), ("+", ("a", 5)), ("+", ("b", 7)))
    result = run_in_process(pipeline(sums("k"), changes.table()), tmp_path, parallelism=1)
    out = result.rows["out"].sort_by("k")
    assert out["_timestamp"].cast(pa.int64()).to_pylist() == changes.times[1:]
    assert out.schema.names == ["k", "n", "c", "s", "a", "_timestamp", "_retract"]
    assert out.schema == UpdatingAggregate(sums("k"), ttl=DAY).output


def test_rows_are_aggregated_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    changes = Changes.random(FLOATS, NUMBERS, seed=8, count=120, retracts=0.3)
    aggregation = holistic("k", complete=("array_agg(v) AS l", "first_value(v) AS f"))
    left: dict[Any, list[Any]] = {}
    for row in changes.left().to_pylist():
        value = row["v"]
        left.setdefault(row["k"], []).append("nan" if value is not None and np.isnan(value) else value)
    expected = Counter((key, tuple(values), values[0]) for key, values in left.items())
    assert run_all_ways(partial(pipeline, aggregation, changes.table()), tmp_path) == expected


def test_zero_and_minus_zero_and_all_nans_are_one_key(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.float64()), ("v", pa.int64())])
    rows = [("+", (key, 1)) for key in (0.0, -0.0, NAN, -NAN, 0.0, NAN)]
    changes = Changes.of(schema, *rows)
    left = run_all_ways(partial(pipeline, sums("k", schema=schema), changes.table()), tmp_path)
    assert left == Counter([(0.0, 3, 3, 3, 1.0), ("nan", 3, 3, 3, 1.0)])


def test_several_keys_of_any_type_make_a_group(tmp_path: Path) -> None:
    item = pa.struct([("x", pa.int64())])
    schema = pa.schema(
        [("i", pa.int32()), ("e", item), ("l", pa.list_(pa.field("item", pa.string()))), ("v", pa.int64())]
    )

    def any_row(random: np.random.Generator) -> tuple[Any, ...]:
        choice = random.integers(2, size=3)
        return int(choice[0]), [None, {"x": 1}][choice[1]], [["a", None], []][choice[2]], 1

    changes = Changes.random(schema, any_row, seed=1, count=90)
    left = run_all_ways(partial(pipeline, sums("i", "e", "l", schema=schema), changes.table()), tmp_path)
    rows = Counter((row["i"], repr(row["e"]), repr(row["l"])) for row in changes.left().to_pylist())
    assert sorted(count for (*_, count, _, _, _) in left) == sorted(rows.values())


def test_more_retractions_than_rows_are_counted_and_leave_no_group(tmp_path: Path) -> None:
    changes = Changes.of(KEYED, ("-", ("a", 1)), ("+", ("a", 4)), ("+", ("b", 1)), ("-", ("b", 2)))
    for name, aggregation in (
        ("parts", sums("k")),
        ("whole", holistic("k", complete=("sum(v) AS s",), schema=KEYED)),
    ):
        result = run_in_process(pipeline(aggregation, changes.table()), tmp_path / name, epoch_rows=1)
        assert metric(result, "unmatched_retractions") == (1 if name == "parts" else 2)
        assert contents(result)[("a", 4) if name == "whole" else ("a", 1, 1, 4, 4.0)] == 1


@pytest.mark.parametrize(
    "aggregation", [holistic("k", complete=("median(v) AS m",), schema=KEYED), counted("k")]
)
def test_a_crash_at_any_step_changes_nothing(aggregation: Aggregation, tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=2, count=60)
    build = partial(pipeline, aggregation, changes.table())
    expected = contents(run_in_process(build(), tmp_path / "whole"))
    steps: list[str] = []
    run_in_process(
        build(),
        tmp_path / "steps",
        epoch_rows=30,
        on_step=lambda name, epoch: steps.append(name) if epoch else None,
    )
    for step in sorted(set(steps)):
        crashed = False

        def crash(name: str, epoch: int, *, at: str = step) -> None:
            nonlocal crashed
            if name == at and epoch == 2 and not crashed:
                crashed = True
                raise CrashError

        outputs = []
        with pytest.raises(CrashError):
            run_in_process(build(), tmp_path / step, epoch_rows=20, on_step=crash, max_epochs=3)
        outputs.append(run_in_process(build(), tmp_path / step, epoch_rows=20, parallelism=3))
        assert contents(*outputs) == expected, step


# ---------------------------------------------------------------------------------------------- nesting


def nested(rows: pa.Table) -> hr.Pipeline:
    """How many groups have each count: the updating result of an updating aggregate."""
    inner = sums("k")
    outer = Aggregation(
        UpdatingAggregate(inner, ttl=DAY).output,
        ("n",),
        complete=("count(*) AS groups", "max(k) AS greatest"),
    )
    p = hr.Pipeline("nested")
    first = p.source(hr.MemorySource(rows)).apply(PartialUpdatingAggregate(inner))
    counts = first.key_by("k").apply(UpdatingAggregate(inner, ttl=DAY))
    counts.key_by("n").apply(UpdatingAggregate(outer, ttl=DAY)).sink(hr.MemorySink("out"))
    return p


@pytest.mark.parametrize("seed", range(2))
def test_an_aggregate_of_updating_results_gives_the_batch_answer(seed: int, tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=seed, count=150)
    expected = answer(
        "SELECT n, count(*), max(k) FROM (SELECT k, count(*) AS n FROM t GROUP BY k) GROUP BY n",
        t=changes.left(),
    )
    assert run_all_ways(partial(nested, changes.table()), tmp_path) == expected


def test_parts_behind_an_updating_aggregate_are_signed_too(tmp_path: Path) -> None:
    changes = Changes.random(KEYED, INTEGERS, seed=4, count=100)
    inner = holistic("k", complete=("median(v) AS v",), schema=KEYED)
    schema = UpdatingAggregate(inner, ttl=DAY).output
    outer = Aggregation(
        schema,
        (),
        complete=("count(v) AS n",),
        partial=(f"sum(CASE WHEN v IS NULL THEN 0 ELSE {SIGN} END) AS p0",),
        merge=("sum(p0) AS p0",),
        final=("p0 AS n",),
    )

    def build() -> hr.Pipeline:
        p = hr.Pipeline("nested")
        medians = (
            p.source(hr.MemorySource(changes.table())).key_by("k").apply(UpdatingAggregate(inner, ttl=DAY))
        )
        parts = medians.apply(PartialUpdatingAggregate(outer))
        parts.key_by().apply(UpdatingAggregate(outer, ttl=DAY)).sink(hr.MemorySink("out"))
        return p

    expected = answer("SELECT count(v) FROM (SELECT k, median(v) AS v FROM t GROUP BY k)", t=changes.left())
    assert run_all_ways(build, tmp_path) == expected


# ---------------------------------------------------------------------------------------------- expiry


def without_noise(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.not_equal(batch.column("k"), "noise"))


def expiring(aggregation: Aggregation, *changes: tuple[str, tuple[Any, ...]]) -> hr.Pipeline:
    """A time to live of 10 s; rows with the key `noise` only let time pass."""
    p = hr.Pipeline("expiring")
    stream = p.source(hr.MemorySource(Changes.of(KEYED, *changes).table())).map(without_noise)
    if aggregation.in_parts:
        stream = stream.apply(PartialUpdatingAggregate(aggregation))
    aggregate = UpdatingAggregate(aggregation, ttl=timedelta(seconds=10))
    stream.key_by(*aggregation.keys).apply(aggregate).sink(hr.MemorySink("out"))
    return p


BOTH = pytest.mark.parametrize(
    "aggregation", [sums("k"), holistic("k", complete=("sum(v) AS s",), schema=KEYED)]
)
TICK = ("+", ("noise", 0))


@BOTH
def test_a_group_that_nothing_is_appended_to_expires_and_is_retracted(
    aggregation: Aggregation, tmp_path: Path
) -> None:
    epochs = run_by_the_clock(
        expiring(aggregation, ("+", ("a", 1)), TICK, TICK, TICK, ("+", ("a", 5))), tmp_path, step=4
    )
    assert [signs(rows, "k", "s") for rows in epochs] == [
        [("+", "a", 1)],
        [],
        [],
        [("-", "a", 1)],
        [("+", "a", 5)],
    ]


@BOTH
def test_an_append_keeps_a_group_alive_and_a_retraction_does_not(
    aggregation: Aggregation, tmp_path: Path
) -> None:
    appended = expiring(aggregation, ("+", ("a", 1)), ("+", ("a", 2)), TICK, TICK)
    epochs = run_by_the_clock(appended, tmp_path / "1", step=6)
    assert [signs(rows, "s") for rows in epochs] == [[("+", 1)], [("-", 1), ("+", 3)], [], [("-", 3)]]
    both = ("+", ("a", 1)), ("+", ("a", 2)), TICK
    retracted = expiring(aggregation, *both, ("-", ("a", 2)), TICK, TICK)
    epochs = run_by_the_clock(retracted, tmp_path / "2", step=4)
    assert [signs(rows, "s") for rows in epochs] == [
        [("+", 1)],
        [("-", 1), ("+", 3)],
        [],
        [("-", 3), ("+", 1)],
        [("-", 1)],
        [],
    ]


@BOTH
def test_rows_for_an_expired_group_start_it_anew(aggregation: Aggregation, tmp_path: Path) -> None:
    """Between two looks at all groups the clock decides all the same."""
    aggregate = UpdatingAggregate(aggregation, ttl=timedelta(seconds=10))
    assert aggregate.tick_interval == timedelta(seconds=1)
    epochs = run_by_the_clock(
        expiring(aggregation, ("+", ("a", 1)), ("+", ("a", 5)), ("-", ("a", 1))), tmp_path, step=11
    )
    assert [signs(rows, "s") for rows in epochs] == [[("+", 1)], [("-", 1), ("+", 5)], [("-", 5)]]


def test_values_of_a_group_go_with_it(tmp_path: Path) -> None:
    anew = ("+", ("a", 1)), ("+", ("a", 2)), TICK, TICK, TICK, ("+", ("a", 1))
    epochs = run_by_the_clock(expiring(counted("k"), *anew), tmp_path / "looked", step=4)
    assert [signs(rows, "s") for rows in epochs] == [
        [("+", 1)],
        [("-", 1), ("+", 2)],
        [],
        [],
        [("-", 2)],
        [("+", 1)],
    ]
    epochs = run_by_the_clock(
        expiring(counted("k"), ("+", ("a", 1)), ("+", ("a", 2)), ("+", ("a", 3))), tmp_path / "came", step=11
    )
    assert [signs(rows, "s", "t") for rows in epochs] == [[("+", 1, 0)], [("-", 1, 0), ("+", 1, 1)], []]


def test_values_of_a_group_without_rows_are_forgotten(tmp_path: Path) -> None:
    """A retraction of what was never there takes a row away, and leaves values without a group."""
    changes = Changes.of(KEYED, ("+", ("a", 1)), ("-", ("a", 7)), ("+", ("a", 2)))
    result = run_in_process(pipeline(counted("k"), changes.table()), tmp_path, epoch_rows=1)
    assert metric(result, "unmatched_retractions") == 2
    assert contents(result) == Counter([("a", 1, 1, 1)])


def test_sql_counts_distinct_values_in_parts_unless_they_are_floats() -> None:
    table = """CREATE TABLE t (k BIGINT, v BIGINT, f DOUBLE, at TIMESTAMP NOT NULL, WATERMARK FOR at)
        WITH (connector = 'single_file', path = 't.json');
        SELECT k, count(DISTINCT {value}) AS n, sum(v) AS s FROM t GROUP BY k;"""

    def tables(value: str) -> list[str]:
        made = hr.Pipeline.from_sql(table.format(value=value), preview=lambda _: ("blackhole", {}))
        return [one.name for node in made.plan().nodes for one in node.tables]

    assert tables("v") == tables("1") == tables("lower(CAST(v AS TEXT))") == ["groups", "values0"]
    assert tables("f") == ["groups", "rows"]


def test_a_group_is_looked_for_again_after_a_restart_elsewhere(tmp_path: Path) -> None:
    epochs = run_by_the_clock(
        expiring(sums("k"), ("+", ("a", 1)), ("+", ("b", 1)), TICK, TICK), tmp_path, step=6, parallelism=3
    )
    assert [signs(rows, "k", "n") for rows in epochs] == [
        [("+", "a", 1)],
        [("+", "b", 1)],
        [("-", "a", 1)],
        [("-", "b", 1)],
    ]


def test_a_time_to_live_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="greater than zero"):
        UpdatingAggregate(sums("k"), ttl=timedelta(0))


def test_a_name_that_is_used_twice_is_refused() -> None:
    with pytest.raises(PlanError, match="`k` names more than one column"):
        UpdatingAggregate(holistic("k", complete=("max(v) AS k",), schema=KEYED), ttl=DAY)


def test_rows_and_results_of_a_type_that_cannot_be_compared_are_refused() -> None:
    schema = KEYED.append(pa.field("wait", pa.map_(pa.string(), pa.int64())))
    with pytest.raises(PlanError, match="`wait` of an aggregated stream"):
        UpdatingAggregate(holistic("k", complete=("max(v) AS m",), schema=schema), ttl=DAY)
    with pytest.raises(PlanError, match="`m` of the result"):
        UpdatingAggregate(holistic("k", complete=("map(['a'], [max(v)]) AS m",), schema=KEYED), ttl=DAY)
