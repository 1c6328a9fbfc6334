"""The golden flows on Spark: whole, stopped at parallelism 2, resumed at parallelism 3."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.testing.in_process import run_in_process
from tests.flows import FLOWS
from tests.golden.test_flows import contents

ON_EVERY_VERSION = {"two_levels", "join"}
"""The flows that are stopped and rescaled with the other versions of Spark too."""


@pytest.mark.parametrize(
    "flow",
    [pytest.param(flow, marks=pytest.mark.versions if flow in ON_EVERY_VERSION else ()) for flow in FLOWS],
)
def test_spark_gives_the_rows_of_a_run_in_process(flow: str, tmp_path: Path) -> None:
    build = FLOWS[flow]
    expected = contents([run_in_process(build(hr.MemorySink), tmp_path / "expected")])

    whole = build(hr.MemorySink).run(tmp_path / "whole", parallelism=2)
    assert whole.reason == "finished"
    assert contents([whole]) == expected

    stopped = build(hr.MemorySink).run(tmp_path / "cut", parallelism=2, epoch_rows=60, max_epochs=2)
    assert (stopped.reason, stopped.epochs) == ("max_epochs", 2)
    resumed = build(hr.MemorySink).run(tmp_path / "cut", parallelism=3, epoch_rows=80)
    assert (resumed.reason, resumed.first_epoch) == ("finished", 3)
    assert contents([stopped, resumed]) == expected
