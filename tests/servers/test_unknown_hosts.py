"""Every connector to a server says which host it does not find, soon, and shows no secret."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.base.errors import ExternalError
from headrace.model.registry import registry
from headrace.storage.base import RequestRetry
from tests.support import WITH_SERVERS

HOST = "no-such-host.invalid"
STORE = {
    "storage.aws_endpoint": f"http://{HOST}",
    "storage.allow_http": "true",
    "storage.aws_access_key_id": "a",
}
KAFKA = {"bootstrap_servers": f"{HOST}:9092", "topic": "t", "format": "raw_string"}
DATABASE = {"url": f"postgresql://me:s3cret@{HOST}/db", "table": "t", "schema": {"n": "int64"}}
RABBIT = {"host": HOST, "password": "s3cret", "format": "raw_string"}
MQTT = {"url": f"mqtt://me:s3cret@{HOST}", "topic": "t", "format": "raw_string"}
WEB = {"endpoint": f"http://{HOST}/?key=s3cret", "format": "raw_string"}
SOCKET = {**WEB, "endpoint": f"ws://{HOST}/?key=s3cret"}
NATS = {"servers": f"nats://{HOST}", "format": "raw_string"}

CASES: dict[tuple[Any, str], dict[str, Any]] = {
    ("source", "kafka"): KAFKA,
    ("sink", "kafka"): KAFKA,
    ("source", "nats"): {**NATS, "stream": "t"},
    ("sink", "nats"): {**NATS, "subject": "t"},
    ("source", "rabbitmq"): {**RABBIT, "queue": "t"},
    ("sink", "rabbitmq"): {**RABBIT, "routing_key": "t"},
    ("source", "mqtt"): MQTT,
    ("sink", "mqtt"): MQTT,
    ("source", "postgres"): DATABASE,
    ("sink", "postgres"): DATABASE,
    ("sink", "database"): {**DATABASE, "url": f"postgresql+psycopg://me:s3cret@{HOST}/db"},
    ("sink", "redis"): {"address": f"redis://:s3cret@{HOST}", "target": "list", "target.key_prefix": "a"},
    ("source", "sse"): WEB,
    ("source", "polling_http"): WEB,
    ("sink", "webhook"): WEB,
    ("source", "websocket"): SOCKET,
    ("sink", "websocket"): SOCKET,
    ("source", "filesystem"): {"path": "s3://bucket/x", "storage.aws_secret_access_key": "s3cret", **STORE},
    ("sink", "iceberg"): {
        "catalog.rest.url": f"http://{HOST}",
        "catalog.rest.token": "s3cret",
        "table_name": "t",
    },
}


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.base.FILES_RETRY", RequestRetry(1, timedelta(seconds=1)))


def at(host: str, options: Any) -> Any:
    """Return the options with another host and port in their addresses."""
    if isinstance(options, dict):
        return {name: at(host, value) for name, value in options.items()}
    return options.replace(f"{HOST}:9092", host).replace(HOST, host) if isinstance(options, str) else options


@pytest.mark.parametrize(("role", "name"), CASES)
def test_a_host_that_is_not_known_is_named(role: Any, name: str) -> None:
    connector = registry.constructor(role, name)(**CASES[role, name])
    with pytest.raises(ExternalError) as caught:
        connector.reach()
    assert HOST in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.retry, "it may be there later"


@pytest.mark.parametrize(("role", "name"), CASES)
def test_a_closed_port_is_told_at_the_first_attempt(
    role: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller decides for how long to ask again: a client that waits by itself would be silent."""
    options = at("127.0.0.1:1", CASES[role, name])
    if name == "rabbitmq":
        options |= {"host": "127.0.0.1", "port": 1}
    connector = registry.constructor(role, name)(**options)
    pauses: list[Any] = []
    monkeypatch.setattr("headrace.base.retry._pause", lambda *given: pauses.append(given))
    with pytest.raises(ExternalError) as caught:
        connector.reach()
    assert "127.0.0.1" in str(caught.value)
    assert caught.value.hint, "what to check"
    assert caught.value.retry, "it may be there later"
    assert not pauses


def test_no_connector_was_forgotten() -> None:
    """Those that are another one by a different name, and Spark's, are left out."""
    named = {name for _, name in CASES}
    assert WITH_SERVERS - {"confluent", "spark"} <= named
