"""The handle of a run, as far as it goes without Spark: what starts, what is refused, what is over."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import headrace as hr
from headrace.jobs.handle import PipelineRun, start_job
from headrace.jobs.run import run_job
from headrace.jobs.settings import Settings, load_settings
from headrace.state.lock import StateLock
from headrace.storage.open import open_storage
from headrace.testing.in_process import run_in_process
from tests import flows


def settings_for(state: Path) -> Settings:
    return load_settings(flags={"state": {"dir": str(state)}, "run": {"parallelism": 2}})


def start_finished(state: Path, *, name: str = "done") -> PipelineRun:
    """The handle of a pipeline that has nothing left to do, for which no Spark is started."""
    pipeline = hr.Pipeline(name)
    pipeline.source(flows.impulse(10)).sink("blackhole")
    run_in_process(pipeline, state)
    return start_job(pipeline.plan(), settings_for(state))


def test_a_handle_says_what_runs_and_how_it_ended(tmp_path: Path) -> None:
    run = start_finished(tmp_path)
    result = run.await_termination(60)
    assert result is not None
    assert run.result == result
    assert (result.reason, result.epochs, run.is_active) == ("finished", 0, False)
    assert (run.name, run.id) == ("done", result.job_id)
    assert (run.status.state, run.status.is_active) == ("finished", False)
    assert run.status.message.startswith("finished after 0 epochs")
    assert (run.exception(), run.last_progress, run.recent_progress) == (None, None, [])
    assert run.metrics == {}
    assert repr(run) == f"<PipelineRun done ({run.id}): finished>"


def test_a_handle_is_shown_in_a_notebook_with_its_texts_escaped(tmp_path: Path) -> None:
    run = start_finished(tmp_path, name="a<b")
    run.await_termination()
    assert run._repr_html_().startswith("<div><b>a&lt;b</b> <i>finished</i>: <span")


def test_waiting_and_stopping_again_changes_nothing(tmp_path: Path) -> None:
    with start_finished(tmp_path) as run:
        first = run.await_termination()
        run.stop()
        assert run.await_termination(0) is first
    assert run.status.state == "finished"


def test_a_run_that_is_over_is_not_rescaled_and_a_wrong_number_is_refused(tmp_path: Path) -> None:
    run = start_finished(tmp_path)
    run.await_termination()
    assert run.parallelism == 2
    assert run.rescale(2)
    assert not run.rescale(3)
    with pytest.raises(hr.UserError, match="whole number greater than zero"):
        run.rescale(0)
    with pytest.raises(hr.UserError, match="takes seconds"):
        run.rescale(3, timeout="soon")  # type: ignore[arg-type]


def test_a_state_directory_in_use_is_refused_by_the_start(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(10)).sink("blackhole")
    with StateLock(open_storage(str(tmp_path))), pytest.raises(hr.StateInUseError):
        start_job(pipeline.plan(), settings_for(tmp_path))


def test_a_plan_that_cannot_work_is_refused_by_the_start(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source("single_file", path=str(tmp_path / "nothing.json"), format="json").sink("blackhole")
    with pytest.raises(hr.HeadraceError, match=re.escape("nothing.json")):
        start_job(pipeline.plan(), settings_for(tmp_path / "state"))


def test_a_run_that_is_told_to_stop_before_it_begins_starts_no_spark(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(10)).sink("blackhole")
    result = run_job(pipeline.plan(), settings_for(tmp_path), stop=stop)
    assert (result.reason, result.epochs, result.log_file) == ("stopped", 0, None)


def test_the_state_is_free_again_when_a_run_is_over(tmp_path: Path) -> None:
    start_finished(tmp_path).await_termination()
    with StateLock(open_storage(str(tmp_path))):
        pass


def test_a_time_to_wait_that_is_no_number_is_refused(tmp_path: Path) -> None:
    run = start_finished(tmp_path)
    with pytest.raises(hr.UserError, match="`timeout` takes seconds, got str '5'"):
        run.await_termination("5")  # type: ignore[arg-type]
    run.await_termination()
