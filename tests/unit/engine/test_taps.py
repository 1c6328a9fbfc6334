"""Taps: rows that an operator sends on are looked at while the pipeline runs, and nothing else changes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.memory import take_collected
from headrace.engine.driver import EpochDriver
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.rescaling import Rescaling
from headrace.engine.stages import StagePlan, cut_stages
from headrace.engine.taps import KEPT_SECONDS, MOST_TAPS, Tap, Taps, TapSample, read_sample
from headrace.exchanges.local import LocalExchange
from headrace.jobs.tapping import look_at_rows
from headrace.sql.condition import filter_query
from headrace.storage.open import open_storage
from tests import flows

Rows = list[dict[str, Any]]


def batch(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(first, last))})


def sampled(tap: Tap, *batches: pa.RecordBatch, output: str = "") -> tuple[int, int, str, Rows]:
    """What is seen, what matches, the problem and the rows, as the driver gets them."""
    sample = TapSample(tap, 0)
    for one in batches:
        sample.take(one, output)
    read = read_sample([tap], json.loads(json.dumps(sample.report())))
    return read.seen, read.matched, read.problem, [row for table in read.tables for row in table.to_pylist()]


def test_few_rows_are_all_in_the_sample_in_their_order() -> None:
    seen, matched, problem, rows = sampled(Tap("a", rows=10), batch(0, 3), batch(3, 7))
    assert (seen, matched, problem) == (7, 7, "")
    assert [row["n"] for row in rows] == list(range(7))


def test_of_many_rows_each_has_the_same_chance() -> None:
    counts: Counter[int] = Counter()
    for _ in range(400):
        *_, rows = sampled(Tap("a", rows=10), *(batch(10 * part, 10 * part + 10) for part in range(10)))
        assert len(rows) == 10
        counts.update(row["n"] for row in rows)
    assert sorted(counts) == list(range(100))
    assert all(10 < count < 90 for count in counts.values()), counts  # 40 are expected, give or take six


def test_a_filter_leaves_out_rows_before_they_are_sampled() -> None:
    tap = Tap("a", query=filter_query("n % 50 = 3 OR n = 7"), rows=10)
    assert sampled(tap, batch(0, 100), batch(100, 200)) == (
        200,
        5,
        "",
        [{"n": n} for n in (3, 7, 53, 103, 153)],
    )


def test_only_the_output_that_is_looked_at_is_sampled() -> None:
    assert sampled(Tap("a"), batch(0, 5), output="late") == (0, 0, "", [])
    assert len(sampled(Tap("a", "late"), batch(0, 5), output="late")[3]) == 5


def test_rows_of_one_output_may_have_different_columns() -> None:
    other = pa.RecordBatch.from_pydict({"name": ["x"]})
    assert sampled(Tap("a"), batch(0, 1), other)[3] == [{"n": 0}, {"name": "x"}]


def test_a_filter_that_does_not_fit_the_rows_says_so_and_counts_on() -> None:
    seen, matched, problem, rows = sampled(Tap("a", query=filter_query("m > 1")), batch(0, 5), batch(5, 9))
    assert (seen, matched, rows) == (9, 0, [])
    assert problem == "the rows have no column `m`; they have n"
    assert "division by zero" in sampled(Tap("a", query=filter_query("1 / n > 0")), batch(0, 5))[2]


def test_rows_that_are_too_large_for_a_sample_are_left_out_with_a_word() -> None:
    large = pa.RecordBatch.from_pydict({"text": ["x" * 300_000] * 8})
    seen, matched, problem, rows = sampled(Tap("a", rows=8), large)
    assert (seen, matched, len(rows)) == (8, 8, 2)
    assert "too large" in problem


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "n >",
        "n > 1; SELECT 1",
        "n > 1 UNION SELECT n FROM input",
        "n > 1 GROUP BY n",
        "n > 1 ORDER BY n",
        "n > 1 LIMIT 1",
        "n IN (SELECT n FROM input)",
        "EXISTS (SELECT 1 FROM input)",
        "count(*) > 1",
        "row_number() OVER (ORDER BY n) = 1",
        "n = (SELECT max(n) FROM input)",
    ],
)
def test_what_is_no_condition_on_one_row_is_refused(condition: str) -> None:
    with pytest.raises(hr.UserError):
        filter_query(condition)


def test_a_tap_that_nobody_looks_at_is_taken_away() -> None:
    clock = [0.0]
    taps = Taps(now=lambda: clock[0])
    taps.look(Tap("a"), 0)
    clock[0] = KEPT_SECONDS - 1
    assert taps.wanted() == (Tap("a"),)
    taps.look(Tap("a"), 0)
    clock[0] += KEPT_SECONDS - 1
    assert taps.wanted() == (Tap("a"),)
    clock[0] += 1
    assert taps.wanted() == ()


def test_there_is_an_end_to_how_many_look() -> None:
    taps = Taps()
    for number in range(MOST_TAPS):
        taps.look(Tap(f"a{number}"), 0)
    taps.look(Tap("a1"), 0)
    with pytest.raises(hr.UserError, match="looked at already"):
        taps.look(Tap("another"), 0)


class _Recorded(LocalExchange):
    def __init__(self) -> None:
        super().__init__()
        self.used: list[tuple[int, int]] = []

    def use(self, stages: StagePlan) -> None:
        self.used.append((stages.parallelism, len(stages.taps)))
        super().use(stages)


def _pipeline() -> hr.Pipeline:
    pipeline = hr.Pipeline("counting")
    rows = pipeline.source(flows.impulse(160), id="numbers").map(flows.keyed(7), id="keyed")
    rows.key_by("k").apply(flows.RunningCount(), id="count").sink(hr.MemorySink("out"), id="out")
    return pipeline


def test_while_someone_looks_the_rows_of_each_epoch_are_shown_also_after_a_rescale(tmp_path: Path) -> None:
    plan = _pipeline().plan()
    driver = EpochDriver(cut_stages(plan, parallelism=2), open_storage(str(tmp_path)))
    driver.open()
    clock, rescaling, exchange = [0.0], Rescaling(2), _Recorded()
    taps = Taps(now=lambda: clock[0])
    seen: dict[str, list[dict[str, Any]]] = {"numbers": [], "count": [], "filtered": []}

    def look(name: str, operator: str, where: str = "") -> None:
        after = seen[name][-1]["number"] if seen[name] else 0
        seen[name] += look_at_rows(taps, plan, operator, target=None, where=where, after=after)

    def on_epoch(report: EpochReport) -> bool:
        if report.epoch == 4:
            rescaling.request(3)
        if 2 <= report.epoch < 6:
            look("numbers", "numbers")
            look("count", "count")
            look("filtered", "numbers", "counter % 10 = 0")
        elif report.epoch == 6:
            clock[0] += KEPT_SECONDS  # nobody looks any more
        return report.finished

    EpochLoop(
        driver,
        exchange,
        size=EpochSize(target=0.5, most=20),
        on_epoch=on_epoch,
        stop=threading.Event(),
        restarts=0,
        taps=taps,
        rescaling=rescaling,
    ).run()
    assert exchange.used == [(2, 0), (2, 3), (3, 3), (3, 0)]
    epochs = [shown["epoch"] for shown in seen["numbers"]]
    assert epochs == sorted(epochs)
    assert set(epochs) <= {3, 4, 5, 6}
    assert len(epochs) >= 2
    for shown in seen["numbers"]:
        rows = json.loads(shown["batch"])
        assert (shown["seen"], shown["matched"], shown["problem"]) == (20, 20, "")
        first = 20 * (shown["epoch"] - 1)
        assert sorted(row["counter"] for row in rows) == list(range(first, first + 20))
        assert len(shown["timestamps"]) == 20
    for shown in seen["count"]:
        assert all(row["n"] == row["counter"] // 7 + 1 for row in json.loads(shown["batch"]))
    for shown in seen["filtered"]:
        assert (shown["seen"], shown["matched"]) == (20, 2)
        assert all(row["counter"] % 10 == 0 for row in json.loads(shown["batch"]))
    assert driver.job is not None
    table = take_collected(driver.job.job_id)["out"]
    assert sorted(table["counter"].to_pylist()) == list(range(160))


def test_an_edge_that_is_not_there_is_told_with_those_that_are() -> None:
    plan, taps = _pipeline().plan(), Taps()
    with pytest.raises(hr.UserError, match="no operator `cuont`"):
        look_at_rows(taps, plan, "cuont", target=None, where="", after=0)
    with pytest.raises(hr.UserError, match="`numbers` sends nothing to `out`"):
        look_at_rows(taps, plan, "numbers", target="out", where="", after=0)
    with pytest.raises(hr.UserError, match="`out` sends nothing"):
        look_at_rows(taps, plan, "out", target=None, where="", after=0)
    assert look_at_rows(taps, plan, "keyed", target="count", where=" ", after=0) == []
    assert taps.wanted() == (Tap("keyed"),)
