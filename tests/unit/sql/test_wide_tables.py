"""Tables of thousands of columns."""

from __future__ import annotations

import time

import pyarrow as pa

from headrace.formats.json.format import JsonFormat
from headrace.sql.lower.required_columns import prune_columns


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
