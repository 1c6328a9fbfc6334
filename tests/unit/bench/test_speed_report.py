"""What the benchmark makes of its runs: which batches count, ratios, tables and goals."""

from __future__ import annotations

import pytest

from bench.nexmark.chart import chart
from bench.nexmark.goals import Goal, goals_table
from bench.nexmark.report import batch_table, best_spark, of, peers_table, ratio, short_table, table
from bench.nexmark.runs import Run
from bench.nexmark.series import series


def made(
    engine: str, *seconds: float, query: str = "q1", failure: str = "", memory: int = 10, events: int = 6
) -> Run:
    return Run(
        engine, query, events, tuple((6, one) for one in seconds), sum(seconds), memory, failure=failure
    )


def test_the_first_third_of_the_batches_does_not_count() -> None:
    run = made("spark", 100, 90, 2, 1, 3)
    assert [seconds for _, seconds in run.steady] == [2, 1, 3]
    assert run.rate == 3.0
    assert run.batch_seconds == 2


def test_a_batch_without_events_counts_its_time() -> None:
    run = Run("spark", "q5", 12, ((6, 9.0), (6, 1.0), (0, 1.0)), 11.0, 10)
    assert run.rate == 3.0


def test_a_run_that_was_not_done_counts_with_two_warm_batches() -> None:
    assert made("spark", 9, 1, 1, failure="not done in 240 s").counts
    assert not made("spark", 9, 1, failure="not done in 240 s").counts
    assert not made("spark", failure="not done in 240 s").counts
    assert made("spark", 9, 1).counts


def test_the_faster_state_store_is_compared() -> None:
    runs = [made("headrace", 9, 1), made("spark", 9, 4), made("spark rocksdb", 9, 3)]
    assert best_spark(runs, "q1") == [runs[2]]
    assert ratio(of(runs, "q1", "headrace"), best_spark(runs, "q1")) == pytest.approx(3)
    assert ratio([], runs) is None


def test_the_table_says_what_was_not_done() -> None:
    runs = [made("headrace", 9, 1, 1), made("spark", 9, 5, 5, failure="not done in 240 s")]
    row = table(runs).splitlines()[2]
    assert "not done in 240 s" in row
    assert "> 5.00×" in row
    assert "&gt; 5.00×" in chart(runs)
    nothing = [runs[0], made("spark", failure="not done in 240 s")]
    assert "| not done in 240 s | – |" in table(nothing)


def test_peers_have_a_column_each() -> None:
    runs = [made("headrace", 9, 1), made("bytewax", 9, 3), made("pathway", failure="not done in 240 s")]
    assert "| 3.00× | not done in 240 s | – |" in peers_table(runs)


def test_the_short_table_has_ratios_alone() -> None:
    runs = [made("headrace", 9, 1), made("spark", 9, 6), made("datafusion", 9, 2)]
    beside = [made("headrace", 9, 2), made("bytewax", 9, 8)]
    assert short_table(runs, beside).splitlines() == [
        "| Headrace against | Structured Streaming | DataFusion, all at once | Bytewax |",
        "|---|---|---|---|",
        "| q1 | 6.00× | 2.00× | 4.00× |",
    ]


def test_datafusion_is_compared_in_epochs_of_any_size() -> None:
    runs = [
        Run("headrace", "q8", 60, ((2, 9.0), (8, 1.0), (24, 2.0), (26, 2.0)), 14.0, 10),
        made("datafusion", 9, 1, query="q8"),
    ]
    assert batch_table(runs).splitlines()[2] == "| q8 | 0 k | 0 k | 1.93× | 24 | 2.00 s |"
    rows = goals_table([], runs, [], [], {}).splitlines()
    assert any("heavy" in row and "1.93× (q8) | reached" in row for row in rows)


def test_a_goal_is_reached_not_reached_or_not_measured() -> None:
    assert Goal("as fast", 5, figure=5.0).reached
    assert Goal("as late", most=0.7, figure=0.8).reached is False
    assert Goal("as late", most=0.7).reached is None
    runs = [made("headrace", 9, 1), made("spark", 9, 6)]
    rows = goals_table(runs, [], [], [], {"startup": 1.0}).splitlines()
    assert [row.split(" | ")[-1] for row in rows[2:4]] == ["reached |", "reached |"]
    assert sum("not measured" in row for row in rows) == 8


def test_growth_is_compared_with_its_first_step() -> None:
    runs = [made("headrace", 9, 1, events=6), made("headrace", 9, 2, events=24, memory=15)]
    (input_series,) = series(runs)
    assert input_series.kind == "input"
    assert [(step.cost, step.memory) for step in input_series.steps] == [(1.0, 1.0), (2.0, 1.5)]
