"""Top-N of rows that are never taken back: at the end of any run the output holds the batch answer."""

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
from headrace.operators.top_n import PartialTopN, Ranking, TopN
from headrace.testing.in_process import CrashError, ManualClock, run_in_process
from tests.unit.operators.updates import (
    Changes,
    answer,
    contents,
    run_all_ways,
    run_by_the_clock,
    signs,
    stream_schema,
)

SCORES = pa.schema([("team", pa.string()), ("player", pa.float64()), ("score", pa.int64())])
ORDER = '"score" DESC NULLS LAST, "player", "team"'
TEN_SECONDS = timedelta(seconds=10)


def score(random: np.random.Generator) -> tuple[Any, ...]:
    teams = ["red", "blue", "", None]
    players = [1.0, 2.0, float("nan"), None]
    points = [*range(6), None]
    return (
        teams[int(random.integers(len(teams)))],
        players[int(random.integers(len(players)))],
        points[int(random.integers(len(points)))],
    )


def pipeline(
    rows: pa.Table,
    *,
    keys: tuple[str, ...] = ("team",),
    count: int = 2,
    columns: tuple[str, ...] = ("team", "player", "score", "place"),
    partial_first: bool = True,
    ttl: timedelta = timedelta(days=1),
) -> hr.Pipeline:
    ranking = Ranking(stream_schema(SCORES, updating=False), keys, ORDER, count)
    p = hr.Pipeline("top")
    stream = p.source(hr.MemorySource(rows)).map(without_noise)
    if partial_first:
        stream = stream.apply(PartialTopN(ranking))
    top = TopN(ranking, [*columns, "_timestamp"], number="place", ttl=ttl)
    stream.key_by(*keys).apply(top).sink(hr.MemorySink("out"))
    return p


def without_noise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the team `noise` only let time pass."""
    return batch.filter(pc.not_equal(batch.column("team"), "noise").fill_null(True))


@pytest.mark.parametrize("keys", [("team",), ("player",), ("team", "player"), ()])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("partial_first", [True, False])
def test_the_first_rows_are_those_of_the_batch_answer(
    keys: tuple[str, ...], count: int, partial_first: bool, tmp_path: Path
) -> None:
    changes = Changes.random(SCORES, score, seed=count, count=150, retracts=0)
    over = f"PARTITION BY {', '.join(keys)} " if keys else ""
    expected = answer(
        "SELECT team, player, score, row_number() OVER w AS place FROM t WINDOW w AS"
        f" ({over}ORDER BY score DESC NULLS LAST, player, team) QUALIFY place <= {count}",
        t=changes.left(),
    )
    build = partial(
        pipeline, changes.table(updating=False), keys=keys, count=count, partial_first=partial_first
    )
    assert run_all_ways(build, tmp_path) == expected


def test_numbers_that_are_not_shown_change_nothing(tmp_path: Path) -> None:
    changes = Changes.of(SCORES, *[("+", ("red", 1.0, points)) for points in (5, 9, 7, 8, 1)])
    run = partial(run_in_process, epoch_rows=1)
    hidden = pipeline(changes.table(updating=False), columns=("score",))
    assert signs(run(hidden, tmp_path / "hidden").rows["out"].to_pylist(), "score") == [
        ("+", 5),
        ("+", 9),
        ("-", 5),
        ("+", 7),
        ("-", 7),
        ("+", 8),
    ]
    shown = pipeline(changes.table(updating=False), columns=("score", "place"))
    assert signs(run(shown, tmp_path / "shown").rows["out"].to_pylist(), "score", "place") == [
        ("+", 5, 1),
        ("-", 5, 1),
        ("+", 9, 1),
        ("+", 5, 2),
        ("-", 5, 2),
        ("+", 7, 2),
        ("-", 7, 2),
        ("+", 8, 2),
    ]


def test_a_row_that_is_replaced_by_one_that_shows_the_same_is_no_change(tmp_path: Path) -> None:
    changes = Changes.of(SCORES, *[("+", ("red", 1.0, points)) for points in (5, 9)])
    same = pipeline(changes.table(updating=False), count=1, columns=("team", "player"))
    assert run_in_process(same, tmp_path, epoch_rows=1).rows_out == 1


def test_equal_rows_have_places_of_their_own(tmp_path: Path) -> None:
    changes = Changes.of(SCORES, *[("+", ("red", 1.0, 5))] * 3, ("+", ("red", 1.0, 4)))
    expected = Counter([("red", 1.0, 5, 1), ("red", 1.0, 5, 2)])
    assert run_all_ways(partial(pipeline, changes.table(updating=False)), tmp_path) == expected


def test_the_state_is_as_small_as_the_result(tmp_path: Path) -> None:
    changes = Changes.random(SCORES, score, seed=2, count=600, retracts=0)
    sizes: list[int] = []
    run_in_process(
        pipeline(changes.table(updating=False)),
        tmp_path,
        parallelism=1,
        epoch_rows=50,
        options=hr.RunOptions(compact_after=2),
        on_progress=lambda progress: sizes.append(progress.state_rows),
    )
    assert max(sizes) <= 2 * 4 * 2


def test_a_crash_at_any_step_changes_nothing(tmp_path: Path) -> None:
    changes = Changes.random(SCORES, score, seed=4, count=60, retracts=0)
    build = partial(pipeline, changes.table(updating=False))
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

        with pytest.raises(CrashError):
            run_in_process(build(), tmp_path / step, epoch_rows=20, on_step=crash, max_epochs=3)
        again = run_in_process(build(), tmp_path / step, epoch_rows=20, parallelism=3)
        assert contents(again) == expected, step


def expiring(*scores: int | None) -> hr.Pipeline:
    """Rows of one team that live for 10 s; None lets time pass."""
    rows = [("+", ("noise", 0.0, 0) if one is None else ("red", 1.0, one)) for one in scores]
    table = Changes.of(SCORES, *rows).table(updating=False)
    return pipeline(table, columns=("score", "place"), ttl=TEN_SECONDS)


def test_each_row_expires_by_itself_and_others_move_up(tmp_path: Path) -> None:
    epochs = run_by_the_clock(expiring(9, 5, 1, None, None, 7), tmp_path, step=4)
    assert [signs(rows, "score", "place") for rows in epochs] == [
        [("+", 9, 1)],
        [("+", 5, 2)],
        [],
        [("-", 9, 1), ("-", 5, 2), ("+", 5, 1)],
        [("-", 5, 1)],
        [("+", 7, 1)],
    ]


def test_a_row_finds_a_place_beside_those_that_expired(tmp_path: Path) -> None:
    epochs = run_by_the_clock(expiring(9, None, None, 5, None, 8, 7), tmp_path, step=3)
    assert [signs(rows, "score", "place") for rows in epochs] == [
        [("+", 9, 1)],
        [],
        [],
        [("+", 5, 2)],
        [("-", 9, 1), ("-", 5, 2), ("+", 5, 1)],
        [("-", 5, 1), ("+", 8, 1), ("+", 5, 2)],
        [("-", 5, 2), ("+", 7, 2)],
    ]


def test_expired_rows_are_gone_from_state_when_it_is_compacted(tmp_path: Path) -> None:
    clock, sizes = ManualClock(), []

    def pass_time(progress: hr.Progress) -> None:
        sizes.append(progress.state_rows)
        clock.advance(4)

    scores = (3, 2, 1, *[None] * 5)
    run_in_process(
        expiring(*scores),
        tmp_path,
        epoch_rows=1,
        clock=clock,
        on_progress=pass_time,
        options=hr.RunOptions(compact_after=2),
    )
    assert max(sizes) <= 3
    assert sizes[-1] == 0


def test_sql_keeps_the_first_rows_of_append_only_rows_alone() -> None:
    table = """CREATE TABLE t (k BIGINT, v BIGINT, at TIMESTAMP NOT NULL, WATERMARK FOR at)
        WITH (connector = 'single_file', path = 't.json');
        SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM {rows})
        WHERE n <= 3;"""

    def displays(rows: str) -> list[str]:
        made = hr.Pipeline.from_sql(table.format(rows=rows), preview=lambda _: ("blackhole", {}))
        return [node.display for node in made.plan().nodes]

    assert any(one.startswith("partial top 3") for one in displays("t"))
    assert any(one.startswith("top 3") for one in displays("t"))
    assert not any("top 3" in one for one in displays("(SELECT k, max(v) AS v FROM t GROUP BY k)"))


def test_rows_that_differ_only_in_a_list_are_in_one_order_however_they_come() -> None:
    schema = stream_schema(pa.schema([("k", pa.int64()), ("items", pa.list_(pa.int64()))]), updating=False)
    ranking = Ranking(schema, ("k",), '"k"', 3)
    rows = pa.Table.from_pylist([{"k": n % 2, "items": [n], "_timestamp": 0} for n in range(200)], schema)
    found = []
    for seed in range(3):
        shuffled = rows.take(np.random.default_rng(seed).permutation(rows.num_rows))
        found.append(shuffled.take(ranking.arrange(shuffled)[0]).to_pylist())
    assert found[0] == found[1] == found[2]
