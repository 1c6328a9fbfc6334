"""The arguments of `run_in_process`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Pipeline, RunOptions
from headrace.base.errors import ConfigurationError, PlanError
from headrace.testing.in_process import run_in_process


@pytest.mark.parametrize("parallelism", [0, -1])
def test_a_parallelism_below_one_is_refused_before_anything_is_written(
    tmp_path: Path, parallelism: int
) -> None:
    pipeline = Pipeline.from_sql("SELECT 1 AS x")
    with pytest.raises(ConfigurationError, match=f"`parallelism` must be greater than 0, got {parallelism}"):
        run_in_process(pipeline, tmp_path / "state", parallelism=parallelism)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (RunOptions(memory="4g"), "`memory` has no effect on a run in this process"),
        (RunOptions(py_files=["x.py"]), "`py_files` has no effect"),
        ({"restarts": 1}, "takes hr.RunOptions"),
    ],
)
def test_options_that_have_no_effect_or_are_wrong_are_refused(
    tmp_path: Path, options: RunOptions, expected: str
) -> None:
    pipeline = Pipeline.from_sql("SELECT 1 AS x")
    with pytest.raises(ConfigurationError, match=expected) as caught:
        run_in_process(pipeline, tmp_path / "state", options=options)
    assert Path(__file__).name in str(caught.value.where)
    assert not (tmp_path / "state").exists()


def test_watch_is_for_dataflows(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="`watch` is for dataflows"):
        run_in_process(Pipeline.from_sql("SELECT 1 AS x"), tmp_path / "state", watch=True)
