"""Runs without Spark: the engine `local`, as pipelines, notebooks and the command line use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing.in_process import run_in_process
from tests import flows
from tests.golden.test_flows import contents

LOCAL = hr.RunOptions(engine="local")


def counting(out: Path, count: int | None = 300) -> hr.Pipeline:
    """Numbers every row of its key; endless without a count."""
    pipeline = hr.Pipeline("counting")
    source = hr.ImpulseSource(message_count=count, event_rate=1000.0, event_time_interval="1s")
    rows = pipeline.source(source if count is None else flows.impulse(count)).map(flows.keyed(7))
    rows.key_by("k").apply(flows.RunningCount(), id="count").sink(hr.SingleFileSink(path=str(out)), id="file")
    return pipeline


def rows_of(out: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return sorted((row["counter"], row["n"]) for row in rows)


def headrace(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **environ},
        timeout=120,
    )


@pytest.mark.parametrize("parallelism", [None, 3, "auto:2-4"])
def test_a_local_run_gives_the_rows_of_any_other_run(tmp_path: Path, parallelism: int | str | None) -> None:
    run_in_process(counting(tmp_path / "expected.jsonl"), tmp_path / "in_process")
    result = counting(tmp_path / "out.jsonl").run(tmp_path / "state", parallelism=parallelism, options=LOCAL)
    assert (result.reason, result.rows_in, result.log_file) == ("finished", 300, None)
    assert rows_of(tmp_path / "out.jsonl") == rows_of(tmp_path / "expected.jsonl")


@pytest.mark.parametrize("name", sorted(flows.FLOWS))
def test_a_local_run_goes_on_where_another_one_stopped_at_any_parallelism(name: str, tmp_path: Path) -> None:
    whole = flows.FLOWS[name](hr.MemorySink).run(options=LOCAL)
    cut = tmp_path / "cut"
    first = flows.FLOWS[name](hr.MemorySink).run(
        cut, parallelism=2, epoch_rows=60, max_epochs=2, options=LOCAL
    )
    assert (first.reason, first.epochs) == ("max_epochs", 2)
    second = run_in_process(flows.FLOWS[name](hr.MemorySink), cut, parallelism=3, epoch_rows=60, max_epochs=1)
    third = flows.FLOWS[name](hr.MemorySink).run(cut, options=LOCAL)
    assert third.reason == "finished"
    assert contents([first, second, third]) == contents([whole])


def test_neither_pyspark_nor_java_is_started_for_a_local_run(tmp_path: Path) -> None:
    program = """
import sys
import headrace as hr
pipeline = hr.Pipeline("shops")
pipeline.source("memory", rows=[{"shop": "mill"}]).sink("memory", name="rows")
print(pipeline.run(options=hr.RunOptions(engine="local")).rows["rows"].num_rows)
print({"pyspark", "py4j"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "JAVA_HOME": "/nonexistent"},
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("1\nset()\n", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"master": "local[2]"}, "`master`"),
        ({"options": hr.RunOptions(engine="local", memory="1g")}, "`memory`"),
        ({"options": hr.RunOptions(engine="local", spark_conf={"spark.x": "1"})}, "`spark_conf`"),
    ],
)
def test_what_only_spark_reads_is_refused(arguments: dict[str, Any], named: str, tmp_path: Path) -> None:
    pipeline = counting(tmp_path / "out")
    with pytest.raises(hr.ConfigurationError, match="the engine of this run is `local`") as refused:
        pipeline.run(**{"options": LOCAL, **arguments})
    assert named in refused.value.message


def test_settings_of_spark_in_a_file_are_for_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("headrace.toml").write_text("[spark]\nmaster = 'spark://nobody:7077'\nmemory = '9g'\n")
    assert counting(tmp_path / "out.jsonl").run(options=LOCAL).rows_in == 300


def test_a_driver_of_spark_submit_is_not_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(hr.ConfigurationError, match="spark-submit has started this process"):
        counting(tmp_path / "out").run(options=LOCAL)


def test_a_table_that_needs_spark_is_refused(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    pipeline.source("impulse", message_count=1).sink("spark", format="parquet", path=str(tmp_path / "out"))
    with pytest.raises(hr.ConfigurationError, match="the engine `local` has no Spark"):
        pipeline.run(options=LOCAL)


def test_modules_of_py_files_can_be_imported_and_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "shipped_late.py").write_text("FACTOR = 3\n")

    def times(batch: Any) -> Any:
        import shipped_late  # type: ignore[import-not-found]

        return batch.slice(0, shipped_late.FACTOR)

    def build() -> hr.Pipeline:
        pipeline = hr.Pipeline()
        pipeline.source(flows.impulse(10)).map(times).sink("blackhole")
        return pipeline

    with pytest.raises(hr.ConfigurationError, match=r"there is no file nowhere\.py"):
        build().run(options=hr.RunOptions(engine="local", py_files=["nowhere.py"]))
    ships = hr.RunOptions(engine="local", py_files=[str(tmp_path / "shipped_late.py")])
    assert build().run(options=ships).rows_out == 3


def test_an_endless_local_run_is_stopped_between_two_epochs_and_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for _ in range(2):
        begun = threading.Event()

        def note(_: hr.Progress, begun: threading.Event = begun) -> None:
            begun.set()

        with counting(out, None).start(tmp_path / "state", on_progress=note, options=LOCAL) as run:
            assert begun.wait(60)
            assert run.rescale(3, timeout=60)
        assert run.status.state == "stopped"
    counters = [counter for counter, _ in rows_of(out)]
    assert counters == list(range(len(counters)))


def test_several_local_runs_of_one_process_take_turns(tmp_path: Path) -> None:
    runs = [counting(tmp_path / f"{number}.jsonl").start(epoch_rows=20, options=LOCAL) for number in range(3)]
    for run in runs:
        run.await_termination(120)
    first, *others = (rows_of(tmp_path / f"{number}.jsonl") for number in range(3))
    assert len(first) == 300
    assert others == [first, first]


def test_a_stream_is_shown_without_spark(capsys: pytest.CaptureFixture[str]) -> None:
    sales = hr.Pipeline().source("memory", rows=[{"shop": "mill"}])
    sales.show(5, options=LOCAL)
    assert capsys.readouterr().out.splitlines()[-1] == "1 row"


def test_the_command_runs_sql_without_spark(tmp_path: Path) -> None:
    done = headrace("run", "-q", "-e", "SELECT 1 + 1 AS two", "--engine", "local", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"two":2}\n', "")


def test_the_command_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
    (tmp_path / "q.sql").write_text(
        "CREATE TABLE t (n BIGINT) WITH (connector = 'single_file', path = 'in.jsonl', format = 'json', "
        "type = 'source'); SELECT n FROM t;"
    )
    arguments = ["run", "q.sql", "--state-dir", "state", "--engine", "local", "--epoch-rows", "4"]
    first = headrace(*arguments, "--max-epochs", "1", cwd=tmp_path)
    assert "starting the first epoch" in first.stderr
    assert "Spark" not in first.stderr
    assert "--engine local --state-dir state" in first.stderr.splitlines()[-1]
    second = headrace(*arguments, cwd=tmp_path)
    assert (first.returncode, second.returncode) == (0, 0)
    shown = [json.loads(line)["n"] for line in (first.stdout + second.stdout).splitlines()]
    assert shown == list(range(10))


def test_the_command_refuses_a_master_with_2_and_a_failed_run_ends_as_on_spark(tmp_path: Path) -> None:
    refused = headrace("run", "-e", "SELECT 1", "--engine", "local", "--master", "local[2]", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--master is for Spark, and the engine of this run is `local`" in refused.stderr
    by_variable = headrace(
        "run", "-e", "SELECT 1", "--conf", "spark.x=1", cwd=tmp_path, HEADRACE__RUN__ENGINE="local"
    )
    assert by_variable.returncode == 2
    assert "as HEADRACE__RUN__ENGINE says" in by_variable.stderr
    (tmp_path / "bad.py").write_text(
        "import headrace as hr\n\n\ndef fail(batch):\n    raise ValueError('no such shop')\n\n\n"
        "pipeline = hr.Pipeline('bad')\n"
        "pipeline.source('memory', rows=[{'shop': 'mill'}]).map(fail).sink('stdout')\n"
    )
    failed = headrace("run", "bad.py", "--engine", "local", cwd=tmp_path)
    assert failed.returncode == 1
    assert "ValueError: no such shop" in failed.stderr


def test_ctrl_c_lets_a_local_epoch_finish(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(
        "CREATE TABLE t WITH (connector = 'impulse', event_rate = 100); SELECT counter FROM t;"
    )
    command = [sys.executable, "-m", "headrace", "run", "q.sql", "--engine", "local", "-s", "state"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    again = headrace("run", "q.sql", "--engine", "local", "-s", "state", "--max-epochs", "1", cwd=tmp_path)
    shown = [json.loads(line)["counter"] for line in (first + rest + again.stdout).splitlines()]
    assert shown == list(range(len(shown)))
