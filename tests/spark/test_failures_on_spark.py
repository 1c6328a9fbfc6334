"""What a user sees when something goes wrong while a pipeline runs on Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from tests import flows


class Explode(hr.ArrowOperator):
    """Fails on one row."""

    def __init__(self, at: int) -> None:
        self.at = at

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)
        if self.at in batch.column("counter").to_pylist():
            raise ValueError(f"row {self.at} is cursed")


@pytest.mark.parametrize("stage", ["source", "later"])
def test_a_raise_in_an_operator_names_the_line_the_operator_and_the_epoch(tmp_path: Path, stage: str) -> None:
    out = tmp_path / "out.jsonl"
    pipeline = hr.Pipeline("explode")
    rows = pipeline.source(flows.impulse(300)).map(flows.keyed(3))
    if stage == "later":
        rows = rows.key_by("k")
    rows.apply(Explode(250), id="boom").sink(hr.SingleFileSink(path=str(out)))
    with pytest.raises(hr.OperatorError) as caught:
        pipeline.run(tmp_path / "state", parallelism=2, epoch_rows=100)
    error = caught.value
    assert error.message == "ValueError: row 250 is cursed"
    assert (error.operator_id, error.epoch) == ("boom", 3)
    assert 'raise ValueError(f"row {self.at} is cursed")' in error.traceback_text
    assert "headrace/runtime" not in error.traceback_text
    assert error.exit_code == 1
    # Epochs 1 and 2 are there, whole; nothing of epoch 3 is.
    counters = [json.loads(line)["counter"] for line in out.read_text().splitlines()]
    assert sorted(counters) == list(range(200))


def test_java_that_cannot_start_is_told_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "rows.sql").write_text("SELECT 1;\n")
    command = [sys.executable, "-m", "headrace", "run", "rows.sql"]
    command += ["--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:+UseParallelGC"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Spark did not start on `local[*]`: Java ended: " in done.stderr
    assert "garbage collectors selected" in done.stderr
    assert "Traceback" not in done.stderr


class FailsTwice(hr.ArrowOperator):
    """Loses its connection in the first two attempts at an epoch."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        tries = len(list(self.marks.glob("*")))
        if ctx.task_info.epoch == 2 and tries < 2:
            (self.marks / str(tries)).touch()
            raise ConnectionResetError("the server went away")
        collector.collect(batch)


def test_an_outside_failure_is_tried_again_and_costs_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    pipeline = hr.Pipeline("retry")
    pipeline.source(flows.impulse(150)).key_by().apply(FailsTwice(marks)).sink(hr.MemorySink("out"))
    result = pipeline.run(parallelism=2, epoch_rows=50, options=hr.RunOptions(restarts=2))
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(150))
    assert result.epochs == 3


class FailsAtTheStop(hr.ArrowOperator):
    """Loses its connection twice when it is told that the run stops."""

    max_parallelism = 1

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)

    def handle_stop(self, final: bool, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        tries = len(list(self.marks.glob("*")))
        (self.marks / str(tries)).touch()
        if tries < 2:
            raise ConnectionResetError("the server went away")


def test_the_epoch_that_tells_of_a_stop_is_tried_again_too(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    pipeline = hr.Pipeline("retry")
    rows = pipeline.source(flows.impulse(150)).key_by().apply(FailsAtTheStop(marks))
    rows.sink(hr.MemorySink("out"))
    result = pipeline.run(
        tmp_path / "state", parallelism=2, epoch_rows=50, max_epochs=1, options=hr.RunOptions(restarts=2)
    )
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(50))
    assert len(list(marks.glob("*"))) == 3


def test_an_outside_failure_that_stays_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    pipeline = hr.Pipeline("retry")
    pipeline.source(flows.impulse(150)).key_by().apply(FailsTwice(marks)).sink(hr.MemorySink("out"))
    with pytest.raises(hr.ExternalError, match="the server went away"):
        pipeline.run(parallelism=2, epoch_rows=50, options=hr.RunOptions(restarts=0))


def test_a_stop_finishes_the_epoch_and_the_next_run_goes_on(tmp_path: Path) -> None:
    def build() -> hr.Pipeline:
        pipeline = hr.Pipeline("stop")
        pipeline.source(flows.impulse(1_000)).sink(hr.MemorySink("out"))
        return pipeline

    stop = threading.Event()
    first = build().run(
        tmp_path, parallelism=2, epoch_rows=100, stop=stop, on_progress=lambda _progress: stop.set()
    )
    assert (first.reason, first.epochs) == ("stopped", 1)
    second = build().run(tmp_path, parallelism=2)
    assert second.reason == "finished"
    counters = first.rows["out"]["counter"].to_pylist() + second.rows["out"]["counter"].to_pylist()
    assert sorted(counters) == list(range(1_000))


class Unanswered(hr.ImpulseSource):
    """Does not answer when it is asked how far the second epoch reads: some times, or ever."""

    def __init__(self, asked: Path, *, times: int) -> None:
        super().__init__(message_count=100, event_time_interval="1s", start_time=flows.T0)
        self.asked = asked
        self.times = times

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        if start["impulse"]["counter"]:
            with self.asked.open("a") as file:
                file.write("x")
            if len(self.asked.read_text()) <= self.times:
                raise ConnectionRefusedError("nobody answers")
        return super().latest_offset(start, limit, parallelism=parallelism)


def test_a_source_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("asked")
    pipeline.source(Unanswered(tmp_path / "asked", times=2)).sink(hr.MemorySink("out"))
    result = pipeline.run(parallelism=2, epoch_rows=50)
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(100))


def test_a_stop_while_a_source_does_not_answer_is_no_error(tmp_path: Path) -> None:
    asked, stop = tmp_path / "asked", threading.Event()
    pipeline = hr.Pipeline("asked")
    pipeline.source(Unanswered(asked, times=1_000)).sink(hr.MemorySink("out"))

    def stop_when_asked() -> None:
        while not asked.exists() and not stop.wait(0.01):
            pass
        stop.set()

    watching = threading.Thread(target=stop_when_asked)
    watching.start()
    try:
        result = pipeline.run(parallelism=2, epoch_rows=50, stop=stop)
    finally:
        stop.set()
        watching.join()
    assert (result.reason, result.epochs) == ("stopped", 1)
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(50))


def test_damaged_state_is_named_and_the_last_good_checkpoint_works(tmp_path: Path) -> None:
    def build() -> hr.Pipeline:
        return flows.running(hr.MemorySink)

    state = tmp_path / "state"
    build().run(state, parallelism=1, epoch_rows=40, max_epochs=3)
    newest = min((state / "checkpoints" / "checkpoint-0000003").rglob("table-*.parquet"))
    newest.write_bytes(newest.read_bytes()[:-20])
    with pytest.raises(hr.CorruptStateError) as caught:
        build().run(state, parallelism=2)
    assert newest.name in str(caught.value)
    assert "--from-epoch 2" in str(caught.value)
    resumed = build().run(state, parallelism=2, from_epoch=2)
    assert (resumed.reason, resumed.first_epoch) == ("finished", 3)
    assert resumed.rows_in == 120


def test_the_users_own_session_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    before = spark.conf.get("spark.sql.shuffle.partitions")
    result = flows.passthrough(hr.MemorySink).run(tmp_path / "state", parallelism=2)
    assert result.reason == "finished"
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.range(3).count() == 3
    with pytest.raises(hr.ConfigurationError, match="runs on `local"):
        _other_master(tmp_path)


def _other_master(tmp_path: Path) -> None:
    from headrace.exchanges.spark import session

    launched, session._launched = session._launched, None
    try:
        flows.passthrough(hr.MemorySink).run(tmp_path / "other", master="local[7]")
    finally:
        session._launched = launched
