"""Whole pipelines with their state on a real S3-compatible server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.state.cache import cache_directory
from headrace.state.inspect import list_checkpoints
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process
from tests.flows import FLOWS
from tests.golden.test_flows import contents


@pytest.mark.parametrize("flow", ["tumbling", "running", "totals"])
def test_a_pipeline_crashes_and_resumes_elsewhere_with_its_state_on_s3(
    s3_url: str, flow: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    build, url = FLOWS[flow], f"{s3_url}/{flow}"
    whole = run_in_process(build(hr.MemorySink), tmp_path_factory.mktemp("whole"))

    def crash(step: str, epoch: int) -> None:
        if (step, epoch) == ("metadata_written", 3):
            raise CrashError

    with pytest.raises(CrashError):
        run_in_process(build(hr.MemorySink), url, epoch_rows=40, on_step=crash)
    shutil.rmtree(cache_directory(url), ignore_errors=True)  # another machine has no copies
    resumed = run_in_process(
        build(hr.MemorySink), url, parallelism=3, epoch_rows=70, options=hr.RunOptions(keep_checkpoints=2)
    )
    assert resumed.first_epoch == 4
    assert contents([resumed]) == contents([whole])
    assert len(list_checkpoints(open_storage(url))) == 2


PIPELINE = """
import headrace as hr
from tests import flows

pipeline = flows.running(lambda name: hr.StdoutSink())
"""


@pytest.mark.spark
def test_spark_keeps_its_state_on_s3(s3_url: str, tmp_path: Path) -> None:
    """In processes of their own: Spark's workers have the environment that Spark was started with."""
    file = tmp_path / "on_s3.py"
    file.write_text(PIPELINE)
    rows: list[dict[str, int]] = []
    for options in (["-p", "2", "--epoch-rows", "80", "--max-epochs", "1"], ["-p", "3"]):
        run = subprocess.run(
            [sys.executable, "-m", "headrace", "run", str(file), "-s", f"{s3_url}/spark", *options],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        rows += [json.loads(line) for line in run.stdout.splitlines()]
    assert sorted((row["counter"], row["n"]) for row in rows) == [(i, i // 13 + 1) for i in range(200)]
