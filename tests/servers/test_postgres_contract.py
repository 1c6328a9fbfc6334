"""What every source and every sink promises, kept by PostgreSQL, and by SQLite where SQLAlchemy writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.postgres.sink import PostgresSink
from headrace.model.operator import SourceOperator
from headrace.storage.open import open_storage
from tests.contract.test_sinks import Case, SinkContract
from tests.contract.test_sources import ROWS, SourceContract, build_source
from tests.servers.postgres import Database, PostgresServer, new_database


@pytest.fixture(scope="module")
def shared(postgres_server: PostgresServer) -> Iterator[Database]:
    """A table that the sources read."""
    with new_database(postgres_server) as database:
        database.run(
            "CREATE TABLE numbers (a bigint, b text)",
            f"INSERT INTO numbers SELECT n, repeat('ü', n % 13) FROM generate_series(0, {ROWS - 1}) n",
        )
        yield database


@pytest.fixture
def source(shared: Database, tmp_path: Path) -> SourceOperator:
    options = {
        "url": shared.url,
        "table": "numbers",
        "schema": {"a": "int64", "b": "string"},
        "source.bounded": True,
    }
    built = build_source("postgres", options)
    built.open(open_storage(str(tmp_path)), job_id="contract", node="numbers")
    return built


@pytest.fixture(params=["postgres", "database of PostgreSQL", "database of SQLite"])
def case(shared: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    name = request.param.partition(" ")[0]
    lite = tmp_path / "data.db"
    statements = ("DROP TABLE IF EXISTS shown", "CREATE TABLE shown (n bigint, text text)")
    is_lite = "SQLite" in request.param

    def ask(*queries: str) -> list[tuple[Any, ...]]:
        if not is_lite:
            shared.run(*queries[:-1])
            return shared.rows(queries[-1])
        with closing(sqlite3.connect(lite)) as connection, connection:
            return [connection.execute(query).fetchall() for query in queries][-1]

    ask(*statements, "SELECT 1")
    options = {"url": f"sqlite:///{lite}" if is_lite else shared.url, "table": "shown"}

    def visible() -> list[dict[str, Any]]:
        return [{"n": n, "text": text} for n, text in ask("SELECT n, text FROM shown ORDER BY n")]

    # Not behind the lock: its successor would wait for it.
    inside: list[tuple[Any, str]] = [(DatabaseSink, "_write"), (DatabaseSink, "_fence")]
    if name == "postgres":
        inside = [(PostgresSink, "_write"), (PostgresSink, "_prepare"), (PostgresSink, "_fence")]
    return Case(name, options, visible, {"table": []}, tmp_path, job=request.node.name, inside=inside)


class TestSource(SourceContract):
    """postgres."""


class TestSinks(SinkContract):
    """postgres and database."""
