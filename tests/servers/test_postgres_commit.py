"""What the postgres sink promises, with a real server: crashes, restarts, rivals."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Pipeline
from headrace.base.errors import ExternalError, ReplacedError
from headrace.connectors._shared.sql_table import KEPT_EPOCHS
from headrace.connectors.postgres import sink as postgres_sink
from headrace.connectors.postgres import suspended
from headrace.connectors.postgres.sink import PostgresSink
from headrace.jobs.progress import RunResult
from headrace.testing.in_process import CrashError, run_in_process
from tests.contract.test_sinks import suspend_before
from tests.servers.postgres import Database
from tests.servers.test_postgres_sink import batch, driver, options, with_options

ROWS = 60
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


def counting(postgres: Database, numbers: Path) -> Pipeline:
    """Numbers into a table as they are, and how often each remainder came into another that changes."""
    append = with_options({"connector": "postgres", **options(postgres, "copied")})
    upsert = with_options({"connector": "postgres", **options(postgres, "counted")})
    return Pipeline.from_sql(
        f"""
        CREATE TABLE numbers (n BIGINT) WITH (connector = 'single_file', path = '{numbers}', type = 'source');
        CREATE TABLE copied (n BIGINT) {append};
        CREATE TABLE counted (rest BIGINT PRIMARY KEY, times BIGINT) {upsert};
        INSERT INTO copied SELECT n FROM numbers;
        INSERT INTO counted SELECT n % 7 AS rest, count(*) AS times FROM numbers GROUP BY n % 7;
        """,
        name="counting",
    )


@pytest.fixture
def numbers(postgres: Database, tmp_path: Path) -> Path:
    """The input of `counting`, and the tables of its output."""
    postgres.run(
        "CREATE TABLE copied (n bigint)", "CREATE TABLE counted (rest bigint PRIMARY KEY, times int)"
    )
    path = tmp_path / "numbers.json"
    path.write_text("\n".join(json.dumps({"n": n}) for n in range(ROWS)))
    return path


def crash_at(step: str, epoch: int) -> Callable[[str, int], None]:
    def on_step(name: str, at: int) -> None:
        if name.startswith(step) and at == epoch:
            raise CrashError

    return on_step


def run(pipeline: Pipeline, state: Path, **more: Any) -> RunResult:
    return run_in_process(pipeline, state, epoch_rows=20, **more)


def assert_counted_once(postgres: Database) -> None:
    assert Counter(n for (n,) in postgres.rows("SELECT n FROM copied")) == Counter(range(ROWS))
    expected = Counter(n % 7 for n in range(ROWS))
    assert dict(postgres.rows("SELECT rest, times FROM counted")) == expected


# --------------------------------------------------------------------------------------------- guarantees


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_writes_each_row_once(
    postgres: Database, numbers: Path, tmp_path: Path, step: str
) -> None:
    with pytest.raises(CrashError):
        run(counting(postgres, numbers), tmp_path / "state", on_step=crash_at(step, 2))
    assert run(counting(postgres, numbers), tmp_path / "state", parallelism=3).reason == "finished"
    assert_counted_once(postgres)


@pytest.mark.parametrize(
    "moment",
    ["_prepare", "_mark", "after the mark", "_copy", "_upsert", "after the rows", "after the commit"],
)
def test_a_crash_inside_a_commit_writes_each_row_once(
    postgres: Database, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    name = {"after the mark": "_mark", "after the rows": "_write", "after the commit": "write"}.get(
        moment, moment
    )
    if moment == "after the rows":  # the transaction is open still
        name = "_upsert"
    kept, calls = getattr(PostgresSink, name), []

    def crashing(*arguments: Any) -> Any:
        calls.append(name)
        last = len(calls) == 2
        if last and not moment.startswith("after"):
            raise CrashError
        result = kept(*arguments)
        if last:
            raise CrashError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(PostgresSink, name, crashing)
        with pytest.raises(CrashError):
            run(counting(postgres, numbers), tmp_path / "state")
    assert len(calls) == 2
    assert run(counting(postgres, numbers), tmp_path / "state").reason == "finished"
    assert_counted_once(postgres)


@pytest.mark.parametrize("crash", [False, True])
def test_a_server_that_is_restarted_during_the_run_costs_no_rows(
    postgres: Database, numbers: Path, tmp_path: Path, crash: bool
) -> None:
    def on_step(name: str, epoch: int) -> None:
        if name == "metadata_written" and epoch == 2:
            postgres.restart(crash=crash)

    assert run(counting(postgres, numbers), tmp_path / "state", on_step=on_step).reason == "finished"
    assert_counted_once(postgres)


def test_a_server_that_goes_away_is_waited_for(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path, "t")
    sink.run(1, [batch([{"n": 1}])])
    data = sink.prepare(2, [batch([{"n": 2}])])
    postgres.close()
    postgres.server.stop()
    committing = threading.Thread(target=lambda: sink.commit(2, data))
    committing.start()
    time.sleep(0.3)
    assert committing.is_alive()
    postgres.server.start()
    committing.join(30)
    assert postgres.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_connection_that_is_cut_during_the_commit_is_made_again(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    kept = PostgresSink._copy
    cuts: list[int] = []

    def cutting(sink: Any, connection: Any, *arguments: Any) -> None:
        kept(sink, connection, *arguments)
        if not cuts:
            cuts.append(1)
            postgres.rows("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])

    monkeypatch.setattr(PostgresSink, "_copy", cutting)
    driver(postgres, tmp_path, "t").run(1, [batch([{"n": 1}])])
    assert cuts
    assert postgres.rows("SELECT n FROM t") == [(1,)]


def test_going_back_to_an_earlier_epoch_loses_nothing(
    postgres: Database, numbers: Path, tmp_path: Path
) -> None:
    run(counting(postgres, numbers), tmp_path / "state")
    run(counting(postgres, numbers), tmp_path / "state", from_epoch=1)
    again = Counter(n for (n,) in postgres.rows("SELECT n FROM copied"))
    assert set(again) == set(range(ROWS))
    assert Counter(again.values()) == {1: 20, 2: 40}  # what was added later was added again
    assert dict(postgres.rows("SELECT rest, times FROM counted")) == Counter(n % 7 for n in range(ROWS))


def test_two_commits_of_one_epoch_at_the_same_time_are_one(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path, "t")
    data = sink.prepare(1, [batch([{"n": n} for n in range(1000)])])
    threads = [threading.Thread(target=lambda: sink.commit(1, data)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert postgres.rows("SELECT count(*) FROM t") == [(1000,)]


def test_old_marks_are_forgotten_and_those_of_others_stay(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path, "t")
    for epoch in (1, 2, 200):
        sink.run(epoch, [batch([{"n": epoch}])])
    sink.job = "another"
    sink.run(1, [batch([{"n": 7}])])
    assert postgres.rows("SELECT job, sink, epoch FROM headrace_epochs WHERE epoch >= 0 ORDER BY 1, 3") == [
        ("another", "op", 1),
        ("job", "op", 200),
    ]


def test_an_epoch_whose_mark_is_forgotten_is_not_written_again_by_a_run_that_was_replaced(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path, "t")
    sink.take_over()
    data = sink.prepare(1, [batch([{"n": 1}])])
    sink.commit(1, data)
    replaced = sink.take_over()
    for epoch in range(2, KEPT_EPOCHS + 4):
        sink.run(epoch, [batch([{"n": epoch}])])
    assert postgres.rows("SELECT min(epoch) FROM headrace_epochs WHERE epoch >= 0") == [(3,)]
    sink.claim = replaced
    with pytest.raises(ReplacedError):
        sink.commit(1, data)
    assert postgres.rows("SELECT count(*) FROM t") == [(KEPT_EPOCHS + 3,)]


def test_marks_of_earlier_versions_count(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path, "t")
    data = sink.prepare(1, [batch([{"n": 1}])])
    sink.commit(1, data)
    postgres.run("DELETE FROM headrace_epochs WHERE epoch < 0")  # they wrote nothing else
    sink.take_over()
    sink.commit(1, data)
    sink.run(2, [batch([{"n": 2}])])
    assert postgres.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_state_directory_that_was_restored_from_a_copy_goes_on(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path / "state", "t")
    for epoch in range(1, 4):
        sink.take_over()
        sink.run(epoch, [batch([{"n": epoch}])])
    restored = driver(postgres, tmp_path / "another", "t")
    restored.take_over()
    restored.run(1, [batch([{"n": 7}])])
    restored.run(2, [batch([{"n": 8}])])
    assert postgres.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,), (7,), (8,)]


def test_the_server_ends_the_transaction_of_a_run_that_is_suspended(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path, "t")
    sink.take_over()
    sink.run(1, [batch([{"n": 1}])])
    data = sink.prepare(2, [batch([{"n": 2}])])

    def take_over() -> None:
        sink.take_over()
        sink.commit(2, data)  # waits until the server has ended the other transaction
        sink.run(3, [batch([{"n": 3}])])

    monkeypatch.setattr(suspended, "SUSPENDED_SECONDS", 1)
    monkeypatch.setattr(postgres_sink, "FIRST_WAIT_SECONDS", 60)  # so that the successor does not end it
    with monkeypatch.context() as patch:
        suspend_before(patch, PostgresSink, "_copy", take_over)
        with pytest.raises(ReplacedError):
            sink.commit(2, data)
    assert postgres.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]


def test_after_the_table_was_mended_the_saved_epoch_is_written(
    postgres: Database, numbers: Path, tmp_path: Path
) -> None:
    postgres.run("ALTER TABLE copied RENAME TO away")
    with pytest.raises(ExternalError, match="has no table `copied`") as caught:
        run(counting(postgres, numbers), tmp_path / "state")
    assert "commit of epoch 1" in str(caught.value)
    postgres.run("ALTER TABLE away RENAME TO copied")
    assert run(counting(postgres, numbers), tmp_path / "state").reason == "finished"
    assert_counted_once(postgres)
