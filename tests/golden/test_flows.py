"""Every flow: whole; stopped at parallelism 2 and resumed at 3; with another parallelism every few epochs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing.in_process import run_in_process
from tests.flows import FLOWS


def contents(results: list[hr.RunResult]) -> dict[str, Counter[tuple[object, ...]]]:
    """The rows of every sink as a multiset, without the columns that depend on how tasks were cut."""
    found: dict[str, Counter[tuple[object, ...]]] = {}
    for result in results:
        for name, table in result.rows.items():
            found.setdefault(name, Counter()).update(rows_of(table))
    return found


def rows_of(table: pa.Table) -> Counter[tuple[object, ...]]:
    names = sorted(name for name in table.schema.names if name != "subtask_index")
    if not names:
        return Counter()
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("flow", FLOWS)
def test_a_stopped_and_rescaled_run_gives_the_rows_of_a_whole_one(flow: str, tmp_path: Path) -> None:
    build = FLOWS[flow]
    whole = run_in_process(build(hr.MemorySink), tmp_path / "whole", parallelism=1)
    assert whole.reason == "finished"
    assert whole.rows_out > 0

    stopped = run_in_process(
        build(hr.MemorySink), tmp_path / "cut", parallelism=2, epoch_rows=23, max_epochs=4, seed=1
    )
    assert stopped.reason == "max_epochs"
    resumed = run_in_process(build(hr.MemorySink), tmp_path / "cut", parallelism=3, epoch_rows=31, seed=2)
    assert resumed.reason == "finished"
    assert resumed.first_epoch == 5
    assert contents([stopped, resumed]) == contents([whole])


@pytest.mark.parametrize("flow", FLOWS)
def test_a_run_that_is_rescaled_while_it_runs_gives_the_rows_of_a_whole_one(
    flow: str, tmp_path: Path
) -> None:
    build = FLOWS[flow]
    whole = run_in_process(build(hr.MemorySink), tmp_path / "whole", parallelism=1)
    rescaled = run_in_process(
        build(hr.MemorySink),
        tmp_path / "rescaled",
        parallelism=2,
        epoch_rows=23,
        seed=1,
        rescale=lambda epoch: (None, 1, 5, 3)[epoch % 4],
    )
    assert rescaled.reason == "finished"
    assert contents([rescaled]) == contents([whole])


@pytest.mark.parametrize("flow", FLOWS)
def test_a_finished_pipeline_that_is_run_again_does_nothing(flow: str, tmp_path: Path) -> None:
    build = FLOWS[flow]
    run_in_process(build(hr.MemorySink), tmp_path, epoch_rows=50)
    again = run_in_process(build(hr.MemorySink), tmp_path)
    assert (again.reason, again.epochs, again.rows_in) == ("finished", 0, 0)


@pytest.mark.parametrize("flow", FLOWS)
def test_a_source_without_rows_ends_at_once(flow: str, tmp_path: Path) -> None:
    result = run_in_process(FLOWS[flow](hr.MemorySink, count=0), tmp_path)
    assert result.reason == "finished"
    assert result.epochs == 1


@pytest.mark.parametrize("flow", ["tumbling", "running", "join"])
def test_the_order_in_which_envelopes_arrive_changes_nothing(flow: str, tmp_path: Path) -> None:
    outputs = [
        run_in_process(FLOWS[flow](hr.MemorySink), tmp_path / str(seed), epoch_rows=40, seed=seed).rows["out"]
        for seed in range(4)
    ]
    assert all(output.equals(outputs[0]) for output in outputs)
