"""Every type of SQL through JSON and back, and what a JSON reader must forgive."""

import json
import pickle
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError, ConfigurationError, PlanError
from headrace.base.options import parse_options
from headrace.connectors._shared.messages import MessageOptions
from headrace.formats.base import JSON_COLUMN
from headrace.formats.json.format import JsonFormat
from headrace.formats.json.write import JsonStyle


def instants(unit: str, *values: int | None) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit))


NESTED = pa.list_(
    pa.struct({"at": pa.timestamp("ns"), "tags": pa.list_(pa.struct({"d": pa.decimal128(38, 10)}))})
)

COLUMNS: dict[str, pa.Array] = {
    "bool": pa.array([True, False, None]),
    **{
        str(kind): pa.array([0, 2**kind.bit_width - 1, None], kind)
        for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    },
    **{
        str(kind): pa.array([-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1, None], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    "float": pa.array([1.5, 3.4028234663852886e38, None], pa.float32()),
    "double": pa.array([0.1, -1e300, None]),
    "odd doubles": pa.array([float("inf"), float("-inf"), None]),
    "text": pa.array(['say "x"\n\\ü😀', "", None]),
    "s": instants("s", 0, -1, None),
    "ms": instants("ms", 1695046990200, -1, None),
    "us": instants("us", 1695046990200001, -1, None),
    "ns": instants("ns", 1695046990123456789, -1, None),
    "date": pa.array([date(2026, 11, 15), date(1900, 1, 1), None]),
    "time": pa.array([1, 86_399_999_999_999, None], pa.time64("ns")),
    "time us": pa.array([time(1, 2, 3, 4), time(0), None], pa.time64("us")),
    "decimal": pa.array([Decimal("12345678901234567890.1234567890"), Decimal("-0.5"), None],
                        pa.decimal128(38, 10)),
    "binary": pa.array([b"ab\x00\xff", b"", None]),
    "interval": pa.array([pa.MonthDayNano([1, -2, 3]), pa.MonthDayNano([0, 0, -90_500_000_000]), None]),
    "struct": pa.array([{"a": 1, "b": None}, {"a": None, "b": date(2026, 1, 1)}, None],
                       pa.struct({"a": pa.int8(), "b": pa.date32()})),
    "lists": pa.array([[[1], []], [None], None], pa.list_(pa.list_(pa.int64()))),
    "binaries": pa.array([[b"x", None], [], None]),
    "nested": pa.array([[{"at": 5, "tags": [{"d": Decimal("1.1234567890")}, None]}, None], [], None], NESTED),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("decimals", ["number", "string", "bytes"])
def test_every_type_survives_the_way_out_and_back(name: str, decimals: Any) -> None:
    column = COLUMNS[name]
    schema = pa.schema([("v", column.type)])
    made = pickle.loads(pickle.dumps(JsonFormat(schema, style=JsonStyle(decimals=decimals))))
    lines = made.encode(pa.record_batch([column], schema=schema))
    for line in lines.splitlines():
        json.loads(line)
    decoded = made.decode(lines).rows
    assert decoded.schema == schema
    assert decoded.column("v").combine_chunks().equals(column)
    # One by one, the lines are read as they are together.
    for index, message in enumerate(made.messages(pa.record_batch([column], schema=schema))):
        assert made.decode([message]).rows.column("v").combine_chunks().equals(column.slice(index, 1))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("decimals", ["number", "bytes"])
def test_a_line_beside_an_odd_one_is_read_as_it_is_alone(name: str, decimals: Any) -> None:
    column = COLUMNS[name]
    schema = pa.schema([("v", column.type)])
    made = JsonFormat(schema, style=JsonStyle(decimals=decimals))
    odd = b'{"v":null,"v":null}'  # Arrow refuses a name that comes twice
    decoded = made.decode(made.encode(pa.record_batch([column], schema=schema)) + odd).rows
    assert decoded.column("v").combine_chunks().equals(pa.concat_arrays([column, column.slice(2)]))


def read(kind: pa.DataType, *values: str, **options: Any) -> Any:
    lines = "".join(f'{{"v":{value}}}\n' for value in values).encode()
    table = JsonFormat(pa.schema([("v", kind)]), **options).decode(lines).rows
    column = table.column("v")
    return column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(kind) else column.to_pylist()


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        (pa.timestamp("ns"),
         ['"1970-01-01T00:00:01Z"', '"1970-01-01T02:00:01+02:00"', '"1970-01-01 00:00:01"'],
         [10**9] * 3),
        (pa.timestamp("ns"), ["1000", '"1970-01-01T00:00:00.000001"', "null"], [1000, 1000, None]),
        (pa.timestamp("ns"), ["1000", "2000"], [1000, 2000]),
        (pa.timestamp("ms"), ["1000", '"1970-01-01T00:00:01.000999999Z"'], [1000, 1000]),
        (pa.timestamp("s"), ['"1970-01-01T00:00:01.9"', "2.0"], [1, 2]),
        (pa.date32(), ['"1970-01-02"', "2"], [date(1970, 1, 2), date(1970, 1, 3)]),
        (pa.date32(), ["1", "2"], [date(1970, 1, 2), date(1970, 1, 3)]),
        (pa.time64("us"), ['"01:02:03.5"', "1000000", '"01:02:03.1234567891"'],
         [time(1, 2, 3, 500000), time(0, 0, 1), time(1, 2, 3, 123456)]),
        (pa.int64(), ['"5"', "5.0", "5e0", "9223372036854775807"], [5, 5, 5, 2**63 - 1]),
        (pa.uint64(), ['"18446744073709551615"', "1"], [2**64 - 1, 1]),
        (pa.float64(), ["1", '"NaN"', '"-Infinity"', '"2.5"', "1e-3"],
         [1.0, "nan", float("-inf"), 2.5, 0.001]),
        (pa.decimal128(10, 2), ['"1.5"', "1.5", "1e2", "1.555"],
         [Decimal("1.50"), Decimal("1.50"), Decimal("100.00"), Decimal("1.56")]),
        (pa.month_day_nano_interval(), ['"P1M2DT3S"', '"1 month 2 days 3 seconds"'],
         [pa.MonthDayNano([1, 2, 3 * 10**9])] * 2),
    ],
)  # fmt: skip
def test_values_may_be_written_in_several_ways_side_by_side(kind: Any, texts: Any, expected: Any) -> None:
    found = read(kind, *texts)
    assert [str(v) if v != v else v for v in found] == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "300"),
        (pa.int64(), "1.5"),
        (pa.int64(), "true"),
        (pa.uint32(), "-1"),
        (pa.float64(), '"many"'),
        (pa.float64(), "1e999"),
        (pa.bool_(), "1"),
        (pa.string(), "5"),
        (pa.string(), "5.5"),
        (pa.timestamp("ns"), '"noon"'),
        (pa.timestamp("ns"), '"1600-01-01T00:00:00"'),
        (pa.timestamp("ns"), "{}"),
        (pa.date32(), '"2026-13-01"'),
        (pa.time64("ns"), '"25:00:00"'),
        (pa.decimal128(4, 2), "100"),
        (pa.decimal128(4, 2), '"x"'),
        (pa.binary(), '"not base64!"'),
        (pa.month_day_nano_interval(), '"soon"'),
        (pa.list_(pa.int64()), "{}"),
        (pa.struct({"a": pa.int64()}), "[]"),
    ],
)
def test_a_value_that_does_not_fit_is_bad_and_its_column_named(kind: Any, text: str) -> None:
    with pytest.raises(BadLineError) as caught:
        read(kind, "null", text, "null")
    assert (caught.value.line, caught.value.column) == (2, "v")
    dropped = JsonFormat(pa.schema([("v", kind)]), drop_bad=True).decode(
        f'{{"v":null}}\n{{"v":{text}}}\n\n{{}}\n'.encode()
    )
    assert dropped.rows.column("v").to_pylist() == [None, None]
    assert [error.line for error in dropped.bad] == [2]


def test_bad_lines_are_dropped_alone_out_of_many() -> None:
    lines = [json.dumps({"a": number}) for number in range(3000)]
    lines[5] = "{"
    lines[700] = '{"a":1}{"a":2}'
    lines[701] = '{"a":"701"}'
    lines[2999] = '{"a":"x"}'
    made = JsonFormat(pa.schema([("a", pa.int64())]), drop_bad=True)
    decoded = made.decode("\n".join(lines).encode(), first_line=10)
    assert [error.line for error in decoded.bad] == [15, 710, 3009]
    assert decoded.rows.column("a").to_pylist() == [n for n in range(3000) if n not in {5, 700, 2999}]
    everything_bad = made.decode(b"x\ny\n")
    assert (everything_bad.rows.num_rows, len(everything_bad.bad)) == (0, 2)
    assert everything_bad.rows.schema == decoded.rows.schema


@pytest.mark.parametrize("line", [b'{"a":{"b":null}}', b'{"a":{}}'])
def test_a_missing_value_in_a_not_null_column_is_bad_at_any_depth(line: bytes) -> None:
    inner = pa.struct([pa.field("b", pa.date32(), nullable=False)])
    made = JsonFormat(pa.schema([pa.field("a", inner)]))
    assert made.decode(b'{"a":null}\n{"a":{"b":"1970-01-01"}}\n{}').rows.num_rows == 3
    with pytest.raises(BadLineError, match="NOT NULL") as caught:
        made.decode(b'{"a":null}\n' + line)
    assert (caught.value.line, caught.value.column) == (2, "a.b")
    flat = JsonFormat(pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    with pytest.raises(BadLineError, match=r"line 2 .*`a`.*NOT NULL"):
        flat.decode(b'{"a":1}\n{"b":1}')
    assert flat.decode(b'{"a":1}').rows.schema.field("a").nullable


def test_texts_that_are_not_utf8_are_bad_even_inside_a_json_text() -> None:
    made = JsonFormat(pa.schema([("a", pa.string())]))
    with pytest.raises(BadLineError, match=r"line 2 .*UTF-8"):
        made.decode(b'{"a":"\xc3\xbc"}\n{"a":"\xff"}\n')


# ------------------------------------------------------------------------------------------ JSON columns

JSON_SCHEMA = pa.schema(
    [
        pa.field("j", pa.string(), metadata=JSON_COLUMN),
        pa.field("d", pa.decimal128(38, 20)),
        pa.field("s", pa.struct([pa.field("j", pa.string(), metadata=JSON_COLUMN)])),
    ]
)


def test_json_columns_hold_any_json_as_it_was_and_are_written_as_json() -> None:
    made = JsonFormat(JSON_SCHEMA)
    lines = (
        b'{"j":{"b":1.10,"a":[null,"x"]},"d":0.12345678901234567890,"s":{"j":5}}\n'
        b'{"j":"text","d":null,"s":{"j":[]}}\n'
        b'{"j":null,"d":null,"s":null}\n'
    )
    rows = made.decode(lines).rows
    assert rows.column("j").to_pylist() == ['{"b":1.10,"a":[null,"x"]}', '"text"', None]
    assert rows.column("d")[0].as_py() == Decimal("0.12345678901234567890")
    assert rows.column("s").to_pylist() == [{"j": "5"}, {"j": "[]"}, None]
    assert rows.schema.field("j").metadata is None
    assert made.encode(rows) == lines
    assert made.encode(pa.table({"j": ['{\n"a": 1}'], "d": [None], "s": [None]})).count(b"\n") == 1


# --------------------------------------------------------------------------------------------- options


def options(**values: Any) -> MessageOptions:
    return parse_options(MessageOptions, {name.replace("__", "."): v for name, v in values.items()}, what="t")


def test_timestamps_may_be_written_as_milliseconds_and_only_declared_columns_are_written() -> None:
    schema = pa.schema([("b", pa.timestamp("ns")), ("a", pa.int64())])
    made = options(json__timestamp_format="unix_millis", schema=schema).format_for(schema)
    rows = pa.record_batch(
        {
            "a": pa.array([1, 2, 3], pa.int32()),
            "b": instants("ns", 1_999_999, -1, None),
            "_timestamp": [1, 2, 3],
        }
    )
    assert made.encode(rows) == b'{"b":1,"a":1}\n{"b":-1,"a":2}\n{"b":null,"a":3}\n'
    assert made.encode(rows.slice(0, 0)) == b""
    with pytest.raises(PlanError, match="no column `b`"):
        made.encode(pa.record_batch({"a": [1]}))
    with pytest.raises(PlanError, match="only add rows"):
        made.encode(pa.record_batch({"a": [1], "b": [1], "_retract": [False]}))


def test_a_schema_may_stand_beside_each_row() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("t", pa.timestamp("ns"))])
    made = options(json__include_schema="true").format_for(schema)
    lines = made.encode(pa.record_batch({"a": [1], "t": instants("ns", 5)}))
    message = json.loads(lines)
    assert message["payload"] == {"a": 1, "t": "1970-01-01T00:00:00.000000005"}
    assert message["schema"]["fields"][0] == {"type": "int64", "optional": False, "field": "a"}
    assert made.decode(lines).rows.to_pylist()[0]["a"] == 1
    with pytest.raises(BadLineError, match="payload"):
        made.decode(b'{"a":1}\n')


def test_unstructured_json_is_the_text_of_each_message() -> None:
    schema = pa.schema([("value", pa.string())])
    made = options(json__unstructured=True, bad_data="drop").format_for(schema)
    decoded = made.decode(b'{"a": 1}\n\n[2]\noops\n"x"\n')
    assert decoded.rows.column("value").to_pylist() == ['{"a": 1}', "[2]", '"x"']
    assert [error.line for error in decoded.bad] == [4]
    assert made.encode(decoded.rows) == b'{"a": 1}\n[2]\n"x"\n'
    wrapped = options(json__unstructured=True, json__include_schema=True).format_for(schema)
    assert wrapped.decode([b'{"payload":{"a":1}}']).rows.column("value").to_pylist() == ['{"a":1}']


def test_raw_formats_take_lines_as_they_are() -> None:
    texts = options(format="raw_string", bad_data="drop").format_for(pa.schema([("value", pa.string())]))
    decoded = texts.decode(b"a\n\n\xff\n b \n")
    assert decoded.rows.column("value").to_pylist() == ["a", "", " b "]
    assert [error.line for error in decoded.bad] == [3]
    assert texts.encode(decoded.rows) == b"a\n\n b \n"
    data = options(format="raw_bytes").format_for(pa.schema([("value", pa.binary())]))
    assert data.decode([b"\xff\n", b""]).rows.column("value").to_pylist() == [b"\xff\n", b""]
    assert data.messages(pa.table({"value": [b"\x00"]})) == [b"\x00"]


def test_framing_cuts_messages_into_lines_and_long_lines_short() -> None:
    made = options(format="raw_string", framing="newline", framing__newline__max_length="3").format_for(
        pa.schema([("value", pa.string())])
    )
    assert made.decode([b"abcd\nx", b"y\n"]).rows.column("value").to_pylist() == ["abc", "x", "y"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "xml"}, "option `format`"),
        ({"json.timestamp_format": "iso"}, "option `json.timestamp_format`"),
        ({"framing.newline.max_length": 5}, "needs `framing`"),
        ({"format": "raw_string", "schema": {"a": "string"}}, "`value TEXT`, got a string"),
        ({"format": "raw_bytes", "schema": {"value": "string"}}, "`value BYTEA`"),
        ({"format": "debezium_json", "schema": {"id": "int64"}, "primary_key": "idd"}, "did you mean `id`"),
        ({"json.unstructured": True, "format": "raw_bytes"}, "`json.unstructured`"),
        ({"schema": {"a": "int46"}}, "did you mean `int64`"),
    ],
)
def test_options_that_do_not_go_together_are_refused(values: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_options(MessageOptions, values, what="t")
    assert message in str(caught.value)


def test_a_type_that_cannot_be_read_is_refused_without_any_row() -> None:
    with pytest.raises(ConfigurationError, match="column `m`"):
        JsonFormat(pa.schema([("m", pa.map_(pa.string(), pa.int64()))])).decode(b"")
