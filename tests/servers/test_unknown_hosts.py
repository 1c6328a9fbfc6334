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
PATIENCE = {
    "connectors.database.sink.REACH_SECONDS": 1,
    "connectors.kafka.client.FIRST_CONTACT_SECONDS": 1,
    "connectors.nats.client.FIRST_CONTACT_SECONDS": 1,
    "connectors.postgres.client.CONNECT_SECONDS": 1,
    "storage.base.FILES_RETRY": RequestRetry(1, timedelta(seconds=1)),
}


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PATIENCE.items():
        monkeypatch.setattr(f"headrace.{name}", value)


@pytest.mark.parametrize(("role", "name"), CASES)
def test_a_host_that_is_not_known_is_named(role: Any, name: str) -> None:
    connector = registry.constructor(role, name)(**CASES[role, name])
    with pytest.raises(ExternalError) as caught:
        connector.reach()
    assert HOST in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_no_connector_was_forgotten() -> None:
    """Those that are another one by a different name, and Spark's, are left out."""
    named = {name for _, name in CASES}
    assert WITH_SERVERS - {"confluent", "spark"} <= named
