import json
import math
import pickle
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import BadLineError
from headrace.formats.json.format import JsonFormat, decode_json_lines, encode_json_lines


def encode(column: pa.Array) -> list[str]:
    lines = encode_json_lines(pa.record_batch({"v": column})).decode().splitlines()
    return [line.removeprefix('{"v":').removesuffix("}") for line in lines]


def timestamps(*values: int, unit: str = "ns", zone: str | None = None) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit, zone))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None, -(2**63)]), ["1", "null", "-9223372036854775808"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        (pa.array([True, False, None]), ["true", "false", "null"]),
        (pa.array([1.0, 0.1, -2.5, None]), ["1.0", "0.1", "-2.5", "null"]),
        (
            pa.array([math.nan, math.inf, -math.inf, None, 1.5]),
            ['"NaN"', '"Infinity"', '"-Infinity"', "null", "1.5"],
        ),
        (pa.array(["a", 'say "x"\n', "\\", "ü€😀", "", None]),
         ['"a"', '"say \\"x\\"\\n"', '"\\\\"', '"ü€😀"', '""', "null"]),
        (pa.array([Decimal("1.50"), None]), ["1.50", "null"]),
        (pa.array([b"ab\x00", None]), ['"YWIA"', "null"]),
        (pa.array([date(2026, 11, 15)]), ['"2026-11-15"']),
        (pa.array([time(1, 2, 3)], pa.time32("s")), ['"01:02:03"']),
        (pa.nulls(2), ["null", "null"]),
        (pa.array(["x", None, "x"]).dictionary_encode(), ['"x"', "null", '"x"']),
        (pa.array([[1, None], [], None]), ["[1,null]", "[]", "null"]),
        (pa.array([[["a"], []], [None]]), ['[["a"],[]]', "[null]"]),
        (pa.array([{"x": 1, "y": "q"}, {"x": None, "y": None}, None]),
         ['{"x":1,"y":"q"}', '{"x":null,"y":null}', "null"]),
        (pa.array([[("k", 1), ('"', 2)], [], None], pa.map_(pa.string(), pa.int32())),
         ['{"k":1,"\\"":2}', "{}", "null"]),
        (pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())), ['{"1":"a"}']),
        (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), ["[1,2]", "null"]),
    ],
)  # fmt: skip
def test_values_follow_the_conventions(column: Any, expected: Any) -> None:
    assert encode(column) == expected
    # A slice of a column is that part of the column.
    assert encode(pa.concat_arrays([column, column]).slice(len(column))) == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (timestamps(1695046990 * 10**9), "2023-09-18T14:23:10"),
        (timestamps(1695046990 * 10**9 + 200_000_000), "2023-09-18T14:23:10.200"),
        (timestamps(1695046990 * 10**9 + 200_000), "2023-09-18T14:23:10.000200"),
        (timestamps(1695046990 * 10**9 + 1), "2023-09-18T14:23:10.000000001"),
        (timestamps(-1), "1969-12-31T23:59:59.999999999"),
        (timestamps(1695046990, unit="s"), "2023-09-18T14:23:10"),
        (timestamps(1695046990_200, unit="ms"), "2023-09-18T14:23:10.200"),
        (timestamps(1695046990, unit="s", zone="Europe/Berlin"), "2023-09-18T14:23:10"),
    ],
)
def test_timestamps_have_no_zone_and_a_fraction_only_when_there_is_one(column: Any, expected: Any) -> None:
    assert encode(column) == [f'"{expected}"']


def test_timestamps_of_every_precision_stand_side_by_side() -> None:
    column = pa.array([10**9, None, 10**9 + 10**6, 10**9 + 10**3, 10**9 + 1]).cast(pa.timestamp("ns"))
    assert encode(column) == [
        '"1970-01-01T00:00:01"',
        "null",
        '"1970-01-01T00:00:01.001"',
        '"1970-01-01T00:00:01.000001"',
        '"1970-01-01T00:00:01.000000001"',
    ]


def test_names_are_escaped_and_rows_without_columns_are_objects() -> None:
    assert encode_json_lines(pa.record_batch({'a"b': [1]})) == b'{"a\\"b":1}\n'
    assert encode_json_lines(pa.record_batch({"a": pa.array([], pa.int64())})) == b""
    assert encode_json_lines(pa.record_batch({"a": [1, 2]}).select([])) == b"{}\n{}\n"


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "i": st.none() | st.integers(-(2**63), 2**63 - 1),
                "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "s": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
                "l": st.none() | st.lists(st.none() | st.integers(0, 9)),
                "t": st.none() | st.fixed_dictionaries({"x": st.none() | st.text('ab"\n')}),
            }
        ),
        min_size=1,
    )
)
def test_what_is_written_any_json_reader_reads_back(rows: Any) -> None:
    schema = pa.schema(
        {
            "i": pa.int64(),
            "f": pa.float64(),
            "s": pa.string(),
            "l": pa.list_(pa.int64()),
            "t": pa.struct({"x": pa.string()}),
        }
    )
    lines = encode_json_lines(pa.RecordBatch.from_pylist(rows, schema))
    assert [json.loads(line) for line in lines.decode().split("\n")[:-1]] == rows
    assert decode_json_lines(lines, schema).to_pylist() == rows


def test_lines_without_a_last_newline_and_empty_lines_are_fine() -> None:
    assert decode_json_lines(b'\n{"a":1}\r\n\n  \n{"a":2}').to_pylist() == [{"a": 1}, {"a": 2}]
    assert decode_json_lines(b"").num_rows == 0
    assert decode_json_lines(b"\n\n", pa.schema({"a": pa.int64()})).schema.names == ["a"]


def test_a_schema_chooses_the_columns_and_fills_missing_ones() -> None:
    schema = pa.schema({"b": pa.string(), "a": pa.float64()})
    assert decode_json_lines(b'{"a":1,"c":[]}\n', schema).to_pylist() == [{"b": None, "a": 1.0}]


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        (b'{"a":1}\n\n{"a":oops}\n{"a":3}\n', 12, None),
        (b'{"a":1}\n[1]\n', 11, None),
        (b'{"a":1}{"a":2}\n', 10, None),
        (b'{"a":1}\n{"a":2}\n{"a":"x"}\n{"a":4}', 12, "a"),
        (b'{"a":1}\n\xff\xfe\n', 11, None),
        (b'{"a":1}\n{"a":2', 11, None),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_content(data: Any, line: Any, column: Any) -> None:
    with pytest.raises(BadLineError, match=f"line {line} ") as caught:
        decode_json_lines(data, pa.schema({"a": pa.int64()}), first_line=10, where="in.json")
    error = caught.value
    content = data.split(b"\n")[line - 10].decode("utf-8", "replace")
    assert (error.line, error.column, error.content) == (line, column, content)
    assert content in str(error)
    assert "in.json" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.line, str(copy)) == (line, str(error))


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (b'{"a":1,"b":"x","c":"\\ud800"}', "c"),
        (b'{"a":1,"b":"\\udc00 y","c":"x"}', "b"),
        (b'{"a":1,"b":"x","c":"x","d":{"e":["x","\\ud800"]}}', "d.e"),
    ],
)
def test_half_of_a_surrogate_pair_is_blamed_on_its_column(line: bytes, column: str) -> None:
    inner = pa.struct([("e", pa.list_(pa.string()))])
    schema = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.string(), "d": inner})
    with pytest.raises(BadLineError, match="surrogate") as caught:
        JsonFormat(schema).decode(line)
    assert caught.value.column == column
