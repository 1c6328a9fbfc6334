"""Another parallelism between two epochs: who is told, when it is in effect, and what stays as it was."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.errors import WorkerError
from headrace.base.retry import Backoff
from headrace.connectors.memory import take_collected
from headrace.engine.driver import EpochDriver
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.rescaling import Rescaling
from headrace.engine.stages import StagePlan, cut_stages
from headrace.exchanges.local import LocalExchange
from headrace.state.backend import ParquetBackend
from headrace.storage.open import open_storage
from headrace.testing.in_process import run_in_process
from tests import flows


def test_who_waits_is_told_when_it_is_in_effect() -> None:
    rescaling = Rescaling(2)
    assert rescaling.wait(2, 0)
    rescaling.request(3)
    assert not rescaling.wait(3, 0.01)
    taken: list[int | None] = []

    def loop() -> None:
        taken.append(rescaling.take())
        rescaling.settle(3)

    thread = threading.Thread(target=loop)
    thread.start()
    assert rescaling.wait(3)
    thread.join()
    assert (taken, rescaling.parallelism, rescaling.take()) == ([3], 3, None)


def test_of_two_requests_the_later_one_counts_and_who_asked_first_does_not_wait_for_ever() -> None:
    rescaling = Rescaling(2)
    rescaling.request(3)
    rescaling.request(4)
    assert not rescaling.wait(3)
    assert rescaling.take() == 4
    rescaling.request(2)
    assert rescaling.take() is None  # as it is already


def test_nobody_waits_for_a_run_that_is_over() -> None:
    rescaling = Rescaling(2)
    rescaling.request(3)
    rescaling.close()
    assert not rescaling.wait(3)


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "4", None])
def test_what_is_no_parallelism_is_refused(wrong: object) -> None:
    with pytest.raises(hr.UserError, match="whole number greater than zero"):
        Rescaling(2).request(wrong)


class RecordedExchange(LocalExchange):
    """Notes the stages it is given; fails as often as `failures` says."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[int] = []
        self.failures = 0

    def use(self, stages: StagePlan) -> None:
        if self.failures:
            self.failures -= 1
            raise WorkerError("an executor was lost")
        self.used.append(stages.parallelism)
        super().use(stages)


def run_loop(
    pipeline: hr.Pipeline,
    state: Path,
    exchange: RecordedExchange,
    wanted: dict[int, int],
    *,
    restarts: int = 0,
) -> EpochDriver:
    """Run to the end; after the epochs in `wanted` another parallelism is asked for."""
    rescaling = Rescaling(2)
    driver = EpochDriver(cut_stages(pipeline.plan(), parallelism=2), open_storage(str(state)))
    driver.open()

    def on_epoch(report: EpochReport) -> bool:
        epoch = driver.epoch
        if epoch in wanted:
            rescaling.request(wanted[epoch])
        if epoch == 3:
            exchange.failures = restarts
        return report.finished

    EpochLoop(
        driver,
        exchange,
        size=EpochSize(target=0.5, most=20),
        on_epoch=on_epoch,
        stop=threading.Event(),
        restarts=restarts,
        backoff=Backoff(first=0.0, longest=0.0),
        rescaling=rescaling,
    ).run()
    return driver


def counting(count: int) -> hr.Pipeline:
    pipeline = hr.Pipeline("counting")
    rows = pipeline.source(flows.impulse(count), id="numbers").map(flows.keyed(7))
    rows.key_by("k").apply(flows.RunningCount(), id="count").sink(hr.MemorySink("out"), id="out")
    return pipeline


def check_rows(job_id: str, count: int) -> None:
    table = take_collected(job_id)["out"]
    rows = sorted(zip(table["counter"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert rows == [(n, n // 7 + 1) for n in range(count)]


def test_a_checkpoint_says_with_which_parallelism_its_epoch_ran(tmp_path: Path) -> None:
    exchange = RecordedExchange()
    driver = run_loop(counting(120), tmp_path, exchange, {1: 5, 2: 5, 3: 1})
    assert exchange.used == [2, 5, 1]
    backend = ParquetBackend(open_storage(str(tmp_path)))
    metadata = [backend.load_checkpoint_metadata("", epoch) for epoch in backend.epochs()]
    assert [checkpoint.parallelism for checkpoint in metadata][:4] == [2, 5, 5, 1]
    assert driver.job is not None
    check_rows(driver.job.job_id, 120)


def test_a_worker_that_is_lost_meanwhile_costs_another_try(tmp_path: Path) -> None:
    exchange = RecordedExchange()
    driver = run_loop(counting(120), tmp_path, exchange, {3: 4}, restarts=2)
    assert exchange.used == [2, 4]
    assert driver.job is not None
    check_rows(driver.job.job_id, 120)


class AskedSource(hr.ImpulseSource):
    """Notes for how many tasks it is asked."""

    asked: list[int] = []  # noqa: RUF012 - the pickled copies share it

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> Sequence[hr.Split]:
        self.asked.append(parallelism)
        return super().splits(start, end, parallelism=parallelism)


def test_a_source_divides_each_epoch_for_the_tasks_it_has(tmp_path: Path) -> None:
    AskedSource.asked.clear()
    pipeline = hr.Pipeline()
    pipeline.source(AskedSource(message_count=60, event_time_interval="1s", start_time=flows.T0)).sink(
        "blackhole"
    )
    run_in_process(pipeline, tmp_path, epoch_rows=20, rescale={1: 7, 2: 3}.get)
    assert AskedSource.asked == [2, 7, 3]


@pytest.mark.parametrize(("rows", "tasks"), [(20, 8), (2000, 20), (100_000, 64)])
def test_few_rows_are_read_by_few_tasks(rows: int, tasks: int, tmp_path: Path) -> None:
    AskedSource.asked.clear()
    pipeline = hr.Pipeline()
    source = AskedSource(message_count=rows, event_time_interval="1s", start_time=flows.T0)
    pipeline.source(source).sink("blackhole")
    run_in_process(pipeline, tmp_path, parallelism=64, epoch_rows=rows)
    assert set(AskedSource.asked) == {tasks}


def test_a_run_that_has_nothing_to_read_is_rescaled_all_the_same(tmp_path: Path) -> None:
    """The idle source is polled, and no epoch is run for it."""
    rescaling, waited = Rescaling(2), [0]
    stop = threading.Event()
    pipeline = hr.Pipeline()
    pipeline.source(hr.ImpulseSource(event_rate=1.0)).sink("blackhole")
    driver = EpochDriver(
        cut_stages(pipeline.plan(), parallelism=2), open_storage(str(tmp_path)), now=lambda: 1_700_000_000.0
    )
    driver.open()

    def wait(_idle: int) -> None:
        waited[0] += 1
        if waited[0] == 2:
            rescaling.request(6)
        if rescaling.parallelism == 6:
            stop.set()
        assert waited[0] < 100

    EpochLoop(
        driver,
        LocalExchange(),
        size=EpochSize(target=0.5),
        on_epoch=lambda _report: False,
        stop=stop,
        restarts=0,
        wait=wait,
        rescaling=rescaling,
    ).run()
    assert driver.stages.parallelism == 6


def test_the_fixed_cost_of_an_epoch_is_not_taken_for_that_of_fewer_subtasks() -> None:
    size = EpochSize(target=0.5)
    size.measured(50_000, 0.1)
    size.rescaled(8)
    assert size.fixed == pytest.approx(0.8)
    size.rescaled(1 / 8)
    assert size.fixed == pytest.approx(0.8)  # the next short epoch says how much less it is
