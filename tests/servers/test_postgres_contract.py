"""What every source and every sink promises, kept by PostgreSQL, and by SQLite where SQLAlchemy writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.operator import ArrowOperator, SourceOperator
from headrace.registry import registry
from headrace.state.storage import open_storage
from tests.contract.test_sinks import (
    Case,
    Shown,
    test_a_commit_repeated_is_a_commit_once,
    test_a_sink_can_be_pickled_and_shown_on_one_line,
    test_an_attempt_that_was_not_committed_leaves_nothing,
    test_an_epoch_without_rows_shows_nothing,
    test_commit_data_is_json,
    test_rows_are_counted,
    test_rows_too_many_for_the_commit_data_are_staged,
    test_the_same_rows_in_two_epochs_are_shown_twice,
    test_what_is_not_committed_is_invisible,
)
from tests.contract.test_sources import (
    ROWS,
    test_a_bounded_source_is_finished_at_its_last_row_and_not_before,
    test_a_known_count_is_the_number_of_rows,
    test_a_pickled_source_reads_the_same,
    test_a_resumed_source_continues_after_the_last_row,
    test_an_empty_range_has_no_rows,
    test_any_cut_into_epochs_and_splits_gives_the_same_rows,
    test_display_is_one_line,
    test_every_batch_has_the_same_schema_with_an_event_time,
    test_offsets_survive_json,
    test_reading_a_range_twice_gives_the_same_rows,
    test_the_splits_of_a_lane_are_in_its_order,
)
from tests.servers.postgres import Database, PostgresServer, new_database
from tests.support import SinkDriver

__all__ = [
    "test_a_bounded_source_is_finished_at_its_last_row_and_not_before",
    "test_a_commit_repeated_is_a_commit_once",
    "test_a_known_count_is_the_number_of_rows",
    "test_a_pickled_source_reads_the_same",
    "test_a_resumed_source_continues_after_the_last_row",
    "test_a_sink_can_be_pickled_and_shown_on_one_line",
    "test_an_attempt_that_was_not_committed_leaves_nothing",
    "test_an_empty_range_has_no_rows",
    "test_an_epoch_without_rows_shows_nothing",
    "test_any_cut_into_epochs_and_splits_gives_the_same_rows",
    "test_commit_data_is_json",
    "test_display_is_one_line",
    "test_every_batch_has_the_same_schema_with_an_event_time",
    "test_offsets_survive_json",
    "test_reading_a_range_twice_gives_the_same_rows",
    "test_rows_are_counted",
    "test_rows_too_many_for_the_commit_data_are_staged",
    "test_the_same_rows_in_two_epochs_are_shown_twice",
    "test_the_splits_of_a_lane_are_in_its_order",
    "test_what_is_not_committed_is_invisible",
]


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
    built = registry.build("source", "postgres", options)
    assert isinstance(built, SourceOperator)
    built.open(open_storage(str(tmp_path)), job_id="contract", node="numbers")
    return built


@pytest.fixture(params=["postgres", "database of PostgreSQL", "database of SQLite"])
def case(shared: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    name = request.param.partition(" ")[0]
    lite, job = tmp_path / "data.db", f"{request.node.name}"
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

    def build() -> ArrowOperator:
        built = registry.build("sink", name, options)
        assert isinstance(built, ArrowOperator)
        return built

    def visible() -> list[dict[str, Any]]:
        return [{"n": n, "text": text} for n, text in ask("SELECT n, text FROM shown ORDER BY n")]

    return Case(name, options, visible, {"table": ""}, SinkDriver(build, tmp_path / "state", job=job))


@pytest.fixture
def shown(case: Case) -> Shown:
    assert case.visible is not None
    return case.visible
