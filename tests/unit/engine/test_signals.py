"""Watermarks over lanes and stages, idle inputs, ticks, and how runs end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.watermarks import END_OF_TIME, Watermark, WatermarkHolder
from headrace.engine.task import merge_lanes
from headrace.testing.in_process import ManualClock, run_in_process
from tests.flows import SECOND, T0


class Recorder(hr.ArrowOperator):
    """Emits a row for every signal it gets."""

    def __init__(self, tick: timedelta | None = None) -> None:
        self.tick_interval = tick

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        emit(collector, ctx, "rows", batch.num_rows)

    def handle_watermark(
        self, watermark: Watermark, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> Watermark | None:
        emit(collector, ctx, str(watermark), 0)
        return watermark

    def handle_tick(self, n: int, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        emit(collector, ctx, "tick", n)

    def on_close(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if final:
            emit(collector, ctx, "close", 0)


def emit(collector: hr.Collector, ctx: hr.OperatorContext, what: str, n: int) -> None:
    if ctx.task_info.subtask == 0:
        collector.collect(pa.record_batch({"epoch": [ctx.task_info.epoch], "what": [what], "n": [n]}))


def recorded(result: hr.RunResult) -> list[tuple[int, str, int]]:
    table = result.rows["out"]
    return list(zip(*(table[name].to_pylist() for name in ("epoch", "what", "n")), strict=True))


def rows(*seconds: int) -> pa.Table:
    return pa.table(
        {"_timestamp": pa.array([T0 + s * SECOND for s in seconds], pa.int64()).cast(pa.timestamp("ns"))}
    )


def at(seconds: int) -> str:
    return str(Watermark(T0 + seconds * SECOND))


def test_the_watermark_of_a_source_is_the_minimum_over_its_lanes(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    source = hr.MemorySource(lanes=[rows(0, 10, 20, 30), rows(0, 1, 2, 3)])
    pipeline.source(source).watermark().key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    seen = recorded(run_in_process(pipeline, tmp_path, parallelism=2, epoch_rows=2))
    marks = [(epoch, what) for epoch, what, _ in seen if what not in {"rows", "close"}]
    assert marks == [(1, at(0)), (2, at(1)), (3, at(2)), (4, str(END_OF_TIME))]


def test_a_lane_keeps_its_watermark_over_epochs_and_restarts_without_rows_of_its_own(tmp_path: Path) -> None:
    def build() -> hr.Pipeline:
        pipeline = hr.Pipeline()
        source = hr.MemorySource(lanes=[rows(*range(0, 60, 10)), rows(25, 100)])
        pipeline.source(source).watermark().key_by().apply(Recorder()).sink(hr.MemorySink("out"))
        return pipeline

    # The second lane has two rows: once it is read to its end, it stands at 100.
    first = recorded(run_in_process(build(), tmp_path, epoch_rows=2, max_epochs=2))
    second = recorded(run_in_process(build(), tmp_path, epoch_rows=2, parallelism=3))
    marks = [what for _, what, _ in [*first, *second] if what not in {"rows", "close"}]
    assert marks == [at(0), at(10), at(30), str(END_OF_TIME)]


def test_two_sources_hold_each_other_back_until_one_ends(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    slow = pipeline.source(hr.MemorySource(rows(0, 1)), id="slow").watermark()
    fast = pipeline.source(hr.MemorySource(rows(50, 60, 70, 80)), id="fast").watermark()
    slow.union(fast).key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    seen = recorded(run_in_process(pipeline, tmp_path, epoch_rows=2))
    marks = [what for _, what, _ in seen if what not in {"rows", "close"}]
    assert marks == [at(0), at(60), str(END_OF_TIME)]


def test_without_a_watermark_operators_hear_of_time_only_at_the_end(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(hr.MemorySource(rows(0, 1, 2))).key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    seen = recorded(run_in_process(pipeline, tmp_path, epoch_rows=1))
    assert [what for _, what, _ in seen if what != "rows"] == [str(END_OF_TIME), "close"]


class Feed(hr.SourceOperator):
    """Two lanes: one gets a row in every epoch, the other only in the first."""

    def __init__(self, idle: timedelta | None, end: hr.Finish = hr.Finish.GRACEFUL) -> None:
        self.idle_timeout = idle
        self.end = end

    def initial_offset(self, *, time: float) -> hr.Offset:
        return {"busy": 0, "quiet": 0}

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        return {"busy": start["busy"] + 1, "quiet": 1}

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> Sequence[hr.Split]:
        return [hr.Split(lane, {"n": start[lane]}) for lane in ("busy", "quiet") if start[lane] != end[lane]]

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        n: Any = ctx.split.detail["n"]
        for batch in rows(int(n) * 10).to_batches():
            collector.collect(batch)
        return self.end if n >= 3 else hr.Finish.GRACEFUL


def test_an_idle_lane_does_not_hold_the_watermark_back(tmp_path: Path) -> None:
    def build(idle: timedelta | None) -> hr.Pipeline:
        pipeline = hr.Pipeline()
        pipeline.source(Feed(idle)).watermark().key_by().apply(Recorder()).sink(hr.MemorySink("out"))
        return pipeline

    clock = ManualClock()

    def pass_time(_progress: hr.Progress) -> None:
        clock.advance(1.0)

    held = run_in_process(build(None), tmp_path / "held", max_epochs=5, clock=clock, on_progress=pass_time)
    assert {what for _, what, _ in recorded(held) if what != "rows"} == {at(0)}
    free = run_in_process(
        build(timedelta(seconds=2)), tmp_path / "free", max_epochs=5, clock=clock, on_progress=pass_time
    )
    marks = [what for _, what, _ in recorded(free) if what != "rows"]
    assert marks == [at(0), at(0), at(20), at(30), at(40)]


def test_a_watermark_does_not_go_back_when_an_idle_lane_wakes() -> None:
    holder_lanes = {"s/a": Watermark(50), "s/b": Watermark(5)}
    signals = {"signals": {"lanes": {"s": ["a", "b"]}, "idle": {"s": ["b"]}, "ended": []}}
    assert merge_lanes(holder_lanes, [signals], sources=frozenset({"s"})) == Watermark(50)
    awake = {"lane": "s/b", "watermark": 6, "final": False}
    merged = merge_lanes(holder_lanes, [signals, awake], sources=frozenset({"s"}))
    assert merged == Watermark(6)  # the lane says 6; the operator's holder keeps 50

    holder = WatermarkHolder(1, last_present=50)
    assert holder.set(0, Watermark(6)) == Watermark(50)


def test_a_source_that_says_final_ends_the_run_and_closes_everything(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(Feed(None, hr.Finish.FINAL)).watermark().key_by().apply(Recorder()).sink(
        hr.MemorySink("out")
    )
    result = run_in_process(pipeline, tmp_path)
    assert (result.reason, result.epochs) == ("finished", 4)
    assert recorded(result)[-2:] == [(4, str(END_OF_TIME), 0), (4, "close", 0)]


def test_a_source_that_says_immediate_ends_the_run_and_commits_nothing_of_the_epoch(tmp_path: Path) -> None:
    def build(end: hr.Finish) -> hr.Pipeline:
        pipeline = hr.Pipeline()
        pipeline.source(Feed(None, end)).sink(hr.MemorySink("out"))
        return pipeline

    result = run_in_process(build(hr.Finish.IMMEDIATE), tmp_path)
    assert (result.reason, result.epochs, result.last_epoch) == ("immediate", 3, 3)
    assert result.rows["out"].num_rows == 4
    again = run_in_process(build(hr.Finish.FINAL), tmp_path)
    assert (again.first_epoch, again.reason) == (4, "finished")


def test_ticks_come_without_rows_and_missed_ones_are_skipped(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    source = hr.ImpulseSource(event_rate=0.001, start_time=T0)
    recorder = Recorder(timedelta(seconds=1))
    pipeline.source(source).apply(recorder).sink(hr.MemorySink("out"))
    clock = ManualClock()
    steps = iter([1.0, 1.0, 3.5, 1.0])

    def pass_time(_progress: hr.Progress) -> None:
        clock.advance(next(steps, 1.0))

    result = run_in_process(pipeline, tmp_path, max_epochs=5, clock=clock, on_progress=pass_time)
    ticks = [n for _, what, n in recorded(result) if what == "tick"]
    assert ticks == [0, 1, 2, 5, 6]


class Shift(hr.ArrowOperator):
    """Lets the watermark through ten seconds late, and holds it back while it is early."""

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)

    def handle_watermark(
        self, watermark: Watermark, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> Watermark | None:
        if watermark.time is None or watermark.is_end:
            return watermark
        time = watermark.time - 10 * SECOND
        return Watermark(time) if time >= T0 else None


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_an_operator_may_hold_and_change_the_watermark_it_forwards(tmp_path: Path, parallelism: int) -> None:
    def build() -> hr.Pipeline:
        pipeline = hr.Pipeline()
        source = hr.MemorySource(rows(5, 9, 12, 30))
        shifted = pipeline.source(source).watermark().key_by("_timestamp").apply(Shift())
        shifted.key_by().apply(Recorder()).sink(hr.MemorySink("out"))
        return pipeline

    first = run_in_process(build(), tmp_path, epoch_rows=1, max_epochs=3, parallelism=parallelism)
    second = run_in_process(build(), tmp_path, epoch_rows=1, parallelism=2)
    marks = [what for _, what, _ in [*recorded(first), *recorded(second)] if what not in {"rows", "close"}]
    assert marks == [at(2), str(END_OF_TIME)]
