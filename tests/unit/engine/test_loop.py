"""The epoch loop: what it tries again, in which order it calls a source, and what ends it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import OutputClosedError, WorkerError
from headrace.base.retry import Backoff
from headrace.connectors.memory import take_collected
from headrace.engine.driver import EpochDriver
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.stages import cut_stages
from headrace.exchanges.local import LocalExchange
from headrace.state.generation import Generation
from headrace.storage.open import open_storage
from headrace.testing.in_process import run_in_process
from tests import flows

FAULTS: Counter[str] = Counter()
"""How often each place still fails."""
CALLS: list[tuple[str, int]] = []
"""The methods of a source that were called, with the object."""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    FAULTS.clear()
    CALLS.clear()
    yield
    FAULTS.clear()


def fail_if_told(place: str) -> None:
    if FAULTS[place]:
        FAULTS[place] -= 1
        raise ConnectionResetError(f"{place}: the server went away")


class FailingSource(hr.ImpulseSource):
    """Loses its connection when it is asked something."""

    def __init__(self, **options: Any) -> None:
        super().__init__(message_count=60, event_time_interval="1s", start_time=flows.T0, **options)

    def initial_offset(self, *, time: float) -> hr.Offset:
        fail_if_told("initial_offset")
        return super().initial_offset(time=time)

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        fail_if_told("latest_offset")
        return super().latest_offset(start, limit, parallelism=parallelism)

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> Any:
        fail_if_told("splits")
        return super().splits(start, end, parallelism=parallelism)

    def committed(self, offset: hr.Offset) -> None:
        fail_if_told("committed")


class FailingOperator(hr.ArrowOperator):
    """Loses its connection in a task, or when it is told that the run stops."""

    max_parallelism = 1

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        fail_if_told("task")
        collector.collect(batch)

    def handle_stop(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        fail_if_told("last epoch")


class FailingSink(hr.MemorySink):
    """Loses its connection in a commit, or finds its reader gone."""

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: hr.OperatorContext
    ) -> None:
        fail_if_told("commit")
        super().handle_commit(epoch, data, ctx)
        if FAULTS["closed"]:
            raise OutputClosedError("nobody reads")


def failing() -> hr.Pipeline:
    pipeline = hr.Pipeline("failing")
    pipeline.source(FailingSource(), id="source").key_by().apply(FailingOperator(), id="operator").sink(
        FailingSink("out"), id="sink"
    )
    return pipeline


PLACES = ["initial_offset", "latest_offset", "splits", "task", "commit", "committed", "last epoch"]


@pytest.mark.parametrize("place", PLACES)
def test_what_fails_once_is_tried_again_and_costs_no_row(place: str, tmp_path: Path) -> None:
    FAULTS[place] = 1
    result = run_in_process(
        failing(), tmp_path, epoch_rows=20, max_epochs=2, options=hr.RunOptions(restarts=1)
    )
    assert FAULTS[place] == 0
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(40))
    assert result.epochs == 3  # two that read, and the one that tells of the stop


@pytest.mark.parametrize("place", PLACES)
def test_without_restarts_the_first_failure_ends_the_run_and_the_next_run_loses_nothing(
    place: str, tmp_path: Path
) -> None:
    FAULTS[place] = 1
    with pytest.raises(hr.ExternalError, match="the server went away"):
        run_in_process(failing(), tmp_path, epoch_rows=20, max_epochs=2)
    second = run_in_process(failing(), tmp_path, epoch_rows=20)
    assert second.reason == "finished"
    # A memory sink hands out the rows of the failed run with those of the next one.
    assert sorted(second.rows["out"]["counter"].to_pylist()) == list(range(60))


@pytest.mark.parametrize("place", PLACES)
def test_what_fails_more_often_than_it_is_tried_again_ends_the_run(place: str, tmp_path: Path) -> None:
    FAULTS[place] = 3
    with pytest.raises(hr.ExternalError, match="the server went away"):
        run_in_process(failing(), tmp_path, epoch_rows=20, max_epochs=2, options=hr.RunOptions(restarts=2))
    assert FAULTS[place] == 0


class RecordedSource(hr.SourceOperator):
    """Two epochs of one row each; notes every call on the driver."""

    def _note(self, name: str) -> None:
        CALLS.append((name, id(self)))

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        self._note("open")

    def close(self) -> None:
        self._note("close")

    def initial_offset(self, *, time: float) -> hr.Offset:
        self._note("initial_offset")
        return {"0": 0}

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        self._note("latest_offset")
        return {"0": start["0"] + 1}

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> list[hr.Split]:
        self._note("splits")
        return [hr.Split("0", {})]

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        collector.collect(pa.record_batch({"_timestamp": pa.array([flows.T0], pa.timestamp("ns"))}))
        return hr.Finish.GRACEFUL

    def is_finished(self, offset: hr.Offset) -> bool:
        return bool(offset["0"] == 2)

    def committed(self, offset: hr.Offset) -> None:
        self._note("committed")


def test_a_source_is_one_object_on_the_driver_from_open_to_close(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(RecordedSource()).sink("blackhole")
    assert run_in_process(pipeline, tmp_path).reason == "finished"
    epoch = ["latest_offset", "splits", "committed"]
    assert [name for name, _ in CALLS] == ["open", "initial_offset", *epoch, *epoch, "close"]
    assert len({source for _, source in CALLS}) == 1


def test_a_source_is_told_of_the_commit_of_the_last_epoch_before_it_is_closed(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(RecordedSource()).key_by().apply(FailingOperator()).sink("blackhole")
    run_in_process(pipeline, tmp_path, max_epochs=1)
    assert [name for name, _ in CALLS][-3:] == ["committed", "committed", "close"]


class RefusingSource(RecordedSource):
    """Cannot be opened."""

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        raise hr.ConfigurationError("not here")


def test_a_source_is_closed_if_another_one_cannot_be_opened(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(RecordedSource(), id="a").sink("blackhole")
    pipeline.source(RefusingSource(), id="b").sink("blackhole")
    with pytest.raises(hr.ConfigurationError, match="not here"):
        run_in_process(pipeline, tmp_path)
    assert [name for name, _ in CALLS] == ["open", "close"]


def test_a_reader_that_closes_the_output_stops_the_run(tmp_path: Path) -> None:
    FAULTS["closed"] = 1
    result = run_in_process(failing(), tmp_path, epoch_rows=20)
    assert result.reason == "stopped"
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(20))


class LostExchange(LocalExchange):
    """Its other side has ended."""

    def check(self) -> None:
        raise WorkerError("the workers have ended")


def loop_over(
    pipeline: hr.Pipeline,
    state: Path,
    *,
    exchange: LocalExchange,
    stop: threading.Event,
    on_epoch: Callable[[EpochReport], bool] = lambda _report: False,
    backoff: Backoff | None = None,
    restarts: int = 3,
) -> tuple[EpochDriver, EpochLoop]:
    driver = EpochDriver(cut_stages(pipeline.plan(), parallelism=2), open_storage(str(state)))
    driver.open()
    size = EpochSize(0.5, most=20)
    loop = EpochLoop(
        driver, exchange, size=size, on_epoch=on_epoch, stop=stop, restarts=restarts, backoff=backoff
    )
    return driver, loop


def test_a_run_that_waits_for_rows_fails_when_nothing_can_run_them_any_more(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(hr.ImpulseSource(event_rate=0.001, message_count=5)).sink("blackhole")
    _, loop = loop_over(pipeline, tmp_path, exchange=LostExchange(), stop=threading.Event())
    with pytest.raises(WorkerError, match="the workers have ended"):
        loop.run()


@pytest.mark.parametrize("place", ["initial_offset", "latest_offset", "splits"])
def test_a_stop_while_a_source_does_not_answer_is_no_error_and_waits_for_no_pause(
    place: str, tmp_path: Path
) -> None:
    FAULTS[place] = 1000
    stop = threading.Event()
    _, loop = loop_over(
        failing(), tmp_path, exchange=LocalExchange(), stop=stop, backoff=Backoff(first=300, longest=300)
    )
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    began = time.monotonic()
    loop.run()
    timer.join()
    assert time.monotonic() - began < 60


def test_a_stop_between_two_attempts_at_an_epoch_ends_the_run_with_its_failure(tmp_path: Path) -> None:
    FAULTS["task"] = 1000
    stop = threading.Event()
    driver, loop = loop_over(
        failing(), tmp_path, exchange=LocalExchange(), stop=stop, backoff=Backoff(first=300, longest=300)
    )
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    with pytest.raises(hr.ExternalError, match="the server went away"):
        loop.run()
    timer.join()
    assert driver.epoch == 0


def test_a_stop_ends_the_run_after_the_epoch_at_work(tmp_path: Path) -> None:
    stop = threading.Event()

    def stop_at_once(_report: EpochReport) -> bool:
        stop.set()
        return False

    driver, loop = loop_over(failing(), tmp_path, exchange=LocalExchange(), stop=stop, on_epoch=stop_at_once)
    loop.run()
    assert driver.job is not None
    assert sorted(take_collected(driver.job.job_id)["out"]["counter"].to_pylist()) == list(range(20))


class ReplacedSource(FailingSource):
    """Loses its connection because another run has taken over, and moved on what it reads from."""

    storage: Any = None

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        self.storage = storage

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        Generation.claim(self.storage, "another run")
        raise ConnectionResetError("the server went away")


def test_a_run_whose_source_fails_because_another_run_has_taken_over_ends_as_replaced(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("replaced")
    pipeline.source(ReplacedSource(), id="source").sink(hr.MemorySink("out"), id="sink")
    with pytest.raises(hr.ReplacedError, match="has taken over"):
        run_in_process(pipeline, tmp_path)
