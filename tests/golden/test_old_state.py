"""A state directory that earlier code wrote is resumed by this code, and ends with the same rows.

`tests/golden/old_state` holds them beside their pipelines; its `make.py` says how they were made.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.state import inspect
from headrace.state.backend import ParquetBackend
from headrace.state.generation import Start, generations, start_of
from headrace.storage.open import open_storage
from headrace.testing.in_process import run_in_process
from tests.golden.old_state.cases import CASES, HERE, PROCESSES, RESULTS, clock_for, lay_out, load, read_rows


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to work in, since the paths of the pipelines are relative."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("pipeline", None)


def unpack(name: str, how: str, directory: Path) -> None:
    lay_out(name, directory)
    with tarfile.open(HERE / name / f"{how}.tar.gz") as archive:
        archive.extractall(directory, filter="data")


def expected_rows(name: str) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = json.loads((HERE / name / RESULTS).read_text())
    return rows


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("name", CASES)
def test_a_state_of_earlier_code_is_resumed_and_ends_with_the_same_rows(
    name: str, how: str, parallelism: int, directory: Path
) -> None:
    unpack(name, how, directory)
    last = max(int(path.parent.name.partition("-")[2]) for path in directory.glob("state/*/*/metadata*.json"))
    assert last >= 5

    resumed = run_in_process(
        load(), "state", parallelism=parallelism, epoch_rows=11, seed=2, clock=clock_for(name)
    )
    assert (resumed.reason, resumed.first_epoch) == ("finished", last + 1)
    assert read_rows(Path("out")) == expected_rows(name)


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("name", CASES)
def test_a_state_of_earlier_code_is_whole_and_repair_keeps_what_it_needs(
    name: str, how: str, directory: Path
) -> None:
    unpack(name, how, directory)
    storage = open_storage(str(directory / "state"))
    before = inspect.verify(storage)
    assert [result.problems for result in before] == [()] * len(before)
    inspect.repair(storage)
    assert inspect.verify(storage) == before


CLAIMED = [name for name in CASES if name.startswith("claimed_") and name not in PROCESSES]


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("name", CLAIMED)
def test_a_state_with_generations_is_taken_over_by_the_next_one(name: str, how: str, directory: Path) -> None:
    unpack(name, how, directory)
    storage = open_storage(str(directory / "state"))
    latest = ParquetBackend(storage).latest()
    assert generations(storage) == [1, 2]
    assert start_of(storage, 2) in {
        Start(2, 1),
        Start(3, 1),
    }  # with a last epoch for the stop, where one is told
    assert latest is not None
    assert latest.generation == 2
    oldest = ParquetBackend(storage).load_checkpoint_metadata("", latest.epoch).min_epoch

    run_in_process(load(), "state", parallelism=1, epoch_rows=11, max_epochs=1, clock=clock_for(name))
    assert generations(storage) == [1, 2, 3]
    assert start_of(storage, 3) == Start(*latest, oldest)


@pytest.mark.parametrize("name", [name for name in CASES if name not in PROCESSES])
def test_a_pipeline_gives_the_rows_that_earlier_code_gave(name: str, directory: Path) -> None:
    lay_out(name, directory)
    run_in_process(load(), "state", parallelism=2, epoch_rows=11, clock=clock_for(name))
    assert read_rows(Path("out")) == expected_rows(name)


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("name", CASES)
def test_a_state_of_earlier_code_was_taken_before_all_rows_were_there(
    name: str, how: str, directory: Path
) -> None:
    unpack(name, how, directory)
    assert read_rows(Path("out")) != expected_rows(name)
