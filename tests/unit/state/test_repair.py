"""Repair removes what runs that were replaced or killed left behind, and nothing that a checkpoint needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.run_options import RunOptions
from headrace.base.errors import StateInUseError
from headrace.state import inspect
from headrace.state.backend import ParquetBackend
from headrace.state.generation import Generation, Start
from headrace.state.lock import StateLock
from headrace.storage.base import Storage
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process
from tests.unit.engine.test_generations import check_rows, pipeline


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """The state of a run that was stopped after four epochs."""
    run_in_process(
        pipeline(tmp_path),
        tmp_path / "state",
        parallelism=1,
        epoch_rows=200,
        max_epochs=4,
        options=RunOptions(keep_checkpoints=9),
    )
    return open_storage(str(tmp_path / "state"))


def test_what_a_replaced_run_wrote_later_is_removed_and_the_state_stays_whole(
    storage: Storage, tmp_path: Path
) -> None:
    Generation.claim(storage, "another run").start_from(Start(3, None))  # the fourth epoch came too late
    assert ParquetBackend(storage).epochs() == [1, 2, 3]
    before = inspect.verify(storage)
    removed = inspect.repair(storage).removed
    assert any(path.startswith("checkpoints/checkpoint-0000004/") for path in removed)
    assert all("checkpoint-0000004" in path for path in removed)
    assert inspect.verify(storage) == before
    run_in_process(pipeline(tmp_path), tmp_path / "state", parallelism=1, epoch_rows=200)
    check_rows(tmp_path)


def test_a_generation_that_has_not_started_lets_nothing_be_removed(storage: Storage, tmp_path: Path) -> None:
    Generation.claim(storage, "a run that was killed at once")
    assert inspect.repair(storage).removed == ()
    assert ParquetBackend(storage).latest_epoch() == 4
    run_in_process(pipeline(tmp_path), tmp_path / "state", parallelism=1, epoch_rows=200)
    check_rows(tmp_path)


@pytest.mark.parametrize("step", ["begin", "tasks_done", "operators_written", "metadata_written"])
def test_after_a_crash_repair_leaves_a_state_that_resumes_with_the_same_rows(
    storage: Storage, tmp_path: Path, step: str
) -> None:
    def crash(at: str, epoch: int) -> None:
        if (at, epoch) == (step, 5):
            raise CrashError

    with pytest.raises(CrashError):
        run_in_process(pipeline(tmp_path), tmp_path / "state", parallelism=1, epoch_rows=200, on_step=crash)
    inspect.repair(storage)
    assert all(not result.problems for result in inspect.verify(storage))
    run_in_process(pipeline(tmp_path), tmp_path / "state", parallelism=1, epoch_rows=200)
    check_rows(tmp_path)


def test_repair_is_refused_while_a_run_is_at_work(storage: Storage) -> None:
    with StateLock(storage), pytest.raises(StateInUseError):
        inspect.repair(storage)


def test_verify_reports_a_state_directory_that_does_not_tell_its_pipeline(
    storage: Storage, tmp_path: Path
) -> None:
    identity = tmp_path / "state" / "pipeline.json"
    content = identity.read_bytes()
    for damaged in (content.replace(b"numbers", b"cumbers"), content[:20], b"[]"):
        identity.write_bytes(damaged)
        assert all("pipeline.json" in result.problems[0] for result in inspect.verify(storage))
    identity.unlink()
    assert all("is missing" in result.problems[0] for result in inspect.verify(storage))
    identity.write_bytes(content)
    assert all(not result.problems for result in inspect.verify(storage))
