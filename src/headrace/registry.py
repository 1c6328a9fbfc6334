"""Names for operators: a string and a validated configuration build a source, an operator or a sink.

Built-in names are import paths, resolved when they are used. User modules register by an explicit
`headrace.register(...)`, or by an entry point in the group `headrace.operators`, named by role and name:

    [project.entry-points."headrace.operators"]
    "source.tides" = "my_package.tides:TideSource"
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from headrace.errors import ConfigurationError, near
from headrace.operator import ArrowOperator, Lookup, SourceOperator
from headrace.options import Options, parse_options

Role = Literal["source", "operator", "sink", "lookup"]
ENTRY_POINTS = "headrace.operators"

BUILT_IN: Mapping[Role, Mapping[str, str]] = {
    "source": {
        "confluent": "headrace.connectors.kafka_source:ConfluentSource",
        "delta": "headrace.connectors.delta_source:DeltaSource",
        "filesystem": "headrace.connectors.filesystem_source:FileSystemSource",
        "impulse": "headrace.connectors.impulse:ImpulseSource",
        "kafka": "headrace.connectors.kafka_source:KafkaSource",
        "memory": "headrace.connectors.memory:MemorySource",
        "mqtt": "headrace.connectors.mqtt_source:MqttSource",
        "nats": "headrace.connectors.nats_source:NatsSource",
        "nexmark": "headrace.connectors.nexmark:NexmarkSource",
        "polling_http": "headrace.connectors.polling_http:PollingHttpSource",
        "postgres": "headrace.connectors.postgres_source:PostgresSource",
        "rabbitmq": "headrace.connectors.rabbitmq_source:RabbitSource",
        "single_file": "headrace.connectors.single_file:SingleFileSource",
        "spark": "headrace.spark.connector:SparkSource",
        "sse": "headrace.connectors.sse:SseSource",
        "websocket": "headrace.connectors.websocket:WebSocketSource",
    },
    "operator": {
        "watermark": "headrace.operators.watermark:WatermarkGenerator",
    },
    "sink": {
        "blackhole": "headrace.connectors.blackhole:BlackholeSink",
        "confluent": "headrace.connectors.kafka_sink:ConfluentSink",
        "database": "headrace.connectors.database:DatabaseSink",
        "delta": "headrace.connectors.delta:DeltaSink",
        "filesystem": "headrace.connectors.filesystem_sink:FileSystemSink",
        "iceberg": "headrace.connectors.iceberg:IcebergSink",
        "kafka": "headrace.connectors.kafka_sink:KafkaSink",
        "memory": "headrace.connectors.memory:MemorySink",
        "nats": "headrace.connectors.nats_sink:NatsSink",
        "mqtt": "headrace.connectors.mqtt_sink:MqttSink",
        "postgres": "headrace.connectors.postgres_sink:PostgresSink",
        "rabbitmq": "headrace.connectors.rabbitmq_sink:RabbitSink",
        "redis": "headrace.connectors.redis_sink:RedisSink",
        "single_file": "headrace.connectors.single_file:SingleFileSink",
        "spark": "headrace.spark.connector:SparkSink",
        "stdout": "headrace.connectors.stdout:StdoutSink",
        "webhook": "headrace.connectors.webhook:WebhookSink",
        "websocket": "headrace.connectors.websocket:WebSocketSink",
    },
    "lookup": {
        "postgres": "headrace.connectors.postgres_lookup:PostgresLookup",
        "redis": "headrace.connectors.redis:RedisLookup",
        "single_file": "headrace.connectors.lookup_file:SingleFileLookup",
    },
}

HIDDEN: Mapping[tuple[Role, str], str] = {
    ("sink", "preview"): "headrace.connectors.preview:PreviewSink",
}
"""Names that the product itself uses and nobody is offered."""


class Registry:
    """Maps names to constructors; lookups fail with the near names."""

    def __init__(self) -> None:
        self._registered: dict[tuple[Role, str], Any] = {}

    def register(self, name: str, constructor: Any, *, role: Role = "operator") -> None:
        """Make `constructor` (a class with an inner `Options`) known under `name`."""
        if role not in BUILT_IN:
            raise ConfigurationError(
                f"`{role}` is not a role", hint=near(role, BUILT_IN) or f"the roles are {', '.join(BUILT_IN)}"
            )
        if not isinstance(getattr(constructor, "Options", None), type):
            raise ConfigurationError(
                f"`{getattr(constructor, '__name__', constructor)}` cannot be registered as `{name}`",
                hint="it needs an inner `class Options(headrace.Options)` and an __init__ that takes it",
            )
        taken = name in BUILT_IN[role] or (role, name) in HIDDEN
        if taken or self._registered.get((role, name), constructor) is not constructor:
            raise ConfigurationError(f"there is already a {role} called `{name}`")
        self._registered[role, name] = constructor

    def names(self, role: Role) -> list[str]:
        """Every name known for this role."""
        plugins = [point.name.partition(".")[2] for point in self._plugins(role)]
        own = [name for known, name in self._registered if known == role]
        return sorted({*BUILT_IN[role], *own, *plugins})

    def options(self, role: Role, name: str) -> type[Options]:
        """The options schema of a name."""
        options: type[Options] = self.constructor(role, name).Options
        return options

    def build(self, role: Role, name: str, config: Mapping[str, Any]) -> ArrowOperator | SourceOperator:
        """Build what `name` stands for from its validated configuration."""
        built: ArrowOperator | SourceOperator = self._build(role, name, config)
        return built

    def build_lookup(self, name: str, config: Mapping[str, Any]) -> Lookup:
        """Build the lookup table that `name` stands for from its validated configuration."""
        built: Lookup = self._build("lookup", name, config)
        return built

    def _build(self, role: Role, name: str, config: Mapping[str, Any]) -> Any:
        constructor = self.constructor(role, name)
        return constructor(parse_options(constructor.Options, config, what=f"{role} `{name}`"))

    def constructor(self, role: Role, name: str) -> Any:
        """The class behind a name."""
        if (role, name) in self._registered:
            return self._registered[role, name]
        place = BUILT_IN[role].get(name) or HIDDEN.get((role, name))
        if place is not None:
            module, _, attribute = place.partition(":")
            return getattr(importlib.import_module(module), attribute)
        for point in self._plugins(role):
            if point.name == f"{role}.{name}":
                return point.load()
        others = [other for other in BUILT_IN if other != role and name in self.names(other)]
        hint = near(name, self.names(role))
        if others:
            hint = f"`{name}` is a {others[0]}, not a {role}"
        raise ConfigurationError(
            f"there is no {role} called `{name}`",
            hint=hint or f"the {role}s are {', '.join(self.names(role))}",
        )

    @staticmethod
    def _plugins(role: Role) -> list[Any]:
        return [p for p in _entry_points(tuple(sys.path)) if p.name.startswith(f"{role}.")]


@functools.lru_cache(maxsize=4)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001 - what is found depends on it
    """The entry points of the packages on the path; looking through them takes long."""
    return tuple(entry_points(group=ENTRY_POINTS))


registry = Registry()
"""The registry of this process."""

register = registry.register
"""`headrace.register(name, constructor, role=…)`: name an operator, a source or a sink of your own."""
