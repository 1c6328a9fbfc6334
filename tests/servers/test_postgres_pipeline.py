"""Pipelines that follow a table of a real PostgreSQL, crashed, stopped and restarted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Pipeline
from headrace.base.errors import SqlError
from headrace.jobs.progress import RunResult
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.postgres import Database

STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")
TABLE = ("CREATE TABLE t (id bigint PRIMARY KEY, name text)", "ALTER TABLE t REPLICA IDENTITY FULL")


def table(postgres: Database, **more: str) -> str:
    values = {"connector": "postgres", "type": "source", "url": postgres.url, "table": "t", **more}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in values.items())
    return f"CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT) WITH ({listed});"


def query(sql: str) -> Pipeline:
    return Pipeline.from_sql(sql, name="changes", preview=lambda _: ("memory", {}))


def run(pipeline: Pipeline, state: Path, **more: Any) -> RunResult:
    return run_in_process(pipeline, state, **{"idle_epochs": 3, **more})


def copying(postgres: Database) -> Pipeline:
    """The table into another one, and how many rows have each name into a third."""
    into = "WITH (connector = 'postgres', type = 'sink', url = '{}', 'table' = '{}')"
    return Pipeline.from_sql(
        f"""
        {table(postgres)}
        CREATE TABLE copied (id BIGINT PRIMARY KEY, name TEXT) {into.format(postgres.url, "copied")};
        CREATE TABLE counted (name TEXT PRIMARY KEY, times BIGINT) {into.format(postgres.url, "counted")};
        INSERT INTO copied SELECT id, name FROM t;
        INSERT INTO counted SELECT name, count(*) AS times FROM t GROUP BY name;
        """,
        name="copying",
    )


@pytest.fixture
def copied(postgres: Database) -> Database:
    """A table with rows, and the tables that `copying` writes."""
    postgres.run(
        *TABLE,
        "CREATE TABLE copied (id bigint PRIMARY KEY, name text)",
        "CREATE TABLE counted (name text PRIMARY KEY, times bigint)",
        "INSERT INTO t SELECT n, 'name ' || n % 5 FROM generate_series(1, 30) n",
    )
    return postgres


def change(postgres: Database) -> None:
    postgres.run(
        "UPDATE t SET name = 'name 1' WHERE id % 3 = 0",
        "DELETE FROM t WHERE id % 4 = 0",
        "INSERT INTO t SELECT n, 'name ' || n % 7 FROM generate_series(31, 40) n",
        "UPDATE t SET id = id + 100 WHERE name = 'name 2'",
        "DELETE FROM t WHERE name = 'name 4'",
    )


def assert_copied(postgres: Database) -> None:
    rows = postgres.rows("SELECT * FROM t ORDER BY id")
    assert postgres.rows("SELECT * FROM copied ORDER BY id") == rows
    assert dict(postgres.rows("SELECT * FROM counted")) == Counter(name for _, name in rows)


def crash_at(step: str, epoch: int) -> Callable[[str, int], None]:
    def on_step(name: str, at: int) -> None:
        if name.startswith(step) and at == epoch:
            raise CrashError

    return on_step


@pytest.mark.parametrize(
    ("step", "epoch"),
    [*((step, epoch) for epoch in (1, 4) for step in STEPS), ("metadata", 2), ("committed", 2)],
)
def test_a_crash_at_any_step_of_first_rows_or_changes_copies_the_table(
    copied: Database, tmp_path: Path, step: str, epoch: int
) -> None:
    def on_step(name: str, at: int) -> None:
        if name == "committed" and at == 2:
            change(copied)
        crash_at(step, epoch)(name, at)

    with pytest.raises(CrashError):
        run(copying(copied), tmp_path, epoch_rows=15, on_step=on_step)
    if epoch == 1 or (epoch == 2 and step != "committed"):
        change(copied)
    run(copying(copied), tmp_path, epoch_rows=17, parallelism=3)
    assert_copied(copied)
    assert len(copied.slots()) == 1


def test_a_stopped_pipeline_goes_on_with_what_happened_meanwhile(copied: Database, tmp_path: Path) -> None:
    run(copying(copied), tmp_path)
    assert_copied(copied)
    for _ in range(2):
        change(copied)
        run(copying(copied), tmp_path, epoch_rows=5)
        assert_copied(copied)
        copied.run("UPDATE t SET id = id + 1000")


@pytest.mark.parametrize("crash", [False, True])
def test_a_server_that_is_restarted_during_the_run_costs_no_changes(
    copied: Database, tmp_path: Path, crash: bool
) -> None:
    def on_step(name: str, at: int) -> None:
        if name == "committed" and at == 2:
            change(copied)
            copied.restart(crash=crash)
        if name == "begin" and at == 4:
            copied.restart(crash=crash)

    run(copying(copied), tmp_path, epoch_rows=15, on_step=on_step)
    assert_copied(copied)


def test_a_pipeline_in_sql_sees_updates_as_updates(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "INSERT INTO t VALUES (1, 'a'), (2, 'a')")
    sql = table(postgres) + "SELECT name, count(*) AS times FROM t GROUP BY name"
    run(query(sql), tmp_path)
    postgres.run("UPDATE t SET name = 'b' WHERE id = 1")
    (rows,) = run(query(sql), tmp_path).rows.values()
    found = sorted((row["name"], row["times"], row["_retract"]) for row in rows.to_pylist())
    assert found == [("a", 1, False), ("a", 2, True), ("b", 1, False)]


def test_sql_asks_for_a_key_only_where_rows_change(postgres: Database) -> None:
    without = table(postgres).replace(" PRIMARY KEY", "")
    with pytest.raises(SqlError, match="a postgres source needs a primary key"):
        query(without + "SELECT id FROM t")
    inserts = table(postgres, **{"source.changes": "inserts"}).replace(" PRIMARY KEY", "")
    query(inserts + "SELECT id FROM t")


def test_a_bounded_source_reads_the_table_at_one_moment_and_needs_no_slot(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.run(
        "CREATE TABLE t (id bigint, name text)", "INSERT INTO t SELECT n, '' FROM generate_series(1, 9) n"
    )
    sql = f"""
        CREATE TABLE t (id BIGINT, name TEXT) WITH (
          connector = 'postgres', type = 'source', url = '{postgres.url}', 'table' = 't',
          'source.bounded' = true
        );
        SELECT count(*) AS n FROM (SELECT id FROM t WHERE id > 3);
    """
    result = run(query(sql), tmp_path, epoch_rows=2)
    assert result.reason == "finished"
    assert [row["n"] for row in result.rows["memory"].to_pylist() if not row["_retract"]][-1] == 6
    assert postgres.slots() == []
