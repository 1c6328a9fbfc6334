"""Runs that go from Spark to the engine `local` and back, on one state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from tests import flows
from tests.golden.test_flows import contents


@pytest.mark.parametrize("first", ["local", "spark"])
def test_either_engine_goes_on_where_the_other_stopped(first: str, tmp_path: Path) -> None:
    local, spark = hr.RunOptions(engine="local"), hr.RunOptions(engine="spark")
    engines = [local, spark] if first == "local" else [spark, local]
    runs = [
        flows.two_levels(hr.MemorySink).run(
            tmp_path, parallelism=parallelism, epoch_rows=40, max_epochs=1, options=options
        )
        for parallelism, options in zip((2, 3, 2), [*engines, engines[0]], strict=True)
    ]
    runs.append(flows.two_levels(hr.MemorySink).run(tmp_path, parallelism=2, options=engines[1]))
    assert [run.first_epoch for run in runs] == [1, 2, 3, 4]
    assert runs[-1].reason == "finished"
    assert contents(runs) == contents([flows.two_levels(hr.MemorySink).run(options=local)])
