"""Pipelines that run in the background of one process, on one SparkContext."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark import SparkContext

import headrace as hr
from headrace.cli.main import main
from headrace.jobs.handle import PipelineRun, start_job
from headrace.jobs.settings import load_settings
from headrace.testing.in_process import run_in_process
from tests import flows


def start(pipeline: hr.Pipeline, state: Path, **options: Any) -> PipelineRun:
    run = {"parallelism": 2, "epoch_rows": 50, "max_epochs": options.pop("max_epochs", None)}
    master = options.pop("master", None)
    flags = {"state": {"dir": str(state)}, "run": run, "spark": {"master": master}}
    return start_job(pipeline.plan(), load_settings(flags=flags), **options)


def wait_for(is_true: Callable[[], bool], *, seconds: float = 120) -> None:
    ends = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < ends, "it did not come true"
        time.sleep(0.02)


def counting(name: str, out: Path | str, *, count: int | None) -> hr.Pipeline:
    """Numbers every row of its key; endless without a count."""
    pipeline = hr.Pipeline(name)
    source = hr.ImpulseSource(
        message_count=count, event_rate=1000.0, event_time_interval="1s", start_time=flows.T0
    )
    rows = pipeline.source(source if count is None else flows.impulse(count)).map(flows.keyed(7))
    rows.key_by("k").apply(flows.RunningCount(), id="count").sink(hr.SingleFileSink(path=str(out)), id="file")
    return pipeline


def rows_of(out: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return sorted((row["counter"], row["n"]) for row in rows)


def test_sparks_log_is_found_in_the_state_directory_of_every_pipeline_of_a_process(tmp_path: Path) -> None:
    for name in ("first", "second", "second"):
        flows.passthrough(hr.MemorySink).run(tmp_path / name, parallelism=2)
    first, second = (tmp_path / name / "logs" / f"spark-{os.getpid()}.log" for name in ("first", "second"))
    # Another test may have started Spark, with its log on another file system.
    assert first.samefile(second) or "its log is" in second.read_text()


def test_two_pipelines_run_at_once_and_one_goes_on_when_the_other_is_stopped(tmp_path: Path) -> None:
    descriptions: dict[str, set[str]] = {"bounded": set(), "endless": set()}

    def described(name: str) -> Callable[[str, int], None]:
        def on_step(step: str, _epoch: int) -> None:
            if step == "tasks_done":
                spark = SparkContext.getOrCreate()
                description = spark.getLocalProperty("spark.job.description") or ""
                descriptions[name].add(description.partition(",")[0])

        return on_step

    endless = start(
        counting("endless", tmp_path / "endless.jsonl", count=None),
        tmp_path / "state-endless",
        on_step=described("endless"),
    )
    bounded = start(
        counting("bounded", tmp_path / "bounded.jsonl", count=1500),
        tmp_path / "state-bounded",
        on_step=described("bounded"),
    )
    assert endless.id != bounded.id
    wait_for(lambda: len(endless.recent_progress) > 2 and len(bounded.recent_progress) > 2)
    assert endless.status.state == bounded.status.state == "running"
    assert "rows/s" in endless.status.message
    endless.stop()
    stopped = endless.result
    assert stopped is not None
    assert (stopped.reason, endless.status.state) == ("stopped", "stopped")
    assert bounded.await_termination(0) is None, "it should have had more to do"

    finished = bounded.await_termination()
    assert finished is not None
    assert (finished.reason, bounded.status.state) == ("finished", "finished")
    assert rows_of(tmp_path / "bounded.jsonl") == [(n, n // 7 + 1) for n in range(1500)]
    assert rows_of(tmp_path / "endless.jsonl") == [(n, n // 7 + 1) for n in range(stopped.rows_in)]
    assert bounded.metrics["count"]["rows_in"] == 1500
    assert bounded.last_progress is not None
    assert bounded.last_progress.total_in == 1500
    assert descriptions == {"bounded": {"bounded"}, "endless": {"endless"}}

    resumed = start(
        counting("endless", tmp_path / "endless.jsonl", count=None), tmp_path / "state-endless", max_epochs=1
    )
    assert resumed.id == endless.id
    again = resumed.await_termination()
    assert again is not None
    assert again.first_epoch == stopped.last_epoch + 1
    total = stopped.rows_in + again.rows_in
    assert rows_of(tmp_path / "endless.jsonl") == [(n, n // 7 + 1) for n in range(total)]


def test_a_run_is_rescaled_while_it_runs_by_its_handle_and_from_another_terminal(tmp_path: Path) -> None:
    with start(counting("endless", tmp_path / "out.jsonl", count=None), tmp_path / "state") as run:
        wait_for(lambda: len(run.recent_progress) > 1)
        assert run.rescale(5, timeout=120)
        epochs = len(run.recent_progress)
        wait_for(lambda: len(run.recent_progress) > epochs + 1)
        told = CliRunner().invoke(main, ["rescale", run.id, "1"])
        assert told.exit_code == 0, told.output
        assert run.parallelism == 1
        epochs = len(run.recent_progress)
        wait_for(lambda: len(run.recent_progress) > epochs + 1)
    assert run.result is not None
    assert rows_of(tmp_path / "out.jsonl") == [(n, n // 7 + 1) for n in range(run.result.rows_in)]


def test_a_parallelism_that_follows_the_load_stays_within_its_bounds(tmp_path: Path) -> None:
    pipeline = counting("endless", tmp_path / "out.jsonl", count=None)
    with pipeline.start(tmp_path / "state", parallelism="auto:3-4", epoch_rows=5000) as run:
        wait_for(lambda: run.last_progress is not None)
        assert run.recent_progress[0].parallelism in {3, 4}  # as many as there are cores, within the bounds
        assert run.rescale(9, timeout=120)
        wait_for(lambda: run.parallelism == 4)
        wait_for(lambda: run.recent_progress[-1].parallelism == 4)
    assert run.result is not None
    assert rows_of(tmp_path / "out.jsonl") == [(n, n // 7 + 1) for n in range(run.result.rows_in)]


class Broken(hr.ArrowOperator):
    """Fails in the second epoch."""

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if ctx.task_info.epoch == 2:
            raise ValueError("broken")
        collector.collect(batch)


def broken() -> hr.Pipeline:
    pipeline = hr.Pipeline("broken")
    pipeline.source(flows.impulse(500)).key_by().apply(Broken(), id="broken").sink("blackhole")
    return pipeline


def test_a_run_that_fails_says_so_wherever_it_is_asked_and_leaves_the_others_alone(tmp_path: Path) -> None:
    other = start(counting("other", tmp_path / "other.jsonl", count=500), tmp_path / "other")
    run = start(broken(), tmp_path / "broken")
    with pytest.raises(hr.OperatorError, match="ValueError: broken"):
        run.await_termination()
    assert isinstance(run.exception(), hr.OperatorError)
    assert (run.status.state, run.result, run.is_active) == ("failed", None, False)
    assert "broken" in run.status.message
    assert [progress.epoch for progress in run.recent_progress] == [1]
    other.await_termination()
    assert rows_of(tmp_path / "other.jsonl") == [(n, n // 7 + 1) for n in range(500)]


def test_a_failure_that_nobody_saw_is_raised_at_the_end_of_the_block(tmp_path: Path) -> None:
    with (
        pytest.raises(hr.OperatorError, match="ValueError: broken"),
        start(broken(), tmp_path / "broken") as run,
    ):
        wait_for(lambda: not run.is_active)


def test_the_end_of_the_block_stops_the_run(tmp_path: Path) -> None:
    with start(counting("endless", tmp_path / "out.jsonl", count=None), tmp_path / "state") as run:
        wait_for(lambda: run.last_progress is not None)
    assert run.status.state == "stopped"
    assert run.result is not None
    assert rows_of(tmp_path / "out.jsonl") == [(n, n // 7 + 1) for n in range(run.result.rows_in)]


def test_a_run_may_be_stopped_by_its_own_progress(tmp_path: Path) -> None:
    runs: list[PipelineRun] = []
    started = threading.Event()

    def stop(_progress: hr.Progress) -> None:
        started.wait()
        runs[0].stop()

    pipeline = counting("endless", tmp_path / "out.jsonl", count=None)
    runs.append(start(pipeline, tmp_path / "state", on_progress=stop))
    started.set()
    result = runs[0].await_termination()
    assert result is not None
    assert (result.reason, result.epochs) == ("stopped", 1)


def test_another_spark_is_refused_while_a_pipeline_runs(tmp_path: Path) -> None:
    with start(counting("endless", tmp_path / "out.jsonl", count=None), tmp_path / "state") as run:
        wait_for(lambda: run.last_progress is not None)
        other = start(
            counting("other", tmp_path / "other.jsonl", count=10), tmp_path / "o", master="local[7]"
        )
        with pytest.raises(hr.ConfigurationError, match="Spark"):
            other.await_termination()
        epochs = len(run.recent_progress)
        wait_for(lambda: len(run.recent_progress) > epochs)


INTERRUPTED = """
import signal
import time

from tests.spark.test_handles_on_spark import counting
from tests.stepping import run_with_steps

signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been started with SIGINT ignored

def on_step(step, epoch):
    if step in {{"tasks_done", "committed"}}:
        print(step, epoch, flush=True)
    if (step, epoch) == ("tasks_done", 2):
        time.sleep(2)

run_with_steps(counting("endless", {out!r}, count=None), {state!r}, on_step, parallelism=2, epoch_rows=1000)
"""


def test_an_interrupt_of_the_thread_that_waits_lets_the_epoch_be_committed(tmp_path: Path) -> None:
    program = INTERRUPTED.format(out=str(tmp_path / "out.jsonl"), state=str(tmp_path / "state"))
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "tasks_done 2\n":
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert out.splitlines() == ["committed 2"], err
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_a_finished_pipeline_is_over_at_once(tmp_path: Path) -> None:
    run_in_process(counting("done", tmp_path / "out.jsonl", count=20), tmp_path / "state")
    run = start(counting("done", tmp_path / "out.jsonl", count=20), tmp_path / "state")
    result = run.await_termination()
    assert result is not None
    assert (result.reason, result.epochs) == ("finished", 0)
