"""Arithmetic that raises where a result has no room, and SQL that is compared as it was written."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ExpressionError
from headrace.base.spans import Source
from headrace.functions.arithmetic import (
    CHECKED,
    as_written,
    bigint_total,
    interval_length,
    multiply_interval,
)
from headrace.testing.in_process import run_in_process

TABLE = """CREATE TABLE t (id BIGINT, big BIGINT, small INT) WITH (
    connector = 'single_file', path = '{}', format = 'json', type = 'source');
"""
ROWS = """{"id": 1, "big": 9223372036854775806, "small": 2147483647}
{"id": 2, "big": 9223372036854775806, "small": 1}
"""


def run(tmp_path: Path, select: str) -> list[dict[str, object]]:
    (tmp_path / "t.json").write_text(ROWS)
    sql = Source("q.sql", TABLE.format(tmp_path / "t.json") + select)
    pipeline = hr.Pipeline.from_sql([sql], name="test", preview=lambda _: ("memory", {"name": "rows"}))
    rows: list[dict[str, object]] = run_in_process(pipeline, tmp_path / "state").rows["rows"].to_pylist()
    return rows


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("SELECT big + 5 AS x FROM t", "9223372036854775806 + 5 is out of range for BIGINT"),
        ("SELECT big * id AS x FROM t WHERE id = 2", "9223372036854775806 * 2 is out of range for BIGINT"),
        ("SELECT -3 - big AS x FROM t", "-3 - 9223372036854775806 is out of range for BIGINT"),
        ("SELECT small + small AS x FROM t", "2147483647 + 2147483647 is out of range for INT"),
        ("SELECT id FROM t WHERE big + 5 > 0", "9223372036854775806 + 5 is out of range for BIGINT"),
        ("SELECT sum(big) AS x FROM t", "a sum is 18446744073709551612, which is out of range for BIGINT"),
        ("SELECT sum(big) OVER (ORDER BY id) AS x FROM t", "a sum is 18446744073709551612"),
        ("SELECT sum(big), median(id) FROM t", "a sum is 18446744073709551612"),
        ("SELECT CAST(big AS INT) AS x FROM t", "9223372036854775806 is out of range for INT"),
        ("SELECT 1 / (id - 1) AS x FROM t", "division by zero"),
    ],
)
def test_a_number_that_has_no_room_ends_the_run_and_is_named(
    tmp_path: Path, select: str, message: str
) -> None:
    with pytest.raises(ExpressionError) as raised:
        run(tmp_path, select)
    assert message in str(raised.value)
    assert "__" not in str(raised.value)


def test_sums_and_products_with_room_are_exact(tmp_path: Path) -> None:
    rows = run(tmp_path, "SELECT big - 6 + id AS x, small * id AS y FROM t WHERE id = 1")
    assert [(row["x"], row["y"]) for row in rows] == [(9223372036854775801, 2147483647)]


def test_checked_operators_keep_null() -> None:
    left, right = pa.array([1, None], pa.int64()), pa.array([None, 2], pa.int64())
    assert CHECKED["add"](left, right).to_pylist() == [None, None]
    assert bigint_total(pa.array([None, Decimal(7)], pa.decimal128(38, 0))).to_pylist() == [None, 7]


def test_the_length_of_intervals_has_months_of_30_days_and_no_end_after_292_years() -> None:
    kind = pa.month_day_nano_interval()
    intervals = pa.array([(1, 0, 0), (0, 30, 0), None, (12_000, 0, 1), (0, 0, -5)], kind)
    day = 86_400_000_000_000
    expected = [30 * day, 30 * day, None, 360_000 * day + 1, -5]
    assert interval_length(intervals).to_pylist() == [None if e is None else Decimal(e) for e in expected]
    assert interval_length(intervals.slice(3)).to_pylist() == [Decimal(360_000 * day + 1), Decimal(-5)]


def test_fractions_of_months_and_days_become_smaller_units() -> None:
    kind = pa.month_day_nano_interval()
    product = multiply_interval(pa.array([(1, 1, 0), None], kind), pa.array([1.5, 2.0]))
    assert [None if v is None else tuple(v) for v in product.to_pylist()] == [
        (1, 16, 43_200_000_000_000),
        None,
    ]


def test_sql_of_earlier_versions_is_equal_as_it_was_written() -> None:
    assert as_written('sum(checked__add__int64(f("a", \',\'), 1)) AS "x"') == 'sum(f("a", \',\') + 1) AS "x"'
    assert as_written("bigint__total(sum(arrow_cast(a, 'Decimal128(38, 0)')) FILTER (WHERE b))") == (
        "sum(a) FILTER (WHERE b)"
    )
