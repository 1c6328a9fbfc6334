"""Functions of the user that give rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ConfigurationError, ExpressionError, PlanError
from headrace.functions.table import AT_ONCE, TableFunction
from headrace.functions.user import udaf, udtf
from headrace.operators.table_function import TableFunctionCall
from headrace.testing.in_process import run_in_process


class Word(NamedTuple):
    word: str
    length: int


@dataclass
class Point:
    x: int
    y: float | None


@udtf
def words(text: str) -> Iterator[Word]:
    for word in text.split():
        yield Word(word, len(word))


@udtf
def counted(start: int, count: int | None) -> Iterable[int]:
    return range(start, start + (count or 0))


@udtf(name="Points")
def make_points(count: int) -> Generator[Point, None, None]:
    for number in range(count):
        yield Point(number, None if number % 2 else number / 2)


@udtf
def pairs(count: int) -> list[tuple[int, Point]]:
    return [(number, Point(number, 0.5)) for number in range(count)]


def rows(function: TableFunction, *columns: list[Any], outer: bool = False) -> list[tuple[int, Any]]:
    arrays = [pa.array(column, kind) for column, kind in zip(columns, function.arguments, strict=True)]
    return [
        (position, row)
        for positions, made in function.call(arrays, outer=outer)
        for position, row in zip(positions.to_pylist(), made.to_pylist(), strict=True)
    ]


def test_each_row_has_the_rows_that_are_made_of_it() -> None:
    assert words.columns == pa.schema([("word", pa.string()), ("length", pa.int64())])
    assert rows(words, ["to be", "", None, "or"]) == [
        (0, {"word": "to", "length": 2}),
        (0, {"word": "be", "length": 2}),
        (3, {"word": "or", "length": 2}),
    ]
    assert rows(make_points, [3]) == [
        (0, {"x": 0, "y": 0.0}),
        (0, {"x": 1, "y": None}),
        (0, {"x": 2, "y": 1.0}),
    ]
    assert make_points.name == "points"
    assert rows(pairs, [1, 1]) == [
        (0, {"column1": 0, "column2": {"x": 0, "y": 0.5}}),
        (1, {"column1": 0, "column2": {"x": 0, "y": 0.5}}),
    ]
    assert [row.word for row in words("a b")] == ["a", "b"]


def test_a_row_without_rows_may_be_kept() -> None:
    nothing = None
    assert rows(words, [None, "a b", "", None], outer=True) == [
        (0, nothing),
        (1, {"word": "a", "length": 1}),
        (1, {"word": "b", "length": 1}),
        (2, nothing),
        (3, nothing),
    ]
    assert rows(counted, [5, 7], [None, 2], outer=True) == [
        (0, {"counted": None}),
        (1, {"counted": 7}),
        (1, {"counted": 8}),
    ]
    assert rows(words, [], outer=True) == []


def test_rows_leave_in_batches_however_many_a_call_gives() -> None:
    counts = [AT_ONCE * 2 + 1, 0, 3]
    batches = list(counted.call([pa.array([0, 0, 10]), pa.array(counts)], outer=True))
    assert [len(positions) for positions, _ in batches] == [AT_ONCE, AT_ONCE, 5]
    assert batches[2][0].to_pylist() == [0, 1, 2, 2, 2]
    full = list(counted.call([pa.array([0]), pa.array([AT_ONCE])], outer=True))
    assert [len(positions) for positions, _ in full] == [AT_ONCE]


def test_a_raise_shows_the_row_and_the_users_line() -> None:
    @udtf
    def halves(number: int) -> Iterator[float]:
        yield 1 / number
        yield number / 2

    with pytest.raises(ExpressionError) as caught:
        rows(halves, [2, 0])
    assert (
        caught.value.message == "udf `halves` raised ZeroDivisionError: division by zero for the row number=0"
    )
    assert "yield 1 / number" in caught.value.traceback_text

    @udtf
    def wrong(number: int) -> Iterator[tuple[int, str]]:
        yield (number, "a") if number < 2 else (number,)  # type: ignore[misc]

    with pytest.raises(
        ExpressionError, match=r"returned \(2,\) \(tuple\).* for the row number=2: 1 values for 2"
    ):
        rows(wrong, [1, 2])

    @udtf
    def other(number: int) -> Iterator[Word]:
        yield number  # type: ignore[misc]

    with pytest.raises(ExpressionError, match=r"returned 1 \(int\)"):
        rows(other, [1])


def test_definitions_that_cannot_work_are_errors() -> None:
    def no_rows(a: int) -> int:
        return a

    def no_annotation(a: int):  # type: ignore[no-untyped-def]
        yield a

    def odd_rows(a: int) -> Iterator[dict[str, int]]:
        yield {"a": a}

    def odd_tuples(a: int) -> Iterator[tuple[int, object]]:
        yield a, a

    async def waits(a: int) -> list[int]:
        return [a]

    for function, said in (
        (no_rows, "it does not say which rows it gives"),
        (no_annotation, "it does not say which rows it gives"),
        (odd_rows, "a row is `dict"),
        (odd_tuples, "a row is `tuple"),
        (waits, "it is not a plain `def`"),
        (Word, "it is not a plain `def`"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            udtf(function)


def test_a_stream_is_called_for_from_python(tmp_path: Path) -> None:
    @hr.udf
    def half(n: int) -> float:
        return n / 2

    @udaf
    def total(values: list[int]) -> int:
        return sum(values)

    made = hr.Pipeline("calls")
    stream = made.source("memory", rows=[{"n": 1, "text": "to be"}, {"n": 2, "text": "or"}])
    stream = stream.call(half, "n", into="half").call(half, "n", into="n")
    stream.call(words, "text", into=["word", "length"]).sink("memory", name="out")
    table = run_in_process(made, tmp_path).rows["out"]
    assert table.select(["n", "word", "length", "half"]).to_pylist() == [
        {"n": 0.5, "word": "to", "length": 2, "half": 0.5},
        {"n": 0.5, "word": "be", "length": 2, "half": 0.5},
        {"n": 1.0, "word": "or", "length": 2, "half": 1.0},
    ]
    with pytest.raises(PlanError, match="`words` gives 2 columns, and 1 are named"):
        stream.call(words, "text", into="word")
    with pytest.raises(PlanError, match="`half` gives one column, and 2 are named"):
        stream.call(half, "n", into=["a", "b"])
    with pytest.raises(PlanError, match="`total` is an aggregate"):
        stream.call(total, "n", into="a")
    with pytest.raises(PlanError, match="takes 1 argument"):
        stream.call(half, "n", "n", into="a")
    with pytest.raises(PlanError, match="takes 1 argument"):
        TableFunctionCall(words, ["a", "b"], columns={})
    with pytest.raises(PlanError, match="gives no column `wrd`"):
        TableFunctionCall(words, ["a"], columns={"wrd": "x"})
    broken = hr.Pipeline("calls")
    unknown = broken.source("memory", rows=[{"n": 1}]).map(lambda batch: batch)
    unknown.call(half, "m", into="half").sink("memory", name="out")
    with pytest.raises(PlanError, match="there is no column `m` to call the function with"):
        run_in_process(broken, tmp_path / "b")
