"""Rows that are numbered by a sort have the numbers that a window gives them."""

import random
from typing import Any

import pyarrow as pa
import pytest

from headrace.model.fragments import Fragment
from headrace.operators.numbered import NumberedFragment

ROWS = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.float64()),
        ("place", pa.struct([("a", pa.int64())])),
        ("v", pa.int64()),
    ]
)


def rows(seed: int, count: int) -> pa.Table:
    chosen = random.Random(seed)
    made: list[dict[str, Any]] = [
        {
            "text": chosen.choice(["a", "b", "", None]),
            "number": chosen.choice([1.5, -2.0, float("nan"), None]),
            "place": chosen.choice([{"a": 1}, {"a": None}, None]),
            "v": chosen.choice([*range(40), None]),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(made, schema=ROWS)


@pytest.mark.parametrize("keys", [(), ("text",), ("number",), ("text", "number"), ("place",), ("v", "text")])
@pytest.mark.parametrize("order", ['"v" DESC', '"v" NULLS FIRST, "text"'])
@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_the_numbers_are_those_of_a_window(keys: tuple[str, ...], order: str, count: int) -> None:
    ties = '"text", "number"'
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    sql = f"""SELECT text, number, v, n FROM (
        SELECT *, row_number() OVER ({partition}ORDER BY {order}, {ties}) AS n FROM input0) WHERE n <= 3"""
    window = Fragment(sql, {"input0": ROWS})
    ordered = Fragment(f"SELECT * FROM input0 ORDER BY {', '.join([*keys, order, ties])}", {"input0": ROWS})
    number = pa.field("n", pa.uint64())
    result = Fragment("SELECT text, number, v, n FROM input0 WHERE n <= 3", {"input0": ROWS.append(number)})
    numbered = NumberedFragment(sql, ordered, keys, "n", result)
    assert numbered.output == window.output
    given = rows(count, count)
    assert sorted(map(str, numbered.run(input0=given).to_pylist())) == sorted(
        map(str, window.run(input0=given).to_pylist())
    )
