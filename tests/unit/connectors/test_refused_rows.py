"""Rows with values that a system refuses fail in the task, before the commit point, or are dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError, RefusedError
from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.mqtt.sink import MqttSink
from headrace.connectors.nats.sink import NatsSink
from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.rabbitmq.sink import RabbitSink
from headrace.connectors.redis import sink as redis
from headrace.connectors.redis.sink import RedisSink
from headrace.connectors.stdout import StdoutSink
from headrace.formats.base import JSON_COLUMN
from headrace.model.operator import ArrowOperator
from tests.support import SinkDriver


@dataclass
class Case:
    """A sink, a value of the column `k` that its system refuses, and what is said of it."""

    sink: Callable[..., ArrowOperator]
    options: dict[str, Any]
    value: str | None
    reason: str


CASES = {
    "kafka": Case(
        KafkaSink,
        {
            "bootstrap_servers": "h:1",
            "topic": "t",
            "sink.commit_mode": "exactly_once",
            "client_configs": {"message.max.bytes": "1000"},
        },
        "v" * 1000,
        "and `message.max.bytes` is 1000",
    ),
    "mqtt": Case(
        MqttSink,
        {"url": "mqtt://h", "topic": "t", "max_packet_size": 1000},
        "v" * 1000,
        "is larger than `max_packet_size` allows",
    ),
    "nats": Case(
        NatsSink, {"servers": "h:1", "sink.subject_field": "k"}, "a b", "column `k` holds 'a b', which is not"
    ),
    "nats, a long subject": Case(
        NatsSink, {"servers": "h:1", "sink.subject_field": "k"}, "s" * 4000, "of at most 3840 bytes"
    ),
    "nats, no subject": Case(NatsSink, {"servers": "h:1", "sink.subject_field": "k"}, None, "holds null"),
    "rabbitmq": Case(
        RabbitSink,
        {"host": "h", "exchange": "e", "sink.routing_key_field": "k"},
        "é" * 128,
        "column `k`: the routing key `é+…` has more than 255 bytes",
    ),
    "redis": Case(
        RedisSink,
        {"address": "redis://h", "target": "string", "target.key_column": "k"},
        "v" * 100,
        "the key of `v+…` has more than 99 bytes",
    ),
}


def rows(value: str | None) -> pa.RecordBatch:
    return pa.record_batch({"n": [1, 2, 3], "k": pa.array(["good", value, "fine"], pa.string())})


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(redis, "LARGEST_BYTES", 99)
    return CASES[request.param]


def test_a_row_that_the_system_would_refuse_fails_in_the_task(case: Case, tmp_path: Path) -> None:
    sink = SinkDriver(lambda: case.sink(**case.options), tmp_path)
    with pytest.raises(RefusedError, match=case.reason):
        sink.prepare(1, [rows(case.value)])


def test_such_a_row_is_dropped_and_counted_if_asked_for(case: Case, tmp_path: Path) -> None:
    sink = SinkDriver(lambda: case.sink(**case.options, bad_data="drop"), tmp_path)
    assert sink.prepare(1, [rows(case.value)])
    assert sink.metrics["bad_rows"] == 1


def test_other_rows_are_staged(case: Case, tmp_path: Path) -> None:
    sink = SinkDriver(lambda: case.sink(**case.options), tmp_path)
    assert sink.prepare(1, [rows("better")])
    assert "bad_rows" not in sink.metrics


def test_a_routing_key_is_measured_in_bytes() -> None:
    with pytest.raises(ConfigurationError, match="`routing_key` has more than 255 bytes"):
        RabbitSink(host="h", routing_key="é" * 128)


POSTGRES = "postgresql://h/d"


@pytest.mark.parametrize("connector", [PostgresSink, DatabaseSink])
@pytest.mark.parametrize(
    "column",
    [
        pa.array(["good", "a\0b"]),
        pa.array(["good", "a\0b"]).dictionary_encode(),
        pa.array([["good"], ["fine", "a\0b"]]),
        pa.array([{"x": "good"}, {"x": "a\0b"}]),
        pa.array([[("good", 1)], [("a\0b", 2)]], pa.map_(pa.string(), pa.int64())),
    ],
    ids=lambda column: str(column.type),
)
def test_a_nul_in_a_text_fails_in_the_task(
    connector: Callable[..., ArrowOperator], column: pa.Array, tmp_path: Path
) -> None:
    sink = SinkDriver(lambda: connector(url=POSTGRES, table="t"), tmp_path)
    with pytest.raises(RefusedError, match="column `c` holds a string with a NUL character"):
        sink.prepare(1, [pa.record_batch({"c": column})])
    assert sink.prepare(1, [pa.record_batch({"c": column[:1]})])


def test_a_nul_inside_of_json_fails_in_the_task(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("c", pa.string(), metadata=JSON_COLUMN)])
    sink = SinkDriver(lambda: PostgresSink(url=POSTGRES, table="t", schema=schema), tmp_path)
    assert sink.prepare(1, [pa.record_batch({"c": ['{"a": "\\\\u0000"}', None]})])
    with pytest.raises(RefusedError, match="column `c` holds a string with a NUL character"):
        sink.prepare(2, [pa.record_batch({"c": ['{"a": "\\u0000"}']})])


@pytest.mark.parametrize(
    ("connector", "column"),
    [
        (DatabaseSink, pa.array([0, 10**12], pa.timestamp("s"))),
        (DatabaseSink, pa.array([0, -(10**17)], pa.timestamp("us"))),
        (DatabaseSink, pa.array([0, 10**7], pa.date32())),
        (PostgresSink, pa.array([0, 10**16], pa.timestamp("s"))),
        (PostgresSink, pa.array([0, -(10**6)], pa.date32())),
    ],
)
def test_a_time_that_the_database_does_not_have_fails_in_the_task(
    connector: Callable[..., ArrowOperator], column: pa.Array, tmp_path: Path
) -> None:
    url = POSTGRES if connector is PostgresSink else "sqlite://"
    sink = SinkDriver(lambda: connector(url=url, table="t"), tmp_path)
    with pytest.raises(RefusedError, match="column `c` holds a time that the database does not have"):
        sink.prepare(1, [pa.record_batch({"c": column})])
    assert sink.prepare(1, [pa.record_batch({"c": column[:1]})])


@pytest.mark.parametrize(
    ("url", "refused", "good"),
    [
        ("sqlite://", ["nan"], ["inf", "-inf"]),
        ("mysql+pymysql://h/d", ["nan", "inf", "-inf"], []),
        ("mariadb+pymysql://h/d", ["nan", "inf", "-inf"], []),
        (POSTGRES, [], ["nan", "inf", "-inf"]),
    ],
)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_number_that_the_database_does_not_have_fails_in_the_task(
    url: str, refused: list[str], good: list[str], kind: pa.DataType, tmp_path: Path
) -> None:
    sink = SinkDriver(lambda: DatabaseSink(url=url, table="t"), tmp_path)
    for text in refused:
        column = pa.array([1.5, None, float(text)], kind)
        with pytest.raises(RefusedError, match=f"column `c` holds {text}, which the database does not have"):
            sink.prepare(1, [pa.record_batch({"c": column})])
    assert sink.prepare(1, [pa.record_batch({"c": pa.array([1.5, None, *map(float, good)], kind)})])


def test_columns_that_the_raw_format_cannot_print_fail_in_the_task(tmp_path: Path) -> None:
    sink = SinkDriver(lambda: StdoutSink(format="raw_string"), tmp_path)
    with pytest.raises(ConfigurationError, match="needs exactly one column"):
        sink.prepare(1, [rows("a")])
