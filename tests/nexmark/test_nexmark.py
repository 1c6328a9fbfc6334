"""Every Nexmark query gives the rows that a batch database gives over the same events."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.connectors.nexmark import LANE, NexmarkSource
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


def multiset(table: pa.Table) -> Counter[tuple[tuple[str, Any], ...]]:
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
