"""CSV: lines and messages, headers, quotes, nulls, and what is wrong with a line."""

from __future__ import annotations

import csv
import io
import pickle
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Pipeline
from headrace.base.errors import BadLineError, ConfigurationError, InternalError, PlanError
from headrace.base.options import parse_options
from headrace.formats.base import JSON_COLUMN
from headrace.formats.csv.format import CsvFormat, CsvOptions, infer_columns
from headrace.formats.options import FormatOptions
from headrace.testing.in_process import run_in_process
from tests.unit.formats.avro_cases import naive

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("at", pa.timestamp("ns")),
        pa.field("flag", pa.bool_()),
        pa.field("cost", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("ns")),
        pa.field("blob", pa.binary()),
        pa.field("lasts", pa.month_day_nano_interval()),
        pa.field("small", pa.uint8()),
        pa.field("details", pa.string(), metadata=JSON_COLUMN),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": 'say "x", or not',
        "price": 0.1,
        "at": naive("2026-01-02T03:04:05.678901"),
        "flag": True,
        "cost": Decimal("-1.50"),
        "day": date(2026, 1, 31),
        "clock": time(1, 2, 3, 4),
        "blob": b"\xff\x00",
        "lasts": pa.MonthDayNano([1, 2, 3_000_000_000]),
        "small": 200,
        "details": '{"a": [1, "x"]}',
    },
    {"id": -(2**63), "name": "", "price": float("inf"), "flag": False, "blob": b""},
    {"id": 3},
]


def rows() -> pa.Table:
    return pa.Table.from_pylist(ROWS, COLUMNS)


def made(columns: Any, *, drop_bad: bool = False, **options: Any) -> CsvFormat:
    named = {f"csv.{name}": value for name, value in options.items()}
    return CsvFormat(pa.schema(columns), options=CsvOptions.model_validate(named), drop_bad=drop_bad)


def test_rows_come_back_as_they_were_written() -> None:
    for both in (made(COLUMNS), made(COLUMNS, delimiter="\t", quote="'", null="NULL", header=False)):
        data = both.head(COLUMNS) + both.encode(rows())
        again = pickle.loads(pickle.dumps(both))
        assert again.decode(data).rows.to_pylist() == rows().to_pylist()
        assert both.decode(both.messages(rows())).rows.to_pylist() == rows().to_pylist()


def test_lines_are_as_other_programs_read_them() -> None:
    both = made(COLUMNS)
    data = (both.head(COLUMNS) + both.encode(rows())).decode()
    first, second, third = csv.DictReader(io.StringIO(data))
    assert (first["id"], first["name"], first["at"]) == ("1", 'say "x", or not', "2026-01-02T03:04:05.678901")
    assert (first["cost"], first["blob"], first["details"]) == ("-1.50", "/wA=", '{"a": [1, "x"]}')
    assert (second["name"], second["price"], third["name"]) == ("", "Infinity", "")
    assert data.splitlines()[2].startswith('-9223372036854775808,"",Infinity,,false')  # a null is not empty
    assert data.splitlines()[3] == "3,,,,,,,,,,,"


def test_columns_are_found_by_the_header_or_by_their_order() -> None:
    data = b'\xef\xbb\xbf"b, c" ,d,a\r\n1,2,x\r\n\r\n3,,\r\n'
    assert made({"a": pa.string(), "b, c": pa.int64(), "new": pa.int8()}).decode(data).rows.to_pylist() == [
        {"a": "x", "b, c": 1, "new": None},
        {"a": None, "b, c": 3, "new": None},
    ]
    plain = made({"x": pa.int64(), "y": pa.int64(), "z": pa.string()}, header=False).decode(data[16:].strip())
    assert plain.rows.to_pylist() == [{"x": 1, "y": 2, "z": "x"}, {"x": 3, "y": None, "z": None}]


def test_the_header_of_a_file_that_is_read_in_parts_is_given_first() -> None:
    read = made({"a": pa.int64()})
    read.read_head(b"b,a", "one.csv")
    assert read.decode(b"1,2\n3,4\n", first_line=7, where="one.csv").rows.column("a").to_pylist() == [2, 4]
    with pytest.raises(InternalError, match=r"the first line of two\.csv has not been read"):
        read.decode(b"1,2\n", first_line=7, where="two.csv")


def test_a_header_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the first line names no column `amount`") as raised:
        made({"amount": pa.int64()}).decode(b"amuont,x\n1,2\n", where="one.csv")
    assert (raised.value.where, raised.value.hint) == ("one.csv", "did you mean `amuont`?")
    with pytest.raises(ConfigurationError) as raised:
        made({"a": pa.int64()}).decode(b"1,2\n3,4\n")
    assert raised.value.hint == "it has 1, 2; if that is a row, set `csv.header` = false"
    with pytest.raises(ConfigurationError, match="names no column `b`"):
        made([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)]).decode(b"a\n1\n")


def test_each_bad_line_is_told_by_its_number_and_the_others_are_read() -> None:
    read = made({"a": pa.int64(), "b": pa.string(), "c": pa.binary()}, drop_bad=True)
    lines = [
        b"a,b,c",
        b'1,"x,y",/w==',
        b'2,"a line',
        b'break",',
        b"3,x",
        b"4,\xff,",
        b" 5 ,z,",
        b"",
        b"6.5,z,",
        b"7,z,???",
        b'8,"",',
        b"9,1,2,3",
        b"  ",
        b"99999999999999999999,,",
    ]
    decoded = read.decode(b"\n".join(lines), where="one.csv")
    assert [(row["a"], row["b"]) for row in decoded.rows.to_pylist()] == [
        (1, "x,y"),
        (2, "a line\nbreak"),
        (5, "z"),
        (8, ""),
    ]
    told = {error.line: error.message.partition("cannot be read, ")[2] for error in decoded.bad}
    assert told == {
        5: "it has 2 values, not 3: 3,x",
        6: "it is not UTF-8: 4,�,",
        9: "column `a`: '6.5' is not a value of type int64: 6.5,z,",
        10: "column `c`: `???` is not base64: 7,z,???",
        12: "it has 4 values, not 3: 9,1,2,3",
        14: "column `a`: '99999999999999999999' is not a value of type int64: 99999999999999999999,,",
    }
    assert decoded.bad[1].record == b"4,\xff,"
    with pytest.raises(BadLineError, match="line 5 cannot be read"):
        made({"a": pa.int64()}).decode(b"\n".join(lines))


def test_a_message_is_one_row_and_may_have_line_breaks_in_quotes() -> None:
    read = made({"a": pa.string(), "b": pa.int32()}, drop_bad=True)
    messages = [b'"x\ny",5\r\n', b"q,1\nw,2", b"", b'"open,1', b"z,7", b'"a""b\n",']
    decoded = read.decode(messages, first_line=0)
    assert [tuple(row.values()) for row in decoded.rows.to_pylist()] == [
        ("x\ny", 5),
        ("z", 7),
        ('a"b\n', None),
    ]
    assert [error.line for error in decoded.bad] == [1, 3]
    assert "more than one row" in decoded.bad[0].message
    lines = made({"a": pa.string()}).messages(pa.table({"a": ["x\ny"]}))
    assert made({"a": pa.string()}).decode(lines).rows.to_pylist() == [{"a": "x\ny"}]


def test_a_row_of_one_column_without_a_value_is_an_empty_line() -> None:
    rows = [{"a": None}, {"a": "x"}, {"a": ""}, {"a": None}]
    for null in ("", "NULL"):
        for header in (True, False):
            both = made({"a": pa.string()}, null=null, header=header)
            table = pa.Table.from_pylist(rows)
            data = both.head(table.schema) + both.encode(table)
            assert both.decode(data).rows.to_pylist() == rows
            decoded = both.decode(both.messages(table))
            assert decoded.counts is not None
            assert (decoded.rows.to_pylist(), decoded.counts.tolist()) == (rows, [1] * 4)
    numbers = made({"a": pa.int64()}, drop_bad=True, header=False)
    decoded = numbers.decode([b"", b"x", b"5"], first_line=0)
    assert decoded.rows.to_pylist() == [{"a": None}, {"a": 5}]
    assert decoded.counts is not None
    assert decoded.counts.tolist() == [1, 0, 1]
    assert numbers.decode(b"1\r\n\r\n3\r\n").rows.column("a").to_pylist() == [1, None, 3]
    strict = made([pa.field("a", pa.int64(), nullable=False)], header=False)
    assert strict.decode(b"1\n\n2\n\n").rows.column("a").to_pylist() == [1, 2]  # there it means nothing


def test_a_name_that_stands_twice_in_the_header_is_told_if_the_column_is_wanted() -> None:
    data = b"a,b,,,b\n1,2,,,3\n"
    assert made({"a": pa.int64()}).decode(data).rows.to_pylist() == [{"a": 1}]
    with pytest.raises(ConfigurationError, match="the first line names the column `b` 2 times") as raised:
        made({"a": pa.int64(), "b": pa.int64()}).decode(data, where="one.csv")
    assert raised.value.where == "one.csv"
    with pytest.raises(ConfigurationError, match="the first line names the column `b` 2 times"):
        infer_columns(b"a,b,b\n1,2,3\n", CsvOptions(), where="one.csv")


def test_arrays_and_structs_come_back_from_their_json() -> None:
    columns = pa.schema(
        {
            "tags": pa.list_(pa.string()),
            "at": pa.struct({"x": pa.float64(), "when": pa.timestamp("us"), "below": pa.list_(pa.int8())}),
        }
    )
    rows: list[dict[str, Any]] = [
        {"tags": ["a,b", 'c"', None], "at": {"x": 1.5, "when": naive("2026-01-02T03:04:05"), "below": []}},
        {"tags": None, "at": None},
        {"tags": [], "at": {"x": None, "when": None, "below": [1, 2]}},
    ]
    both = made(columns, drop_bad=True)
    table = pa.Table.from_pylist(rows, columns)
    assert both.decode(both.head(columns) + both.encode(table)).rows.to_pylist() == rows
    assert both.decode(both.messages(table)).rows.to_pylist() == rows
    bad = [b'"[1], ""x"": [2]",', b"{},", b',"{""below"": [300]}"', b'"[""x""]",']
    decoded = both.decode(bad)
    assert decoded.rows.to_pylist() == [{"tags": ["x"], "at": None}]
    assert [(error.line, error.column) for error in decoded.bad] == [
        (1, "tags"),
        (2, "tags"),
        (3, "at.below"),
    ]


def test_texts_that_are_null_are_chosen() -> None:
    read = made({"a": pa.int64(), "b": pa.string()}, null="NULL, -", header=False)
    assert read.decode(b'NULL,-\n-,"-"\n1,\n').rows.to_pylist() == [
        {"a": None, "b": None},
        {"a": None, "b": "-"},
        {"a": 1, "b": ""},
    ]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read from CSV"):
        made({"a": pa.map_(pa.string(), pa.int64())}).decode(b"")
    with pytest.raises(PlanError, match="cannot be written as CSV without quotes"):
        made({"a": pa.string()}, quote="").encode(pa.table({"a": ["x,y"]}))
    with pytest.raises(ConfigurationError, match="write one character"):
        parse_options(FormatOptions, {"format": "csv", "csv.delimiter": "ab"}, what="it")
    with pytest.raises(ConfigurationError, match=r"`csv\.quote` does not go with the format json"):
        parse_options(FormatOptions, {"csv.quote": "'"}, what="it")


def test_columns_are_found_out_from_a_sample() -> None:
    sample = b"id,name,at,ratio,none,yes\n1,x,2026-01-01,1.5,,true\n2,,,2,,\n"
    assert infer_columns(sample, CsvOptions(), where="one.csv") == pa.schema(
        {
            "id": pa.int64(),
            "name": pa.string(),
            "at": pa.string(),
            "ratio": pa.float64(),
            "none": pa.string(),
            "yes": pa.bool_(),
        }
    )
    plain = CsvOptions.model_validate({"csv.header": False, "csv.delimiter": ";"})
    assert infer_columns(b"1;x\n2;y\n", plain, where="one.csv").names == ["f0", "f1"]
    with pytest.raises(ConfigurationError, match="the columns cannot be found out"):
        infer_columns(b"", CsvOptions(), where="one.csv")


TEXTS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), TEXTS, TEXTS), min_size=1, max_size=9)
)
def test_any_values_come_back_and_are_what_the_library_reads(values: Any) -> None:
    columns = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.string()})
    both = made(columns)
    table = pa.Table.from_pylist([dict(zip("abc", row, strict=True)) for row in values], columns)
    assert both.decode(both.messages(table)).rows.to_pylist() == table.to_pylist()
    data = both.head(columns) + both.encode(table)
    assert both.decode(data).rows.to_pylist() == table.to_pylist()
    if not any("\n" in (text or "") or "\r" in (text or "") for row in values for text in row[1:]):
        parsed = [tuple(row) for row in csv.reader(io.StringIO(data.decode()))][1:]
        assert parsed == [tuple("" if one is None else str(one) for one in row) for row in values]


# --------------------------------------------------------------------------------------------- in a pipeline


def run(sql: str, state: Path, **more: Any) -> list[dict[str, Any]]:
    pipeline = Pipeline.from_sql(sql, name="csv", preview=lambda _: ("memory", {}))
    result = run_in_process(pipeline, state, **more)
    return [row for table in result.rows.values() for row in table.to_pylist()]


def test_a_pipeline_reads_a_file_in_parts_and_writes_one_with_a_header(tmp_path: Path) -> None:
    lines = [f'{n},"name, {n}"' for n in range(1000)]
    lines[500] = "five hundred,x"
    (tmp_path / "in.csv").write_text("\n".join(["number,name", *lines]))
    sql = f"""
        CREATE TABLE numbers (name TEXT, number BIGINT) WITH (
          connector = 'single_file', path = '{tmp_path}/in.csv', type = 'source', format = 'csv',
          bad_data = 'drop');
        CREATE TABLE names (number BIGINT, name TEXT) WITH (
          connector = 'single_file', path = '{tmp_path}/out.csv', type = 'sink', format = 'csv',
          'csv.delimiter' = ';');
        INSERT INTO names SELECT number, name FROM numbers;
    """
    run(sql, tmp_path / "state", parallelism=2, epoch_rows=150)
    written = (tmp_path / "out.csv").read_text().splitlines()
    assert written[:2] == ["number;name", "0;name, 0"]
    assert len(written) == 1000
    assert sorted(int(line.partition(";")[0]) for line in written[1:]) == [n for n in range(1000) if n != 500]


def test_columns_that_are_not_declared_are_found_out(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("b,a\nx,1\ny,2\n")
    pipeline = Pipeline("inferred")
    pipeline.source("single_file", path=str(tmp_path / "in.csv"), format="csv").sink("memory")
    result = run_in_process(pipeline, tmp_path / "state")
    got = [row for table in result.rows.values() for row in table.select(["b", "a"]).to_pylist()]
    assert got == [{"b": "x", "a": 1}, {"b": "y", "a": 2}]
