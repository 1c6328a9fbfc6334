"""Compacted topics as tables: keys, tombstones, and the changes that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError, ConfigurationError
from headrace.connectors._shared.messages import Messages
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.kafka.source import KafkaSource
from headrace.connectors.kafka.upsert import UpsertReader
from headrace.model.operator import SourceContext, Split
from tests.support import ListCollector, task

Message = tuple[bytes | None, bytes | None]
OPTIONS = {"bootstrap_servers": "b:9092", "topic": "t", "upsert": True}


def read(messages: list[Message], **options: Any) -> tuple[list[dict[str, Any]], SourceContext, Any]:
    given = {"schema": {"id": "int64", "name": "string"}, "primary_key": ["id"], **OPTIONS, **options}
    source = KafkaSource(**given)
    columns = source.options.columns
    assert columns is not None
    reader = UpsertReader(source.options, columns, connector="kafka", where="kafka, topic t")
    keys = [key for key, _ in messages]
    ctx, collector = SourceContext(task(), Split("0", {})), ListCollector()
    rows = reader.read(
        Messages(
            [value for _, value in messages],
            np.arange(len(messages)) * 10**9,
            lambda name: keys if name == "key" else list(range(len(keys))),
            lambda index: f"offset {index} of partition 0",
            lambda index: index,
            0,
        ),
        ctx,
        collector,
    )
    return rows.to_pylist(), ctx, collector


def short(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["id"], row["name"], row["_retract"]) for row in rows]


def test_a_message_is_the_row_of_its_key_and_one_without_a_value_deletes_it_in_order() -> None:
    rows, ctx, _ = read(
        [(b"1", b'{"name":"a"}'), (b"1", None), (b"2", b'{"id":2,"name":"b"}'), (b"1", b'{"name":"c"}')]
    )
    assert short(rows) == [(1, "a", False), (1, None, True), (2, "b", False), (1, "c", False)]
    assert ctx.metrics.values["tombstones"] == 1


def test_the_key_is_what_the_message_says_even_if_its_value_says_otherwise() -> None:
    rows, _, _ = read([(b"1", b'{"id":7,"name":"a"}')])
    assert short(rows) == [(1, "a", False)]


def test_nothing_but_tombstones_and_nothing_at_all_are_read() -> None:
    assert short(read([(b"1", None)])[0]) == [(1, None, True)]
    assert read([])[0] == []


def test_keys_of_several_columns_are_objects() -> None:
    schema = {"a": "int64", "b": "string", "name": "string"}
    options = {"schema": schema, "primary_key": ["a", "b"]}
    rows, _, _ = read([(b'{"a":1,"b":"x"}', b'{"name":"n"}'), (b'{"b":"x","a":1}', None)], **options)
    assert [(row["a"], row["b"], row["name"], row["_retract"]) for row in rows] == [
        (1, "x", "n", False),
        (1, "x", None, True),
    ]


@pytest.mark.parametrize("form", ["raw", "json"])
def test_a_key_that_cannot_be_read_is_bad_data_and_the_others_are_rows(form: str) -> None:
    good = b"3" if form == "raw" else b'{"id":3}'
    messages: list[Message] = [(None, b"{}"), (b"x", b"{}"), (good, b'{"name":"c"}'), (good, b"{")]
    with pytest.raises(BadLineError, match="the key of the message at offset 0 of partition 0"):
        read(messages, **{"key.format": form})
    rows, ctx, collector = read(messages, **{"key.format": form, "bad_data": "dead_letter"})
    assert short([row for row in rows if "id" in row]) == [(3, "c", False)]
    assert ctx.metrics.values["bad_rows"] == 3
    assert ctx.metrics.values["bad_rows.missing-value"] == 1
    letters = [row for row in collector.rows if "code" in row]
    assert [(row["offset_id"], row["code"]) for row in letters][:2] == [
        (0, "missing-value"),
        (1, "wrong-value"),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"primary_key": []}, "needs the PRIMARY KEY"),
        ({"format": "debezium_json"}, "changes of its own"),
        ({"primary_key": ["x"]}, "`x`, which is not a column"),
        ({"upsert": False, "key.format": "raw"}, "needs `upsert`"),
        ({"primary_key": ["id", "name"], "key.format": "raw"}, "is for a key of one column"),
        ({"framing": "newline"}, "does not go with `framing`"),
    ],
)
def test_options_that_make_no_table_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KafkaSource(
            **{**OPTIONS, "schema": {"id": "int64", "name": "string"}, "primary_key": ["id"], **options}
        )


SCHEMA = pa.schema(
    {"id": pa.int64(), "name": pa.string(), "_timestamp": pa.timestamp("ns"), "_retract": pa.bool_()}
)


def upserts(*rows: tuple[int, str | None, bool]) -> pa.RecordBatch:
    columns = {"id": [r[0] for r in rows], "name": [r[1] for r in rows], "_retract": [r[2] for r in rows]}
    times = pa.array(range(len(rows)), pa.int64()).cast(pa.timestamp("ns"))
    return pa.record_batch({**columns, "_timestamp": times}).select(SCHEMA.names).cast(SCHEMA)


# ------------------------------------------------------------------------------------------ writing


def messages(rows: Sequence[tuple[int, str | None, bool]], **options: Any) -> list[Message]:
    sink = KafkaSink(
        **{**OPTIONS, "schema": {"id": "int64", "name": "string"}, "primary_key": ["id"], **options}
    )
    sink.check(SCHEMA)
    assert (sink.accepts_updates, sink.max_parallelism) == (True, 1)
    (written,) = sink.write([upserts(*rows)])
    return list(zip(written.column("key").to_pylist(), written.column("value").to_pylist(), strict=True))


def test_the_last_change_of_a_key_in_an_epoch_is_its_message_and_a_deletion_is_a_tombstone() -> None:
    written = messages(
        [(1, "a", False), (2, "b", True), (1, "a", True), (1, "c", False), (3, "d", False), (3, "d", True)]
    )
    assert written == [(b"2", None), (b"1", b'{"id":1,"name":"c"}'), (b"3", None)]


def test_a_key_of_several_columns_is_written_as_an_object_in_their_order() -> None:
    (message,) = messages([(1, "a", False)], primary_key=["name", "id"])
    assert message == (b'{"name":"a","id":1}', b'{"id":1,"name":"a"}')
    assert messages([(1, "a", False)], **{"key.format": "json"})[0][0] == b'{"id":1}'


def test_a_row_without_a_key_and_a_key_field_beside_the_primary_key_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no value for `name`"):
        messages([(1, None, False)], primary_key=["name"])
    with pytest.raises(ConfigurationError, match=r"leave `sink\.key_field` out"):
        messages([], **{"sink.key_field": "name"})


def test_what_is_written_is_read_as_the_same_table() -> None:
    changes = [
        (1, "a", False),
        (2, "b", False),
        (2, "b", True),
        (1, "a", True),
        (1, "c", False),
        (4, "é", False),
    ]
    rows, _, _ = read(messages(changes))
    assert short(rows) == [(2, None, True), (1, "c", False), (4, "é", False)]
