import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError
from headrace.formats.json.debezium import DebeziumFormat

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
    assert written == '{"before":null,"after":{"at":1734539354,"price":"BNI="},"op":"c"}\n'


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
