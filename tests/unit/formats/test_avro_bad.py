"""Avro that is not what it should be, schemas that do not fit, and any values at all."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import BadLineError, ConfigurationError, PlanError
from headrace.formats._shared.wire import skip_varints, varints_at, zigzag
from headrace.formats.avro import read
from headrace.formats.avro.file import AvroBlock, file_header, find_blocks, read_header
from headrace.formats.avro.format import AvroFormat
from headrace.formats.avro.schema import parse_schema
from headrace.formats.base import JSON_COLUMN
from tests.unit.formats.avro_cases import COLUMNS, datums, raw, record, table

# ------------------------------------------------------------------------------------------- bad records


def broken() -> list[bytes]:
    good = AvroFormat(COLUMNS, layout="raw").messages(pa.concat_tables([table()] * 200))
    good[100] = good[100][:-3]
    good[200] += b"\0"
    good[300] = b""
    good[301] = b"\xff" * 40
    good[599] = good[599][:12]
    return good


def test_bad_messages_do_not_touch_the_good_ones_around_them() -> None:
    decoded = AvroFormat(COLUMNS, layout="raw", drop_bad=True).decode(broken(), first_line=0, where="here")
    assert [error.line for error in decoded.bad] == [100, 200, 300, 301, 599]
    assert [error.record for error in decoded.bad] == [broken()[line] for line in (100, 200, 300, 301, 599)]
    assert decoded.bad[1].message.startswith("line 200 cannot be read, 1 bytes are left after the record: ")
    assert decoded.bad[2].column == "id"
    whole = pa.concat_tables([table()] * 200).to_pylist()
    kept = [row for place, row in enumerate(whole) if place not in {100, 200, 300, 301, 599}]
    assert decoded.rows.to_pylist() == kept
    assert decoded.counts is not None
    assert decoded.counts.tolist() == [int(place not in {100, 200, 300, 301, 599}) for place in range(600)]
    with pytest.raises(BadLineError, match="line 101 cannot be read"):
        AvroFormat(COLUMNS, layout="raw").decode(broken())


def test_batches_after_bad_messages_are_read_once_and_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = AvroFormat(COLUMNS, layout="raw", drop_bad=True)
    first = made.decode(broken())
    reads: list[int] = []
    read_marked = read._read_marked

    def counted(schema: bytes, messages: Any, columns: Sequence[str]) -> pa.Table:
        reads.append(len(messages.marks))
        return read_marked(schema, messages, columns)

    monkeypatch.setattr(read, "_read_marked", counted)
    second = made.decode(broken())
    assert second.rows.equals(first.rows)
    assert [error.message for error in second.bad] == [error.message for error in first.bad]
    assert reads == [595]
    good = AvroFormat(COLUMNS, layout="raw").messages(table())
    for _ in range(2):
        assert made.decode(good).rows.equals(AvroFormat(COLUMNS, layout="raw").decode(good).rows)
    assert made.decode(broken()).rows.equals(first.rows)


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 70), max_size=9))
def test_varints_are_skipped_as_they_are_read(data: bytes, offsets: list[int]) -> None:
    at = np.array(offsets, np.int64)
    for goes_on in (0, 0x80):
        buffer = np.array([byte | goes_on for byte in data], np.uint8)
        _, after, endless = varints_at(buffer, at)
        skipped, without_end = skip_varints(buffer, at)
        assert skipped.tolist() == after.tolist()
        assert without_end.tolist() == endless.tolist()


def test_messages_that_shift_each_other_are_noticed() -> None:
    schema = record("string")
    made = raw(schema, {"v": pa.string()}, drop_bad=True)
    # Together the two read as two other texts: neither is one.
    decoded = made.decode([*datums(schema, {"v": "x"}), b"\x08ab", b"cd\x02y", *datums(schema, {"v": "z"})])
    assert decoded.rows.column("v").to_pylist() == ["x", "z"]
    assert [error.line for error in decoded.bad] == [2, 3]


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("long", b"\xff" * 11, "more than 64 bits"),
        ("int", zigzag(2**40), "out of the range of int"),
        ("string", zigzag(-1), "do not fit"),
        ("string", b"\x02\xff", "not UTF-8"),
        (["null", "int"], zigzag(2), "a union of 2 types has no type 2"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, zigzag(-1), "no symbol -1"),
        ({"type": "array", "items": "int"}, zigzag(2**50), "items do not fit"),
        ("double", b"\0" * 7, "do not fit"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0},
            zigzag(20) + b"\x7f" * 20,
            "precision",
        ),
    ],
)
def test_the_reason_and_the_member_are_told(kind: Any, data: bytes, reason: str) -> None:
    schema = {"type": "record", "name": "o", "fields": [{"name": "in", "type": record(kind)}]}
    field = pa.field("v", pa.string(), metadata=JSON_COLUMN)
    with pytest.raises(BadLineError, match=reason) as raised:
        raw(schema, [pa.field("in", pa.struct([field]))]).decode([data])
    assert reason == "precision" or raised.value.column == "in.v"


def test_a_value_that_the_column_cannot_hold_is_a_bad_message() -> None:
    schema = record(["null", "long"])
    messages = datums(schema, *({"v": value} for value in (1, 2**40, 3, None)))
    decoded = raw(schema, {"v": pa.int32()}, drop_bad=True).decode(messages)
    assert decoded.rows.column("v").to_pylist() == [1, 3, None]
    assert [(error.line, error.column) for error in decoded.bad] == [(2, "v")]
    strict = raw(schema, [pa.field("v", pa.int64(), nullable=False)], drop_bad=True).decode(messages)
    assert [error.message for error in strict.bad] == [
        "line 4 cannot be read, column `v`: the value is missing, and the column is NOT NULL: 00"
    ]


def test_files_that_are_not_whole_keep_their_whole_blocks() -> None:
    made = AvroFormat(COLUMNS, drop_bad=True)
    data = made.encode(pa.concat_tables([table()] * 7000))
    decoded = made.decode(data[:-30])
    assert decoded.rows.num_rows == 20_000
    assert [(error.message, error.position) for error in decoded.bad] == [
        ("`Avro` cannot be read, a block of the Avro file is cut off", "after 20000 records")
    ]
    messages = made.messages(table())
    decoded = made.decode([messages[0], b"text", messages[1][:-1], messages[2]])
    assert [error.line for error in decoded.bad] == [2, 3]
    assert decoded.rows.column("id").to_pylist() == [1, -(2**63)]


@pytest.mark.parametrize("compression", ["uncompressed", "deflate", "snappy", "zstd"])
@pytest.mark.parametrize("where", ["length", "content"])
def test_a_damaged_block_of_a_file_costs_no_other_block(compression: Any, where: str) -> None:
    columns = pa.schema({"id": pa.int64()})
    made = AvroFormat(columns, compression=compression, drop_bad=True)
    data = bytearray(made.encode(pa.table({"id": range(40_000)})))
    header = read_header(bytes(data))
    blocks = [block for block in find_blocks(header, bytes(data)) if isinstance(block, AvroBlock)]
    assert len(blocks) == 4
    second = blocks[1]
    if where == "length":
        data[blocks[0].end + 16 + 3] ^= 0x15  # behind the number of records
    else:
        data[second.begin : second.begin + 8] = b"\xff" * 8
    decoded = made.decode(bytes(data))
    ids = decoded.rows.column("id").to_pylist()
    assert ids == [*range(10_000), *range(20_000, 40_000)]
    (error,) = decoded.bad
    assert error.position in {"after 10000 records", "records 10000 to 19999"}
    with pytest.raises(BadLineError, match=r"`Avro` cannot be read, (a block of the Avro file|column `id`)"):
        AvroFormat(columns, compression=compression).decode(bytes(data))


def test_each_row_of_a_file_that_does_not_fit_is_told_with_its_place_and_its_content() -> None:
    written = AvroFormat(pa.schema({"n": pa.int64(), "s": pa.string()}))
    numbers = list(range(25_000))
    for bad in (7, 12_345, 12_346, 24_999):
        numbers[bad] = 2**40 + bad
    data = written.encode(pa.table({"n": numbers, "s": ["x"] * len(numbers)}))
    declared = pa.schema({"n": pa.int32(), "s": pa.string()})
    decoded = AvroFormat(declared, drop_bad=True).decode(data, where="a.avro")
    assert decoded.rows.num_rows == 24_996
    assert [error.position for error in decoded.bad] == ["row 7", "row 12345", "row 12346", "row 24999"]
    assert [json.loads(error.content)["n"] for error in decoded.bad] == [
        2**40 + n for n in (7, 12_345, 12_346, 24_999)
    ]
    assert {error.fault for error in decoded.bad} == {"wrong-value"}
    with pytest.raises(BadLineError, match="row 7 cannot be read, column `n`"):
        AvroFormat(declared).decode(data)


def test_messages_that_are_files_may_have_any_number_of_rows_and_schemas() -> None:
    made = AvroFormat(pa.schema({"id": pa.int64(), "x": pa.string()}), drop_bad=True)
    other = AvroFormat(pa.schema({"x": pa.string(), "id": pa.int32()}))
    some = AvroFormat(COLUMNS).encode(table())
    more = other.encode(pa.table({"x": ["a", "b"], "id": pa.array([7, 8], pa.int32())}))
    none = other.encode(pa.schema({"x": pa.string(), "id": pa.int32()}).empty_table())
    decoded = made.decode([more, some, none, b"", more])
    assert decoded.rows.column("id").to_pylist() == [7, 8, 1, 2**63 - 1, -(2**63), 7, 8]
    assert decoded.counts is not None
    assert decoded.counts.tolist() == [2, 3, 0, 0, 2]


def test_a_block_that_is_longer_than_its_records_is_refused() -> None:
    # DataFusion's reader would not come back from such a block.
    sync, text = b"s" * 16, json.dumps(record("string")).encode()
    block = zigzag(1) + zigzag(4) + b"\x02a\x02b" + sync
    with pytest.raises(BadLineError, match="cannot be read"):
        AvroFormat(pa.schema({"v": pa.string()})).decode(file_header(text, sync) + block)


# --------------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ('{"type": "record", "name": "r"}', "has no 'fields'"),
        ('{"name": "r"}', "has no type"),
        ('{"type": "array", "items": "strin"}', "names the type `strin`"),
    ],
)
def test_a_schema_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        parse_schema(text)


def test_columns_that_do_not_fit_the_schema_are_refused() -> None:
    schema = record("boolean")
    with pytest.raises(ConfigurationError, match="column `v` is bool in the schema of the messages, and is"):
        raw(schema, {"v": pa.int64()}).decode([])
    with pytest.raises(ConfigurationError, match="`w` is NOT NULL, and the schema of the messages does not"):
        raw(schema, [pa.field("w", pa.int64(), nullable=False)]).decode([])
    with pytest.raises(ConfigurationError, match="cannot be written as Avro"):
        AvroFormat(layout="raw").messages(pa.table({"v": pa.nulls(1, pa.month_day_nano_interval())}))
    with pytest.raises(ConfigurationError, match="called `a_b` in Avro more than once"):
        AvroFormat(layout="raw").messages(pa.table({"a b": [1], "a_b": [1]}))


NUMBER = {"logicalType": "decimal", "precision": 9, "scale": 2}


def test_rows_are_written_by_a_schema_that_is_given() -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["NEW", "OLD"]}},
            {"name": "id", "type": {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}},
            {"name": "cost", "type": {"type": "fixed", "name": "C", "size": 5, **NUMBER}},
            {"name": "lasts", "type": {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}},
            {"name": "note", "type": ["string", "null"]},
            {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}},
        ],
    }  # fmt: skip
    columns = pa.schema(
        {
            "kind": pa.string(),
            "at": pa.timestamp("ns"),
            "id": pa.string(),
            "cost": pa.decimal128(9, 2),
            "lasts": pa.month_day_nano_interval(),
            "note": pa.string(),
            "raw": pa.binary(2),
        }
    )
    row = {
        "kind": "OLD",
        "at": 5,
        "id": "00000000-0000-0000-0000-000000000005",
        "cost": Decimal("-3.25"),
        "lasts": pa.MonthDayNano([1, 2, 3_000_000]),
        "note": None,
        "raw": b"ab",
    }
    rows = pa.Table.from_pylist([row], columns)
    made = raw(schema, columns)
    assert made.decode(made.messages(rows)).rows.to_pylist() == rows.to_pylist()
    plain = json.loads(json.dumps(schema).replace("timestamp-nanos", "x").replace("uuid", "x"))
    got: Any = fastavro.schemaless_reader(
        io.BytesIO(made.messages(rows)[0]), fastavro.parse_schema(plain), None
    )
    assert (got["at"], got["kind"], got["cost"], got["note"]) == (5, "OLD", Decimal("-3.25"), None)
    with pytest.raises(PlanError, match="the value `BAD`, which the enum `K` does not have"):
        made.messages(pa.Table.from_pylist([{**row, "kind": "BAD"}], columns))
    with pytest.raises(PlanError, match="column `kind` has a null"):
        made.messages(pa.Table.from_pylist([{**row, "kind": None}], columns))
    with pytest.raises(ConfigurationError, match="is bool, and string in the schema"):
        AvroFormat(node=parse_schema(json.dumps(schema))).messages(pa.table({"kind": [True]}))


# ---------------------------------------------------------------------------------------- any values

EXACT = Context(prec=50)
VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "a": ("long", st.integers(-(2**63), 2**63 - 1)),
    "b": (["null", "string"], st.none() | st.text(max_size=20)),
    "c": ({"type": "array", "items": ["null", "int"]},
          st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=4)),
    "d": ({"type": "map", "values": "bytes"},
          st.dictionaries(st.text(max_size=3), st.binary(max_size=5), max_size=3)),
    "e": ("double", st.floats(allow_nan=False)),
    "f": ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 5},
          st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-5, EXACT))),
    "g": ("boolean", st.booleans()),
}  # fmt: skip
ANY = {
    "type": "record",
    "name": "any",
    "fields": [{"name": n, "type": kind} for n, (kind, _) in VALUES.items()],
}
ANY_COLUMNS = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("b", pa.string()),
        pa.field("c", pa.list_(pa.int32()), nullable=False),
        pa.field("d", pa.map_(pa.string(), pa.field("value", pa.binary(), nullable=False)), nullable=False),
        pa.field("e", pa.float64(), nullable=False),
        pa.field("f", pa.decimal128(38, 5), nullable=False),
        pa.field("g", pa.bool_(), nullable=False),
    ]
)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.fixed_dictionaries({name: values for name, (_, values) in VALUES.items()}), min_size=1, max_size=9
    ),
    st.data(),
)
def test_any_values_are_read_as_fastavro_wrote_them_and_written_as_it_reads_them(
    rows: Any, data: Any
) -> None:
    made = raw(ANY, ANY_COLUMNS, drop_bad=True)
    messages = datums(ANY, *rows)
    listed = [{**row, "d": list(row["d"].items())} for row in rows]
    read = made.decode(messages).rows
    assert read.to_pylist() == listed
    parsed = fastavro.parse_schema(json.loads(json.dumps(ANY)))
    for message, row in zip(made.messages(read), rows, strict=True):
        assert fastavro.schemaless_reader(io.BytesIO(message), parsed, None) == row
    # One of them is damaged: it is bad, or another record; the others are what they were.
    place = data.draw(st.integers(0, len(messages) - 1))
    damaged = bytearray(messages[place])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    decoded = made.decode([*messages[:place], bytes(damaged), *messages[place + 1 :]])
    others = decoded.rows.to_pylist()
    if not decoded.bad:
        others.pop(place)
    assert [row["a"] for row in others] == [row["a"] for at, row in enumerate(rows) if at != place]
