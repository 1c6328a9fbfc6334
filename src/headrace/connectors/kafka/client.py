"""What the source and the sink of `kafka` share: how a cluster is reached, and what it is asked."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Options as DeclaredOptions
from headrace.base.options import Secret, read_settings
from headrace.base.retry import Backoff, with_retry
from headrace.connectors.base import Connector
from headrace.formats.options import FormatOptions
from headrace.formats.registry.client import RegistryOptions, SchemaRegistry

FIRST_CONTACT_SECONDS = 10
"""How long a cluster that never answered is waited for: its address may be wrong."""

PATIENCE_SECONDS = 30
"""How long a cluster that did answer is waited for: brokers restart."""

_GROUP_SECONDS = 5
_BACKOFF = Backoff(first=0.1, factor=1.0)
_IDLE_CLIENTS = 16
_PASSING = {
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_TIMED_OUT",
    "_TRANSPORT",
    "BROKER_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_COORDINATOR",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "UNKNOWN_LEADER_EPOCH",
    "UNSTABLE_OFFSET_COMMIT",
}
_UNKNOWN = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
_FATAL = {"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}
_LOST_ON_THE_WAY_IN = "mechanism handshake failed: Local: "
"""What the client says with `_AUTHENTICATION` of a broker that went away before it had answered."""

Settings = Mapping[str, Any]

OWN_SETTINGS: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "enable.auto.commit": "source.group_id",
    "enable.partition.eof": "source.bounded",
    "group.id": "source.group_id",
    "isolation.level": "source.read_mode",
    "auto.offset.reset": "source.offset",
    "transactional.id": "sink.commit_mode",
    "enable.idempotence": "sink.commit_mode",
    "delivery.report.only.error": "sink.commit_mode",
}
"""Settings of the client that are not free, and the option that decides them."""


ClientSettings = Annotated[
    dict[str, str],
    BeforeValidator(read_settings),
    PlainSerializer(lambda given: dict.fromkeys(given, "***"), return_type=dict[str, str], when_used="json"),
]
"""An option that takes settings as a mapping or as `name=value,name=value`; values may be secrets."""


class TopicOptions(RegistryOptions, FormatOptions):
    """A topic of a cluster, and how its messages are written."""

    bootstrap_servers: str = Field(
        min_length=1, description="Some brokers of the cluster, such as `host:9092,other:9092`."
    )
    topic: str = Field(min_length=1, description="The topic to read or to write.")
    client_configs: ClientSettings = Field(
        default={},
        repr=False,
        description="More settings of the client, librdkafka, as `name=value,name=value`.",
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        for name in self.client_configs:
            if name in OWN_SETTINGS:
                raise ValueError(
                    f"`client_configs` may not set `{name}`: see the option `{OWN_SETTINGS[name]}`"
                )
        return self

    def registry(self) -> SchemaRegistry | None:
        """The registry with the schemas of the topic's messages."""
        return self.registry_for(self.topic)

    def login(self) -> Settings:
        """The settings that tell the cluster who asks."""
        return {}

    def settings(self) -> Settings:
        """The settings of every client."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "headrace",
            "log_level": 2,  # errors are told where they matter; librdkafka would print them
            **self.login(),
            **self.client_configs,
        }


class LoginOptions(DeclaredOptions):
    """Who asks, in the words of `kafka`."""

    auth_type: Literal["none", "sasl", "aws_msk_iam"] = Field(
        "none", alias="auth.type", description="How to log in: `none`, or `sasl` with name and password."
    )
    auth_mechanism: str | None = Field(
        None, alias="auth.mechanism", description="With sasl: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."
    )
    auth_protocol: str | None = Field(
        None, alias="auth.protocol", description="With sasl: SASL_SSL or SASL_PLAINTEXT."
    )
    auth_username: str | None = Field(None, alias="auth.username", description="With sasl: the user.")
    auth_password: Secret | None = Field(
        None, repr=False, alias="auth.password", description="With sasl: the password."
    )
    auth_region: str | None = Field(
        None, alias="auth.region", description="Of aws_msk_iam, which is refused."
    )

    @model_validator(mode="after")
    def _can_log_in(self) -> Self:
        if self.auth_type == "aws_msk_iam":
            raise ValueError("`auth.type` = 'aws_msk_iam' is not supported: use `sasl` with SCRAM-SHA-512")
        details = {
            "auth.mechanism": self.auth_mechanism,
            "auth.protocol": self.auth_protocol,
            "auth.username": self.auth_username,
            "auth.password": self.auth_password,
        }
        for name, value in details.items():
            if self.auth_type == "sasl" and not value:
                raise ValueError(f"`auth.type` = 'sasl' needs `{name}`")
            if self.auth_type == "none" and value:
                raise ValueError(f"`{name}` needs `auth.type` = 'sasl'")
        return self

    def login(self) -> Settings:
        """The settings that tell the cluster who asks."""
        if self.auth_type == "none":
            return {}
        return {
            "security.protocol": self.auth_protocol,
            "sasl.mechanism": self.auth_mechanism,
            "sasl.username": self.auth_username,
            "sasl.password": self.auth_password,
        }


class CloudLoginOptions(DeclaredOptions):
    """Who asks, in the words of `confluent`."""

    key: Secret = Field(min_length=1, repr=False, description="The API key of the cluster.")
    secret: Secret = Field(min_length=1, repr=False, description="The secret of the API key.")

    def login(self) -> Settings:
        """The settings that tell the cluster who asks."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.key,
            "sasl.password": self.secret,
        }


class KafkaConnector(Connector):
    """The half of a source or sink of Kafka that knows its cluster."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.cluster = Cluster(self.options.bootstrap_servers, self.options.settings())

    def validate(self) -> None:
        """Refuse to start without the client's package, or with settings that it does not know."""
        self.cluster.check_settings()

    def reach(self) -> str:
        """How many partitions the topic has."""
        topic = self.options.topic
        found = len(self.cluster.partitions(topic, patience=FIRST_CONTACT_SECONDS))
        return f"Kafka at {self.cluster.servers}, topic {topic} with {found} partition{'s' * (found != 1)}"

    def display(self) -> str:
        """The topic and the brokers; nothing that may be a secret."""
        return f"{type(self).__name__}({self.options.topic} at {self.cluster.servers})"


class Cluster:
    """A cluster: clients for it, and what can be asked of it without reading. It pickles.

    Whatever goes wrong is an ExternalError with the address of the brokers.
    """

    def __init__(self, servers: str, settings: Settings) -> None:
        self.servers = servers
        self._settings = settings

    def check_settings(self) -> None:
        """Raise a ConfigurationError for settings that the client does not know."""
        client = load_client()
        try:
            client.Consumer({**self._settings, "group.id": "headrace"}).close()
        except client.KafkaException as error:
            raise ConfigurationError(
                f"the settings of the Kafka client are not valid: {error.args[0].str()}",
                hint="correct the option `client_configs`, or those of `auth`",
            ) from None

    def partitions(self, topic: str, *, patience: float | None = None) -> list[int]:
        """The partitions that a topic has now."""
        client = load_client()
        found = self._ask(
            lambda admin, seconds: admin.describe_topics(
                client.TopicCollection([topic]), request_timeout=seconds
            ),
            topic,
            patience,
        )
        return sorted(partition.id for partition in found[topic].partitions)

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at: Literal["earliest", "latest"], committed: bool
    ) -> dict[int, int]:
        """Where each partition begins or ends; `committed` counts no transaction that is still open.

        The partitions are there: a broker that does not know them has not yet heard of them.
        """
        if not partitions:
            return {}
        client = load_client()
        specs = client.admin.OffsetSpec
        spec = specs.earliest() if at == "earliest" else specs.latest()
        wanted = {client.TopicPartition(topic, partition): spec for partition in partitions}
        levels = client.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        found = self._ask(
            lambda admin, seconds: admin.list_offsets(wanted, isolation_level=level, request_timeout=seconds),
            topic,
            passing=_UNKNOWN,
        )
        return {one.partition: answer.offset for one, answer in found.items()}

    def group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Where a consumer group stands; partitions that it has not read are left out."""
        if not partitions:
            return {}
        client = load_client()
        places = [client.TopicPartition(topic, partition) for partition in partitions]
        asked = [client.ConsumerGroupTopicPartitions(group, places)]
        found = self._ask(
            lambda admin, seconds: admin.list_consumer_group_offsets(asked, request_timeout=seconds), topic
        )
        places = found[group].topic_partitions
        problems = [one.error for one in places if one.error is not None]
        if problems:
            raise self.failure(problems[0], topic)
        return {one.partition: one.offset for one in places if one.offset >= 0}

    def commit_group(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Let a consumer group stand at these offsets."""
        client = load_client()
        places = [client.TopicPartition(topic, *place) for place in offsets.items()]
        asked = [client.ConsumerGroupTopicPartitions(group, places)]
        self._ask(
            lambda admin, seconds: admin.alter_consumer_group_offsets(asked, request_timeout=seconds),
            topic,
            _GROUP_SECONDS,
        )

    def _ask(
        self,
        request: Callable[[Any, float], Mapping[Any, Any]],
        topic: str,
        patience: float | None = None,
        passing: Collection[str] = (),
    ) -> dict[Any, Any]:
        client = load_client()
        deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)

        def attempt() -> dict[Any, Any]:
            # The client drops answers for a mapping that nobody holds.
            futures = request(admin, max(1.0, deadline - time.monotonic()))
            while wait(futures.values(), timeout=0.05).not_done:
                admin.poll(0)
                trouble.check(self, topic)
            return {key: future.result() for key, future in futures.items()}

        def is_worth_retrying(error: Exception) -> bool:
            # A request itself may last until the deadline.
            if not isinstance(error, client.KafkaException) or time.monotonic() >= deadline:
                return False
            return is_transient(error.args[0]) or error.args[0].name() in passing

        with self.borrow("AdminClient") as (admin, trouble):
            try:
                return with_retry(attempt, is_transient=is_worth_retrying, backoff=_BACKOFF)
            except client.KafkaException as error:
                raise self.failure(error.args[0], topic, trouble) from None

    @contextmanager
    def connect(self, kind: str, settings: Settings) -> Iterator[tuple[Any, Trouble]]:
        """A new client with more settings, for as long as the block lasts, and what it complains about."""
        held = _connect(kind, {**self._settings, **settings})
        try:
            yield held
        finally:
            _close(held[0])

    @contextmanager
    def borrow(self, kind: str, settings: Settings | None = None) -> Iterator[tuple[Any, Trouble]]:
        """A client as `connect` gives it, that stays connected for the next block in this process.

        Connecting takes longer than most work. A client whose block raised is not used again.
        """
        given = {**self._settings, **(settings or {})}
        key = (os.getpid(), kind, *sorted((name, str(value)) for name, value in given.items()))
        held = _IDLE.pop(key, None) or _connect(kind, given)
        held[1].last = None
        try:
            yield held
        except BaseException:
            _close(held[0])
            raise
        if key in _IDLE:
            _close(held[0])
        else:
            _IDLE[key] = held
        while len(_IDLE) > _IDLE_CLIENTS:
            _close(_IDLE.popitem(last=False)[1][0])

    def failure(self, problem: Any, topic: str, trouble: Trouble | None = None) -> ExternalError:
        """What a person can make of an error of the client."""
        name, text = problem.name(), problem.str()
        if name in _UNKNOWN:
            message = f"Kafka at {self.servers} has no topic `{topic}`, or no longer all of its partitions"
            return ExternalError(
                message, hint="create the topic, or correct the option `topic`", where="kafka"
            )
        if refuses(problem):
            message = f"Kafka at {self.servers} refuses access to topic `{topic}`: {text}"
            return RefusedError(message, hint="check the user, the password and the rights", where="kafka")
        if name in {"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_RESOLVE"}:
            return self.silence(trouble, text)
        return ExternalError(f"Kafka at {self.servers}, topic `{topic}`: {text}", where="kafka")

    def silence(self, trouble: Trouble | None, text: str = "no message came") -> ExternalError:
        """No broker answers; `text` is said if the client has not told why."""
        if trouble is not None and trouble.last is not None:
            text = trouble.last.str()
        message = f"Kafka at {self.servers} does not answer: {text}"
        hint = "check `bootstrap_servers`, that the brokers run, and whether they ask for a login or TLS"
        return ExternalError(message, hint=hint, where="kafka")


class Trouble:
    """The last thing a client complained about. It goes on trying, so that alone is no failure."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, error: Any) -> None:
        self.last = error

    def check(self, cluster: Cluster, topic: str) -> None:
        """Raise if trying again cannot help."""
        if self.last is not None and refuses(self.last):
            raise cluster.failure(self.last, topic)


_IDLE: OrderedDict[tuple[Any, ...], tuple[Any, Trouble]] = OrderedDict()


def _connect(kind: str, settings: Settings) -> tuple[Any, Trouble]:
    client, trouble = load_client(), Trouble()
    given = {**settings, "error_cb": trouble}
    place = client.admin if kind == "AdminClient" else client
    return getattr(place, kind)(given), trouble


def _close(held: Any) -> None:
    if hasattr(held, "purge"):  # a producer would wait for what it has not sent
        held.purge()
    elif hasattr(held, "close"):
        held.close()


def refuses(problem: Any) -> bool:
    """Whether an error of the client is a cluster's no: to the user, the password, a certificate, a topic."""
    return problem.name() in _FATAL and _LOST_ON_THE_WAY_IN not in problem.str()


def is_transient(problem: Any) -> bool:
    """Whether an error of the client is one of a cluster that changes: a new topic, brokers that restart."""
    return problem.retriable() or problem.name() in _PASSING


def load_client() -> Any:
    """The package of the client; raises a MissingExtraError if it is not installed."""
    return load_extra(
        "confluent_kafka",
        feature="the connector `kafka`",
        extra="kafka",
        package="confluent-kafka",
        submodules=["admin"],
    )
