"""Tables of thousands of columns."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datafusion import SessionContext

from headrace import Pipeline
from headrace.formats.json.format import JsonFormat
from headrace.sql.lower.required_columns import prune_columns
from headrace.testing.in_process import run_in_process


def test_the_time_to_choose_the_columns_that_are_read_grows_with_their_number_and_not_its_square() -> None:
    columns = [pa.field(f"c{index}", pa.int64()) for index in range(20_000)]
    start = time.perf_counter()
    assert prune_columns(columns, {(column.name,) for column in columns}) == columns
    assert time.perf_counter() - start < 5  # the square of it would take minutes


def test_the_time_to_check_the_columns_of_a_sink_grows_with_their_number_and_not_its_square() -> None:
    schema = pa.schema([pa.field(f"c{index}", pa.int64()) for index in range(20_000)])
    start = time.perf_counter()
    JsonFormat(schema).check(schema)
    assert time.perf_counter() - start < 5


def test_thousands_of_columns_that_are_only_passed_on_are_never_planned_by_datafusion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3_000
    written = [{f"c{index}": index * row for index in range(count)} for row in range(2)]
    (tmp_path / "in.json").write_text("".join(json.dumps(row) + "\n" for row in written))
    columns = ", ".join(f"c{index} BIGINT" for index in range(count))
    statements = f"""
        CREATE TABLE wide ({columns})
        WITH (connector = 'single_file', path = '{tmp_path}/in.json', format = 'json', type = 'source');
        CREATE TABLE copy ({columns})
        WITH (connector = 'single_file', path = '{tmp_path}/out.json', format = 'json', type = 'sink');
        INSERT INTO copy SELECT * FROM wide;
    """
    planned: list[str] = []
    plan = SessionContext.sql

    def counted(self: SessionContext, sql: str, *arguments: Any, **more: Any) -> Any:
        planned.append(sql)
        return plan(self, sql, *arguments, **more)

    monkeypatch.setattr(SessionContext, "sql", counted)
    run_in_process(Pipeline.from_sql(statements), tmp_path / "state")
    assert [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()] == written
    assert max(sql.count(",") for sql in planned) < 10
