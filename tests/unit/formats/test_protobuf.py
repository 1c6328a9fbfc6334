"""Protobuf, beside its own library, which reads what we write and writes what we read."""

from __future__ import annotations

import json
import pickle
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError, ConfigurationError, PlanError
from headrace.base.options import parse_options
from headrace.connectors._shared.messages import MessageOptions
from headrace.formats.base import JSON_COLUMN
from headrace.formats.protobuf.format import ProtobufFormat
from headrace.formats.protobuf.schema import arrow_schema, compile_files
from headrace.formats.protobuf.text import load_protobuf
from tests.unit.formats.avro_cases import COLUMNS, table
from tests.unit.formats.proto_cases import (
    THREE,
    expected,
    files_with,
    fill,
    made,
    rows_of,
    three,
    two,
)

NAMES = ["Row", "Place", "Tree", "Free", "Old"]


def whole(name: str, **more: Any) -> ProtobufFormat:
    """The format for every field of a message."""
    files = files_with(name)
    return ProtobufFormat(arrow_schema(files.message(name)), files=files, message_name=name, **more)


def some(columns: Any, name: str = "Row", **more: Any) -> ProtobufFormat:
    return ProtobufFormat(pa.schema(columns), files=files_with(name), message_name=name, **more)


# -------------------------------------------------------------------------------------------- any values


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", NAMES)
def test_any_messages_are_read_as_the_library_reads_them(name: str, seed: int) -> None:
    rand = random.Random(f"{name}{seed}")
    message, kind = files_with(name).message(name), made(name)
    count = rand.choice([1, 9, 60])
    messages = [fill(kind(), rand).SerializePartialToString() for _ in range(count)]
    for _ in range(rand.randrange(4)):
        damage(messages, rand)
    good: dict[int, dict[str, Any]] = {}
    for place, data in enumerate(messages):
        try:
            row = expected(message, kind.FromString(data))
            repr(row).encode()  # in proto2 the library takes texts that are none
        except (load_protobuf("message").DecodeError, UnicodeError):
            continue
        good[place] = row
    decoded = whole(name, drop_bad=True).decode(messages, first_line=0)
    left = [place for place in range(count) if place not in {error.line for error in decoded.bad}]
    assert left == sorted(good)
    decoded.rows.validate(full=True)
    for place, row in zip(left, rows_of(decoded.rows), strict=True):
        assert row == good[place]


def damage(messages: list[bytes], rand: random.Random) -> None:
    place = rand.randrange(len(messages))
    data = bytearray(messages[place])
    match rand.randrange(4):
        case 0 if data:
            data[rand.randrange(len(data))] = rand.randrange(256)
        case 1 if data:
            del data[rand.randrange(len(data)) :]
        case 2:
            data = bytearray(rand.randbytes(rand.randrange(30)))
        case _:
            data += messages[rand.randrange(len(messages))]  # one message again, or merged with another
    messages[place] = bytes(data)


@pytest.mark.parametrize("name", ["Row", "Place"])
def test_any_messages_are_written_so_that_the_library_reads_them(name: str) -> None:
    rand = random.Random(name)
    kind, both = made(name), whole(name)
    messages = [fill(kind(), rand).SerializeToString() for _ in range(50)]
    again = both.messages(both.decode(messages).rows)
    assert [kind.FromString(one) for one in again] == [kind.FromString(one) for one in messages]


# ----------------------------------------------------------------------------------------- single values


def test_fields_that_are_not_set_have_their_default_or_are_null() -> None:
    (row,) = rows_of(whole("Row").decode([b""]).rows)
    assert (row["id"], row["flag"], row["color"], row["blob"], row["tags"]) == (0, False, "RED", b"", [])
    nothing = ("name", "at", "quantity", "place", "a", "b", "p", "lasts")
    assert [row[name] for name in nothing] == [None] * len(nothing)
    (old,) = rows_of(whole("Old").decode([b""]).rows)
    assert old == {
        "a": None,
        "b": 'h"ey',
        "n": -42,
        "r": [],
        "part": [],
        "e": "TWO",
        "plain": None,
        "many": [],
    }


def test_of_a_oneof_the_last_counts() -> None:
    row = made("Row")
    messages = [
        row(a="x").SerializeToString() + row(b=5).SerializeToString(),
        row(b=5).SerializeToString() + row(a="").SerializeToString(),
        row(a="only").SerializeToString(),
    ]
    rows = some({"a": pa.string(), "b": pa.int32()}).decode(messages).rows.to_pylist()
    assert rows == [{"a": None, "b": 5}, {"a": "", "b": None}, {"a": "only", "b": None}]


def test_parts_of_a_message_are_one_and_of_a_map_the_last_value_of_a_key_counts() -> None:
    row, place = made("Row"), made("Place")
    data = b"".join(
        one.SerializeToString()
        for one in (
            row(place=place(city="A", zones=[1]), counts={"x": 1, "y": 2}),
            row(place=place(zip="9", zones=[2]), counts={"x": 3}),
        )
    )
    (got,) = rows_of(whole("Row").decode([data]).rows)
    assert got["place"] == {"city": "A", "zip": "9", "zones": [1, 2]}
    assert got["counts"] == {"x": 3, "y": 2}


def test_numbers_that_an_enum_does_not_know_are_told_as_they_are() -> None:
    rows = (
        some({"color": pa.string(), "colors": pa.list_(pa.string())})
        .decode([b"\x40\x05", b"\xca\x01\x02\x01\x63"])
        .rows
    )
    assert rows.to_pylist() == [{"color": "5", "colors": []}, {"color": "RED", "colors": ["GREEN", "99"]}]
    # Of proto2 they count as not there.
    assert rows_of(whole("Old").decode([b"\x30\x05\x42\x02\x01\x63"]).rows)[0]["e"] == "TWO"


def test_a_very_long_message_is_read_too() -> None:
    row, place = made("Row"), made("Place")
    long = row(
        id=1,
        tags=[f"t{n}" for n in range(20_000)],
        packed=range(-5000, 5000),
        places=[place(city="c")] * 5000,
    )
    messages = [row(id=n).SerializeToString() for n in range(20)]
    messages[7] = long.SerializeToString()
    columns = {"id": pa.int64(), "tags": pa.list_(pa.string()), "packed": pa.list_(pa.int32())}
    rows = some(columns).decode(messages).rows.to_pylist()
    assert rows[7] == {"id": 1, "tags": [f"t{n}" for n in range(20_000)], "packed": list(range(-5000, 5000))}
    assert [row["id"] for row in rows[8:]] == list(range(8, 20))


def test_what_has_no_type_in_arrow_is_json() -> None:
    tree, free = made("Tree"), made("Free")
    value = free(tree=tree(v=1, kids=[tree(v=2)]))
    value.any.update({"a": [1, None, "x"]})
    (row,) = whole("Free").decode([value.SerializeToString()]).rows.to_pylist()
    assert json.loads(row["any"]) == {"a": [1.0, None, "x"]}
    assert json.loads(row["tree"]) == {"v": 1, "kids": [{"v": 2}]}
    assert row["text"] is None


def test_messages_are_read_as_json_whatever_their_type() -> None:
    read = some({"value": pa.string()}, unstructured=True)
    row = made("Row")(id=5, counts={"a": 7}, color=7)
    row.at.FromJsonString("2026-01-02T03:04:05.5Z")
    got = json.loads(read.decode([row.SerializeToString()]).rows.column("value")[0].as_py())
    assert (got["id"], got["counts"], got["color"], got["name"]) == (5, {"a": 7}, "BLUE", None)
    assert got["at"] == "2026-01-02T03:04:05.500"
    with pytest.raises(ConfigurationError, match="is for reading"):
        read.messages(pa.table({"value": ["{}"]}))


# --------------------------------------------------------------------------------------- rows and columns


def test_rows_come_back_as_they_were_written() -> None:
    rows = table().set_column(
        13, "counts", pa.array([[("a", 1)], [], [("b", 2)]], COLUMNS.field("counts").type)
    )
    zones = pa.array(
        [{"city": "Berlin", "zones": [1, -2]}, {"city": None, "zones": []}, None], COLUMNS.field("place").type
    )
    rows = rows.set_column(12, "place", zones)
    for delimited in (False, True):
        both = pickle.loads(pickle.dumps(ProtobufFormat(COLUMNS, delimited=delimited)))
        assert both.decode(both.messages(rows)).rows.to_pylist() == rows.to_pylist()
        assert both.decode(both.encode(rows)).rows.to_pylist() == rows.to_pylist()


def test_columns_take_what_fits_them() -> None:
    row = made("Row")(id=2**40, color=1, u=2**64 - 1)
    row.at.FromNanoseconds(-1)
    row.lasts.FromNanoseconds(-1_500_000_000)
    columns = [
        pa.field("u", pa.decimal128(20, 0)),
        pa.field("at", pa.timestamp("ms")),
        pa.field("lasts", pa.duration("ns")),
        pa.field("counts", pa.string(), metadata=JSON_COLUMN),
        pa.field(
            "by_number", pa.list_(pa.struct({"key": pa.int64(), "value": pa.struct({"city": pa.string()})}))
        ),
        pa.field("none", pa.string()),
    ]
    (got,) = rows_of(some(columns).decode([row.SerializeToString()]).rows)
    assert got == {
        "u": Decimal(2**64 - 1),
        "at": -1,
        "lasts": -1_500_000_000,
        "counts": "{}",
        "by_number": [],
        "none": None,
    }
    with pytest.raises(BadLineError, match="column `id`: '1099511627776' is not a value of type int32"):
        some({"id": pa.int32()}).decode([row.SerializeToString()])
    with pytest.raises(BadLineError, match="column `name`: the value is missing, and the column is NOT NULL"):
        some([pa.field("name", pa.string(), nullable=False)]).decode([row.SerializeToString()])
    with pytest.raises(ConfigurationError, match="column `flag` is bool in the schema of the messages"):
        some({"flag": pa.int64()}).decode([])


def test_what_protobuf_cannot_say_is_refused() -> None:
    with pytest.raises(PlanError, match="has a null in a list"):
        ProtobufFormat().messages(pa.table({"a": [[1, None]]}))
    with pytest.raises(ConfigurationError, match="cannot be written as Protobuf"):
        ProtobufFormat().messages(pa.table({"a": [[[1]]]}))
    with pytest.raises(PlanError, match="has the value `PINK`, which the enum does not have"):
        some({"color": pa.string()}).messages(pa.table({"color": ["PINK"]}))
    with pytest.raises(ConfigurationError, match="has no field `colour`"):
        some({"colour": pa.string()}).messages(pa.table({"colour": ["RED"]}))
    with pytest.raises(ConfigurationError, match=r"`tree` is a `t\.Tree`, which cannot be written"):
        some({"tree": pa.string()}, "Free").messages(pa.table({"tree": ["{}"]}))


# ------------------------------------------------------------------------------------------- bad messages


def test_bad_messages_do_not_touch_the_good_ones_around_them() -> None:
    row = made("Row")
    messages = [row(id=n, name=f"n{n}", packed=[n]).SerializeToString() for n in range(300)]
    messages[10] = messages[10][:-1]
    messages[20] = b"\x12\x01\xff"
    messages[30] = b"\x07\x01"
    messages[40] = b"\xff" * 12
    messages[50] = b"\xb2\x01\x02\x02\x82"  # numbers that were written together, the last one cut off
    messages[60] = b"\x2c"
    messages[70] = b"\x22\x0b\x08" + b"\xff" * 9 + b"\x01"
    decoded = whole("Row", drop_bad=True).decode(messages, first_line=0, where="here")
    assert [error.line for error in decoded.bad] == [10, 20, 30, 40, 50, 60]
    reasons = [error.message.partition("cannot be read, ")[2].partition(":")[0] for error in decoded.bad]
    assert reasons == [
        "the message ends too early",
        "field `name` is not UTF-8",
        "a field is written in a way that is not known, 7",
        "a number has more than 64 bits",
        "field `packed` ends too early",
        "a group is ended that was not begun",
    ]
    assert decoded.bad[1].record == b"\x12\x01\xff"
    assert decoded.bad[1].content == "12 01 ff"
    ids = [n for n in range(300) if n not in {10, 20, 30, 40, 50, 60, 70}]
    rows = [row for row in decoded.rows.to_pylist() if row["id"]]
    assert [row["id"] for row in rows] == ids[1:]
    assert [row["packed"] for row in rows] == [[n] for n in ids[1:]]
    with pytest.raises(BadLineError, match="line 11 cannot be read, the message ends too early"):
        whole("Row").decode(messages)


def test_a_time_that_nanoseconds_cannot_tell_is_bad() -> None:
    row = made("Row")()
    row.at.seconds = 10**11
    with pytest.raises(BadLineError, match="a time is too far from 1970"):
        some({"at": pa.timestamp("ns")}).decode([row.SerializeToString()])


def test_rows_behind_their_lengths_are_read_from_any_messages() -> None:
    both = ProtobufFormat(pa.schema({"n": pa.int64()}), delimited=True, drop_bad=True)
    one, two_, three_ = both.messages(pa.table({"n": [1, 2, 3]}))
    decoded = both.decode([one + two_, b"", three_, one + three_[:-1], b"\xff"])
    assert decoded.rows.column("n").to_pylist() == [1, 2, 3, 1]
    assert decoded.counts is not None
    assert decoded.counts.tolist() == [2, 0, 1, 1, 0]
    assert [error.line for error in decoded.bad] == [4, 5]


# ------------------------------------------------------------------------------------------------- types


def test_a_type_is_found_by_its_full_name_or_its_own() -> None:
    assert three().message("t.Row") == three().message("Row")
    assert [one.name for one in three().message("t.Row.Inner.Deep").fields] == ["x", "y"]
    with pytest.raises(ConfigurationError, match=r"there is no message `t\.Rwo`") as raised:
        three().message("t.Rwo")
    assert raised.value.hint == "did you mean `t.Row`?"
    with pytest.raises(ConfigurationError, match="there are 4 messages"):
        three().message(None)
    assert two().message(None).name == "Old"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message A { int32 x 1; }", "line 1: `=` is expected, got `1`"),
        ("message A {\n  int32 x = one;\n}", "line 2: `one` is not a number"),
        ("message A { int32 x = 1;", "got `the end`"),
        ('edition = "2023"; message A {}', "editions are not understood"),
        ("mesage A {}", "`mesage` is not understood"),
        ("message A { string s = `; }", "is not understood"),
        ("message A { Bee b = 1; }", "cannot be used"),
        ('import "other.proto"; message A {}', "imports `other.proto`, which is not there"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        compile_files('syntax = "proto3"; ' + text, "a.proto", {}).message("A")


def options(**given: Any) -> MessageOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return parse_options(
        MessageOptions, {"format": "protobuf", "schema": {"id": "int64"}, **named}, what="it"
    )


def test_types_are_given_as_a_file_a_descriptor_or_a_text(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "three.proto").write_text(THREE)
    (tmp_path / "own.proto").write_text(
        'syntax = "proto3"; import "shared/three.proto"; message Own { int64 id = 1; t.Place p = 2; }'
    )
    (tmp_path / "three.desc").write_bytes(three().content)
    message = made("Row")(id=7).SerializeToString()
    for given in (
        {"protobuf__schema": str(tmp_path / "own.proto"), "protobuf__message_name": "Own"},
        {"protobuf__descriptor": str(tmp_path / "three.desc"), "protobuf__message_name": "t.Row"},
        {"protobuf__schema": 'syntax = "proto3"; message A { int64 id = 1; }'},
        {},
    ):
        chosen = options(**given)
        read = pickle.loads(pickle.dumps(chosen)).format_for(chosen.columns)
        assert read.decode([message]).rows.to_pylist() == [{"id": 7}]
    shown = options(protobuf__schema=str(tmp_path / "own.proto")).model_dump(mode="json", by_alias=True)
    assert shown["protobuf.schema"] == str(tmp_path / "own.proto")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"protobuf__schema": "/nowhere/a.proto"}, "`/nowhere/a.proto` cannot be read: No such file"),
        ({"protobuf__descriptor": "/nowhere/a.desc"}, "cannot be read"),
        ({"protobuf__schema": "message A { x }"}, "line 1"),
        ({"protobuf__schema": THREE}, "there are 4 messages"),
        ({"protobuf__schema": THREE, "protobuf__message_name": "Nope"}, "there is no message `Nope`"),
        ({"protobuf__schema": THREE, "protobuf__descriptor": __file__}, "say the same"),
        ({"protobuf__descriptor": __file__}, "the descriptor of Protobuf cannot be used"),
        ({"protobuf__confluent_schema_registry": True}, "needs `schema_registry.endpoint`"),
        ({"framing": "newline"}, "is for messages of lines"),
        ({"avro__raw_datums": True}, "`avro.raw_datums` does not go with the format protobuf"),
        ({"protobuf__into_unstructured_json": True}, "needs exactly one column"),
    ],
)
def test_options_that_cannot_be_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        options(**given)
