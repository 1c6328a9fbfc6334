"""The options of kafka and confluent, and what is refused before any broker is asked."""

from __future__ import annotations

import json
import pickle
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError, MissingExtraError, SqlError
from headrace.connectors.kafka.sink import ConfluentSink, KafkaSink, MessageWriter
from headrace.connectors.kafka.source import ConfluentSource, KafkaSource
from headrace.model.registry import registry

CLUSTER: dict[str, Any] = {"bootstrap_servers": "a:9092,b:9092", "topic": "t"}
COLUMNS = {"schema": {"n": "int64"}}
LOGIN = {
    "auth.type": "sasl",
    "auth.mechanism": "SCRAM-SHA-512",
    "auth.protocol": "SASL_SSL",
    "auth.username": "me",
    "auth.password": "hunter2",
}


@pytest.mark.parametrize("role", ["source", "sink"])
@pytest.mark.parametrize("name", ["kafka", "confluent"])
def test_every_option_is_described(role: Any, name: str) -> None:
    assert all(field.description for field in registry.options(role, name).model_fields.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": ""}, "`topic`"),
        ({"source.offset": "middle"}, "`source.offset`"),
        ({"source.read_mode": "dirty"}, "`source.read_mode`"),
        ({"source.offset": "group"}, "needs `source.group_id`"),
        ({"auth.type": "kerberos"}, "`auth.type`"),
        (
            {"auth.type": "aws_msk_iam", "auth.region": "eu-west-1"},
            "`auth.type` = 'aws_msk_iam' is not supported",
        ),
        ({**LOGIN, "auth.password": None}, "needs `auth.password`"),
        ({"auth.username": "me"}, "`auth.username` needs `auth.type` = 'sasl'"),
        ({"client_configs": "fetch.min.bytes"}, "number 1 is no such pair"),
        ({"client_configs": "group.id=mine"}, "see the option `source.group_id`"),
        ({"json.confluent_schema_registry": True}, "needs `schema_registry.endpoint`"),
        ({"schema_registry.endpoint": "registry:8081"}, "is an http or https address"),
        ({"schema_registry.api_secret": "s3cret"}, "belong together"),
        ({"format": "xml"}, "`format`"),
        ({"metadata": {"n": "ofset_id"}}, "did you mean `offset_id`"),
        ({"metadata": {"n": "partition"}}, "the metadata `partition` has the type int32, not int64"),
        ({"source.ofset": "latest"}, "did you mean `source.offset`"),
    ],
)
def test_a_source_that_cannot_work_is_refused_with_the_option(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        registry.build("source", "kafka", {**CLUSTER, **COLUMNS, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sink.commit_mode": "maybe"}, "`sink.commit_mode`"),
        ({"sink.key_field": "m"}, "there is no column `m`"),
        ({"sink.timestamp_field": "n"}, "`n`, which is no TIMESTAMP but int64"),
        ({"client_configs": "transactional.id=mine"}, "see the option `sink.commit_mode`"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_with_the_option(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        registry.build("sink", "kafka", {**CLUSTER, **COLUMNS, **given})


def test_a_key_of_changes_can_only_be_found_in_declared_columns() -> None:
    with pytest.raises(ConfigurationError, match="the option `schema` is needed"):
        KafkaSink(**CLUSTER, **{"format": "debezium_json", "sink.key_field": "k"})


def test_columns_have_to_be_declared_unless_the_format_implies_them() -> None:
    with pytest.raises(ConfigurationError, match="needs to know its columns"):
        KafkaSource(**CLUSTER).validate()
    KafkaSource(**CLUSTER, format="raw_string").validate()


def test_what_a_schema_registry_needs_is_accepted() -> None:
    options = {
        "value.subject": "t-value",
        "schema_registry.endpoint": "https://registry",
        "schema_registry.api_key": "key",
        "schema_registry.api_secret": "s3cret",
    }
    for made in (KafkaSource(**CLUSTER, **COLUMNS, **options), KafkaSink(**CLUSTER, **options)):
        made.validate()


def test_settings_are_read_from_a_text_or_a_mapping() -> None:
    text = KafkaSource(**CLUSTER, **COLUMNS, client_configs=" a.b = 1 , c=x=y,")
    assert text.options.client_configs == {"a.b": "1", "c": "x=y"}
    mapping = KafkaSource(**CLUSTER, **COLUMNS, client_configs={"a.b": "1"})
    assert mapping.options.settings()["a.b"] == "1"


def test_a_login_becomes_the_settings_of_the_client() -> None:
    settings = KafkaSource(**CLUSTER, **COLUMNS, **LOGIN).options.settings()
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert (settings["sasl.username"], settings["sasl.password"]) == ("me", "hunter2")
    cloud = ConfluentSource(**CLUSTER, **COLUMNS, key="K", secret="S").options.settings()
    assert (cloud["security.protocol"], cloud["sasl.mechanism"]) == ("SASL_SSL", "PLAIN")
    assert (cloud["sasl.username"], cloud["sasl.password"]) == ("K", "S")


def test_secrets_are_never_displayed() -> None:
    hidden = {**LOGIN, "client_configs": "ssl.key.password=hunter2"}
    hidden |= {"schema_registry.api_key": "hunter2", "schema_registry.api_secret": "hunter2"}
    made = [
        KafkaSource(**CLUSTER, **COLUMNS, **hidden),
        KafkaSink(**CLUSTER, **hidden),
        ConfluentSource(**CLUSTER, **COLUMNS, key="hunter2", secret="hunter2"),
        ConfluentSink(**CLUSTER, key="hunter2", secret="hunter2"),
    ]
    for one in made:
        dumped = json.dumps(one.options.model_dump(mode="json", by_alias=True))
        for shown in (one.display(), repr(one.options), dumped):
            assert "hunter2" not in shown
        assert "t at a:9092,b:9092" in one.display()


def test_a_password_that_is_a_number_is_not_shown_in_an_error() -> None:
    assert (
        KafkaSource(**CLUSTER, **COLUMNS, **{**LOGIN, "auth.password": 12345}).options.auth_password
        == "12345"
    )


def test_confluent_needs_its_key_and_its_secret() -> None:
    with pytest.raises(ConfigurationError, match="option `secret` is required"):
        ConfluentSink(**CLUSTER, key="K")
    with pytest.raises(ConfigurationError, match=r"unknown option `auth\.type`"):
        ConfluentSource(**CLUSTER, **COLUMNS, key="K", secret="S", **{"auth.type": "none"})


def test_without_the_client_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", None)
    for made in (KafkaSource(**CLUSTER, **COLUMNS), KafkaSink(**CLUSTER)):
        with pytest.raises(
            MissingExtraError, match="the connector `kafka` needs the package `confluent-kafka`"
        ):
            made.validate()


def test_wrong_options_in_sql_are_pointed_at() -> None:
    sql = """
        CREATE TABLE t (n BIGINT) WITH (
          connector = 'kafka', type = 'source', format = 'json', topic = 't', bootstrap_servers = 'a:1',
          'source.offset' = 'middle'
        );
        SELECT n FROM t
    """
    with pytest.raises(SqlError, match=r"option `source\.offset`") as caught:
        Pipeline.from_sql(sql, name="t", preview=lambda _: ("memory", {}))
    assert "'middle'" in caught.value.excerpt


def test_a_sink_of_changes_writes_from_one_place_and_others_from_everywhere() -> None:
    assert KafkaSink(**CLUSTER).max_parallelism is None
    assert not KafkaSink(**CLUSTER).accepts_updates
    changes = KafkaSink(**CLUSTER, format="debezium_json")
    assert changes.max_parallelism == 1
    assert changes.accepts_updates


def write(rows: pa.RecordBatch, **options: Any) -> list[dict[str, Any]]:
    made = KafkaSink(**CLUSTER, **{name.replace("__", "."): value for name, value in options.items()})
    writer: MessageWriter = pickle.loads(pickle.dumps(made))._writer
    messages: list[dict[str, Any]] = writer.write(rows).to_pylist()
    return messages


def test_messages_have_the_event_time_of_their_row_unless_a_column_is_named() -> None:
    times = pa.array([5_999_999, 7_000_000], pa.int64()).cast(pa.timestamp("ns"))
    rows = pa.record_batch(
        {"n": [1, 2], "at": times.cast(pa.timestamp("us"), safe=False), "_timestamp": times}
    )
    assert [one["time"] for one in write(rows)] == [5, 7]
    assert [json.loads(one["value"]) for one in write(rows, schema={"n": "int64"})] == [{"n": 1}, {"n": 2}]
    assert [one["time"] for one in write(rows.drop_columns(["_timestamp"]), sink__timestamp_field="at")] == [
        5,
        7,
    ]
    assert [one["time"] for one in write(rows.select(["n"]))] == [0, 0]


def test_changes_have_the_key_of_the_row_they_leave_or_take_back() -> None:
    rows = pa.record_batch(
        {
            "k": pa.array(["a", "b", "b", "c"]),
            "m": pa.array(map(Decimal, range(1, 5)), pa.decimal128(5, 2)),
            "_retract": [False, True, False, True],
        }
    )
    schema = pa.schema({"k": pa.string(), "m": pa.decimal128(5, 2)})
    for more in ({}, {"json__include_schema": True}):
        named = {"format": "debezium_json", "schema": schema, "primary_key": ["k"], **more}
        assert [one["key"] for one in write(rows, sink__key_field="k", **named)] == [b"a", b"b", b"c"]
        assert [one["key"] for one in write(rows, sink__key_field="m", **named)] == [
            b"1.00",
            b"3.00",
            b"4.00",
        ]
        assert [one["key"] for one in write(rows, **named)] == [None] * 3
