"""Values of PostgreSQL as texts and as Arrow columns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.postgres.text import UnreadableError, parse_array, read_texts, write_texts

at = dt.datetime.fromisoformat
INTERVAL = pa.month_day_nano_interval()
POINT = pa.struct([("x", pa.int64()), ("name", pa.string())])


def read(texts: list[str | None], kind: pa.DataType) -> list[Any]:
    array = read_texts(pa.array(texts, pa.string()), pa.field("c", kind))
    assert array.type == kind
    values: list[Any] = array.to_pylist()
    return values


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (pa.bool_(), ["t", None, "f", "true", "false"], [True, None, False, True, False]),
        (pa.int16(), ["-7", None], [-7, None]),
        (pa.float64(), ["1.5", "NaN", "-Infinity", "1e+300"], [1.5, "nan", float("-inf"), 1e300]),
        (pa.decimal128(10, 2), ["1.50", "7"], [Decimal("1.50"), Decimal("7.00")]),
        (pa.string(), ["", None, 'a"b\n{}'], ["", None, 'a"b\n{}']),
        (pa.binary(), ["\\x", "\\x00ff", None, "\\x61"], [b"", b"\x00\xff", None, b"a"]),
        (pa.date32(), ["2026-02-03"], [dt.date(2026, 2, 3)]),
        (pa.timestamp("us"), ["2026-01-01 10:00:00.5"], [at("2026-01-01T10:00:00.500")]),
        (pa.timestamp("us"), ["2026-01-01 10:00:00+00", None], [at("2026-01-01T10:00:00"), None]),
        (pa.timestamp("s"), ["2026-01-01 10:00:00.999999"], [at("2026-01-01T10:00:00")]),
        (pa.time64("us"), ["10:00:00.5", None], [dt.time(10, 0, 0, 500_000), None]),
        (INTERVAL, ["P1M2DT3.5S", None], [pa.MonthDayNano([1, 2, 3_500_000_000]), None]),
        (pa.list_(pa.int64()), ["{1,NULL,3}", None, "{}"], [[1, None, 3], None, []]),
        (pa.list_(pa.int64()), ["[0:1]={1,2}"], [[1, 2]]),
        (pa.list_(pa.string()), ['{"a \\"b\\"",NULL,"NULL",x y}'], [['a "b"', None, "NULL", "x y"]]),
        (pa.list_(pa.list_(pa.bool_())), ["{{t,f},{f,t}}", None], [[[True, False], [False, True]], None]),
        (pa.list_(pa.int64()), ["[1, 2]", None], [[1, 2], None]),
        (POINT, ['{"x": 1, "name": "a", "more": 0}', None], [{"x": 1, "name": "a"}, None]),
    ],
)
def test_texts_are_read_as_values(kind: pa.DataType, texts: list[str | None], values: list[Any]) -> None:
    found = ["nan" if one != one else one for one in read(texts, kind)]
    assert found == values
    assert read([], kind) == []
    assert read([None], kind) == [None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "1.5"),
        (pa.int16(), "40000"),
        (pa.bool_(), "maybe"),
        (pa.decimal128(5, 2), "1.505"),
        (pa.decimal128(5, 2), "NaN"),
        (pa.timestamp("ns"), "infinity"),
        (pa.timestamp("ns"), "9999-12-31 00:00:00"),
        (INTERVAL, "soon"),
        (pa.list_(pa.int64()), "{a}"),
        (pa.list_(pa.int64()), "{{1}}"),
        (pa.list_(pa.list_(pa.int64())), "{1}"),
        (pa.list_(pa.int64()), "{1"),
        (POINT, "(1,a)"),
    ],
)
def test_a_text_that_does_not_fit_the_type_is_found_and_shown(kind: pa.DataType, text: str) -> None:
    with pytest.raises(UnreadableError, match="cannot be read as") as caught:
        read([None, text, None], kind)
    assert caught.value.index == 1
    assert text in str(caught.value)


def test_arrays_are_parsed_as_deep_as_they_are() -> None:
    assert parse_array('{ {"a,b"} , {NULL} }') == [["a,b"], [None]]
    assert parse_array("{}") == []
    for text in ("", "{", "}", "{}{}", "a", "{a}b", '{"a}'):
        with pytest.raises(ValueError, match="is not an array"):
            parse_array(text)


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array([b"\x00\xff", None, b""]), ["\\x00ff", None, "\\x"]),
        (pa.array([b"xx", b"\x00\xff", None, b""])[1:], ["\\x00ff", None, "\\x"]),
        (pa.array([[1, None], None, []], pa.list_(pa.int64())), ['{"1",NULL}', None, "{}"]),
        (pa.array([[["a"], ['b"\\']]]), ['{{"a"},{"b\\"\\\\"}}']),
        (pa.array([{"x": 1}, None]), ['{"x":1}', None]),
        (pa.array([pa.MonthDayNano([1, 0, 10**9]), None]), ["1 mons 1 secs", None]),
        (pa.array([1, None], pa.duration("s")), ["1 secs", None]),
        (pa.array(["a", None]).dictionary_encode(), ["a", None]),
        (pa.nulls(1), [None]),
        (pa.array([1, None]), [1, None]),
        (
            pa.array([1500, -1], pa.timestamp("ns")),
            [at("1970-01-01T00:00:00.000001"), at("1970-01-01")],
        ),
    ],
)
def test_values_are_written_as_postgres_reads_them(array: pa.Array, texts: list[Any]) -> None:
    assert write_texts(array, pa.field("c", array.type)).to_pylist() == texts


def test_lists_can_be_written_as_json() -> None:
    array = pa.array([[1, None], None])
    assert write_texts(array, pa.field("c", array.type), as_json=True).to_pylist() == ["[1,null]", None]


def test_numbers_that_json_does_not_have_are_strings_in_json() -> None:
    array = pa.array([1.5, float("nan"), -float("inf"), None])
    written = write_texts(array, pa.field("c", array.type), as_json=True)
    assert written.to_pylist() == ["1.5", '"NaN"', '"-Infinity"', None]


def test_a_null_in_the_place_of_an_array_is_refused() -> None:
    array = pa.array([[["a"], None]])
    with pytest.raises(ValueError, match="column `c`: an array of PostgreSQL cannot hold a null"):
        write_texts(array, pa.field("c", array.type))
