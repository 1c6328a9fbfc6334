"""A steady epoch does the work that the committed baseline says, no more and no less."""

from __future__ import annotations

from pathlib import Path

from tests.spark.work_counts import (
    SHUFFLED,
    Difference,
    compare,
    count_work,
    read_baseline,
    report,
)


def test_a_steady_epoch_does_the_work_of_the_baseline(tmp_path: Path) -> None:
    differences = compare(read_baseline(), count_work(tmp_path))
    assert not differences, report(differences)


def test_counts_are_compared_exactly_and_bytes_within_their_tolerance() -> None:
    baseline = {"tumble": {"jobs": 3, SHUFFLED: 1000}}
    assert compare(baseline, {"tumble": {"jobs": 3, SHUFFLED: 1020}}) == []
    assert compare(baseline, {"tumble": {"jobs": 4, SHUFFLED: 979}}) == [
        Difference("tumble", "jobs", 3, 4),
        Difference("tumble", SHUFFLED, 1000, 979),
    ]


def test_a_pipeline_or_count_of_one_side_only_is_a_difference() -> None:
    baseline = {"hop": {"jobs": 3}, "tumble": {"jobs": 3}}
    found = {"tumble": {"jobs": 3, "tasks": 12}}
    assert compare(baseline, found) == [
        Difference("hop", "jobs", 3, None),
        Difference("tumble", "tasks", None, 12),
    ]


def test_a_difference_says_what_it_means_and_how_to_accept_it() -> None:
    shown = report([Difference("hop", "jobs", 3, 6), Difference("tumble", "tasks", 18, 12)]).splitlines()
    assert shown[1:4] == [
        "  pipeline  count  baseline  found",
        "  hop       jobs          3      6  more work",
        "  tumble    tasks        18     12  better than the baseline: write it anew",
    ]
    assert "python -m tests.spark.work_counts --write" in shown[4]
