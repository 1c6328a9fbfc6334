"""The registry of connectors and operators: builds sources, operators, sinks and lookups by name.

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

from headrace.base.call_site import located
from headrace.base.errors import ConfigurationError, suggest
from headrace.base.options import Options, parse_options
from headrace.model.operator import ArrowOperator, Lookup, SourceOperator

Role = Literal["source", "operator", "sink", "lookup"]
ENTRY_POINTS = "headrace.operators"

BUILT_IN: Mapping[Role, Mapping[str, str]] = {
    "source": {
        "confluent": "headrace.connectors.kafka.source:ConfluentSource",
        "delta": "headrace.connectors.delta.source:DeltaSource",
        "filesystem": "headrace.connectors.filesystem.source:FileSystemSource",
        "impulse": "headrace.connectors.impulse:ImpulseSource",
        "kafka": "headrace.connectors.kafka.source:KafkaSource",
        "memory": "headrace.connectors.memory:MemorySource",
        "mqtt": "headrace.connectors.mqtt.source:MqttSource",
        "nats": "headrace.connectors.nats.source:NatsSource",
        "nexmark": "headrace.connectors.nexmark:NexmarkSource",
        "polling_http": "headrace.connectors.http.polling:PollingHttpSource",
        "postgres": "headrace.connectors.postgres.source:PostgresSource",
        "rabbitmq": "headrace.connectors.rabbitmq.source:RabbitSource",
        "single_file": "headrace.connectors.single_file.source:SingleFileSource",
        "spark": "headrace.connectors.spark:SparkSource",
        "sse": "headrace.connectors.http.sse:SseSource",
        "websocket": "headrace.connectors.http.websocket:WebSocketSource",
    },
    "operator": {
        "watermark": "headrace.operators.watermark:WatermarkGenerator",
    },
    "sink": {
        "blackhole": "headrace.connectors.blackhole:BlackholeSink",
        "confluent": "headrace.connectors.kafka.sink:ConfluentSink",
        "database": "headrace.connectors.database.sink:DatabaseSink",
        "delta": "headrace.connectors.delta.sink:DeltaSink",
        "filesystem": "headrace.connectors.filesystem.sink:FileSystemSink",
        "iceberg": "headrace.connectors.iceberg.sink:IcebergSink",
        "kafka": "headrace.connectors.kafka.sink:KafkaSink",
        "memory": "headrace.connectors.memory:MemorySink",
        "nats": "headrace.connectors.nats.sink:NatsSink",
        "mqtt": "headrace.connectors.mqtt.sink:MqttSink",
        "postgres": "headrace.connectors.postgres.sink:PostgresSink",
        "rabbitmq": "headrace.connectors.rabbitmq.sink:RabbitSink",
        "redis": "headrace.connectors.redis.sink:RedisSink",
        "single_file": "headrace.connectors.single_file.sink:SingleFileSink",
        "spark": "headrace.connectors.spark:SparkSink",
        "stdout": "headrace.connectors.stdout:StdoutSink",
        "webhook": "headrace.connectors.http.webhook:WebhookSink",
        "websocket": "headrace.connectors.http.websocket:WebSocketSink",
    },
    "lookup": {
        "postgres": "headrace.connectors.postgres.lookup:PostgresLookup",
        "redis": "headrace.connectors.redis.lookup:RedisLookup",
        "single_file": "headrace.connectors.single_file.lookup:SingleFileLookup",
    },
}

HIDDEN: Mapping[tuple[Role, str], str] = {
    ("sink", "preview"): "headrace.connectors.preview:PreviewSink",
}
"""Names for internal use, which are not listed."""


class Registry:
    """Maps names to constructors; an unknown name is an error that suggests similar ones.

    `hr.register` adds to the registry of the process, which pipelines use.

    >>> import headrace as hr
    >>> registry = hr.Registry()
    >>> registry.build("source", "impulse", {"message_count": "3"})
    ImpulseSource(message_count=3)
    >>> registry.build("source", "impulze", {})
    Traceback (most recent call last):
    headrace.base.errors.ConfigurationError: there is no source called `impulze`
      hint: did you mean `impulse`?
    """

    def __init__(self) -> None:
        self._registered: dict[tuple[Role, str], Any] = {}

    def __repr__(self) -> str:
        return f"Registry({', '.join(f'{role} {name}' for role, name in self._registered)})"

    @located
    def register(self, name: str, constructor: Any, *, role: Role = "operator") -> None:
        """Register `constructor` (a class with an inner `Options`) under `name`.

        Args:
            name: what pipelines call it.
            constructor: the class of an operator, a source or a sink, which takes its options.
            role: `operator`, `source`, `sink` or `lookup`.

        Raises:
            ConfigurationError: it has no options, or the name is taken.

        >>> import headrace as hr
        >>> class Twice(hr.ArrowOperator):
        ...     class Options(hr.Options):
        ...         times: int = 2
        ...     def __init__(self, options):
        ...         self.options = options
        ...     def process_batch(self, batch, ctx, collector):
        ...         for _ in range(self.options.times):
        ...             collector.collect(batch)
        >>> registry = hr.Registry()
        >>> registry.register("twice", Twice)
        >>> registry.build("operator", "twice", {"times": "3"}).options.times
        3
        """
        if str(role) not in BUILT_IN:
            raise ConfigurationError(
                f"`{role}` is not a role",
                hint=suggest(str(role), BUILT_IN, listing="the roles are"),
            )
        if name == "" or not isinstance(name, str):
            raise ConfigurationError(f"register takes the name of a {role}, got {name!r}")
        if not isinstance(getattr(constructor, "Options", None), type):
            raise ConfigurationError(
                f"`{getattr(constructor, '__name__', constructor)}` cannot be registered as `{name}`",
                hint="it needs an inner `class Options(headrace.Options)` and an __init__ that takes it",
            )
        reserved = name in BUILT_IN[role] or (role, name) in HIDDEN
        if reserved or self._registered.get((role, name), constructor) is not constructor:
            raise ConfigurationError(f"there is already a {role} called `{name}`")
        self._registered[role, name] = constructor

    def names(self, role: Role) -> list[str]:
        """Every registered name of this role.

        Args:
            role: `operator`, `source`, `sink` or `lookup`.

        Returns:
            The names in alphabetical order: built in, registered, and of installed packages.

        >>> import headrace as hr
        >>> "kafka" in hr.Registry().names("source")
        True
        """
        plugins = [point.name.partition(".")[2] for point in self._plugins(role)]
        own = [name for registered_role, name in self._registered if registered_role == role]
        return sorted({*BUILT_IN[role], *own, *plugins})

    def options(self, role: Role, name: str) -> type[Options]:
        """The options schema of a name.

        Args:
            role: `operator`, `source`, `sink` or `lookup`.
            name: the name of the connector or operator.

        Returns:
            The class of its options.

        Raises:
            ConfigurationError: there is no such name.

        >>> import headrace as hr
        >>> list(hr.Registry().options("sink", "memory").model_fields)
        ['name']
        """
        options: type[Options] = self.constructor(role, name).Options
        return options

    def build(self, role: Role, name: str, config: Mapping[str, Any]) -> ArrowOperator | SourceOperator:
        """Build the source, operator or sink `name` from its validated configuration.

        Args:
            role: `operator`, `source` or `sink`.
            name: the name of the connector or operator.
            config: its options; numbers and booleans may be strings, as in SQL.

        Returns:
            The source, operator or sink.

        Raises:
            ConfigurationError: there is no such name, or an option is wrong.

        >>> import headrace as hr
        >>> hr.Registry().build("sink", "memory", {"name": "rows"})
        MemorySink(name='rows')
        """
        built: ArrowOperator | SourceOperator = self._build(role, name, config)
        return built

    def build_lookup(self, name: str, config: Mapping[str, Any]) -> Lookup:
        """Build the lookup table `name` from its validated configuration.

        Args:
            name: the name of the connector.
            config: its options.

        Returns:
            The lookup table.

        Raises:
            ConfigurationError: there is no such name, or an option is wrong.

        >>> import headrace as hr, tempfile
        >>> path = tempfile.mkdtemp() + "/shops.json"
        >>> config = {"path": path, "schema": {"id": "int64"}, "primary_key": "id", "format": "json"}
        >>> hr.Registry().build_lookup("single_file", config).key
        'id'
        """
        built: Lookup = self._build("lookup", name, config)
        return built

    def _build(self, role: Role, name: str, config: Mapping[str, Any]) -> Any:
        constructor = self.constructor(role, name)
        return constructor(parse_options(constructor.Options, config, what=f"{role} `{name}`"))

    def constructor(self, role: Role, name: str) -> Any:
        """The class behind a name.

        Args:
            role: `operator`, `source`, `sink` or `lookup`.
            name: the name of the connector or operator.

        Returns:
            The class, imported if need be.

        Raises:
            ConfigurationError: there is no such name.

        >>> import headrace as hr
        >>> hr.Registry().constructor("source", "memory") is hr.MemorySource
        True
        """
        if (role, name) in self._registered:
            return self._registered[role, name]
        path = BUILT_IN[role].get(name) or HIDDEN.get((role, name))
        if path is not None:
            module, _, attribute = path.partition(":")
            return getattr(importlib.import_module(module), attribute)
        for point in self._plugins(role):
            if point.name == f"{role}.{name}":
                return point.load()
        other_roles = [other for other in BUILT_IN if other != role and name in self.names(other)]
        hint = suggest(name, self.names(role), listing=f"the {role}s are")
        if other_roles:
            hint = f"`{name}` is a {other_roles[0]}, not a {role}"
        raise ConfigurationError(f"there is no {role} called `{name}`", hint=hint)

    @staticmethod
    def _plugins(role: Role) -> list[Any]:
        return [p for p in _entry_points(tuple(sys.path)) if p.name.startswith(f"{role}.")]


@functools.lru_cache(maxsize=4)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001 - what is found depends on it
    """The entry points of the packages on the path; cached, since scanning them is slow."""
    return tuple(entry_points(group=ENTRY_POINTS))


registry = Registry()
"""The registry of this process."""

register = registry.register
"""`headrace.register(name, constructor, role=…)`: name an operator, a source or a sink of your own."""
