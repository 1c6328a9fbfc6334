"""Avro, beside fastavro, which reads what we write and writes what we read."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError
from headrace.formats.avro.format import AvroFormat
from headrace.formats.avro.read import AvroReader, _Marked
from headrace.formats.avro.schema import schema_of, to_json
from headrace.formats.base import JSON_COLUMN
from tests.unit.formats.avro_cases import COLUMNS, ROWS, datums, naive, raw, record, table

# ------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("layout", ["raw", "file"])
def test_rows_come_back_as_they_were_written(layout: Any) -> None:
    made = AvroFormat(COLUMNS, layout=layout)
    assert made.decode(made.messages(table())).rows.to_pylist() == table().to_pylist()
    again = pickle.loads(pickle.dumps(made))
    assert again.decode(again.messages(table().slice(1))).rows.to_pylist() == table().slice(1).to_pylist()


@pytest.mark.parametrize("compression", ["uncompressed", "deflate", "snappy", "zstd"])
def test_files_of_every_compression_come_back(compression: Any) -> None:
    made = AvroFormat(COLUMNS, compression=compression)
    many = pa.concat_tables([table()] * 5000)
    data = made.encode(many)
    assert made.decode(data).rows.num_rows == 15_000
    assert made.decode(data).rows.slice(14_997).to_pylist() == table().to_pylist()
    if compression in {"uncompressed", "deflate"}:
        assert sum(1 for _ in fastavro.reader(io.BytesIO(data))) == 15_000


def test_fastavro_reads_what_is_written() -> None:
    schema = fastavro.parse_schema(to_json(schema_of(list(COLUMNS))))
    first, second, _ = AvroFormat(COLUMNS, layout="raw").messages(table())
    got: Any = fastavro.schemaless_reader(io.BytesIO(first), schema, None)
    assert got | {"at": None, "at_ms": None} == {
        **ROWS[0],
        "at": None,
        "at_ms": None,
        "counts": {"a": 1, "b": None},
    }
    assert got["at"] == datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    assert got["at_ms"] == datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)
    again: Any = fastavro.schemaless_reader(io.BytesIO(second), schema, None)
    assert (again["id"], again["name"], again["place"]) == (2**63 - 1, None, {"city": None, "zones": []})


@pytest.mark.parametrize(
    ("kind", "column", "values", "expected"),
    [
        ("int", pa.int64(), [-1, 2**31 - 1], [-1, 2**31 - 1]),
        ("long", pa.int8(), [5], [5]),
        ("float", pa.float64(), [1.5], [1.5]),
        ("bytes", pa.string(), [b"x"], ["x"]),
        ("string", pa.binary(), ["x"], [b"x"]),
        ("string", pa.int64(), ["12"], [12]),
        ("string", pa.timestamp("ms"), ["2026-01-02T03:04:05Z"], [naive("2026-01-02T03:04:05")]),
        ("long", pa.timestamp("ms"), [1000], [naive("1970-01-01T00:00:01")]),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("ns"), [1], [1_000_000]),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.timestamp("us"), [-1], [-1]),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us"), [7], [7]),
        ({"type": "int", "logicalType": "time-millis"}, pa.time64("ns"), [1], [time(0, 0, 0, 1000)]),
        (
            {"type": "fixed", "name": "f", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 2},
            pa.decimal128(22, 3),
            [Decimal("-1.25")],
            [Decimal("-1.250")],
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            pa.string(),
            ["00000000-0000-0000-0000-000000000005"],
            ["00000000-0000-0000-0000-000000000005"],
        ),
        (
            {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"},
            pa.string(),
            [bytes(15) + b"\5"],
            ["00000000-0000-0000-0000-000000000005"],
        ),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, pa.string(), ["B", "A"], ["B", "A"]),
        (["null", {"type": "enum", "name": "e", "symbols": ["A"]}], pa.string(), [None, "A"], [None, "A"]),
        (["long", "null"], pa.int64(), [None, 5], [None, 5]),
        (
            {"type": "map", "values": "long"},
            pa.list_(pa.struct({"key": pa.string(), "value": pa.int64()})),
            [{"a": 1}, {}],
            [[{"key": "a", "value": 1}], []],
        ),
        (
            {"type": "array", "items": {"type": "array", "items": "int"}},
            pa.list_(pa.list_(pa.int64())),
            [[[1], []]],
            [[[1], []]],
        ),
        ({"type": "array", "items": "null"}, pa.list_(pa.null()), [[None, None]], [[None, None]]),
        ({"type": "record", "name": "q", "fields": []}, pa.struct([]), [{}], [{}]),
        ("null", pa.int64(), [None], [None]),
    ],
)  # fmt: skip
def test_types_are_read_as_columns_have_them(kind: Any, column: Any, values: Any, expected: Any) -> None:
    schema = record(kind)
    plain = json.loads(
        json.dumps(schema).replace("timestamp", "x").replace("time-", "x-").replace("uuid", "x")
    )
    messages = datums(plain, *({"v": value} for value in values))
    rows = raw(schema, [pa.field("v", column)]).decode(messages).rows
    got = rows.column("v")
    if pa.types.is_timestamp(column) and isinstance(expected[0], int):
        got = got.cast(pa.int64())
    assert got.to_pylist() == expected


def one(name: str, **members: Any) -> dict[str, Any]:
    fields = [{"name": member, "type": kind} for member, kind in members.items()]
    return {"type": "record", "name": name, "fields": fields}


JSON = pa.field("v", pa.string(), metadata=JSON_COLUMN)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (["null", "int", "string"], [None, 5, "x"], [None, "5", '"x"']),
        (["bytes", {"type": "long", "logicalType": "timestamp-millis"}],
         [b"\xff", datetime(2026, 1, 2, tzinfo=UTC)],
         ['"/w=="', '"2026-01-02T00:00:00"']),
        (["null", one("A", x="int"), one("B", y={"type": "map", "values": "float"})],
         [("A", {"x": 1}), ("B", {"y": {"k": float("nan")}}), None], ['{"x":1}', '{"y":{"k":"NaN"}}', None]),
        (one("T", n="int", next=["null", "T"]),
         [{"n": 1, "next": {"n": 2, "next": {"n": 3, "next": None}}}],
         ['{"n":1,"next":{"n":2,"next":{"n":3,"next":null}}}']),
        ({"type": "map", "values": ["null", "string"]}, [{"a": None, "b": "q"}], ['{"a":null,"b":"q"}']),
        ({"type": "array", "items": "double"}, [[1.0, 2.5]], ["[1.0,2.5]"]),
    ],
)  # fmt: skip
def test_what_has_no_type_in_arrow_is_read_as_json(kind: Any, values: Any, expected: Any) -> None:
    schema = record(kind)
    rows = raw(schema, [JSON]).decode(datums(schema, *({"v": value} for value in values))).rows
    got = [None if one is None else json.loads(one) for one in rows.column("v").to_pylist()]
    assert got == [None if one is None else json.loads(one) for one in expected]


def test_other_columns_are_not_held_up_by_a_union_of_records() -> None:
    union = ["null", *({"type": "record", "name": n, "fields": [{"name": "x", "type": "int"}]} for n in "AB")]
    schema = {**record(union), "fields": [*record(union)["fields"], {"name": "w", "type": "long"}]}
    messages = datums(schema, *({"v": ("B", {"x": 1}), "w": n} for n in range(1000)))
    rows = raw(schema, {"w": pa.int64()}).decode(messages).rows
    assert rows.column("w").to_pylist() == list(range(1000))


def test_a_schema_that_is_no_record_is_the_column_value() -> None:
    messages = datums("string", "a", "b")
    assert raw("string", {"value": pa.string()}).decode(messages).rows.to_pylist() == [
        {"value": "a"},
        {"value": "b"},
    ]
    unstructured = raw("string", {"value": pa.string()}, unstructured=True)
    assert unstructured.decode(messages).rows.column("value").to_pylist() == ['"a"', '"b"']


def test_records_are_read_as_json_whatever_their_schema() -> None:
    made = AvroFormat(pa.schema({"value": pa.string()}), unstructured=True)
    texts = made.decode(AvroFormat(COLUMNS).messages(table())).rows.column("value").to_pylist()
    first, second, _ = map(json.loads, texts)
    assert (first["name"], first["at"], first["counts"]) == (
        "ä",
        "2026-01-02T03:04:05.678901",
        {"a": 1, "b": None},
    )
    assert first["cost"] == float("-12345678901234567.891")
    assert second["place"] == {"city": None, "zones": []}
    with pytest.raises(ConfigurationError, match="exactly one column"):
        AvroFormat(COLUMNS, unstructured=True)
    with pytest.raises(ConfigurationError, match="is for reading"):
        made.messages(pa.table({"value": ["{}"]}))


def test_columns_are_found_by_name_and_others_are_null() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "namespace": "a.b",
        "doc": "x",
        "fields": [
            {"name": "p", "type": {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}},
            {"name": "q", "type": "P", "default": {"x": 1}},
            {"name": "odd_name", "type": "a.b.P"},
        ],
    }
    value = {"p": {"x": 1}, "q": {"x": 2}, "odd_name": {"x": 3}}
    point = pa.struct({"x": pa.int64(), "y": pa.string()})
    made = raw(schema, {"odd name": point, "new": pa.string(), "p": point})
    (row,) = made.decode(datums(schema, value)).rows.to_pylist()
    assert row == {"odd name": {"x": 3, "y": None}, "new": None, "p": {"x": 1, "y": None}}
    assert raw(schema, {"new": pa.string()}).decode(datums(schema, value, value)).rows.num_rows == 2


def test_records_are_read_together_and_not_one_by_one() -> None:
    # If another release of DataFusion reads files in another way, this shows it: it would only be slow.
    reader = AvroReader(schema_of(list(COLUMNS)), COLUMNS)
    messages = AvroFormat(COLUMNS, layout="raw").messages(pa.concat_tables([table()] * 1000))
    array = pa.array(messages, pa.large_binary())
    assert reader._together(array, _Marked.of(array)).num_rows == 3000
