"""Kafka tables whose messages name their schema, against a real broker and a real schema registry."""

from __future__ import annotations

import io
import json
import struct
import urllib.request
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import BadLineError, ConfigurationError, ExternalError
from headrace.base.spans import Source
from headrace.connectors.kafka.source import KafkaSource
from headrace.connectors.sample import read_sample
from headrace.formats.protobuf.schema import compile_files
from headrace.formats.protobuf.text import load_protobuf
from headrace.formats.registry import client
from headrace.formats.registry.client import SchemaRegistry
from headrace.jobs.progress import RunResult
from headrace.sql.table_connectors import build_connectors
from headrace.testing.in_process import run_in_process
from tests.servers.kafka import KafkaBroker
from tests.servers.registry import run_guard

COLUMNS = "id BIGINT NOT NULL, name TEXT, at TIMESTAMP(3), tags TEXT[], place STRUCT<city TEXT, zip INT>"
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": "ä",
        "at": "2026-01-02T03:04:05.678",
        "tags": ["a", "b"],
        "place": {"city": "B", "zip": 7},
    },
    {"id": 2, "name": None, "at": None, "tags": [], "place": None},
]


@pytest.fixture(autouse=True)
def forget() -> None:
    """Each test asks the registry anew."""
    client._CACHE.clear()


def options(kafka: KafkaBroker, registry: str, topic: str, form: str, **more: str) -> str:
    given = {
        "connector": "kafka",
        "format": form,
        f"{form.removeprefix('debezium_')}.confluent_schema_registry": "true",
        "schema_registry.endpoint": registry,
        **kafka.options(topic),
        **more,
    }
    return ", ".join(f"'{name}' = '{value}'" for name, value in given.items())


def run(sql: str, state: Path) -> RunResult:
    pipeline = Pipeline.from_sql(sql, name="registry", preview=lambda _: ("memory", {}))
    return run_in_process(pipeline, state, idle_epochs=3)


def write(kafka: KafkaBroker, registry: str, form: str, folder: Path, **more: str) -> str:
    """Write the rows to a new topic, which is given back."""
    topic = kafka.create()
    (folder / "in.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run(
        f"""
        CREATE TABLE lines ({COLUMNS}) WITH (connector = 'single_file', path = '{folder}/in.json');
        CREATE TABLE messages ({COLUMNS})
        WITH ({options(kafka, registry, topic, form, type="sink", **more)});
        INSERT INTO messages SELECT * FROM lines;
        """,
        folder / f"write-{topic}",
    )
    return topic


def read(
    kafka: KafkaBroker, registry: str, topic: str, form: str, folder: Path, **more: str
) -> list[dict[str, Any]]:
    given = {"type": "source", "source.offset": "earliest", "source.bounded": "true", **more}
    result = run(
        f"""
        CREATE TABLE messages ({COLUMNS}) WITH ({options(kafka, registry, topic, form, **given)});
        SELECT id, name, at, tags, place FROM messages;
        """,
        folder / f"read-{topic}",
    )
    rows = [row for table in result.rows.values() for row in table.select(list(ROWS[0])).to_pylist()]
    return [{**row, "at": row["at"] and row["at"].isoformat(timespec="milliseconds")} for row in rows]


@pytest.mark.parametrize("form", ["avro", "protobuf", "json"])
def test_rows_go_through_a_topic_with_their_schema_in_the_registry(
    kafka: KafkaBroker, schema_registry: str, tmp_path: Path, form: str
) -> None:
    topic = write(kafka, schema_registry, form, tmp_path)
    assert read(kafka, schema_registry, topic, form, tmp_path) == ROWS
    known = SchemaRegistry(schema_registry, subject=f"{topic}-value").latest()
    assert known is not None
    assert known.kind == form.upper()


def test_others_read_what_is_written(kafka: KafkaBroker, schema_registry: str, tmp_path: Path) -> None:
    topic = write(kafka, schema_registry, "avro", tmp_path, **{"value.subject": "orders"})
    registry = SchemaRegistry(schema_registry, subject="orders")
    first, _ = (message.value() for message in kafka.read(topic))
    zero, number = struct.unpack(">bI", first[:5])
    schema = fastavro.parse_schema(json.loads(registry.schema(number).text))
    got: Any = fastavro.schemaless_reader(io.BytesIO(first[5:]), schema, None)
    assert (zero, got["id"], got["name"], got["place"]) == (0, 1, "ä", {"city": "B", "zip": 7})
    topic = write(kafka, schema_registry, "protobuf", tmp_path)
    first, _ = (message.value() for message in kafka.read(topic))
    text = SchemaRegistry(schema_registry, subject="x").schema(int.from_bytes(first[1:5], "big")).text
    kind = compile_files(text, "row.proto", {}).descriptor("Row")
    row = load_protobuf("message_factory").GetMessageClass(kind).FromString(first[6:])
    assert (row.id, row.name, list(row.tags), row.place.zip) == (1, "ä", ["a", "b"], 7)


def test_what_others_write_with_schemas_that_change_is_read(
    kafka: KafkaBroker, schema_registry: str, tmp_path: Path
) -> None:
    topic = kafka.create()
    registry = SchemaRegistry(schema_registry, subject=f"{topic}-value")
    point = {"type": "record", "name": "shared.Place", "fields": [{"name": "city", "type": "string"}]}
    post(schema_registry, f"{topic}-place", json.dumps(point))
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    new = {**old, "fields": [{"name": "place", "type": "shared.Place"}, {"name": "id", "type": "long"}]}
    reference = {"name": "shared.Place", "subject": f"{topic}-place", "version": 1}
    numbers = [
        registry.register("AVRO", json.dumps(old)),
        post(schema_registry, f"{topic}-value", json.dumps(new), references=[reference]),
    ]
    kafka.send(
        topic,
        [
            struct.pack(">bI", 0, numbers[0]) + b"\x02",
            struct.pack(">bI", 0, numbers[1]) + b"\x02B\x04",
            struct.pack(">bI", 0, 99999) + b"\x02",
            b'{"id": 3}',
        ],
    )
    rows = read(kafka, schema_registry, topic, "avro", tmp_path, bad_data="drop")
    assert [(row["id"], row["place"]) for row in rows] == [(1, None), (2, {"city": "B", "zip": None})]
    with pytest.raises(
        BadLineError, match="the message at offset 2 of partition 0 cannot be read, it names schema"
    ):
        read(kafka, schema_registry, topic, "avro", tmp_path / "again")


def post(registry: str, subject: str, schema: str, **more: Any) -> int:
    body = json.dumps({"schema": schema, **more}).encode()
    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{registry}/subjects/{subject}/versions", body, kind)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.loads(answer.read())["id"])


PROTO = """
syntax = "proto3";
message Other { int32 x = 1; }
message Order { int64 id = 1; optional string name = 2; Inner place = 5; message Inner { string city = 1; } }
"""


def test_protobuf_that_others_registered_as_text_is_read(
    kafka: KafkaBroker, schema_registry: str, tmp_path: Path
) -> None:
    topic = kafka.create()
    number = SchemaRegistry(schema_registry, subject=f"{topic}-value").register("PROTOBUF", PROTO)
    kafka.send(topic, [struct.pack(">bI", 0, number) + b"\x02\x02" + b"\x08\x01\x2a\x03\x0a\x01B"])
    (row,) = read(kafka, schema_registry, topic, "protobuf", tmp_path)
    assert (row["id"], row["name"], row["place"]) == (1, None, {"city": "B", "zip": None})


def test_a_schema_that_does_not_go_with_the_earlier_ones_is_refused(
    kafka: KafkaBroker, schema_registry: str, tmp_path: Path
) -> None:
    subject = "strict"
    post(
        schema_registry,
        subject,
        '{"type": "record", "name": "Row", "fields": [{"name": "id", "type": "string"}]}',
    )
    rule = urllib.request.Request(
        f"{schema_registry}/config/{subject}",
        b'{"compatibility": "BACKWARD"}',
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method="PUT",
    )
    urllib.request.urlopen(rule, timeout=30).close()
    with pytest.raises(ConfigurationError, match="does not go with the earlier ones of `strict`"):
        write(kafka, schema_registry, "avro", tmp_path, **{"value.subject": subject})


def test_a_registry_that_asks_for_a_password_or_stumbles(
    kafka: KafkaBroker, schema_registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_guard(schema_registry) as guard:
        login = {"schema_registry.api_key": "me", "schema_registry.api_secret": "hunter2"}
        guard.failures = 2
        topic = write(kafka, guard.address, "avro", tmp_path, **login)
        assert read(kafka, guard.address, topic, "avro", tmp_path, **login) == ROWS
        client._CACHE.clear()
        wrong = login | {"schema_registry.api_secret": "hunter3"}
        with pytest.raises(ExternalError, match="refuses the user: Unauthorized") as raised:
            read(kafka, guard.address, topic, "avro", tmp_path / "wrong", **wrong)
        assert "hunter3" not in str(raised.value)
        asked = len(guard.asked)
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(ExternalError, match=f"the schema registry at {guard.address} does not answer"):
        read(kafka, guard.address, topic, "avro", tmp_path / "gone", **login)
    assert asked >= 4


def test_the_certificate_of_a_registry_has_to_be_trusted(
    schema_registry: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE_SECONDS", 0.3)
    with run_guard(schema_registry, certificate=certificate) as guard:
        registry = SchemaRegistry(guard.address, subject="tls-value", key="me", secret="hunter2")
        with pytest.raises(ExternalError, match=r"does not answer: .*CERTIFICATE_VERIFY_FAILED"):
            registry.register("AVRO", '"string"')
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        number = registry.register("AVRO", '"string"')
        assert json.loads(registry.schema(number).text) == "string"


def test_columns_are_found_out_from_the_registry(
    kafka: KafkaBroker, schema_registry: str, tmp_path: Path
) -> None:
    topic = write(kafka, schema_registry, "avro", tmp_path)
    given = {
        "format": "avro",
        "avro.confluent_schema_registry": True,
        "schema_registry.endpoint": schema_registry,
        "source.offset": "earliest",
        "source.bounded": True,
    }
    pipeline = Pipeline("found")
    pipeline.source(KafkaSource(**kafka.options(topic, **given))).sink("memory")
    result = run_in_process(pipeline, tmp_path / "found", idle_epochs=3)
    (rows,) = result.rows.values()
    assert rows.schema.field("tags").type == pa.list_(pa.string())
    assert rows.column("name").to_pylist() == ["ä", None]


@pytest.mark.parametrize("form", ["json", "avro"])
def test_a_registered_schema_tells_the_columns_of_a_table_without_any(
    kafka: KafkaBroker, schema_registry: str, form: str, tmp_path: Path
) -> None:
    topic = write(kafka, schema_registry, form, tmp_path)
    listed = options(kafka, schema_registry, topic, form, type="source", **{"source.offset": "earliest"})
    (tried,) = build_connectors([Source("t.sql", f"CREATE TABLE t WITH ({listed})")], "t")
    assert [field.name for field in tried.inferred_columns] == ["id", "name", "at", "tags", "place"]
    batches, bad = read_sample(tried.connector.for_sampling(), 5, 10)
    assert [row["name"] for batch in batches for row in batch.to_pylist()] == ["ä", None]
    assert bad == []
