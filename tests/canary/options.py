"""Every place where a user can put a secret into the options of a connector, filled with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.registry import BUILT_IN, Role, registry

CANARY = "cAnArY-7f3d91-SeCrEt"
"""No other text has it."""

_LOGIN = f"ada:{CANARY}@"
_REGISTRY = {
    "schema_registry.endpoint": "http://127.0.0.1:1",
    "schema_registry.api_key": f"{CANARY}-key",
    "schema_registry.api_secret": CANARY,
}
_KAFKA = {
    "bootstrap_servers": "127.0.0.1:1",
    "topic": "t",
    "format": "json",
    "client_configs": f"ssl.key.password={CANARY}",
    **_REGISTRY,
}
_SASL = {
    "auth.type": "sasl",
    "auth.mechanism": "PLAIN",
    "auth.protocol": "SASL_PLAINTEXT",
    "auth.username": "ada",
    "auth.password": CANARY,
}
_CONFLUENT = {"key": f"{CANARY}-id", "secret": CANARY}
_STORE = {
    "path": "s3://bucket/rows",
    "storage.aws_access_key_id": f"{CANARY}-id",
    "storage.aws_secret_access_key": CANARY,
    "storage.aws_region": "eu-central-1",
}
_MQTT = {"url": "tcp://127.0.0.1:1", "topic": "t", "username": "ada", "password": CANARY}
_NATS = {"servers": f"nats://{_LOGIN}127.0.0.1:1", "subject": "s"}
_NATS_SERVER = {"servers": "nats://127.0.0.1:1", "subject": "s"}
_NATS_LOGINS = (
    {"auth.type": "credentials", "auth.username": "ada", "auth.password": CANARY},
    {"auth.type": "jwt", "auth.jwt": f"{CANARY}.jwt", "auth.nkey_seed": f"SU{CANARY}"},
)
_HTTP = {
    "endpoint": f"http://{_LOGIN}127.0.0.1:1/path?api_key={CANARY}",
    "headers": f"Authorization: Bearer {CANARY}, X-Api-Key: {CANARY}",
}
_SOCKET = {
    "endpoint": f"ws://{_LOGIN}127.0.0.1:1/path?token={CANARY}",
    "headers": f"X-Api-Key: {CANARY}",
    "format": "json",
}
_RABBIT = {"host": "127.0.0.1", "port": "1", "username": "ada", "password": CANARY, "format": "json"}
_POSTGRES = {"url": f"postgresql://{_LOGIN}127.0.0.1:1/shop?sslpassword={CANARY}", "table": "t"}
_POSTGRES_LOGIN = {
    "url": "postgresql://127.0.0.1:1/shop",
    "table": "t",
    "username": "ada",
    "password": CANARY,
}
_REDIS = {"address": f"redis://{_LOGIN}127.0.0.1:1/0"}
_REDIS_CLUSTER = {"cluster.addresses": f"redis://{_LOGIN}127.0.0.1:1"}
_REDIS_LOGIN = {"address": "redis://127.0.0.1:1", "username": "ada", "password": CANARY}
_TARGET = {"target": "string", "target.key_prefix": "k.", "target.key_column": "id"}
_ICEBERG = {
    "table_name": "t",
    "catalog.type": "rest",
    "catalog.rest.url": "http://127.0.0.1:1",
    "catalog.rest.token": CANARY,
    "storage.aws_secret_access_key": CANARY,
}

CASES: Mapping[tuple[Role, str], tuple[Mapping[str, Any], ...]] = {
    ("source", "confluent"): ({**_KAFKA, **_CONFLUENT},),
    ("source", "delta"): (_STORE,),
    ("source", "filesystem"): ({**_STORE, "format": "json"},),
    ("source", "kafka"): (_KAFKA, {**_KAFKA, **_SASL}),
    ("source", "mqtt"): ({**_MQTT, "format": "json"}, {"url": f"tcp://{_LOGIN}127.0.0.1:1", "topic": "t"}),
    ("source", "nats"): (_NATS, *({**_NATS_SERVER, **login} for login in _NATS_LOGINS)),
    ("source", "polling_http"): ({**_HTTP, "method": "POST", "body": CANARY, "format": "json"},),
    ("source", "postgres"): (_POSTGRES, _POSTGRES_LOGIN),
    ("source", "rabbitmq"): ({**_RABBIT, "queue": "q"},),
    ("source", "spark"): ({"format": "rate", "options": f"password={CANARY}"},),
    ("source", "sse"): ({**_HTTP, "format": "json"},),
    ("source", "websocket"): (
        {**_SOCKET, "subscription_message": CANARY},
        {**_SOCKET, "subscription_messages": [CANARY]},
    ),
    ("sink", "confluent"): ({**_KAFKA, **_CONFLUENT},),
    ("sink", "database"): (_POSTGRES, _POSTGRES_LOGIN),
    ("sink", "delta"): (_STORE,),
    ("sink", "filesystem"): ({**_STORE, "format": "json"},),
    ("sink", "iceberg"): (
        _ICEBERG,
        {
            "table_name": "t",
            "catalog.type": "sql",
            "catalog.url": f"postgresql://{_LOGIN}127.0.0.1:1/x",
            "catalog.settings": f"token={CANARY}",
        },
    ),
    ("sink", "kafka"): (_KAFKA, {**_KAFKA, **_SASL}),
    ("sink", "nats"): (_NATS, *({**_NATS_SERVER, **login} for login in _NATS_LOGINS)),
    ("sink", "mqtt"): (_MQTT, {"url": f"tcp://{_LOGIN}127.0.0.1:1", "topic": "t"}),
    ("sink", "postgres"): (_POSTGRES, _POSTGRES_LOGIN),
    ("sink", "rabbitmq"): ({**_RABBIT, "routing_key": "q"},),
    ("sink", "redis"): tuple({**login, **_TARGET} for login in (_REDIS, _REDIS_CLUSTER, _REDIS_LOGIN)),
    ("sink", "spark"): ({"format": "noop", "options": f"password={CANARY}"},),
    ("sink", "webhook"): (_HTTP,),
    ("sink", "websocket"): (
        {**_SOCKET, "subscription_message": CANARY},
        {**_SOCKET, "subscription_messages": [CANARY]},
    ),
    ("lookup", "postgres"): (_POSTGRES, _POSTGRES_LOGIN),
    ("lookup", "redis"): (_REDIS, _REDIS_CLUSTER, _REDIS_LOGIN),
}


def hidden_options() -> Iterator[tuple[Role, str, str]]:
    """Every option that is declared not to be shown: (role, connector, option)."""
    for role, connectors in BUILT_IN.items():
        for connector in connectors:
            for name, field in registry.options(role, connector).model_fields.items():
                if not field.repr:
                    yield role, connector, field.alias or name


@dataclass(frozen=True)
class Case:
    """A connector with a secret in every option of a case."""

    role: Role
    connector: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.role} {self.connector}: {', '.join(self.secret_names)}"

    @property
    def secret_names(self) -> list[str]:
        """The options that hold the canary."""
        return [name for name, value in self.options.items() if CANARY in str(value)]

    def written(self, *, changes: Mapping[str, Any] | None = None) -> str:
        """A program with the connector, an option a line, and a query that uses it."""
        given = {"connector": self.connector, "type": self.role, **self.options, **(changes or {})}
        options = ",\n  ".join(f"'{name}' = '{value}'" for name, value in given.items())
        columns = {"source": "id BIGINT, note TEXT", "lookup": "id TEXT PRIMARY KEY, note TEXT"}.get(
            self.role, "id BIGINT PRIMARY KEY, note TEXT"
        )
        if self.connector == "postgres":
            columns = "id BIGINT PRIMARY KEY, note TEXT"
        elif (self.role, self.connector) == ("lookup", "redis"):
            columns = "id TEXT METADATA FROM 'key' PRIMARY KEY, note TEXT"
        table = f"CREATE TABLE subject ({columns}) WITH (\n  {options}\n);\n"
        return f"{NUMBERS}{table}{QUERIES[self.role]}"


NUMBERS = """\
CREATE TABLE numbers WITH (connector = 'impulse', message_count = 3);
CREATE TABLE out (id BIGINT PRIMARY KEY, note TEXT) WITH (connector = 'blackhole');
"""
QUERIES: Mapping[Role, str] = {
    "source": "INSERT INTO out SELECT id, note FROM subject;",
    "sink": "INSERT INTO subject SELECT counter::BIGINT, 'x' FROM numbers;",
    "lookup": "SELECT s.note FROM numbers n LEFT JOIN subject s ON n.counter = s.id;",
}
ALL_CASES = [Case(*of, options) for of, several in CASES.items() for options in several]
