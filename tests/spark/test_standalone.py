"""A standalone master with two workers, from packages: what a user tries first, and what may go wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.standalone import ENVIRONMENT, Standalone, executors_of, standalone
from tests.unit.exchanges.test_masters import answering

JOB = """
import headrace as hr
from users_operators import Double

pipeline = hr.Pipeline("cluster")
rows = pipeline.source("single_file", path={source!r}, schema={{"k": "BIGINT", "n": "BIGINT"}}, id="rows")
rows.apply(Double(), id="double").key_by("k").apply(Double(), id="again").sink({sink})
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


SLOW_SINK = """
import time
from pathlib import Path
import headrace as hr

class Slow(hr.SingleFileSink):
    def handle_commit(self, epoch, data, ctx):
        if epoch == 2:
            Path({committing!r}).touch()
            while not Path({go_on!r}).exists():
                time.sleep(0.05)
        super().handle_commit(epoch, data, ctx)
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
    sink = f'hr.SingleFileSink(path={str(target)!r}), id="out"'
    file.write_text(JOB.format(source=str(source), sink=sink))
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
@pytest.mark.versions
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


def answer_questions_about_files(connection: socket.socket) -> None:
    """What a master of another version answers: it cannot read who wants to be registered."""
    with connection.makefile("rb") as frames:
        while header := frames.read(9):
            length, kind = struct.unpack(">qb", header)
            body = frames.read(length - len(header))
            if kind == 6:
                text = struct.pack(">i", 3) + b"no!"
                connection.sendall(struct.pack(">qb", 9 + len(body) + len(text), 7) + body + text)


def test_a_master_that_answers_and_registers_nobody_is_told_apart_from_one_that_is_away(job: Path) -> None:
    with answering(answer_questions_about_files) as port:
        command = [sys.executable, "-m", "headrace", "run", str(job), "--master", f"spark://127.0.0.1:{port}"]
        began = time.monotonic()
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 1
    assert "error[refused]: the master at" in run.stderr
    assert f"most likely it is not Spark {'.'.join(pyspark.__version__.split('.')[:2])}" in run.stderr
    assert "Traceback" not in run.stderr
    assert time.monotonic() - began < 50  # Spark itself asks for a minute


@pytest.mark.slow
@pytest.mark.versions
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


@pytest.mark.slow
def test_an_executor_that_is_lost_while_a_sink_commits_costs_no_row_and_repeats_none(
    job: Path, cluster: Standalone
) -> None:
    committing, go_on = job.parent / "committing", job.parent / "go-on"
    (job.parent / "users_sink.py").write_text(SLOW_SINK.format(committing=str(committing), go_on=str(go_on)))
    job.write_text("from users_sink import Slow\n" + job.read_text().replace("hr.SingleFileSink", "Slow"))
    run = start(job, cluster, "--parallelism", "2")
    while run.poll() is None and not committing.exists():
        time.sleep(0.05)
    victims = [pid for worker in cluster.workers for pid in executors_of(worker)]
    for pid in victims[:1]:
        os.kill(pid, signal.SIGKILL)
    go_on.touch()
    _, told = run.communicate(timeout=300)
    assert run.returncode == 0, told
    assert victims
    rows = [json.loads(line) for line in (job.parent / "out.json").read_text().splitlines()]
    assert sorted(row["n"] for row in rows) == [4 * n for n in range(600)]


@pytest.mark.slow
def test_workers_with_a_bare_python_run_with_the_archive_of_ship_env(
    job: Path, cluster: Standalone, tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    archive, bare = tmp_path / "env.tar.gz", tmp_path / "bare" / "bin" / "python"
    packed = subprocess.run(
        [sys.executable, "-m", "headrace", "ship-env", str(archive), "--python", str(bare)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert packed.returncode == 0, packed.stderr
    conf = [f"spark.archives={archive}#env", "spark.pyspark.python=./env/bin/python"]
    run = start(job, cluster, "--epoch-rows", "300", *(word for text in conf for word in ("--conf", text)))
    _, told = run.communicate(timeout=300)
    assert run.returncode == 0, told
    rows = [json.loads(line) for line in (job.parent / "out.json").read_text().splitlines()]
    assert sorted(row["n"] for row in rows) == [4 * n for n in range(600)]


@pytest.mark.slow
def test_an_executor_that_comes_late_is_asked_too(job: Path, tmp_path: Path) -> None:
    """Both workers find a Python of the same name on their PATH; the second one's has no packages."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    paths = []
    for name, python in {"good": sys.executable, "late": str(tmp_path / "bare" / "bin" / "python")}.items():
        program = tmp_path / name / "python-of-workers"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        program.chmod(0o755)
        paths.append(f"{program.parent}:{os.environ['PATH']}")
    cluster = Standalone(tmp_path)
    try:
        cluster.start_worker(PATH=paths[0])
        run = start(job, cluster, "--epoch-rows", "1", python="python-of-workers")
        checkpoints = job.parent / "state" / "checkpoints"
        while run.poll() is None and len(list(checkpoints.glob("*"))) < 2:
            time.sleep(0.05)
        assert run.poll() is None
        cluster.start_worker(PATH=paths[1])
        _, told = run.communicate(timeout=300)
    finally:
        cluster.close()
    assert run.returncode == 2, told
    assert "error[configuration]: Spark's workers have no numpy, pyarrow" in told
    assert "headrace ship-env" in told
