"""A Python worker or Java that ends in the middle of a run: said plainly, and made up for where possible."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import SparkContext

import headrace as hr
from headrace.base.private import process_directory, scratch_root
from headrace.exchanges.spark.exits import exits_directory
from tests import flows

REPOSITORY = Path(__file__).parents[2]


class Ends(hr.ArrowOperator):
    """Ends the process it runs in, in one epoch: by a code, a signal or a crash; as often as it is told."""

    def __init__(self, marks: Path, *, way: str, times: int = 1000) -> None:
        self.marks = marks
        self.way = way
        self.times = times

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        ended = len(list(self.marks.iterdir()))
        if ctx.task_info.epoch == 2 and ctx.task_info.subtask == 0 and ended < self.times:
            (self.marks / str(ended)).touch()
            if self.way == "exit":
                os._exit(3)
            if self.way == "crash":
                ctypes.string_at(0)
            os.kill(os.getpid(), signal.Signals[self.way])
        collector.collect(batch)


def build(tmp_path: Path, *, way: str, times: int = 1000) -> hr.Pipeline:
    (tmp_path / "marks").mkdir()
    pipeline = hr.Pipeline("ends")
    rows = pipeline.source(flows.impulse(150)).map(flows.keyed(3)).key_by("k")
    rows.apply(Ends(tmp_path / "marks", way=way, times=times), id="bystander").sink(hr.MemorySink("out"))
    return pipeline


@pytest.mark.parametrize(
    ("way", "said", "hint"),
    [
        ("exit", "a Python worker exited with code 3", "Spark's log"),
        ("SIGKILL", "a Python worker was killed by SIGKILL", "when memory runs out"),
        ("SIGTERM", "a Python worker was killed by SIGTERM", "Spark's log"),
        ("crash", "a Python worker was killed by SIGSEGV", "native code has crashed"),
    ],
)
def test_the_end_of_a_worker_names_its_reason_its_operator_its_subtask_and_its_epoch(
    tmp_path: Path, way: str, said: str, hint: str
) -> None:
    with pytest.raises(hr.WorkerError) as caught:
        build(tmp_path, way=way).run(parallelism=1, epoch_rows=50, options=hr.RunOptions(restarts=0))
    assert caught.value.message == said
    assert caught.value.where == "operator bystander, subtask 0, epoch 2"
    assert hint in str(caught.value.hint)
    if way == "crash":
        assert "Fatal Python error: Segmentation fault" in caught.value.traceback_text
        assert "test_lost_processes.py" in caught.value.traceback_text
        assert "org.apache" not in caught.value.traceback_text
    assert sum(1 for _ in exits_directory().iterdir()) <= 101


def test_a_worker_that_ends_once_costs_no_row(tmp_path: Path) -> None:
    result = build(tmp_path, way="SIGKILL", times=2).run(parallelism=2, epoch_rows=50)
    assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(150))


LONG = """
import headrace as hr

pipeline = hr.Pipeline("long")
pipeline.source("impulse", event_rate=200, message_count=3000).sink("stdout")
if __name__ == "__main__":
    {session}
    pipeline.run({arguments})
"""


def java_of(pid: int) -> psutil.Process:
    (java,) = [child for child in psutil.Process(pid).children() if child.name() == "java"]
    return java


def started(tmp_path: Path, arguments: str = "", session: str = "", **environ: str) -> subprocess.Popen[str]:
    file = tmp_path / "long_run.py"
    file.write_text(LONG.format(arguments=arguments, session=session))
    return subprocess.Popen(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_a_row(run: subprocess.Popen[str]) -> int:
    assert run.stdout is not None
    line = run.stdout.readline()
    assert line, run.communicate()
    counter = json.loads(line)["counter"]
    assert isinstance(counter, int)
    return counter


def test_java_that_is_killed_is_started_again_and_costs_no_row(tmp_path: Path) -> None:
    run = started(tmp_path)
    counters = [read_a_row(run)]
    java_of(run.pid).kill()
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    counters += [json.loads(line)["counter"] for line in out.splitlines()]
    assert counters == list(range(3000))
    assert "Spark's Java has ended: it was killed by SIGKILL" in err
    assert "Traceback" not in err


def test_java_that_is_killed_without_restarts_ends_the_run_with_the_signal(tmp_path: Path) -> None:
    run = started(tmp_path, "options=hr.RunOptions(restarts=0)")
    read_a_row(run)
    java_of(run.pid).kill()
    _, err = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "Spark's Java has ended: it was killed by SIGKILL" in err
    assert "when memory runs out" in err
    assert "Connection refused" not in err.rpartition("headrace.base.errors.")[2]


def test_java_with_a_session_of_the_users_is_not_started_again(tmp_path: Path) -> None:
    session = "from pyspark.sql import SparkSession; SparkSession.builder.master('local[1]').getOrCreate()"
    run = started(tmp_path, session=session)
    read_a_row(run)
    java_of(run.pid).kill()
    _, err = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "SparkEndedError: Spark's Java has ended: it was killed by SIGKILL" in err
    assert "start the pipeline again" in err


def test_what_killed_processes_leave_behind_is_removed_by_the_next_run(tmp_path: Path) -> None:
    # In a place of its own: whatever else starts on this machine would remove it first.
    with tempfile.TemporaryDirectory(prefix="hr") as place:
        _check_that_the_next_run_removes_what_is_left(tmp_path, {"TMPDIR": place})


def _check_that_the_next_run_removes_what_is_left(tmp_path: Path, environ: dict[str, str]) -> None:
    run = started(tmp_path, **environ)
    read_a_row(run)
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in processes:
        process.kill()
    run.communicate(timeout=60)
    psutil.wait_procs(processes, timeout=60)
    left = list((scratch_root(environ) / "run").glob(f"*-{run.pid}-*"))
    assert left
    assert [file for directory in left for file in directory.rglob("*")]
    subprocess.run(
        [sys.executable, "-c", "from headrace.base.private import process_directory; process_directory()"],
        env={**os.environ, **environ},
        check=True,
        timeout=60,
    )
    assert [directory for directory in left if directory.exists()] == []


class Heavy(hr.ArrowOperator):
    """Carries more than Spark puts into the function of a task."""

    def __init__(self) -> None:
        self.weight = os.urandom(2_000_000)

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        assert len(self.weight) == 2_000_000
        collector.collect(batch)


@pytest.mark.parametrize("operator", ["small", "large"])
def test_files_of_an_epoch_are_removed_with_it(operator: str) -> None:
    pipeline = hr.Pipeline("many-epochs")
    rows = pipeline.source(flows.impulse(600)).map(flows.keyed(3)).key_by("k")
    if operator == "large":
        rows = rows.apply(Heavy())
    rows.apply(flows.RunningCount()).sink("blackhole")
    local = process_directory() / "spark"
    before = sum(1 for _ in local.rglob("*") if _.is_file())
    most = 0

    def count(_progress: hr.Progress) -> None:
        nonlocal most
        most = max(most, sum(1 for path in local.rglob("*") if path.is_file()) - before)

    result = pipeline.run(parallelism=2, epoch_rows=4, on_progress=count)
    assert result.epochs == 150
    # Java removes them in another thread; it may be some epochs behind, but not all of them.
    assert most < 150
    deadline = time.monotonic() + 60
    while sum(1 for path in local.rglob("*") if path.is_file()) - before > 12 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sum(1 for path in local.rglob("*") if path.is_file()) - before <= 12


def test_java_does_not_remember_a_socket_for_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.exchanges.spark.rdd.EPOCHS_UNTIL_FORGOTTEN", 10)
    result = flows.passthrough(hr.MemorySink).run(parallelism=2, epoch_rows=5)
    assert result.epochs == 40
    jvm: Any = SparkContext._jvm
    files = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    files.setAccessible(True)
    assert files.get(None).size() <= 10
