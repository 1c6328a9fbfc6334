"""Subqueries in expressions: what only a run can find out. Their rows are in `tests/sql/relational`."""

from pathlib import Path

import pytest

import headrace
from headrace.base.errors import HeadraceError
from headrace.testing.in_process import run_in_process


def run(sql: str, state: Path) -> None:
    run_in_process(headrace.Pipeline.from_sql(sql, preview=lambda _: ("memory", {"name": "rows"})), state)


@pytest.mark.parametrize(
    "subquery",
    [
        "SELECT y FROM (VALUES (1), (2)) AS u (y)",
        "SELECT y FROM (VALUES (1, 1), (2, 1)) AS u (y, k) WHERE k = x",
    ],
)
def test_a_subquery_that_stands_for_a_value_and_gives_two_rows_ends_the_run(
    subquery: str, tmp_path: Path
) -> None:
    sql = f"SELECT x, ({subquery}) AS y FROM (VALUES (1)) AS t (x)"
    with pytest.raises(HeadraceError, match="a subquery used as a value gives 2 rows") as error:
        run(sql, tmp_path)
    assert "LIMIT 1" in str(error.value.hint)


def test_a_union_of_hundreds_is_one_union(tmp_path: Path) -> None:
    run(" UNION ALL ".join(f"SELECT {number} AS n" for number in range(300)), tmp_path)
