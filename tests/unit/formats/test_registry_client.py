"""Messages that name their schema, against recorded answers of a schema registry, and what can go wrong."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, MissingExtraError
from headrace.base.options import parse_options
from headrace.connectors.kafka.sink import KafkaSink
from headrace.formats.avro.format import AvroFormat
from headrace.formats.base import LineError
from headrace.formats.options import FormatOptions, ReadOptions
from headrace.formats.protobuf.format import ProtobufFormat
from headrace.formats.registry import client as schema_registry
from headrace.formats.registry.client import RegistryOptions, SchemaRegistry, header
from tests.unit.formats.avro_cases import datums
from tests.unit.formats.proto_cases import THREE, made

FIRST = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}
SECOND = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "c", "type": ["null", "int"]}, {"name": "a", "type": "int"}],
}
THIRD = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "a", "type": "long"}, {"name": "p", "type": "x.Point"}],
}
POINT = {"type": "record", "name": "x.Point", "fields": [{"name": "n", "type": "x.Number"}]}
NUMBER = {"type": "fixed", "name": "x.Number", "size": 1}


def reference(name: str, subject: str) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": 3}


ANSWERS: dict[str, tuple[int, Any]] = {
    "/schemas/ids/1": (200, {"schema": json.dumps(FIRST)}),
    "/schemas/ids/2": (200, {"schema": json.dumps(SECOND), "schemaType": "AVRO"}),
    "/schemas/ids/3": (200, {"schema": json.dumps(THIRD), "references": [reference("x.Point", "points/x")]}),
    "/subjects/points%2Fx/versions/3": (
        200,
        {"schema": json.dumps(POINT), "references": [reference("x.Number", "numbers")]},
    ),
    "/subjects/numbers/versions/3": (200, {"schema": json.dumps(NUMBER)}),
    "/schemas/ids/4": (200, {"schema": THREE, "schemaType": "PROTOBUF"}),
    "/schemas/ids/5": (200, {"schema": '{"type": "object"}', "schemaType": "JSON"}),
    "/schemas/ids/6": (200, {"schema": json.dumps({**FIRST, "fields": [{"name": "a", "type": "boolean"}]})}),
    "/schemas/ids/7": (500, {"error_code": 50001, "message": "Error in the backend data store"}),
    "/schemas/ids/8": (401, {"error_code": 40101, "message": "Unauthorized"}),
    "/schemas/ids/9": (200, {"schema": "{"}),
    "/subjects/orders-value/versions/latest": (200, {"id": 2, "version": 2, "schema": json.dumps(SECOND)}),
    "POST /subjects/orders-value/versions": (200, {"id": 1}),
    "POST /subjects/changed-value/versions": (409, {"error_code": 409, "message": "it is incompatible"}),
    "POST /subjects/odd-value/versions": (422, {"error_code": 42201, "message": "Invalid schema"}),
}  # fmt: skip


class Recorded(ThreadingHTTPServer):
    daemon_threads = True
    asked: list[tuple[str, Any]]
    failures = 0


class Answering(BaseHTTPRequestHandler):
    server: Recorded

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        key = self.path if self.command == "GET" else f"{self.command} {self.path}"
        self.server.asked.append((key, body))
        missing = (404, {"error_code": 40403, "message": "Schema not found"})
        status, answer = ANSWERS.get(key, missing)
        if self.server.failures:
            self.server.failures -= 1
            status, answer = 503, "busy"
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.do_GET()


@pytest.fixture
def server() -> Iterator[Recorded]:
    with Recorded(("127.0.0.1", 0), Answering) as made:
        made.asked = []
        thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


@pytest.fixture
def registry(server: Recorded) -> SchemaRegistry:
    return SchemaRegistry(f"http://127.0.0.1:{server.server_address[1]}/", subject="orders-value")


def avro(registry: SchemaRegistry, columns: Any, **more: Any) -> AvroFormat:
    return AvroFormat(pa.schema(columns), layout="registry", registry=registry, **more)


# -------------------------------------------------------------------------------------------------- Avro


def test_each_message_is_read_by_the_schema_it_was_written_with(
    server: Recorded, registry: SchemaRegistry
) -> None:
    one = [header(1) + data for data in datums(FIRST, {"a": 1, "b": "x"}, {"a": 3, "b": "y"})]
    two = [header(2) + data for data in datums(SECOND, {"c": 5, "a": 2}, {"c": None, "a": 4})]
    read = pickle.loads(pickle.dumps(avro(registry, {"a": pa.int64(), "b": pa.string(), "c": pa.int32()})))
    for _ in range(2):
        rows = read.decode([one[0], two[0], one[1], two[1]]).rows.to_pylist()
        assert rows == [
            {"a": 1, "b": "x", "c": None},
            {"a": 2, "b": None, "c": 5},
            {"a": 3, "b": "y", "c": None},
            {"a": 4, "b": None, "c": None},
        ]
    assert [key for key, _ in server.asked] == ["/schemas/ids/1", "/schemas/ids/2"]  # once each


def test_a_missing_schema_is_asked_for_once_in_a_while_not_once_a_batch(
    server: Recorded, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = avro(registry, {"a": pa.int64()}, drop_bad=True)
    monkeypatch.setattr(schema_registry, "MISSING_SECONDS", 3600.0)
    monkeypatch.setattr(schema_registry, "_MISSING", {})
    for _ in range(3):
        (error,) = read.decode([header(10) + b"\2"]).bad
        assert "it names schema 10, which the schema registry" in error.message
    assert [key for key, _ in server.asked] == ["/schemas/ids/10"]
    monkeypatch.setattr(schema_registry, "_MISSING", dict.fromkeys(schema_registry._MISSING, 0.0))
    monkeypatch.setitem(ANSWERS, "/schemas/ids/10", ANSWERS["/schemas/ids/1"])
    (message,) = datums(FIRST, {"a": 1, "b": "x"})
    assert read.decode([header(10) + message]).rows.to_pylist() == [{"a": 1}]
    assert not schema_registry._MISSING


def test_a_schema_may_refer_to_others(registry: SchemaRegistry) -> None:
    read = avro(registry, {"a": pa.int64(), "p": pa.struct({"n": pa.binary()})})
    rows = read.decode([header(3) + b"\x02\x09", header(3) + b"\x04\x08"]).rows.to_pylist()
    assert rows == [{"a": 1, "p": {"n": b"\x09"}}, {"a": 2, "p": {"n": b"\x08"}}]


def test_messages_that_cannot_be_read_do_not_touch_the_others(registry: SchemaRegistry) -> None:
    (good,) = datums(FIRST, {"a": 1, "b": "x"})
    messages = [
        header(1) + good,
        good,
        b"",
        header(99) + good,
        header(5) + good,
        header(6) + b"\1",
        header(9) + good,
        header(1) + good[:-1],
        header(2) + datums(SECOND, {"c": 5, "a": 2})[0],
    ]
    decoded = avro(registry, {"a": pa.int64()}, drop_bad=True).decode(messages, first_line=0)
    assert decoded.rows.column("a").to_pylist() == [1, 2]
    told = [error.message.partition("cannot be read, ")[2].partition(": 0")[0] for error in decoded.bad]
    assert told == [
        "it does not begin as messages do that name their schema: with a zero and four more bytes",
        "it does not begin as messages do that name their schema: with a zero and four more bytes: ",
        f"it names schema 99, which the schema registry at {registry.endpoint} does not have",
        "its schema 5 is not one of Avro, but of JSON",
        "schema 6: column `a` is bool in the schema of the messages, and is declared as int64",
        told[5],
        "column `b`: 1 bytes do not fit into the 0 that are left",
    ]
    assert told[5].startswith("schema 9: the Avro schema is not JSON")
    assert [error.record for error in decoded.bad] == [messages[n] for n in (1, 2, 3, 4, 5, 6, 7)]
    with pytest.raises(BadLineError, match="it names schema 99"):
        avro(registry, {"a": pa.int64()}).decode([header(99) + good])


def test_a_sink_registers_its_schema_once(server: Recorded, registry: SchemaRegistry) -> None:
    columns = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False)]
    )
    write = avro(registry, columns)
    rows = pa.table({"a": [1, 2], "b": ["x", "y"]}, schema=columns)
    for _ in range(2):
        assert write.messages(rows) == [header(1) + data for data in datums(FIRST, *rows.to_pylist())]
    ((key, body),) = server.asked
    assert key == "POST /subjects/orders-value/versions"
    assert json.loads(body["schema"]) == {**FIRST, "name": "Row"}


# ------------------------------------------------------------------------------------------ Protobuf, JSON


def test_the_type_of_a_message_of_protobuf_is_found_by_its_place(registry: SchemaRegistry) -> None:
    place, row, deep = made("Place"), made("Row"), made("t.Row.Inner.Deep")
    messages = [
        header(4) + b"\0" + place(city="B").SerializeToString(),
        header(4) + b"\x02\x02" + row(id=5).SerializeToString(),
        header(4) + b"\x06\x02\x02\x00" + deep(x=1).SerializeToString(),
        header(4) + b"\x02\x63" + b"",
        header(4),
    ]
    columns = {"city": pa.string(), "id": pa.int64(), "x": pa.int64()}
    read = ProtobufFormat(pa.schema(columns), registry=registry, drop_bad=True)
    decoded = read.decode(messages, first_line=0)
    assert [error.line for error in decoded.bad] == [2, 3, 4]
    assert "the schema has no message at [1, 1, 0]" in decoded.bad[0].message
    messages[2] = header(4) + b"\x06\x02\x00\x00" + deep(x=1).SerializeToString()
    decoded = read.decode(messages, first_line=0)
    assert decoded.rows.to_pylist() == [
        {"city": "B", "id": None, "x": None},
        {"city": None, "id": 5, "x": None},
        {"city": None, "id": None, "x": 1},
    ]
    rows = read.decode(messages[:1] * 3).rows
    assert rows.column("city").to_pylist() == ["B"] * 3


def test_a_sink_of_protobuf_registers_its_type(server: Recorded, registry: SchemaRegistry) -> None:
    write = ProtobufFormat(pa.schema({"a": pa.int64()}), registry=registry)
    (message,) = write.messages(pa.table({"a": [7]}))
    assert message == header(1) + b"\0" + b"\x08\x07"
    ((_, body),) = server.asked
    assert body["schemaType"] == "PROTOBUF"
    assert b"Row" in base64.b64decode(body["schema"])


class Topic(ReadOptions, FormatOptions, RegistryOptions):
    """What a connector with a registry has."""

    def registry(self) -> SchemaRegistry | None:
        return self.registry_for("orders")


def topic(registry: SchemaRegistry, **given: Any) -> Topic:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return parse_options(Topic, {"schema_registry.endpoint": registry.endpoint, **named}, what="it")


def test_json_behind_the_number_of_its_schema(server: Recorded, registry: SchemaRegistry) -> None:
    columns = {"a": "int64", "b": "string", "at": "timestamp", "c": "struct<d: list<double>>"}
    options = topic(registry, json__confluent_schema_registry=True, schema=columns, bad_data="drop")
    both = pickle.loads(pickle.dumps(options.format_for(options.columns)))
    rows = pa.Table.from_pylist([{"a": 1, "c": {"d": [1.5]}}, {"b": "x"}], options.columns)
    messages = both.messages(rows)
    assert messages[0] == header(1) + b'{"a":1,"b":null,"at":null,"c":{"d":[1.5]}}'
    decoded = both.decode(
        [messages[0], b'{"a": 1}', header(1) + b"  ", header(1) + b"{", messages[1]], first_line=0
    )
    assert decoded.rows.to_pylist() == rows.to_pylist()
    assert decoded.counts.tolist() == [1, 0, 0, 0, 1]
    assert [(error.line, error.record) for error in decoded.bad] == [(1, b'{"a": 1}'), (3, header(1) + b"{")]
    ((_, body),) = server.asked
    schema = json.loads(body["schema"])
    assert body["schemaType"] == "JSON"
    assert schema["properties"]["a"] == {"oneOf": [{"type": "null"}, {"type": "integer"}]}
    with pytest.raises(BadLineError, match="it does not begin as messages do"):
        topic(registry, json__confluent_schema_registry=True, schema=columns).format_for(rows.schema).decode(
            [b"{}"]
        )


def test_changes_of_rows_behind_the_number_of_their_schema(registry: SchemaRegistry) -> None:
    options = topic(
        registry,
        format="debezium_json",
        json__confluent_schema_registry=True,
        schema={"a": "int64"},
        primary_key=["a"],
    )
    read = options.format_for(options.columns)
    messages = [
        header(1) + b'{"before":null,"after":{"a":1},"op":"c"}',
        header(1) + b'{"before":{"a":1},"after":{"a":2},"op":"u"}',
    ]
    decoded = read.decode(messages, first_line=0)
    assert decoded.rows.column("a").to_pylist() == [1, 1, 2]
    assert decoded.counts is not None
    assert decoded.counts.tolist() == [1, 2]
    assert read.messages(decoded.rows)[0].startswith(header(1))


def test_the_keys_of_changes_are_found_behind_the_number_of_their_schema(registry: SchemaRegistry) -> None:
    sink = KafkaSink(
        bootstrap_servers="localhost:1",
        topic="orders",
        format="debezium_json",
        schema={"a": "int64", "b": "string"},
        primary_key=["a"],
        **{
            "json.confluent_schema_registry": True,
            "schema_registry.endpoint": registry.endpoint,
            "sink.key_field": "a",
        },
    )
    (messages,) = sink.write([pa.record_batch({"a": [1, 2], "b": ["x", "y"], "_retract": [False, False]})])
    assert messages.column("key").to_pylist() == [b"1", b"2"]
    assert (
        messages.column("value")[0].as_py() == header(1) + b'{"before":null,"after":{"a":1,"b":"x"},"op":"c"}'
    )


# ------------------------------------------------------------------------------------------- what goes wrong


def test_columns_that_are_not_declared_are_those_of_the_newest_schema(registry: SchemaRegistry) -> None:
    from headrace.formats.options import implied_columns

    columns = implied_columns(topic(registry, format="avro", avro__confluent_schema_registry=True))
    assert columns == pa.schema({"c": pa.int32(), "a": pa.int32()})
    with pytest.raises(ConfigurationError, match="has a schema of AVRO for `orders-value`"):
        implied_columns(topic(registry, format="protobuf", protobuf__confluent_schema_registry=True))
    other = topic(registry, format="avro", avro__confluent_schema_registry=True, value__subject="other")
    with pytest.raises(ConfigurationError, match="has no schema for `other`"):
        implied_columns(other)


def test_a_registry_that_stumbles_is_asked_again(
    server: Recorded, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.failures = 2
    assert registry.schema(1).kind == "AVRO"
    assert len(server.asked) == 3
    monkeypatch.setattr(schema_registry, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(ExternalError, match="does not answer: Error in the backend data store"):
        registry.schema(7)


def test_a_registry_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, registry: SchemaRegistry
) -> None:
    monkeypatch.setattr(schema_registry, "PATIENCE_SECONDS", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ExternalError, match=f"the schema registry at {address} does not answer: ") as raised:
        SchemaRegistry(address, subject="t", key="me", secret="hunter2").schema(1)
    assert "hunter2" not in str(raised.value)
    # One of several that answers is enough.
    assert SchemaRegistry(f"{address}, {registry.endpoint}", subject="t").schema(1).kind == "AVRO"


@contextlib.contextmanager
def saying(*answers: bytes) -> Iterator[str]:
    """A server that says this and hangs up, and the last of it again and again; gives its address."""

    def talk() -> None:
        for answer in itertools.chain(answers, itertools.repeat(answers[-1])):
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def http(status: str, body: bytes, *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (http("200 OK", b'{"schema', length=100), "peer closed connection"),
        (http("500 Internal Server Error", b'{"mess', length=100), "peer closed connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "peer closed connection"),
        (b"\x15\x03\x01\x00\x02\x02\n\r\n", "illegal status line"),
        (http("200 OK", b"<h1>Back soon</h1>"), "status 200 without `schema`"),
        (http("200 OK", b"null"), "status 200 without `schema`"),
        (http("200 OK", b'{"status": "maintenance"}'), "status 200 without `schema`"),
        (http("404 Not Found", b"default backend - 404"), "status 404"),
        (http("404 Not Found", b'{"message": "no Route matched"}'), "no Route matched"),
        (http("404 Not Found", b'{"error_code": 404, "message": "HTTP 404 Not Found"}'), "HTTP 404"),
        (http("408 Request Timeout", b""), "status 408"),
        (http("425 Too Early", b""), "status 425"),
        (http("429 Too Many Requests", b""), "status 429"),
    ],
    ids=[
        "cut off",
        "error cut off",
        "chunk cut off",
        "no HTTP",
        "page",
        "null",
        "other object",
        "404 of another",
        "404 of a gateway",
        "404 of a path",
        "408",
        "425",
        "429",
    ],
)
def test_what_is_no_answer_of_a_registry_may_pass(
    trouble: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = http("200 OK", json.dumps({"schema": json.dumps(FIRST)}).encode())
    with saying(trouble, good) as address:
        assert SchemaRegistry(address, subject="t").schema(1).kind == "AVRO"
    monkeypatch.setattr(schema_registry, "PATIENCE_SECONDS", 0.2)
    with saying(trouble) as address:
        with pytest.raises(ExternalError, match=f"{address} does not answer: .*{reason}") as raised:
            SchemaRegistry(address, subject="t").schema(2)
        assert raised.value.retry


class Redirecting(BaseHTTPRequestHandler):
    """Sends every request on, and notes who it says that it is from."""

    server: Redirects

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.users.append(self.headers.get("Authorization"))
        target = self.server.target
        if target and not self.path.startswith("/moved"):
            self.send_response(307)
            self.send_header("Location", f"{target}/moved{self.path}")
            data = b""
        else:
            self.send_response(200)
            data = json.dumps({"schema": json.dumps(FIRST)}).encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Redirects(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Redirecting)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.target = target
        self.users: list[str | None] = []


@contextlib.contextmanager
def redirecting(target: str = "") -> Iterator[Redirects]:
    with Redirects(target) as redirects:
        thread = threading.Thread(target=redirects.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield redirects
        redirects.shutdown()
        thread.join(10)


LOGIN = "Basic " + base64.b64encode(b"me:hunter2").decode()


def test_a_redirect_to_another_origin_does_not_carry_the_password() -> None:
    with redirecting() as other, redirecting(other.address) as first:
        registry = SchemaRegistry(first.address, subject="t", key="me", secret="hunter2")
        assert registry.schema(1).kind == "AVRO"
    assert (first.users, other.users) == ([LOGIN], [None])


def test_a_redirect_within_an_origin_carries_the_password() -> None:
    with redirecting() as first:
        first.target = first.address
        registry = SchemaRegistry(first.address, subject="t", key="me", secret="hunter2")
        assert registry.schema(1).kind == "AVRO"
    assert first.users == [LOGIN, LOGIN]


def test_the_proxy_of_the_environment_is_asked(
    server: Recorded, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", registry.endpoint)
    with pytest.raises(LineError, match="it names schema 1"):
        SchemaRegistry("http://registry.invalid", subject="t").schema(1)
    assert server.asked == [("http://registry.invalid/schemas/ids/1", None)]
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="the proxy that the environment names cannot be used"):
        SchemaRegistry("http://registry.invalid", subject="t").schema(2)


def test_a_registry_without_its_client_says_what_to_install(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = topic(registry, format="avro", avro__confluent_schema_registry=True)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match="a schema registry needs the package `httpx`") as raised:
        options.registry()
    assert raised.value.hint == "pip install 'headrace[registry]'"


def test_what_a_registry_refuses_is_told(registry: SchemaRegistry) -> None:
    with pytest.raises(ExternalError, match="refuses the user: Unauthorized") as raised:
        registry.schema(8)
    assert raised.value.hint is not None
    assert "schema_registry.api_key" in raised.value.hint
    with pytest.raises(LineError, match="it names schema 99"):
        registry.schema(99)
    changed = SchemaRegistry(registry.endpoint, subject="changed-value")
    with pytest.raises(ConfigurationError, match="does not go with the earlier ones of `changed-value`"):
        changed.register("AVRO", "x")
    with pytest.raises(ConfigurationError, match="refuses a request: Invalid schema"):
        SchemaRegistry(registry.endpoint, subject="odd-value").register("AVRO", "x")
    with pytest.raises(ExternalError, match="has no subjects to register schemas for"):
        SchemaRegistry(registry.endpoint, subject="gone").register("AVRO", "x")
    assert "secret" not in repr(SchemaRegistry("http://r", subject="t", key="me", secret="secret"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"json__confluent_schema_registry": True, "json__include_schema": True}, "does not go with"),
        ({"json__confluent_schema_registry": True, "framing": "newline"}, "is for messages of lines"),
        ({"schema_registry__endpoint": "ftp://r"}, "is an http or https address"),
        ({"schema_registry__endpoint": "http://me:hunter2@r"}, "is an address without a user"),
        ({"schema_registry__api_key": "me"}, "belong together"),
        ({"format": "avro", "csv__header": False}, "does not go with the format avro"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(registry: SchemaRegistry, given: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        topic(registry, **given)


def test_a_connector_without_a_registry_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"needs `schema_registry\.endpoint`, which the connectors"):
        parse_options(FormatOptions, {"format": "avro", "avro.confluent_schema_registry": True}, what="it")
