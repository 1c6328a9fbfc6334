"""Every format in a source of messages: rows beside their messages, and what becomes of bad ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import FAULTS, BadLineError, ConfigurationError
from headrace.base.options import parse_options
from headrace.connectors._shared.messages import MessageOptions, MessageReader, Messages
from headrace.formats.options import FormatOptions, check_readable, implied_columns, infer_from
from headrace.model.operator import DEAD_LETTER, DEAD_LETTERS, SourceContext, Split
from tests.support import ListCollector, task

FORMATS: dict[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "json in a schema": {"format": "json", "json.include_schema": True},
    "debezium_json": {"format": "debezium_json", "primary_key": ["n"]},
    "csv": {"format": "csv"},
    "avro": {"format": "avro", "avro.raw_datums": True},
    "avro files": {"format": "avro"},
    "protobuf": {"format": "protobuf"},
    "protobuf with lengths": {"format": "protobuf", "protobuf.length_delimited": True},
}
BAD = b"\xff{"


class Outputs(ListCollector):
    """Keeps what goes to the dead letters apart."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: list[pa.RecordBatch] = []

    def collect(self, batch: pa.RecordBatch, output: str = "") -> None:
        (self.dead if output == DEAD_LETTER else self.batches).append(batch)


class KeyedOptions(MessageOptions):
    METADATA: ClassVar = {"key": pa.int64()}


def options(given: dict[str, Any], **more: Any) -> MessageOptions:
    columns = pa.schema(
        [pa.field("n", pa.int64(), nullable=False), pa.field("t", pa.string()), pa.field("k", pa.int64())]
    )
    made = {"schema": columns, "metadata": {"k": "key"}, **given, **more}
    return parse_options(KeyedOptions, made, what="it")


def read(chosen: MessageOptions, values: list[bytes | None]) -> tuple[pa.Table, Outputs, SourceContext]:
    reader = MessageReader(chosen, connector="test", where="test, topic t")
    ctx, outputs = SourceContext(task(), Split("0", {})), Outputs()
    messages = Messages(
        values,
        np.arange(len(values)) * 10**9,
        lambda _: list(range(100, 100 + len(values))),
        lambda place: f"offset {place + 7} of partition 3",
        lambda place: place + 7,
        3,
    )
    return reader.read(messages, ctx, outputs), outputs, ctx


def written(given: dict[str, Any], numbers: list[int]) -> list[bytes]:
    columns = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("t", pa.string())])
    rows = pa.table({"n": numbers, "t": [f"t{n}" for n in numbers]}, schema=columns)
    form = parse_options(FormatOptions, {"schema": rows.schema, **given}, what="it").format_for(rows.schema)
    return form.messages(rows)


@pytest.mark.parametrize("given", FORMATS.values(), ids=FORMATS)
def test_a_bad_message_goes_to_the_dead_letters_and_the_others_keep_their_places(given: Any) -> None:
    first, second, third = written(given, [1, 2, 3])
    rows, outputs, ctx = read(options(given, bad_data="dead_letter"), [first, BAD, None, second, BAD, third])
    assert rows.column("n").to_pylist() == [1, 2, 3]
    assert rows.column("k").to_pylist() == [100, 103, 105]
    assert rows.column("_timestamp").cast(pa.int64()).to_pylist() == [0, 3 * 10**9, 5 * 10**9]
    (dead,) = outputs.dead
    assert dead.schema == DEAD_LETTERS
    assert dead.column("record").to_pylist() == [BAD, BAD]
    assert dead.column("position").to_pylist() == ["offset 8 of partition 3", "offset 11 of partition 3"]
    assert dead.column("source").to_pylist() == ["test, topic t"] * 2
    assert dead.column("offset_id").to_pylist() == [8, 11]
    assert dead.column("partition").to_pylist() == [3, 3]
    (fault,) = set(dead.column("code").to_pylist())
    assert fault in FAULTS
    assert ctx.metrics.values[f"bad_rows.{fault}"] == 2
    assert all(text.startswith("the message at offset") for text in dead.column("error").to_pylist())
    assert ctx.metrics.values["bad_rows"] == 2


@pytest.mark.parametrize("given", FORMATS.values(), ids=FORMATS)
def test_a_bad_message_is_dropped_and_counted_or_ends_the_run(given: Any) -> None:
    first, second = written(given, [1, 2])
    rows, outputs, ctx = read(options(given, bad_data="drop"), [BAD, first, second, BAD])
    assert (rows.column("n").to_pylist(), outputs.dead) == ([1, 2], [])
    assert ctx.metrics.values["bad_rows"] == 2
    with pytest.raises(BadLineError, match="the message at offset 8 of partition 3 cannot be read") as raised:
        read(options(given), [first, BAD, second])
    assert raised.value.record == BAD


@pytest.mark.parametrize("given", FORMATS.values(), ids=FORMATS)
def test_nothing_but_bad_messages_is_no_row(given: Any) -> None:
    rows, _, ctx = read(options(given, bad_data="drop"), [BAD] * 300)
    assert (rows.num_rows, rows.schema.names[:3]) == (0, ["n", "t", "k"])
    assert ctx.metrics.values["bad_rows"] == 300
    assert read(options(given), [])[0].num_rows == 0


@pytest.mark.parametrize("given", FORMATS.values(), ids=FORMATS)
def test_a_message_of_more_bytes_than_allowed_is_bad_data(given: Any) -> None:
    first, second, third = written(given, [1, 2, 3])
    values: list[bytes | None] = [first, b"x" * 5000, None, second, third]
    rows, outputs, ctx = read(options(given, bad_data="dead_letter", max_record_bytes=4999), values)
    assert rows.column("k").to_pylist() == [100, 103, 104]
    (dead,) = outputs.dead
    assert dead.column("position").to_pylist() == ["offset 8 of partition 3"]
    assert dead.column("record").to_pylist() == [b"x" * 1024], "its beginning"
    assert (dead.column("code").to_pylist(), dead.column("offset_id").to_pylist()) == (["too-long"], [8])
    assert ctx.metrics.values["bad_rows"] == 1
    with pytest.raises(BadLineError, match="offset 8 of partition 3 cannot be read, it has 5,000 bytes"):
        read(options(given, max_record_bytes=4999), values)


def test_messages_of_several_rows_share_what_is_known_of_them() -> None:
    delimited = FORMATS["protobuf with lengths"]
    one, two, three = written(delimited, [1, 2, 3])
    rows, _, _ = read(options(delimited), [one + two, b"", three])
    assert rows.select(["n", "k"]).to_pylist() == [{"n": 1, "k": 100}, {"n": 2, "k": 100}, {"n": 3, "k": 102}]
    lines = {"format": "csv", "framing": "newline", "framing.newline.max_length": 6}
    rows, _, _ = read(options(lines), [b"1,a\n2,b\n", b"3,cdefghi"])
    assert rows.select(["n", "t", "k"]).to_pylist() == [
        {"n": 1, "t": "a", "k": 100},
        {"n": 2, "t": "b", "k": 100},
        {"n": 3, "t": "cdef", "k": 101},
    ]


def test_a_message_of_protobuf_without_bytes_is_a_row_and_white_space_may_be_one() -> None:
    columns = pa.schema({"a": pa.int64(), "b": pa.int64(), "c": pa.int64(), "d": pa.int64()})
    chosen = parse_options(
        MessageOptions, {"schema": columns, "format": "protobuf", "bad_data": "drop"}, what="it"
    )
    rows, _, _ = read(chosen, [b"", b"\x20\x20", BAD, b"\x08\x01"])
    assert rows.column("d").to_pylist() == [None, 32, None]
    assert rows.column("a").to_pylist() == [None, None, 1]


# ---------------------------------------------------------------------------- columns that are not declared


def chosen(**given: Any) -> FormatOptions:
    return parse_options(
        FormatOptions, {name.replace("__", "."): value for name, value in given.items()}, what="it"
    )


def test_columns_that_are_not_declared_follow_from_the_format_or_a_sample() -> None:
    value = pa.schema({"value": pa.string()})
    assert implied_columns(chosen(format="avro", avro__into_unstructured_json=True)) == value
    assert implied_columns(chosen(format="protobuf", protobuf__into_unstructured_json=True)) == value
    text = 'syntax = "proto3"; message A { int64 x = 1; repeated string y = 2; }'
    listed = pa.schema({"x": pa.int64(), "y": pa.list_(pa.string())})
    assert implied_columns(chosen(format="protobuf", protobuf__schema=text)) == listed
    schema = '{"type": "record", "name": "r", "fields": [{"name": "x", "type": ["null", "long"]}]}'
    assert implied_columns(chosen(format="avro", avro__schema=schema)) == pa.schema({"x": pa.int64()})
    for refused in (chosen(format="protobuf"), chosen(format="avro", avro__raw_datums=True)):
        with pytest.raises(ConfigurationError, match="do not say which columns they have"):
            implied_columns(refused)
    samples = {"json": b'{"a": 1}\n', "csv": b"a\n1\n", "avro": written_file()}
    for form, sample in samples.items():
        assert implied_columns(chosen(format=form)) is None
        assert infer_from(chosen(format=form), sample, where="here") == pa.schema({"a": pa.int64()})
    with pytest.raises(ConfigurationError, match="it is not an Avro file"):
        infer_from(chosen(format="avro"), b"text", where="here")


def written_file() -> bytes:
    return chosen(format="avro").format_for(None).encode(pa.table({"a": [1]}))


def test_columns_that_do_not_fit_are_refused_before_anything_runs() -> None:
    schema = '{"type": "record", "name": "r", "fields": [{"name": "x", "type": "boolean"}]}'
    given = {"format": "avro", "avro.raw_datums": True, "avro.schema": schema, "schema": {"x": "int64"}}
    with pytest.raises(ConfigurationError, match="column `x` is bool in the schema of the messages"):
        check_readable(parse_options(FormatOptions, given, what="it"))
    text = 'syntax = "proto3"; message A { bool x = 1; }'
    given = {"format": "protobuf", "protobuf.schema": text, "schema": {"x": "int64"}}
    with pytest.raises(ConfigurationError, match="column `x` is bool in the schema of the messages"):
        check_readable(parse_options(FormatOptions, given, what="it"))


@pytest.mark.parametrize(
    ("given", "message", "fault"),
    [
        ({"format": "json"}, b"{", "malformed"),
        ({"format": "json"}, b"\xff", "malformed"),
        ({"format": "json"}, b"null", "malformed"),
        ({"format": "debezium_json", "primary_key": ["n"]}, b" null", "malformed"),
        ({"format": "json"}, b'{"n": "x"}', "wrong-value"),
        ({"format": "json"}, b'{"t": "x"}', "missing-value"),
        ({"format": "csv"}, b"x,y", "wrong-value"),
        ({"format": "csv"}, b"1,2,3", "malformed"),
        ({"format": "csv"}, b",y", "missing-value"),
        ({"format": "debezium_json", "primary_key": ["n"]}, b'{"op": "x"}', "bad-change"),
        ({"format": "debezium_json", "primary_key": ["n"]}, b'{"op": "d"}', "bad-change"),
        ({"format": "debezium_json", "primary_key": ["n"]}, b'{"op":"c","after":{}}', "missing-value"),
    ],
    ids=str,
)
def test_each_kind_of_error_has_a_code_that_stays(given: dict[str, Any], message: bytes, fault: str) -> None:
    _, outputs, ctx = read(options(given, bad_data="dead_letter"), [message])
    (dead,) = outputs.dead
    assert dead.column("code").to_pylist() == [fault], dead.column("error").to_pylist()
    assert fault in FAULTS
    assert ctx.metrics.values == {"bad_rows": 1, f"bad_rows.{fault}": 1, "dead_letters": 1}
