"""Every Nexmark query gives the rows that a batch database gives over the same events."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.api.pipeline import Pipeline
from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.connectors.nexmark import LANE, NexmarkSource
from headrace.testing.in_process import run_in_process
from tests.support import read_split

HERE = Path(__file__).parent
QUERIES = [f"q{number}" for number in range(23)]
TABLE = re.compile(r"CREATE TABLE nexmark WITH \((.*?)\n\);", re.DOTALL)
OPTION = re.compile(r"(\w+) = '?([^',\n]*)'?")


def read_sql(folder: str, query: str) -> str:
    return (HERE / folder / f"{query}.sql").read_text(encoding="utf-8")


def events(sql: str) -> pa.Table:
    """All events of the table `nexmark` that a query declares."""
    declared = TABLE.search(sql)
    assert declared is not None
    options: dict[str, Any] = dict(OPTION.findall(declared[1]))
    assert options.pop("connector") == "nexmark"
    source = NexmarkSource(**options)
    assert source.options.total is not None
    start = source.initial_offset(time=0.0)
    end = {LANE: {**start[LANE], "event": source.options.total}}
    (split,) = source.splits(start, end, parallelism=1)
    return pa.Table.from_batches(read_split(source, split)[0])


def batch_rows(query: str) -> pa.Table:
    """What DuckDB answers over the events of a query."""
    table = events(read_sql("queries", query))
    with duckdb.connect() as database:
        for kind in ("person", "auction", "bid"):
            structs = table[kind].combine_chunks().drop_null()
            database.register(kind, pa.Table.from_struct_array(structs))
        return database.sql(read_sql("batch", query)).to_arrow_table()


Rows = Counter[tuple[tuple[str, Any], ...]]


def streaming_rows(sql_text: str, tmp_path: Path) -> pa.Table:
    """All rows that a pipeline in SQL emits, in several epochs, as its last SELECT collects them."""
    pipeline = Pipeline.from_sql(sql_text, preview=lambda _: ("memory", {"name": "rows"}))
    result = run_in_process(pipeline, tmp_path, parallelism=3, epoch_rows=1700)
    assert result.reason == "finished"
    assert result.late_rows == 0
    return result.rows["rows"]


def remaining(table: pa.Table) -> Rows:
    """The rows of a stream that were not taken back."""
    columns = [name for name in table.column_names if name not in (TIMESTAMP, RETRACT)]
    if RETRACT not in table.column_names:
        return multiset(table.select(columns))
    taken_back = pc.fill_null(table[RETRACT], False)
    rows = multiset(table.filter(pc.invert(taken_back)).select(columns))
    rows.subtract(multiset(table.filter(taken_back).select(columns)))
    assert min(rows.values(), default=0) >= 0
    return +rows


def multiset(table: pa.Table) -> Rows:
    """The rows with their numbers, instants as nanoseconds."""
    columns = {
        name: column.cast(pa.timestamp("ns")).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return Counter(tuple(sorted(row.items())) for row in pa.table(columns).to_pylist())


@pytest.mark.parametrize("query", QUERIES)
def test_the_batch_answer_has_rows_of_its_own(query: str) -> None:
    answer = multiset(batch_rows(query))
    assert len(answer) > 1


def test_the_questions_tell_days_hours_and_sessions_apart() -> None:
    assert len(set(batch_rows("q15")["day"].to_pylist())) == 2
    assert set(batch_rows("q14")["bid_time_type"].to_pylist()) == {"dayTime", "nightTime", "otherTime"}
    sessions = Counter(batch_rows("q11")["bidder"].to_pylist())
    assert max(sessions.values()) > 2


@pytest.mark.parametrize("query", QUERIES)
def test_the_stream_comes_to_the_batch_answer(query: str, tmp_path: Path) -> None:
    stream = remaining(streaming_rows(read_sql("queries", query), tmp_path))
    assert stream == multiset(batch_rows(query))
