"""What a run measures of itself: it agrees with what the run did, and it is bounded."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.engine.offsets import Lag
from headrace.engine.reports import EpochReport, Phases, Work
from headrace.engine.stages import cut_stages
from headrace.jobs.control import ControlSocket, running_pipelines
from headrace.jobs.metrics import ALL_SUBTASKS, HISTORY_SECONDS, MOST_SERIES, RESOLUTION, RunMetrics
from headrace.jobs.progress import Tally
from headrace.testing.in_process import run_in_process


@contextmanager
def tallies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tally]]:
    """The tallies of the runs within the block."""
    made: list[Tally] = []
    start = Tally.__init__

    def note(tally: Tally, *args: Any, **options: Any) -> None:
        start(tally, *args, **options)
        made.append(tally)

    with monkeypatch.context() as patch:
        patch.setattr(Tally, "__init__", note)
        yield made


def snapshot_of(
    pipeline: hr.Pipeline, state: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> dict[str, Any]:
    """What a run in this process has measured at its end, as it comes out of JSON."""
    with tallies(monkeypatch) as made:
        run_in_process(pipeline, state, **options)
    text = json.dumps(made[0].measured.snapshot())
    snapshot: dict[str, Any] = json.loads(text)
    return snapshot


def windows() -> hr.Pipeline:
    """Reads the numbers below a thousand and counts each; the state has a row for each."""
    return hr.Pipeline.from_sql(
        """
        CREATE TABLE numbers WITH (connector = 'impulse', message_count = 1000, event_rate = 1000000);
        CREATE TABLE out (counter BIGINT, n BIGINT) WITH (
          connector = 'blackhole', type = 'sink', format = 'debezium_json'
        );
        INSERT INTO out SELECT counter::BIGINT, count(*) FROM numbers GROUP BY counter;
        """,
        name="counts",
    )


def test_rows_and_bytes_that_leave_an_operator_arrive_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = windows()
    snapshot = snapshot_of(pipeline, tmp_path, monkeypatch, epoch_rows=100)
    operators = snapshot["operators"]
    assert snapshot["rows_in"] == operators["source_numbers"]["rows_out"] == 1000
    assert operators["sink_out"]["rows_in"] == snapshot["rows_out"] == 1000
    for edge in pipeline.plan().edges:
        assert operators[edge.source]["rows_out"] == operators[edge.target]["rows_in"]
    # What a shuffle carries is packed anew, and may have other bytes.
    inside = [
        e for e in pipeline.plan().edges if operators[e.source]["chain"] == operators[e.target]["chain"]
    ]
    assert inside
    for edge in inside:
        assert operators[edge.source]["bytes_out"] == operators[edge.target]["bytes_in"] > 0
    assert all(operator["seconds"] > 0 for operator in operators.values())
    assert sum(operator["seconds"] for operator in operators.values()) <= snapshot["phase_seconds"]["run"]


def test_the_subtasks_of_an_operator_add_up_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of(windows(), tmp_path, monkeypatch, epoch_rows=300, parallelism=3)
    for operator in snapshot["operators"].values():
        assert len(operator["subtasks"]) == 3
        for name in ("rows_in", "rows_out", "bytes_in", "bytes_out", "seconds"):
            parts = sum(subtask[name] for subtask in operator["subtasks"].values())
            assert parts == pytest.approx(operator[name])


def test_the_state_of_an_operator_is_what_its_files_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = snapshot_of(windows(), tmp_path, monkeypatch, max_epochs=3, epoch_rows=100)
    tables = [table for operator in snapshot["operators"].values() for table in operator["tables"].values()]
    assert sum(table["rows"] for table in tables) == snapshot["state_rows"] == snapshot["rows_in"]
    assert sum(table["bytes"] for table in tables) == snapshot["state_bytes"] > 0


def test_the_lag_of_a_source_falls_to_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = hr.Pipeline("lag")
    pipeline.source("memory", rows=[{"n": n} for n in range(50)], id="rows").sink("blackhole")
    first = snapshot_of(pipeline, tmp_path, monkeypatch, max_epochs=2, epoch_rows=20)
    assert first["lag"]["rows"]["unit"] == "rows"
    assert first["lag"]["rows"]["total"] == first["lag_rows"] == 10
    last = snapshot_of(pipeline, tmp_path, monkeypatch, epoch_rows=20)
    assert last["lag"]["rows"] == {"unit": "rows", "total": 0, "partitions": {"0": 0}}


def test_the_phases_of_an_epoch_and_the_commits_of_sinks_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = hr.Pipeline("commits")
    pipeline.source("memory", rows=[{"n": n} for n in range(30)]).sink("memory", name="kept", id="kept")
    snapshot = snapshot_of(pipeline, tmp_path, monkeypatch, epoch_rows=10)
    sink = snapshot["operators"]["kept"]
    assert snapshot["epochs"] == sink["commits"] == 3
    assert 0 < sink["commit_seconds"] <= snapshot["phase_seconds"]["commit"]
    assert all(snapshot["phase_seconds"][phase] > 0 for phase in ("plan", "run", "seal", "commit"))
    counts = [count for _, count in snapshot["epoch_buckets"]]
    assert counts == sorted(counts)
    assert snapshot["epoch_buckets"][-1] == ["+Inf", 3]


def test_dead_letters_bad_and_late_rows_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tmp_path / "lines.json"
    lines.write_text('{"n": 1}\nnot json\n{"n": 2}\n')
    program = f"""
        CREATE TABLE lines (n BIGINT) WITH (
          connector = 'single_file', path = '{lines}', dead_letter_table = 'bad'
        );
        CREATE TABLE out (n BIGINT) WITH (connector = 'blackhole', type = 'sink');
        CREATE TABLE letters (error TEXT) WITH (connector = 'blackhole', type = 'sink');
        INSERT INTO out SELECT n FROM lines;
        INSERT INTO letters SELECT error FROM bad;
    """
    pipeline = hr.Pipeline.from_sql(program)
    snapshot = snapshot_of(pipeline, tmp_path / "state", monkeypatch)
    assert (snapshot["bad_rows"], snapshot["dead_letters"], snapshot["late_rows"]) == (1, 1, 0)


def report(epoch: int, work: dict[str, dict[int, Work]], **values: Any) -> EpochReport:
    return EpochReport(
        epoch=epoch,
        rows_in=10,
        rows_out=10,
        watermark=None,
        state_bytes=0,
        state_rows=0,
        bytes_written=5,
        seconds=1.0,
        finished=False,
        immediate=False,
        work=work,
        phases=Phases(plan=0.1, run=0.7, seal=0.1, commit=0.1),
        **values,
    )


class Clock:
    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


def measured(clock: Clock, *, parallelism: int = 2) -> RunMetrics:
    return RunMetrics(cut_stages(windows().plan(), parallelism=parallelism), job_id="job", clock=clock)


def test_the_history_covers_ten_minutes_and_no_more() -> None:
    clock = Clock()
    metrics = measured(clock)
    for epoch in range(1, 2001):
        clock.time += 1.0
        metrics.add(
            report(epoch, {"source_numbers": {0: Work(0, 5, 0, 50, 0.5), 1: Work(0, 5, 0, 50, 0.25)}})
        )
    history = metrics.snapshot()["history"]
    times = history["times"]
    assert HISTORY_SECONDS - RESOLUTION <= times[-1] - times[0] <= HISTORY_SECONDS + RESOLUTION
    assert len(times) <= HISTORY_SECONDS / RESOLUTION + 3
    rows = history["operators"]["source_numbers"]["0"]["rows_out"]
    assert len(rows) == len(times)
    assert rows[-1] == 10_000
    assert rows[-1] - rows[0] == 5 * round(times[-1] - times[0])


def test_a_pause_is_no_slope_in_the_history() -> None:
    clock = Clock()
    metrics = measured(clock)
    metrics.add(report(1, {"source_numbers": {0: Work(0, 5, 0, 50, 0.5)}}))
    clock.time += 300
    metrics.add(report(2, {"source_numbers": {0: Work(0, 5, 0, 50, 0.5)}}))
    history = metrics.snapshot()["history"]
    rows = dict(zip(history["times"], history["operators"]["source_numbers"]["0"]["rows_out"], strict=True))
    assert rows[clock.time - 1.0] == 5
    assert rows[clock.time] == 10


def test_the_history_of_very_many_subtasks_is_one_series_for_each_operator() -> None:
    clock = Clock()
    metrics = measured(clock)
    subtasks = {subtask: Work(0, 1, 0, 1, 0.001) for subtask in range(MOST_SERIES + 1)}
    metrics.add(report(1, {"source_numbers": subtasks}))
    clock.time += 2 * RESOLUTION
    metrics.add(report(2, {"source_numbers": subtasks}))
    snapshot = metrics.snapshot()
    series = snapshot["history"]["operators"]["source_numbers"]
    assert series[str(ALL_SUBTASKS)]["rows_out"][-1] == 2 * (MOST_SERIES + 1)
    assert snapshot["operators"]["source_numbers"]["subtasks"]["7"]["rows_out"] == 2


def test_the_operator_that_works_most_holds_back_those_before_it_while_rows_wait() -> None:
    clock = Clock()
    metrics = measured(clock)
    work = {
        "source_numbers": {0: Work(seconds=0.1), 1: Work(seconds=0.1)},
        "sink_out": {0: Work(seconds=0.9), 1: Work()},
    }
    for epoch in range(1, 31):
        clock.time += 1.0
        metrics.add(report(epoch, work, lag={"source_numbers": Lag("rows", {"0": 100})}))
    snapshot = metrics.snapshot()
    operators = snapshot["operators"]
    assert snapshot["slowest_operator"] == "sink_out"
    assert operators["sink_out"]["busy"] == pytest.approx(0.9, abs=0.05)
    assert operators["sink_out"]["skew"] == pytest.approx(2.0)
    assert operators["source_numbers"]["skew"] == pytest.approx(1.0)
    assert operators["source_numbers"]["backpressure"] == operators["sink_out"]["busy"]
    assert operators["sink_out"]["backpressure"] == 0
    metrics.add(report(31, work, lag={"source_numbers": Lag("rows", {"0": 0})}))
    assert metrics.snapshot()["operators"]["source_numbers"]["backpressure"] == 0


def test_a_run_that_has_not_begun_has_measured_nothing() -> None:
    snapshot = measured(Clock()).snapshot()
    assert (snapshot["epochs"], snapshot["last_epoch"], snapshot["checkpoint_time"]) == (0, None, None)
    assert snapshot["history"]["times"] == []
    json.dumps(snapshot)


def test_another_process_asks_for_the_metrics_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = measured(Clock())
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="h") as short:  # sockets need short paths
        # Runs of others on this machine are not seen.
        monkeypatch.setenv("XDG_CACHE_HOME", short)
        monkeypatch.setenv("TMPDIR", short)
        with ControlSocket(lambda: {"name": "windows", "started": 0}, print, metrics.snapshot):
            (running,) = running_pipelines()
            assert running.metrics() == json.loads(json.dumps(metrics.snapshot()))
