"""Branches that end at different times, idle inputs, sources that join later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.watermarks import END_OF_TIME, IDLE, Watermark, merge
from headrace.state.backend import ParquetBackend
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, ManualClock, run_in_process
from tests import flows
from tests.unit.engine.test_signals import Feed, Recorder, at, recorded, rows


def test_idle_and_ended_inputs_together_are_not_the_end() -> None:
    assert merge([IDLE, END_OF_TIME]) == IDLE
    assert merge([IDLE, Watermark(5), END_OF_TIME]) == Watermark(5)
    assert merge([END_OF_TIME, END_OF_TIME]) == END_OF_TIME
    assert merge([IDLE, None]) is None


def test_an_idle_source_beside_an_ended_one_does_not_close_anything(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    idle = pipeline.source(Feed(timedelta(seconds=1)), id="idle").watermark()
    ended = pipeline.source(hr.MemorySource(rows(0)), id="ended").watermark()
    idle.union(ended).key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    clock = ManualClock()
    seen = recorded(
        run_in_process(
            pipeline, tmp_path, max_epochs=4, clock=clock, on_progress=lambda _p: clock.advance(2.0)
        )
    )
    assert "close" not in {what for _, what, _ in seen}
    assert str(END_OF_TIME) not in {what for _, what, _ in seen}


class TotalAtTheEnd(hr.ArrowOperator):
    """Emits the number of its rows once they have ended."""

    def tables(self) -> list[hr.TableConfig]:
        return [hr.global_table_config("n")]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table = ctx.global_table("n")
        table.insert("n", int(table.get("n", 0)) + batch.num_rows)

    def on_close(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if final and ctx.task_info.subtask == 0:
            collector.collect(pa.record_batch({"total": [ctx.global_table("n").get("n", 0)]}))


def two_branches(*, short: int = 10, third: bool = False) -> hr.Pipeline:
    pipeline = hr.Pipeline()
    first = pipeline.source(flows.impulse(short), id="short")
    if third:
        first = first.union(pipeline.source(flows.impulse(7), id="third"))
    first.key_by().apply(TotalAtTheEnd(), id="total").sink(hr.MemorySink("total"))
    pipeline.source(flows.impulse(50), id="long").sink(hr.MemorySink("long"))
    return pipeline


def test_a_branch_that_ends_before_the_others_ends_once(tmp_path: Path) -> None:
    result = run_in_process(two_branches(), tmp_path, epoch_rows=20)
    assert result.epochs > 2
    assert result.rows["total"].to_pylist() == [{"total": 10}]


def test_a_branch_that_ended_before_a_restart_does_not_end_again(tmp_path: Path) -> None:
    first = run_in_process(two_branches(), tmp_path, epoch_rows=20, max_epochs=2)
    second = run_in_process(two_branches(), tmp_path, epoch_rows=20, parallelism=3)
    assert first.rows["total"].to_pylist() == [{"total": 10}]
    assert second.rows["total"].num_rows == 0
    assert second.reason == "finished"


def test_a_source_added_to_a_branch_that_had_ended_is_read_and_in_time(tmp_path: Path) -> None:
    run_in_process(two_branches(), tmp_path, epoch_rows=20, max_epochs=2)
    result = run_in_process(two_branches(third=True), tmp_path, epoch_rows=20)
    assert result.rows["total"].to_pylist() == [{"total": 17}]


def test_a_source_added_to_a_finished_pipeline_is_read(tmp_path: Path) -> None:
    run_in_process(two_branches(), tmp_path)
    result = run_in_process(two_branches(third=True), tmp_path)
    assert (result.reason, result.rows_in) == ("finished", 7)
    assert result.rows["total"].to_pylist() == [{"total": 17}]


def test_a_source_that_ended_by_saying_final_stays_ended(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(Feed(None, hr.Finish.FINAL), id="final").sink(hr.MemorySink("final"))
    pipeline.source(flows.impulse(30), id="long").sink(hr.MemorySink("long"))
    result = run_in_process(pipeline, tmp_path, epoch_rows=4)
    assert result.reason == "finished"
    assert result.rows["long"].num_rows == 30


def test_a_source_without_lanes_ends_its_readers(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(hr.MemorySource(lanes={})).key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    seen = recorded(run_in_process(pipeline, tmp_path))
    assert [what for _, what, _ in seen] == [str(END_OF_TIME), "close"]


class OwnTime(hr.MemorySource):
    """A source that knows its watermark itself."""

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        finish = super().run(ctx, collector)
        collector.broadcast_watermark(Watermark(flows.T0))
        return finish


@pytest.mark.parametrize("between", [False, True])
def test_a_sources_own_watermark_passes_through_stateless_operators(tmp_path: Path, between: bool) -> None:
    pipeline = hr.Pipeline()
    stream = pipeline.source(OwnTime(rows(0, 1, 2)))
    if between:
        stream = stream.map(lambda batch: batch)
    stream.key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    seen = recorded(run_in_process(pipeline, tmp_path, epoch_rows=1, max_epochs=2))
    assert [what for _, what, _ in seen if what != "rows"] == [at(0), at(0)]


def test_a_union_with_a_branch_without_time_has_no_time(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    source = pipeline.source(hr.MemorySource(rows(0, 1, 2)))
    source.watermark().union(source).map(lambda batch: batch).key_by().apply(Recorder()).sink(
        hr.MemorySink("out")
    )
    seen = recorded(run_in_process(pipeline, tmp_path, epoch_rows=1))
    assert [what for _, what, _ in seen if what != "rows"] == [str(END_OF_TIME), "close"]


def test_a_subtask_without_rows_holds_the_watermark_of_a_generator_behind_a_shuffle(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    stream = pipeline.source(hr.MemorySource(rows(100, 101, 102))).key_by().apply(Recorder(), id="one")
    stamped = stream.map(
        lambda batch: batch.append_column("_timestamp", rows(*[0] * batch.num_rows)[0].chunk(0))
    )
    stamped.watermark().key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    seen = recorded(run_in_process(pipeline, tmp_path, epoch_rows=1, parallelism=2, max_epochs=2))
    assert {what for _, what, _ in seen} == {"rows"}


def crash_at(step: str, epoch: int) -> Callable[[str, int], None]:
    def on_step(name: str, at_epoch: int) -> None:
        if (name, at_epoch) == (step, epoch):
            raise CrashError

    return on_step


def test_rows_that_a_removed_sink_has_not_committed_are_not_lost_in_silence(tmp_path: Path) -> None:
    def build(sink: str) -> hr.Pipeline:
        pipeline = hr.Pipeline()
        pipeline.source(flows.impulse(30), id="source").sink(hr.MemorySink("out"), id=sink)
        return pipeline

    with pytest.raises(CrashError):
        run_in_process(build("a"), tmp_path, epoch_rows=10, on_step=crash_at("metadata_written", 2))
    with pytest.raises(hr.IncompatibleStateError, match="sink `a` is gone, and its rows of epoch 2"):
        run_in_process(build("b"), tmp_path)
    assert run_in_process(build("b"), tmp_path, allow_drop=True).reason == "finished"


def test_a_discarded_checkpoint_leaves_no_mark_that_speaks_for_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> hr.Pipeline:
        return flows.passthrough(hr.MemorySink, count=40)

    run_in_process(build(), tmp_path, epoch_rows=10, max_epochs=3)
    backend = ParquetBackend(open_storage(str(tmp_path)))
    delete = backend.storage.delete

    def delete_until_files(path: str) -> None:  # the crash between the two halves of discarding
        if "/operator-" in path:
            raise CrashError
        delete(path)

    monkeypatch.setattr(backend.storage, "delete", delete_until_files)
    with pytest.raises(CrashError):
        backend.discard_after(1)
    with pytest.raises(CrashError):
        run_in_process(build(), tmp_path, epoch_rows=10, on_step=crash_at("metadata_written", 2))
    result = run_in_process(build(), tmp_path)
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(10, 40))


def test_a_checkpoint_whose_answer_was_lost_is_taken_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, lost = ParquetBackend.write_checkpoint_metadata, [2]

    def written_but_unheard(self: ParquetBackend, metadata: object) -> None:
        write(self, metadata)  # type: ignore[arg-type]
        if lost and metadata.epoch == lost[0]:  # type: ignore[attr-defined]
            lost.clear()
            raise hr.ExternalError("no answer")

    monkeypatch.setattr(ParquetBackend, "write_checkpoint_metadata", written_but_unheard)
    result = run_in_process(
        flows.running(hr.MemorySink, count=60), tmp_path, epoch_rows=20, options=hr.RunOptions(restarts=1)
    )
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(60))
    assert result.epochs == 3


class Global(hr.ArrowOperator):
    """Overwrites one entry of a global table."""

    def tables(self) -> list[hr.TableConfig]:
        return [hr.global_table_config("g")]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        ctx.global_table("g").insert("last", ctx.task_info.epoch)


def test_a_global_table_that_another_subtask_writes_does_not_grow(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    keys = [k for k in range(100) if hr.hash_key(pa.record_batch({"k": [k]}), ["k"])[0] >= 2**63][:1] * 60
    source = hr.MemorySource(pa.table({"k": keys}))
    pipeline.source(source).key_by("k").apply(Global(), id="g").sink("blackhole")
    run_in_process(pipeline, tmp_path, epoch_rows=1, options=hr.RunOptions(compact_after=4))
    backend = ParquetBackend(open_storage(str(tmp_path)))
    epoch = backend.latest_epoch()
    assert epoch == 60
    assert len(backend.live_files(epoch)) < 12


class Numpy(hr.ArrowOperator):
    """Counts with numpy's own numbers, as vectorised code does."""

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        ctx.metrics.add("odd", (batch.column("counter").to_numpy() % 2).sum())
        collector.broadcast_watermark(Watermark(np.int64(7)))  # type: ignore[arg-type]
        collector.collect(batch)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(10)).apply(Numpy(), id="numpy").key_by().apply(Recorder()).sink("blackhole")
    assert run_in_process(pipeline, tmp_path).metrics["numpy"]["odd"] == 5


def at_the_end_of_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    times = [2**63 - 1 if time == 1 else time for time in batch["_timestamp"].cast(pa.int64()).to_pylist()]
    return pa.record_batch({"_timestamp": pa.array(times, pa.int64()).cast(pa.timestamp("ns"))})


def test_a_row_at_the_end_of_time_is_not_the_end_of_data(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    source = pipeline.source(
        hr.MemorySource(pa.table({"_timestamp": pa.array([0, 1, 5], pa.timestamp("ns"))}))
    )
    # An operator may emit any time: a source refuses one that no window can hold.
    source.map(at_the_end_of_time).watermark().key_by().apply(Recorder()).sink(hr.MemorySink("out"))
    seen = recorded(run_in_process(pipeline, tmp_path, epoch_rows=1))
    assert [epoch for epoch, what, _ in seen if what == "close"] == [3]


class Versioned(hr.ArrowOperator):
    """Shows which version of a resource it was given."""

    def __init__(self, version: str) -> None:
        self.version = version

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        made = ctx.resource("model", lambda: self.version)
        collector.collect(pa.record_batch({"v": [made]}))


def test_a_resource_of_changed_code_is_made_anew(tmp_path: Path) -> None:
    def build(version: str) -> hr.Pipeline:
        pipeline = hr.Pipeline()
        pipeline.source(flows.impulse(20), id="s").apply(Versioned(version), id="v").sink(
            hr.MemorySink("out"), id="out"
        )
        return pipeline

    first = run_in_process(build("one"), tmp_path, epoch_rows=10, max_epochs=1)
    second = run_in_process(build("two"), tmp_path)
    assert set(first.rows["out"]["v"].to_pylist()) == {"one"}
    assert set(second.rows["out"]["v"].to_pylist()) == {"two"}


def test_a_clock_that_is_set_back_repeats_no_tick(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(50)).key_by().apply(Recorder(timedelta(seconds=1))).sink(
        hr.MemorySink("out")
    )
    clock = ManualClock()
    steps = iter([2.5, -1.5, 1.0, 1.0, 1.0])
    result = run_in_process(
        pipeline,
        tmp_path,
        epoch_rows=10,
        clock=clock,
        on_progress=lambda _progress: clock.advance(next(steps, 0.0)),
    )
    ticks = [n for _, what, n in recorded(result) if what == "tick"]
    assert ticks == sorted(set(ticks))
