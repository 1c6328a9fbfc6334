"""The driver's half of an epoch: what is tried again, what sources are told, what comes back incomplete."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.memory import take_collected
from headrace.engine.driver import EpochDriver
from headrace.engine.offsets import EpochSize, OffsetPlanner
from headrace.engine.stages import cut_stages
from headrace.exchanges.local import LocalExchange
from headrace.state.backend import ParquetBackend
from headrace.storage.open import open_storage
from headrace.testing.in_process import ManualClock, run_in_process
from tests import flows
from tests.unit.engine.test_signals import rows

TOLD: list[hr.Offset] = []


class Telling(hr.ImpulseSource):
    """An impulse that notes what it is told to be durable."""

    def committed(self, offset: hr.Offset) -> None:
        TOLD.append(offset)


def test_sources_are_told_what_is_durable(tmp_path: Path) -> None:
    TOLD.clear()
    pipeline = hr.Pipeline()
    pipeline.source(Telling(message_count=30)).sink("blackhole")
    run_in_process(pipeline, tmp_path, epoch_rows=10)
    assert [next(iter(offset.values()))["counter"] for offset in TOLD] == [10, 20, 30]


def test_an_epoch_whose_checkpoint_could_not_be_written_is_run_again_from_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a failed attempt must not leak into the next one."""
    pipeline = flows.running(hr.MemorySink, count=90)
    stages = cut_stages(pipeline.plan(), parallelism=2)
    clock = ManualClock()
    driver = EpochDriver(stages, open_storage(str(tmp_path)), now=clock)
    driver.open()
    exchange = LocalExchange(seed=1)
    exchange.use(stages)
    planner = OffsetPlanner(
        stages, driver.sources, size=EpochSize(0.5, most=30), restored=None, epoch=0, now=clock
    )
    write, failures = ParquetBackend.write_checkpoint_metadata, [2]

    def flaky(self: ParquetBackend, metadata: object) -> None:
        if failures and metadata.epoch == failures[0]:  # type: ignore[attr-defined]
            failures.clear()
            raise hr.ExternalError("the store is away")
        write(self, metadata)  # type: ignore[arg-type]

    monkeypatch.setattr(ParquetBackend, "write_checkpoint_metadata", flaky)
    start = planner.initial()
    while not planner.finished(start):
        end = planner.latest(start)
        for _attempt in range(2):
            context = driver.begin()
            try:
                driver.seal(context, exchange.run(planner.tasks(start, end), context))
            except hr.ExternalError:
                continue
            driver.commit()
            break
        start = end
    assert driver.checkpoint is not None
    assert driver.checkpoint.epoch == 3
    assert driver.job is not None
    out = take_collected(driver.job.job_id)["out"].to_pylist()
    assert sorted((row["counter"], row["n"]) for row in out) == [(i, i // 13 + 1) for i in range(90)]


def test_a_run_that_is_refused_leaves_no_mark_in_the_state_directory(tmp_path: Path) -> None:
    with pytest.raises(hr.ConfigurationError, match="no checkpoint of epoch 7"):
        run_in_process(flows.running(hr.MemorySink, count=9), tmp_path, from_epoch=7)
    assert not (tmp_path / "pipeline.json").exists()


def test_checkpoints_whose_pipeline_is_not_known_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    run_in_process(flows.running(hr.MemorySink, count=9), tmp_path)
    identity = (tmp_path / "pipeline.json").read_bytes()
    (tmp_path / "pipeline.json").unlink()
    with pytest.raises(hr.CorruptStateError, match=r"pipeline\.json is missing in .*which has checkpoints"):
        run_in_process(flows.running(hr.MemorySink, count=9), tmp_path)
    (tmp_path / "pipeline.json").write_bytes(identity)
    run_in_process(flows.running(hr.MemorySink, count=9), tmp_path)


def test_a_changed_identity_is_found_by_its_checksum_and_an_old_one_without_is_read(tmp_path: Path) -> None:
    run_in_process(flows.running(hr.MemorySink, count=9), tmp_path)
    file = tmp_path / "pipeline.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"created": saved["created"] + 1}))
    with pytest.raises(hr.CorruptStateError, match=r"pipeline\.json .* checksum does not match"):
        run_in_process(flows.running(hr.MemorySink, count=9), tmp_path)
    del saved["checksum"]
    file.write_text(json.dumps(saved))
    run_in_process(flows.running(hr.MemorySink, count=9), tmp_path)


class Picky(hr.SourceOperator):
    """A source that fails in the place it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _check(self, place: str) -> None:
        if place == self.where:
            raise ValueError(f"not in {place}")

    def initial_offset(self, *, time: float) -> hr.Offset:
        self._check("initial_offset")
        return {"0": 0}

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        self._check("latest_offset")
        return {"0": start["0"] + 1}

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> list[hr.Split]:
        self._check("splits")
        return [hr.Split("1" if self.where == "lane" else "0", {})]

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        self._check("run")
        collector.collect(rows(0).to_batches()[0])
        return hr.Finish.FINAL


@pytest.mark.parametrize("where", ["initial_offset", "latest_offset", "splits", "run"])
def test_a_source_that_raises_is_named_wherever_it_does(tmp_path: Path, where: str) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(Picky(where), id="picky").sink("blackhole")
    with pytest.raises(hr.OperatorError, match=f"not in {where}") as caught:
        run_in_process(pipeline, tmp_path)
    assert caught.value.operator_id == "picky"
    assert "self._check" in caught.value.traceback_text


def test_a_split_of_a_lane_that_is_not_in_the_offset_is_refused(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(Picky("lane"), id="picky").sink("blackhole")
    with pytest.raises(hr.PlanError, match="split of lane `1`"):
        run_in_process(pipeline, tmp_path)


class Swallowing(hr.ArrowOperator):
    """Catches whatever goes wrong behind it."""

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        with contextlib.suppress(Exception):
            collector.collect(batch)


class Failing(hr.ArrowOperator):
    """Fails."""

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        raise ValueError("lost")


def test_a_failure_that_another_operator_swallows_still_fails_the_epoch(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(5)).apply(Swallowing()).apply(Failing(), id="failing").sink("blackhole")
    with pytest.raises(hr.OperatorError, match="lost") as caught:
        run_in_process(pipeline, tmp_path)
    assert caught.value.operator_id == "failing"


def test_a_memory_sink_without_rows_gives_an_empty_table(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(0)).sink(hr.MemorySink("out"))
    assert run_in_process(pipeline, tmp_path).rows["out"].num_rows == 0


def test_epochs_grow_with_a_backlog_and_stay_within_the_limit() -> None:
    size = EpochSize(target=0.5)
    for _ in range(10):
        size.measured(size.limit(), 0.1 + size.limit() * 1e-6)
    assert 200_000 < size.limit() < 800_000  # 0.4 s at a microsecond per row
    for _ in range(10):
        size.measured(size.limit(), 0.1 + size.limit() * 1e-5)
    assert 20_000 < size.limit() < 80_000
    assert EpochSize(target=0.5, most=10).limit() == 10


def sizes_after(seconds_of: Callable[[int], float], *, epochs: int) -> list[int]:
    """The sizes that epochs of a backlog get, one after the other."""
    size = EpochSize(target=0.5)
    sizes = []
    for _ in range(epochs):
        sizes.append(size.limit())
        size.measured(size.limit(), seconds_of(size.limit()))
    return sizes


def test_the_size_does_not_follow_epochs_whose_time_varies_by_a_third() -> None:
    noise = random.Random(17)

    def seconds(rows: int) -> float:
        return (0.15 + rows * 0.5e-6) * noise.uniform(0.7, 1.3)

    steady = sorted(sizes_after(seconds, epochs=200)[20:])
    assert steady[-10] / steady[10] < 1.8  # the size that followed each epoch varied by more than 2.8
    assert 500_000 < steady[len(steady) // 2] < 1_400_000


def test_a_backlog_is_read_at_almost_the_final_rate_from_the_second_epoch_on() -> None:
    def seconds(rows: int) -> float:
        return 0.15 + rows * 0.5e-6

    is_first = iter([2.3])  # workers start
    sizes = sizes_after(lambda rows: seconds(rows) + next(is_first, 0.0), epochs=30)
    rates = [rows / seconds(rows) for rows in sizes]
    assert min(rates[1:]) > 0.65 * rates[-1]


def test_rows_that_take_long_do_not_make_epochs_long() -> None:
    sizes = sizes_after(lambda rows: 0.15 + rows * 500e-6, epochs=30)  # 50 s for the first epoch
    assert max(sizes[3:]) < 20_000


def test_a_fixed_part_far_above_the_target_still_gets_as_much_time_for_rows() -> None:
    sizes = sizes_after(lambda rows: 10 + rows * 10e-6, epochs=40)
    assert sizes[-1] * 10e-6 > 8


def test_a_live_stream_does_not_change_the_size() -> None:
    size = EpochSize(target=0.5)
    before = size.limit()
    size.measured(10, 3.0)
    assert size.limit() == before


class Careless(hr.ArrowOperator):
    """Does what it is told in the worst way."""

    def __init__(self, how: str) -> None:
        self.how = how

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if self.how == "exit":
            sys.exit("a library gave up")
        if self.how == "connection":
            raise ConnectionError("db down")
        if self.how == "table":
            ctx.keyed_table("nothing")
        collector.collect(pa.table({"a": [1]}))


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("exit", hr.OperatorError, "SystemExit: a library gave up"),
        ("connection", hr.ExternalError, "ConnectionError: db down"),
        ("table", hr.PlanError, "declares no table `nothing`"),
        ("collect", hr.OperatorError, "collect.. takes a pyarrow.RecordBatch, got Table"),
    ],
)
def test_a_failure_shows_the_users_own_lines(
    tmp_path: Path, how: str, kind: type[hr.HeadraceError], message: str
) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(5)).key_by().apply(Careless(how), id="careless").sink("blackhole")
    with pytest.raises(kind, match=message) as caught:
        run_in_process(pipeline, tmp_path)
    assert "operator careless" in str(caught.value.where)
    first = caught.value.traceback_text.splitlines()[1]
    assert "test_driver.py" in first, caught.value.traceback_text


def test_a_key_that_no_row_has_is_named_with_the_near_ones(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    unknown = pipeline.source(flows.impulse(5), id="s").map(lambda batch: batch, id="m")
    unknown.key_by("countr").apply(Swallowing(), id="t").sink("blackhole")
    with pytest.raises(hr.PlanError, match="from `m` to `t` have no column `countr`") as caught:
        run_in_process(pipeline, tmp_path)
    assert "did you mean `counter`" in str(caught.value)


class Untimed(Picky):
    """Emits rows without event time."""

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        collector.collect(pa.record_batch({"a": [1]}))
        return hr.Finish.FINAL


def test_rows_of_a_source_without_event_time_are_refused(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(Untimed(""), id="untimed").sink("blackhole")
    with pytest.raises(hr.PlanError, match="source `untimed` needs a column `_timestamp`"):
        run_in_process(pipeline, tmp_path)


class Keeping(hr.ArrowOperator):
    """Puts every row into a table that forgets after two seconds."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("_timestamp", pa.timestamp("ns"))])
        return [hr.timestamp_table_config("t", "rows", "2s", schema=schema)]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        ctx.time_table("t").insert(batch)


def test_rows_too_late_for_a_table_are_counted(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    source = hr.MemorySource(rows(20, 30, 2, 31))
    pipeline.source(source).watermark().key_by().apply(Keeping(), id="keep").sink("blackhole")
    result = run_in_process(pipeline, tmp_path, epoch_rows=1)
    assert result.late_rows == 1
    assert result.metrics["keep"]["late_rows"] == 1


class BadCommit(hr.MemorySink):
    """A sink whose commit fails."""

    def handle_commit(self, epoch: int, data: object, ctx: hr.OperatorContext) -> None:
        raise ValueError("no room")


def test_a_failed_commit_says_that_the_epoch_is_saved(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(5)).sink(BadCommit("out"), id="bad")
    with pytest.raises(hr.OperatorError, match="no room") as caught:
        run_in_process(pipeline, tmp_path)
    assert caught.value.where == "operator bad, commit of epoch 1 on the driver"
    assert "the next run commits it first" in str(caught.value)


class Heard(hr.ArrowOperator):
    """Says at the end how many rows its subtask has seen."""

    def tables(self) -> list[hr.TableConfig]:
        return [hr.global_table_config("heard")]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table, key = ctx.global_table("heard"), ctx.task_info.subtask
        table.insert(key, int(table.get(key, 0)) + batch.num_rows)

    def on_close(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if final:
            seen = ctx.global_table("heard").get(ctx.task_info.subtask, 0)
            collector.collect(pa.record_batch({"subtask": [ctx.task_info.subtask], "seen": [seen]}))


def test_broadcast_rows_reach_every_subtask(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(50)).broadcast().apply(Heard()).sink(hr.MemorySink("out"))
    result = run_in_process(pipeline, tmp_path, parallelism=3, epoch_rows=20)
    assert {row["subtask"]: row["seen"] for row in result.rows["out"].to_pylist()} == {0: 50, 1: 50, 2: 50}
