"""`headrace submit` on this machine; for YARN and Kubernetes, what Spark's own classes make of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
JOB = """
import headrace as hr
from users_rows import ROWS

pipeline = hr.Pipeline("submitted")
pipeline.source("memory", rows=ROWS).sink("single_file", path={out!r})
"""
ENDLESS = """
CREATE TABLE numbers WITH (connector = 'impulse', event_rate = 100);
CREATE TABLE out (counter BIGINT) WITH (connector = 'single_file', type = 'sink', path = '{out}');
INSERT INTO out SELECT counter FROM numbers;
"""


def submit(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "submit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


@pytest.mark.versions
def test_a_submitted_driver_goes_on_from_the_state_directory(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    (tmp_path / "users_rows.py").write_text("ROWS = [{'n': n} for n in range(40)]\n")
    (tmp_path / "job.py").write_text(JOB.format(out=str(out)))
    arguments: list[str | Path] = [
        tmp_path / "job.py",
        "--master",
        "local[2]",
        "--state-dir",
        tmp_path / "state",
    ]
    first = submit(*arguments, "--epoch-rows", "10", "--max-epochs", "2")
    assert first.returncode == 0, first.stderr
    assert len(out.read_text().splitlines()) == 20
    second = submit(*arguments)
    assert second.returncode == 0, second.stderr
    assert sorted(json.loads(line)["n"] for line in out.read_text().splitlines()) == list(range(40))


def test_a_signal_reaches_a_driver_on_this_machine_which_commits_its_epoch(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    (tmp_path / "job.sql").write_text(ENDLESS.format(out=out))
    command = [sys.executable, "-m", "headrace", "submit", str(tmp_path / "job.sql")]
    command += ["--master", "local[2]", "--state-dir", str(tmp_path / "state")]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not (out.exists() and out.stat().st_size):
        time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    printed, told = run.communicate(timeout=300)
    assert run.returncode == 0, told
    assert "stopped: everything up to the last epoch is committed" in printed
    assert "go on with: the same `headrace submit`" in printed
    counters = [json.loads(line)["counter"] for line in out.read_text().splitlines()]
    assert sorted(counters) == list(range(len(counters)))


def rendered(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What Spark makes of the arguments that a dry run prints."""
    (tmp_path / "job.sql").write_text(ENDLESS.format(out="/out.json"))
    (tmp_path / "env.tar.gz").touch()
    entry = str(tmp_path / "main.py")
    told = submit(tmp_path / "job.sql", *arguments, "--entry", entry, "--dry-run", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    _, *words = shlex.split(told.stdout)
    if "k8s" in " ".join(words):  # as it is in an image
        words[-1] = f"local://{entry}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.rendered", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, "HADOOP_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_spark_takes_the_submission_to_yarn(tmp_path: Path) -> None:
    result = rendered(
        tmp_path,
        *("--master", "yarn", "--deploy-mode", "cluster", "--state-dir", "hdfs://nn/state"),
        *("--env", str(tmp_path / "env.tar.gz")),
    )
    assert result["class"] == "org.apache.spark.deploy.yarn.YarnClusterApplication"
    assert result["arguments"][:2] == ["--primary-py-file", f"file:{tmp_path}/main.py"]
    conf = result["conf"]
    assert conf["spark.yarn.dist.archives"].endswith(f"{tmp_path}/env.tar.gz#env")
    assert conf["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == conf["spark.pyspark.python"]


def test_spark_makes_the_pod_of_the_driver_from_the_submission_to_kubernetes(tmp_path: Path) -> None:
    result = rendered(
        tmp_path,
        *("--master", "k8s://https://127.0.0.1:6443", "--deploy-mode", "cluster"),
        *("--conf", "spark.kubernetes.container.image=registry/headrace:1", "--name", "orders"),
    )
    assert result["class"] == "org.apache.spark.deploy.k8s.submit.KubernetesClientApplication"
    assert result["pod"]["metadata"]["labels"]["spark-app-name"] == "orders"
    container = result["container"]
    assert container["image"] == "registry/headrace:1"
    assert container["args"][-1] == f"local://{tmp_path}/main.py"
    assert container["resources"]["requests"]["memory"] == "2867Mi"  # 2g, and 40 % for Python
