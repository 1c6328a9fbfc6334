"""What can be known of the rabbitmq connector without a server; tests/servers asks a real one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.connectors.rabbitmq.sink import RabbitSink
from headrace.connectors.rabbitmq.source import RabbitSource
from headrace.connectors.received import Received
from headrace.model.registry import registry

SERVER: dict[str, Any] = {"host": "h", "password": "hush"}
QUEUE: dict[str, Any] = {**SERVER, "queue": "q", "schema": {"n": "int64"}}
STREAM: dict[str, Any] = {**SERVER, "stream": "s", "schema": {"n": "int64"}}


@pytest.mark.parametrize("role", ["source", "sink"])
def test_every_option_is_described(role: Any) -> None:
    assert all(field.description for field in registry.options(role, "rabbitmq").model_fields.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": ""}, "`host`"),
        ({"port": 0}, "`port`"),
        ({"queue": None}, "it takes either `queue` or `stream`"),
        ({"stream": "s"}, "it takes either `queue` or `stream`"),
        ({"source.offset": "first"}, "`source.offset` needs `stream`"),
        ({"source.prefetch": 0}, "`source.prefetch`"),
        ({"metadata": {"n": "exchanges"}}, "did you mean `exchange`"),
        ({"tls_config.root_certificates_path": "ca.pem"}, "need `tls_config.enabled` = true"),
        (
            {"tls_config.enabled": True, "tls_config.client_keys_path": "k"},
            "`tls_config.client_keys_path` go together",
        ),
        ({"user": "me"}, "did you mean"),
    ],
)
def test_a_source_that_cannot_work_is_refused_with_the_option(given: dict[str, Any], said: str) -> None:
    options = {name: value for name, value in {**QUEUE, **given}.items() if value is not None}
    with pytest.raises(ConfigurationError) as caught:
        RabbitSource(**options)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_sink_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="it takes `exchange`, or `routing_key`"):
        RabbitSink(**SERVER)
    with pytest.raises(ConfigurationError, match="does not go with debezium_json"):
        RabbitSink(**SERVER, **{"sink.routing_key_field": "k", "format": "debezium_json"})
    with pytest.raises(ConfigurationError, match=r"`sink\.unroutable`"):
        RabbitSink(**SERVER, exchange="x", **{"sink.unroutable": "keep"})


def test_certificates_that_cannot_be_read_are_refused_before_the_run(tmp_path: Path) -> None:
    tls = {"tls_config.enabled": True, "tls_config.root_certificates_path": str(tmp_path / "none.pem")}
    with pytest.raises(ConfigurationError, match="the certificates for RabbitMQ cannot be read"):
        RabbitSource(**QUEUE, **tls).validate()


def test_a_missing_client_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    for connector in (RabbitSource(**QUEUE), RabbitSink(**SERVER, exchange="x")):
        with pytest.raises(MissingExtraError, match="`pika`") as caught:
            connector.validate()
        assert caught.value.hint == "pip install 'headrace[rabbitmq]'"


def test_what_is_shown_holds_no_password() -> None:
    source, sink = RabbitSource(**QUEUE), RabbitSink(**SERVER, exchange="x")
    assert source.display() == "RabbitSource(rabbitmq at h:5672, queue q)"
    assert sink.display() == "RabbitSink(x at h:5672)"
    secure = RabbitSource(**STREAM, **{"tls_config.enabled": True})
    assert secure.display() == "RabbitSource(rabbitmq at h:5671, stream s)"
    assert "hush" not in repr(source.options) + repr(sink.options)
    assert cloudpickle.loads(cloudpickle.dumps(source)).display() == source.display()


def test_a_port_for_another_protocol_is_told_apart() -> None:
    failure = RabbitSource(**STREAM, port=5552).server.failure(ConnectionResetError("reset"))
    assert "leave out `port`" in (failure.hint or "")


def test_what_a_stream_sends_twice_is_new_once() -> None:
    def message(offset: int) -> Received:
        return Received(b"x", 0, {"offset": offset}, offset)

    source = RabbitSource(**STREAM)
    first, resume = source.settle(None, [message(3), message(4)])
    assert (len(first), resume) == (2, 4)
    again, resume = source.settle(resume, [message(3), message(4), message(5)])
    assert ([one.token for one in again], resume) == ([5], 5)
    assert source.settle(5, [message(5)]) == ([], 5)
    assert len(RabbitSource(**QUEUE).settle(None, [message(3), message(3)])[0]) == 2


def test_a_table_of_another_engine_is_understood() -> None:
    sql = """
        CREATE TABLE n (n BIGINT) WITH (
          connector = 'rabbitmq', type = 'source', format = 'json', host = 'localhost', username = 'me',
          password = 'hush', virtual_host = '/', stream = 's', 'source.offset' = 'first',
          'tls_config.enabled' = 'true', 'tls_config.trust_certificates' = 'true', load_balancer_mode = 'true'
        );
        SELECT n FROM n;
    """
    pipeline = Pipeline.from_sql(sql, name="moved", preview=lambda _: ("memory", {}))
    assert len(pipeline.plan().nodes) >= 2
