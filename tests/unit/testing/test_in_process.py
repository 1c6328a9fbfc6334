"""The arguments of `run_in_process`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError
from headrace.testing.in_process import run_in_process


@pytest.mark.parametrize("parallelism", [0, -1])
def test_a_parallelism_below_one_is_refused_before_anything_is_written(
    tmp_path: Path, parallelism: int
) -> None:
    pipeline = Pipeline.from_sql("SELECT 1 AS x")
    with pytest.raises(ConfigurationError, match=f"`parallelism` is {parallelism}"):
        run_in_process(pipeline, tmp_path / "state", parallelism=parallelism)
    assert not (tmp_path / "state").exists()
