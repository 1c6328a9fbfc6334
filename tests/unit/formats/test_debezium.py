import json
import pickle
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError
from headrace.base.options import parse_options
from headrace.formats.json.debezium import DebeziumFormat
from headrace.formats.options import FormatOptions

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def change(op: str | None, before: Any = None, after: Any = None, **more: Any) -> bytes:
    return json.dumps({"before": before, "after": after, "op": op, **more}).encode()


def row(number: int, name: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name}


def unrolled(*messages: bytes, **options: Any) -> list[tuple[int, str | None, bool]]:
    made = pickle.loads(pickle.dumps(DebeziumFormat(SCHEMA, **options)))
    return [tuple(one.values()) for one in made.decode(b"\n".join(messages)).rows.to_pylist()]


def test_changes_become_rows_that_are_taken_back_and_added() -> None:
    messages = [
        change("c", after=row(1, "a")),
        change("r", after=row(2, "b")),
        change("u", row(1, "a"), row(1, "c"), ts_ms=5, source={"db": "x"}),
        change("d", row(2, "b")),
    ]
    expected = [(1, "a", False), (2, "b", False), (1, "a", True), (1, "c", False), (2, "b", True)]
    assert unrolled(*messages) == expected
    assert unrolled(*(b'{"schema":{},"payload":' + message + b"}" for message in messages)) == expected
    assert unrolled(messages[0], b'{"payload":' + messages[1] + b"}") == expected[:2]
    assert unrolled() == []


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (change("u", None, row(1)), "REPLICA IDENTITY FULL"),
        (change("d"), "REPLICA IDENTITY FULL"),
        (change("d", {"name": "x"}), "NOT NULL"),
        (change("c", row(1)), "no `after`"),
        (change("t"), "op `t`"),
        (change(None, None, row(1)), "no `op`"),
        (b'{"id":1}', "no `op`"),
        (b"oops", "not JSON"),
    ],
)
def test_a_change_that_is_not_whole_is_bad_and_named(message: bytes, text: str) -> None:
    with pytest.raises(BadLineError, match="line 2") as caught:
        unrolled(change("c", after=row(1)), message, change("c", after=row(2)))
    assert text in str(caught.value)
    dropped = DebeziumFormat(SCHEMA, drop_bad=True).decode([change("c", after=row(1)), message])
    assert (dropped.rows.num_rows, len(dropped.bad)) == (1, 1)


def test_numbers_are_instants_in_the_unit_of_the_column_and_decimals_are_bytes() -> None:
    schema = pa.schema([("at", pa.timestamp("ns")), ("price", pa.decimal128(10, 2))])
    made = DebeziumFormat(schema)
    lines = (
        b'{"before":null,"after":{"at":1734539354748899,"price":"BNI="},"op":"c"}\n'
        b'{"before":{"at":1734539354748899,"price":"BNI="},"after":{"at":5,"price":"/w=="},"op":"u"}\n'
    )
    rows = made.decode(lines).rows
    assert rows.column("price").to_pylist() == [Decimal("12.34"), Decimal("12.34"), Decimal("-0.01")]
    assert rows.column("at").cast(pa.int64()).to_pylist() == [1734539354748899] * 2 + [5]
    written = made.encode(rows.slice(0, 1)).decode()
    assert written == '{"before":null,"after":{"at":1734539354748899,"price":12.34},"op":"c"}\n'


AT = datetime.fromisoformat("2026-01-31T10:11:12.345678")
EVERY_TYPE: dict[str, tuple[pa.DataType, Any]] = {
    "seconds": (pa.timestamp("s"), AT.replace(microsecond=0)),
    "millis": (pa.timestamp("ms"), AT.replace(microsecond=345000)),
    "micros": (pa.timestamp("us"), AT),
    "nanos": (pa.timestamp("ns"), AT),
    "early": (pa.timestamp("us"), AT.replace(year=1831)),
    "price": (pa.decimal128(38, 10), Decimal("-1234567890123456789012345678.0123456789")),
    "day": (pa.date32(), date(2026, 1, 31)),
    "clock": (pa.time64("us"), time(1, 2, 3, 456789)),
    "data": (pa.binary(), b"\x00\xff"),
    "small": (pa.int32(), -(2**31)),
    "large": (pa.int64(), 2**63 - 1),
    "unsigned": (pa.uint64(), 2**64 - 1),
    "double": (pa.float64(), 0.1),
    "single": (pa.float32(), 0.5),
    "odd": (pa.float64(), float("-inf")),
    "flag": (pa.bool_(), True),
    "text": (pa.string(), 'say "ü"\n'),
    "numbers": (pa.list_(pa.int64()), [1, None, 3]),
    "times": (pa.list_(pa.timestamp("us")), [AT]),
    "inner": (
        pa.struct({"at": pa.timestamp("us"), "price": pa.decimal128(5, 2)}),
        {"at": AT, "price": Decimal("1.20")},
    ),
    "length": (pa.duration("us"), timedelta(seconds=1, microseconds=5)),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"json.timestamp_format": "unix", "json.decimal_encoding": "number"},
        {"json.timestamp_format": "RFC3339", "json.decimal_encoding": "string"},
        {"json.decimal_encoding": "bytes"},
        {"json.include_schema": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", EVERY_TYPE)
def test_a_row_of_every_type_is_read_as_it_was_written(name: str, options: dict[str, Any]) -> None:
    kind, value = EVERY_TYPE[name]
    schema = pa.schema({"id": pa.int64(), name: kind})
    form = parse_options(FormatOptions, {"format": "debezium_json", **options}, what="t").format_for(schema)
    rows = [{"id": 1, name: value}, {"id": 2, name: None}]
    lines = form.encode(pa.Table.from_pylist(rows, schema))
    read = form.decode(lines).rows
    assert read.column(name).type == kind
    assert read.drop_columns(["_retract"]).to_pylist() == rows
    # Beside a line that only the slow way reads, it is the same.
    odd = b'{"op":"c", "before":null, "after":{"id":"3"}}\n'
    assert form.decode(lines + odd).rows.slice(0, 2) == read


@pytest.mark.parametrize("form", ["json", "debezium_json"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_milliseconds_are_read_as_such_in_every_unit_if_the_format_says_so(form: str, unit: str) -> None:
    options = {"format": form, "json.timestamp_format": "unix_millis"}
    schema = pa.schema({"at": pa.timestamp(unit), "n": pa.int64()})
    made = parse_options(FormatOptions, options, what="t").format_for(schema)
    at = AT.replace(microsecond=0 if unit == "s" else 345000)
    lines = made.encode(pa.Table.from_pylist([{"at": at, "n": 1}], schema))
    assert f'"at":{1769854272_000 + at.microsecond // 1000},'.encode() in lines
    odd = lines.replace(b'"n":1', b'"n":"1"')  # which only the slow way reads
    for text in (lines, lines + odd):
        assert set(made.decode(text).rows.column("at").to_pylist()) == {at}


def test_a_schema_says_in_which_unit_times_are() -> None:
    schema = pa.schema({unit: pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")})
    row = pa.Table.from_pylist([dict.fromkeys(schema.names)], schema)
    (message,) = DebeziumFormat(schema, with_schema=True).messages(row)
    after = json.loads(message)["schema"]["fields"][1]["fields"]
    assert {field["field"]: field.get("name") for field in after} == {
        "s": None,
        "ms": "org.apache.kafka.connect.data.Timestamp",
        "us": "io.debezium.time.MicroTimestamp",
        "ns": "io.debezium.time.NanoTimestamp",
    }


# --------------------------------------------------------------------------------------------- writing


def written(rows: list[tuple[Any, ...]], *, key: tuple[str, ...] = ("id",), **options: Any) -> list[Any]:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    batch = pa.record_batch(
        {
            "id": pa.array(columns[0], pa.int64()),
            "name": pa.array(columns[1], pa.string()),
            "_timestamp": pa.nulls(len(rows), pa.timestamp("ns")),
            "_retract": pa.array(columns[2], pa.bool_()),
        }
    )
    lines = DebeziumFormat(SCHEMA, primary_key=key, **options).encode(batch)
    return [(line["op"], line["before"], line["after"]) for line in map(json.loads, lines.splitlines())]


def test_the_first_and_the_last_row_of_a_key_tell_what_happened_to_it() -> None:
    rows = [
        (3, "new", False),
        (1, "old", True), (1, "mid", False), (1, "mid", True), (1, "now", False),
        (2, "gone", True),
        (4, "same", True), (4, "other", False), (4, "other", True), (4, "same", False),
        (5, "came", False), (5, "came", True),
        (3, "new", True), (3, "newer", False),
    ]  # fmt: skip
    assert written(rows) == [
        ("c", None, row(3, "newer")),
        ("u", row(1, "old"), row(1, "now")),
        ("d", row(2, "gone"), None),
    ]
    assert written([]) == []


def test_the_key_may_be_of_several_columns_and_null() -> None:
    rows = [(1, "a", False), (1, None, False), (1, "b", False), (1, None, True)]
    assert written(rows, key=("id", "name")) == [("c", None, row(1, "a")), ("c", None, row(1, "b"))]


def test_without_a_key_equal_rows_cancel_each_other() -> None:
    rows = [
        (1, "a", False), (1, "a", True), (1, "a", False), (2, "b", True), (1, "a", False),
        (3, None, True), (3, None, True), (3, None, False), (4, "d", False), (4, "d", True),
    ]  # fmt: skip
    assert written(rows, key=()) == [
        ("c", None, row(1, "a")),
        ("d", row(2, "b"), None),
        ("c", None, row(1, "a")),
        ("d", row(3), None),
    ]
    assert written([], key=()) == []


def test_rows_that_are_only_added_are_all_created() -> None:
    batch = pa.record_batch({"id": [1, 1], "name": ["a", "a"], "_timestamp": [5, 5]})
    lines = DebeziumFormat(SCHEMA, primary_key=["id"]).encode(batch)
    assert lines == b'{"before":null,"after":{"id":1,"name":"a"},"op":"c"}\n' * 2
    assert DebeziumFormat(SCHEMA).encode(pa.Table.from_batches([], batch.schema)) == b""


def test_what_is_written_is_read_back() -> None:
    batch = pa.record_batch({"id": [1, 2], "name": ["a", None], "_retract": [False, True]})
    made = DebeziumFormat(SCHEMA, primary_key=["id"], with_schema=True)
    lines = made.encode(batch)
    assert made.decode(lines).rows.to_pylist() == batch.to_pylist()
    assert json.loads(lines.splitlines()[0])["schema"]["fields"][0]["field"] == "before"
