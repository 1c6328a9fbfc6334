"""A standalone master with two workers, from packages: what a user tries first, and what may go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.standalone import ENVIRONMENT, Standalone, standalone

JOB = """
import headrace as hr
from users_operators import Double

pipeline = hr.Pipeline("cluster")
rows = pipeline.source("single_file", path={source!r}, schema={{"k": "BIGINT", "n": "BIGINT"}}, id="rows")
rows.apply(Double(), id="double").key_by("k").apply(Double(), id="again").sink(
    "single_file", path={target!r}, id="out"
)
"""
OPERATORS = """
import pyarrow.compute as pc
import headrace as hr
from users_helper import FACTOR

class Double(hr.ArrowOperator):
    def process_batch(self, batch, ctx, collector):
        index = batch.schema.get_field_index("n")
        collector.collect(batch.set_column(index, "n", pc.multiply(batch["n"], FACTOR)))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A pipeline from file to file, in a directory with its modules."""
    (tmp_path / "users_helper.py").write_text("FACTOR = 2\n")
    (tmp_path / "users_operators.py").write_text(OPERATORS)
    source, target = tmp_path / "in.json", tmp_path / "out.json"
    source.write_text("".join(json.dumps({"k": n % 7, "n": n}) + "\n" for n in range(600)))
    file = tmp_path / "job.py"
    file.write_text(JOB.format(source=str(source), target=str(target)))
    return file


def start(
    job: Path, cluster: Standalone, *arguments: str, python: str = sys.executable
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", "run", str(job), "--master", cluster.url]
    command += ["--state-dir", str(job.parent / "state"), "--epoch-rows", "50", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYSPARK_PYTHON": python},
    )


@pytest.mark.slow
def test_workers_without_the_packages_are_one_error_that_says_how_to_ship_them(
    job: Path, cluster: Standalone, tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    run = start(job, cluster, python=str(tmp_path / "bare" / "bin" / "python"))
    _, told = run.communicate(timeout=300)
    assert run.returncode == 2, told
    assert "error[configuration]: Spark's workers have no numpy, pyarrow, pydantic, cloudpickle" in told
    assert "headrace ship-env" in told
    assert "try" not in told  # it was not tried again
    assert not list((job.parent / "state").glob("preflight-*"))


@pytest.mark.slow
def test_a_killed_worker_and_a_resume_at_another_parallelism_cost_no_row_and_repeat_none(
    job: Path, cluster: Standalone
) -> None:
    run = start(job, cluster, "--parallelism", "3", "--max-epochs", "8")
    checkpoints = job.parent / "state" / "checkpoints"
    while run.poll() is None and len(list(checkpoints.glob("*"))) < 2:
        time.sleep(0.05)
    cluster.workers[0].kill()
    _, told = run.communicate(timeout=300)
    assert run.returncode == 0, told
    assert "8 epochs (1–8)" in told
    assert f"--master {cluster.url}" in told
    again = start(job, cluster, "--parallelism", "2")
    _, told = again.communicate(timeout=300)
    assert again.returncode == 0, told
    rows = [json.loads(line) for line in (job.parent / "out.json").read_text().splitlines()]
    assert sorted(row["n"] for row in rows) == [4 * n for n in range(600)]
