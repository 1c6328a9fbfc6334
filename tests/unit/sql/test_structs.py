"""The least and the greatest of structures, in parts and whole."""

from pathlib import Path

import pytest

import headrace
from headrace.testing.in_process import run_in_process

TABLE = "CREATE TABLE s WITH (connector = 'impulse', event_rate = 1000, message_count = 50);"
VALUE = "named_struct('a', counter / 25, 'b', CASE WHEN counter % 7 = 3 THEN NULL ELSE counter END)"


@pytest.mark.parametrize("epoch_rows", [7, 100])
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("more", ["count(*)", "median(counter)"])
def test_a_field_without_a_value_is_neither_the_least_nor_the_greatest(
    tmp_path: Path, more: str, parallelism: int, epoch_rows: int
) -> None:
    for name, right in (("max", {"a": 1, "b": 49}), ("min", {"a": 0, "b": 0})):
        items = f"{name}({VALUE}) AS found, {more} AS n, tumble(interval '1 second') AS w"
        query = f"SELECT {items} FROM s GROUP BY w"
        pipeline = headrace.Pipeline.from_sql(TABLE + query, preview=lambda _: ("memory", {"name": "out"}))
        result = run_in_process(pipeline, tmp_path / name, parallelism=parallelism, epoch_rows=epoch_rows)
        assert [row["found"] for row in result.rows["out"].to_pylist()] == [right]
