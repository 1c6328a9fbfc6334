"""The rows of the suites are those of a real PostgreSQL, where it can run them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.types.string import TextLoader

from headrace.base.errors import UserError
from headrace.testing.sqllogictest import Row, find_suites, run_suite
from tests.servers.postgres import Database

SUITES = [
    suite
    for suite in find_suites(Path(__file__).parents[1] / "sqllogictest")
    if suite.stem in ("tpch", "postgres", "streaming", "meanings")
]


class PostgresEngine:
    """A suite runs in PostgreSQL, in a schema of its own."""

    name = "postgres"

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        for kind in ("json", "jsonb", "record"):
            connection.adapters.register_loader(kind, TextLoader)
        for sql in ("DROP SCHEMA IF EXISTS suite CASCADE", "CREATE SCHEMA suite", "SET search_path = suite"):
            connection.execute(sql)

    def execute(self, sql: str) -> int | None:
        try:
            return self._connection.execute(sql.encode()).rowcount
        except psycopg.Error as error:
            raise UserError(f"PostgreSQL refuses it: {error}") from None

    def query(self, sql: str) -> list[Row]:
        try:
            return list(self._connection.execute(sql.encode()).fetchall())
        except psycopg.Error as error:
            raise UserError(f"PostgreSQL refuses it: {error}") from None


@pytest.fixture
def engine(postgres: Database) -> Iterator[PostgresEngine]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'")
        yield PostgresEngine(connection)


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.stem)
def test_the_rows_of_a_suite_are_those_of_postgres(suite: Path, engine: PostgresEngine) -> None:
    result = run_suite(suite, engine)
    assert result.passed, str(result)
