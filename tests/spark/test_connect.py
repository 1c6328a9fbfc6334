"""A Spark Connect server from the installed package: the rows, the failures and the ends of runs on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import headrace as hr
from headrace.exchanges.spark import connect, connect_session
from headrace.testing.in_process import run_in_process
from tests import flows
from tests.flows import FLOWS
from tests.golden.test_flows import contents
from tests.recovery.test_kill import check_rows, live
from tests.spark.connect_server import ConnectServer, connect_server
from tests.spark.test_commits_on_spark import check as check_published
from tests.spark.test_commits_on_spark import pipeline as publishing
from tests.spark.test_failures_on_spark import Explode

REASON = "the client of Spark Connect: pip install 'headrace[connect]'"
pytest.importorskip("grpc", reason=REASON)
pytest.importorskip("grpc_status", reason=REASON)
pytestmark = pytest.mark.skipif(
    pyspark.__version__ < "4", reason="Spark Connect needs PySpark 4.0 or newer here"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running, pytest.MonkeyPatch.context() as patch:
        # The first answer of a server takes long on a busy machine.
        patch.setattr(connect_session, "ANSWER_SECONDS", 120.0)
        connect_session.open_session(running.url, {}).close()
        yield running


@pytest.mark.parametrize("flow", ["two_levels", pytest.param("join", marks=pytest.mark.versions)])
def test_a_connect_server_gives_the_rows_of_a_run_in_process_also_rescaled_while_it_runs(
    flow: str, server: ConnectServer, tmp_path: Path
) -> None:
    build = FLOWS[flow]
    expected = contents([run_in_process(build(hr.MemorySink), tmp_path / "expected")])
    stopped = build(hr.MemorySink).run(
        tmp_path / "cut", parallelism=2, epoch_rows=60, max_epochs=2, master=server.url
    )
    assert (stopped.reason, stopped.epochs) == ("max_epochs", 2)
    runs: list[hr.PipelineRun] = []
    started = threading.Event()

    def rescale(progress: hr.Progress) -> None:
        started.wait()
        runs[0].rescale(1 + progress.epoch % 3)

    runs.append(
        build(hr.MemorySink).start(
            tmp_path / "cut", parallelism=3, epoch_rows=40, master=server.url, on_progress=rescale
        )
    )
    started.set()
    resumed = runs[0].await_termination()
    assert runs[0].parallelism != 3
    assert resumed is not None
    assert (resumed.reason, resumed.first_epoch) == ("finished", 3)
    assert contents([stopped, resumed]) == expected


def test_sinks_commit_in_tasks_of_a_connect_server(server: ConnectServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = publishing(out).run(tmp_path / "state", parallelism=2, epoch_rows=50, master=server.url)
    assert result.reason == "finished"
    check_published(out)


def test_servers_before_4_1_get_values_whose_hash_names_the_partition(
    server: ConnectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_session, "_ROUTES_BY_NUMBER", (99, 0))
    monkeypatch.setattr(connect, "_MAX_INLINE", 0)  # and the plan is a file of the session
    build = FLOWS["fan_out"]
    expected = contents([run_in_process(build(hr.MemorySink), tmp_path / "expected")])
    whole = build(hr.MemorySink).run(tmp_path / "whole", parallelism=5, epoch_rows=90, master=server.url)
    assert whole.reason == "finished"
    assert contents([whole]) == expected


@pytest.mark.versions
def test_a_raise_in_an_operator_names_the_line_the_operator_and_the_epoch(
    server: ConnectServer, tmp_path: Path
) -> None:
    pipeline = hr.Pipeline("explode")
    rows = pipeline.source(flows.impulse(300)).map(flows.keyed(3)).key_by("k")
    rows.apply(Explode(250), id="boom").sink(hr.MemorySink("out"))
    with pytest.raises(hr.OperatorError) as caught:
        pipeline.run(tmp_path / "state", parallelism=2, epoch_rows=100, master=server.url)
    assert caught.value.message == "ValueError: row 250 is cursed"
    assert (caught.value.operator_id, caught.value.epoch) == ("boom", 3)
    assert 'raise ValueError(f"row {self.at} is cursed")' in caught.value.traceback_text


def test_the_command_line_needs_no_java_and_sends_the_users_functions(
    server: ConnectServer, tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text("FACTOR = 3\n")
    (tmp_path / "functions.py").write_text(
        "from headrace import udf\nfrom helper import FACTOR\n\n\n"
        "@udf\ndef tripled(x: int) -> int:\n    return FACTOR * x\n"
    )
    program = tmp_path / "program.sql"
    program.write_text(
        "CREATE TABLE i WITH (connector = 'impulse', event_rate = 1000, message_count = 60);\n"
        "SELECT tripled(sum(counter)) AS n FROM i GROUP BY tumble(interval '1 hour');\n"
    )
    path = tmp_path / "bin"
    path.mkdir()
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    run = subprocess.run(
        [
            *(sys.executable, "-m", "headrace", "run", str(program), "--udf", str(tmp_path / "functions.py")),
            *("--master", f"{server.url}/;user_id=somebody", "--state-dir", str(tmp_path / "state")),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**environ, "PATH": str(path)},
    )
    assert shutil.which("java", path=str(path)) is None
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == '{"n":5310}'


def test_an_active_session_is_used_and_keeps_its_settings(server: ConnectServer, tmp_path: Path) -> None:
    session = connect_session.open_session(server.url, {}).spark
    session._set_default_and_active_session(session)
    session.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        pipeline = hr.Pipeline("notebook")
        pipeline.source(flows.impulse(50)).map(flows.keyed(3)).key_by("k").sink(hr.MemorySink("out"))
        result = pipeline.run(tmp_path / "state")
        assert sorted(result.rows["out"]["counter"].to_pylist()) == list(range(50))
        assert session.conf.get("spark.sql.adaptive.enabled") == "true"
        assert not session.is_stopped
    finally:
        session.stop()


def test_a_session_that_the_server_has_closed_is_replaced(server: ConnectServer, tmp_path: Path) -> None:
    def close_session(progress: hr.Progress) -> None:
        if progress.epoch == 1:
            for exchange in list(connect._exchanges):
                if not exchange.session.spark.is_stopped:
                    exchange.session.spark.client.release_session()

    build = FLOWS["running"]
    expected = contents([run_in_process(build(hr.MemorySink), tmp_path / "expected")])
    whole = build(hr.MemorySink).run(
        tmp_path / "state", parallelism=2, epoch_rows=100, master=server.url, on_progress=close_session
    )
    assert contents([whole]) == expected


@pytest.mark.slow
def test_a_server_that_ends_and_is_started_again_costs_no_row_and_repeats_none(
    server: ConnectServer, tmp_path: Path
) -> None:
    def restart(progress: hr.Progress) -> None:
        if progress.epoch == 1:
            server.kill()
            server.start()

    build = FLOWS["running"]
    expected = contents([run_in_process(build(hr.MemorySink), tmp_path / "expected")])
    whole = build(hr.MemorySink).run(
        tmp_path / "state", parallelism=2, epoch_rows=100, master=server.url, on_progress=restart
    )
    assert contents([whole]) == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)  # many lives, each with its own limit
def test_a_driver_that_is_killed_goes_on_from_its_last_checkpoint(
    server: ConnectServer, tmp_path: Path
) -> None:
    """The steps at which another exchange could make a difference; tests/recovery kills at all of them."""
    state, out = tmp_path / "state", tmp_path / "out"
    out.mkdir()
    for step, epoch, parallelism in [("tasks", 3, 2), ("tasks_done", 4, 3), ("metadata_written", 5, 1)]:
        killed = live(state, out, parallelism, step, str(epoch), master=server.url)
        assert killed.returncode == -signal.SIGKILL, (step, killed.stdout, killed.stderr)
    last = live(state, out, 2, master=server.url)
    assert last.returncode == 0, last.stderr
    assert last.stdout.split()[0] == "finished"
    check_rows(out)


@pytest.mark.versions
def test_what_a_connect_server_cannot_do_is_refused_with_a_hint(
    server: ConnectServer, tmp_path: Path
) -> None:
    def refused(options: hr.RunOptions, connector: str = "impulse", **values: str) -> hr.HeadraceError:
        pipeline = hr.Pipeline("refused")
        pipeline.source(connector, **values).sink("blackhole")
        with pytest.raises(hr.ConfigurationError) as raised:
            pipeline.run(tmp_path / "state", parallelism=1, master=server.url, options=options)
        return raised.value

    memory = refused(hr.RunOptions(memory="4g"))
    assert "a Spark Connect server has its own" in memory.message
    static = refused(hr.RunOptions(spark_conf={"spark.executor.memory": "4g"}))
    assert "does not let its clients set `spark.executor.memory`" in static.message
    assert "start-connect-server.sh --conf spark.executor.memory=…" in str(static.hint)
    spark = refused(hr.RunOptions(), "spark", format="rate")
    assert "needs a SparkContext" in spark.message


BEATS = """
import time
from pathlib import Path
import headrace as hr

class Beat(hr.ArrowOperator):
    # Never ends its first batch, and leaves a sign of life every few moments.
    def process_batch(self, batch, ctx, collector):
        while True:
            Path({file!r}).write_text(str(time.time()))
            time.sleep(0.05)

pipeline = hr.Pipeline("beats")
pipeline.source("impulse", message_count=5).apply(Beat()).sink("blackhole")
"""


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_epoch_on_the_server_too(server: ConnectServer, tmp_path: Path) -> None:
    job, beats = tmp_path / "job.py", tmp_path / "beats"
    job.write_text(BEATS.format(file=str(beats)))
    run = subprocess.Popen(
        [sys.executable, "-m", "headrace", "run", str(job), "--master", server.url, "-p", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while run.poll() is None and not beats.exists():
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 130, told
    last = beats.read_text()
    for _ in range(600):
        time.sleep(0.5)
        if last == (last := beats.read_text()):
            return
    raise AssertionError("the tasks still run")
