"""The Kafka client that the source and the sink share: login, connections, metadata requests, errors."""

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
from headrace.base.waits import current_waits
from headrace.connectors.base import Connector
from headrace.formats.options import FormatOptions
from headrace.formats.registry.client import RegistryOptions, SchemaRegistry

FIRST_CONTACT_SECONDS = 10
"""How long to wait for a cluster that never answered: its address may be wrong."""

PATIENCE_SECONDS = 30
"""How long to wait for a cluster that answered before: brokers restart."""

_GROUP_SECONDS = 5
_BACKOFF = Backoff(first=0.1, factor=1.0)
_IDLE_CLIENTS = 16
_TRANSIENT = {
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
_UNKNOWN_TOPIC = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
_REFUSALS = {"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}
_LOST_DURING_LOGIN = "mechanism handshake failed: Local: "
"""The text of an `_AUTHENTICATION` error when the broker disconnected during the handshake: no refusal."""

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
"""Settings of the client that Headrace sets itself, and the option to use instead."""


ClientSettings = Annotated[
    dict[str, str],
    BeforeValidator(read_settings),
    PlainSerializer(
        lambda settings: dict.fromkeys(settings, "***"), return_type=dict[str, str], when_used="json"
    ),
]
"""An option that takes settings as a mapping or as `name=value,name=value`; values may be secrets."""


class TopicOptions(RegistryOptions, FormatOptions):
    """A Kafka topic and the format of its messages."""

    bootstrap_servers: str = Field(
        min_length=1,
        description="Brokers to connect to first, comma-separated, such as `host:9092,other:9092`.",
    )
    topic: str = Field(min_length=1, description="The topic to read or to write.")
    client_configs: ClientSettings = Field(
        default={},
        repr=False,
        description="Further settings of the client (librdkafka), as `name=value,name=value`.",
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
        """The schema registry for the topic's messages."""
        return self.registry_for(self.topic)

    def login(self) -> Settings:
        """Return the client settings for the login."""
        return {}

    def settings(self) -> Settings:
        """Return the settings that every client of this topic has."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "headrace",
            "log_level": 2,  # errors are told where they matter; librdkafka would print them
            **self.login(),
            **self.client_configs,
        }


class LoginOptions(DeclaredOptions):
    """The login options of `kafka`."""

    auth_type: Literal["none", "sasl", "aws_msk_iam"] = Field(
        "none", alias="auth.type", description="How to log in: `none`, or `sasl` with user and password."
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
        None, alias="auth.region", description="For aws_msk_iam, which is not supported."
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
        """Return the client settings for the login."""
        if self.auth_type == "none":
            return {}
        return {
            "security.protocol": self.auth_protocol,
            "sasl.mechanism": self.auth_mechanism,
            "sasl.username": self.auth_username,
            "sasl.password": self.auth_password,
        }


class CloudLoginOptions(DeclaredOptions):
    """The login options of `confluent`."""

    key: Secret = Field(min_length=1, repr=False, description="The API key of the cluster.")
    secret: Secret = Field(min_length=1, repr=False, description="The secret of the API key.")

    def login(self) -> Settings:
        """Return the client settings for the login."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.key,
            "sasl.password": self.secret,
        }


class KafkaConnector(Connector):
    """What a Kafka source and a Kafka sink share: the connection to the cluster."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.cluster = Cluster(self.options.bootstrap_servers, self.options.settings())

    def validate(self) -> None:
        """Raise an error if the client's package is missing or its settings are not valid."""
        self.cluster.check_settings()

    def reach(self) -> str:
        """Connect, and return a line with the number of partitions of the topic."""
        topic = self.options.topic
        count = len(self.cluster.partitions(topic, patience=FIRST_CONTACT_SECONDS, once=True))
        if self.options.names_schemas and (registry := self.options.registry()) is not None:
            registry.reach()
        return f"Kafka at {self.cluster.servers}, topic {topic} with {count} partition{'s' * (count != 1)}"

    def display(self) -> str:
        """Return the topic and the brokers, without secrets."""
        return f"{type(self).__name__}({self.options.topic} at {self.cluster.servers})"


class Cluster:
    """Clients for a Kafka cluster, and requests for its metadata. It pickles.

    Every failure is an ExternalError with the address of the brokers.
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

    def partitions(self, topic: str, *, patience: float | None = None, once: bool = False) -> list[int]:
        """Return the partitions that a topic has now; `once` raises if no broker could be connected to."""
        client = load_client()
        answers = self._ask(
            lambda admin, seconds: admin.describe_topics(
                client.TopicCollection([topic]), request_timeout=seconds
            ),
            topic,
            patience,
            once=once,
        )
        return sorted(partition.id for partition in answers[topic].partitions)

    def creates_topics(self) -> bool:
        """Whether the brokers create a topic that is written to; also True if they do not tell."""
        client = load_client()
        try:
            with self.borrow("AdminClient") as (admin, _):
                brokers = admin.describe_cluster(request_timeout=_GROUP_SECONDS).result().nodes
                broker = client.admin.ConfigResource("broker", str(brokers[0].id))
                answers = admin.describe_configs([broker], request_timeout=_GROUP_SECONDS)
                return bool(answers[broker].result()["auto.create.topics.enable"].value == "true")
        except (client.KafkaException, KeyError, IndexError):
            return True

    def offsets(
        self, topic: str, partitions: Sequence[int], *, at: Literal["earliest", "latest"], committed: bool
    ) -> dict[int, int]:
        """Return the first or the end offset of each partition; `committed` excludes open transactions.

        The partitions exist, so a broker that does not know them yet is asked again.
        """
        if not partitions:
            return {}
        client = load_client()
        specs = client.admin.OffsetSpec
        spec = specs.earliest() if at == "earliest" else specs.latest()
        request = {client.TopicPartition(topic, partition): spec for partition in partitions}
        levels = client.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        answers = self._ask(
            lambda admin, seconds: admin.list_offsets(
                request, isolation_level=level, request_timeout=seconds
            ),
            topic,
            also_transient=_UNKNOWN_TOPIC,
        )
        return {partition.partition: answer.offset for partition, answer in answers.items()}

    def group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the committed offsets of a consumer group, without partitions that have none."""
        if not partitions:
            return {}
        client = load_client()
        positions = [client.TopicPartition(topic, partition) for partition in partitions]
        request = [client.ConsumerGroupTopicPartitions(group, positions)]
        answers = self._ask(
            lambda admin, seconds: admin.list_consumer_group_offsets(request, request_timeout=seconds), topic
        )
        positions = answers[group].topic_partitions
        problems = [position.error for position in positions if position.error is not None]
        if problems:
            raise self.failure(problems[0], topic)
        return {position.partition: position.offset for position in positions if position.offset >= 0}

    def commit_group(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets for a consumer group."""
        client = load_client()
        positions = [client.TopicPartition(topic, *position) for position in offsets.items()]
        request = [client.ConsumerGroupTopicPartitions(group, positions)]
        self._ask(
            lambda admin, seconds: admin.alter_consumer_group_offsets(request, request_timeout=seconds),
            topic,
            _GROUP_SECONDS,
        )

    def _ask(
        self,
        request: Callable[[Any, float], Mapping[Any, Any]],
        topic: str,
        patience: float | None = None,
        also_transient: Collection[str] = (),
        *,
        once: bool = False,
    ) -> dict[Any, Any]:
        client = load_client()
        deadline = time.monotonic() + (PATIENCE_SECONDS if patience is None else patience)

        def attempt() -> dict[Any, Any]:
            # The client drops answers for a mapping that nobody holds.
            futures = request(admin, max(1.0, deadline - time.monotonic()))
            while wait(futures.values(), timeout=0.05).not_done:
                admin.poll(0)
                trouble.check(self, topic)
                if once and trouble.all_down:
                    raise self.silence(trouble)
            return {key: future.result() for key, future in futures.items()}

        def is_worth_retrying(error: Exception) -> bool:
            # A request itself may last until the deadline.
            if not isinstance(error, client.KafkaException) or time.monotonic() >= deadline:
                return False
            return is_transient(error.args[0]) or error.args[0].name() in also_transient

        with self.borrow("AdminClient") as (admin, trouble):
            try:
                return with_retry(attempt, is_transient=is_worth_retrying, backoff=_BACKOFF)
            except client.KafkaException as error:
                raise self.failure(error.args[0], topic, trouble) from None

    @contextmanager
    def connect(self, kind: str, settings: Settings) -> Iterator[tuple[Any, Trouble]]:
        """Yield a new client and its error callback, and close the client after the block."""
        client, trouble = _connect(kind, {**self._settings, **settings})
        try:
            yield client, trouble
            self._note_answer()
        finally:
            _close(client)

    @contextmanager
    def borrow(self, kind: str, settings: Settings | None = None) -> Iterator[tuple[Any, Trouble]]:
        """Yield a client like `connect` does, but keep it connected for the next caller in this process.

        Connecting takes longer than most work. A client whose block raised is not used again.
        """
        client_settings = {**self._settings, **(settings or {})}
        key = (os.getpid(), kind, *sorted((name, str(value)) for name, value in client_settings.items()))
        idle = _IDLE.pop(key, None)
        client, trouble = idle or _connect(kind, client_settings)
        trouble.reset()
        try:
            yield client, trouble
            self._note_answer()
        except BaseException:
            _close(client)
            raise
        if key in _IDLE:
            _close(client)
        else:
            _IDLE[key] = client, trouble
        while len(_IDLE) > _IDLE_CLIENTS:
            _close(_IDLE.popitem(last=False)[1][0])

    @property
    def name(self) -> str:
        """The cluster, for messages."""
        return f"Kafka at {self.servers}"

    def _note_answer(self) -> None:
        if (waits := current_waits()) is not None:
            waits.answered(self.name)

    def failure(self, problem: Any, topic: str, trouble: Trouble | None = None) -> ExternalError:
        """Return an error of the client as an ExternalError with a hint."""
        name, text = problem.name(), problem.str()
        if name in _UNKNOWN_TOPIC:
            message = f"Kafka at {self.servers} has no topic `{topic}`, or no longer all of its partitions"
            return UnknownTopicError(
                message, hint="create the topic, or correct the option `topic`", where="kafka"
            )
        if refuses(problem):
            message = f"Kafka at {self.servers} refuses access to topic `{topic}`: {text}"
            return RefusedError(message, hint="check the user, the password and the rights", where="kafka")
        if name in {"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_RESOLVE"}:
            return self.silence(trouble, text)
        return ExternalError(f"Kafka at {self.servers}, topic `{topic}`: {text}", where="kafka")

    def silence(self, trouble: Trouble | None, text: str = "no message came") -> ExternalError:
        """Return the error for brokers that do not answer; `text` is used if the client reported no cause."""
        if trouble is not None and trouble.last is not None:
            text = trouble.last.str()
        message = f"Kafka at {self.servers} does not answer: {text}"
        hint = "check `bootstrap_servers`, that the brokers run, and whether they ask for a login or TLS"
        return ExternalError(message, hint=hint, where="kafka")


class UnknownTopicError(ExternalError):
    """The cluster answers, and does not have the topic."""


class Trouble:
    """The last error that a client reported. The client retries by itself, so this alone is no failure."""

    def __init__(self) -> None:
        self.last: Any = None
        self.all_down = False
        """Whether no broker could be connected to."""
        self.undelivered: Any = None
        """Why the first message that a producer has given up was not delivered."""

    def __call__(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self.all_down = True
        if self.last is None or error.name() != "_ALL_BROKERS_DOWN":  # which does not say why
            self.last = error

    def reset(self) -> None:
        """Forget the errors so far."""
        self.last, self.all_down, self.undelivered = None, False, None

    def check(self, cluster: Cluster, topic: str) -> None:
        """Raise an ExternalError if retrying cannot help, or the run stops; note what is waited for."""
        if self.last is not None and refuses(self.last):
            raise cluster.failure(self.last, topic)
        waits = current_waits() if self.all_down else None
        if waits is not None:
            waits.failed(cluster.name, self.last.str())
            if waits.is_stopping:
                raise cluster.silence(self)


_IDLE: OrderedDict[tuple[Any, ...], tuple[Any, Trouble]] = OrderedDict()


def _connect(kind: str, settings: Settings) -> tuple[Any, Trouble]:
    client, trouble = load_client(), Trouble()
    client_settings = {**settings, "error_cb": trouble}
    module = client.admin if kind == "AdminClient" else client
    return getattr(module, kind)(client_settings), trouble


def _close(client: Any) -> None:
    if hasattr(client, "purge"):  # a producer would wait for what it has not sent
        client.purge()
    elif hasattr(client, "close"):
        client.close()


def refuses(problem: Any) -> bool:
    """Whether the cluster refused the user, the password, the certificate or access to the topic."""
    return problem.name() in _REFUSALS and _LOST_DURING_LOGIN not in problem.str()


def is_transient(problem: Any) -> bool:
    """Whether retrying can help: the topic is new, or brokers restart."""
    return problem.retriable() or problem.name() in _TRANSIENT


def load_client() -> Any:
    """Import the client's package; raises a MissingExtraError if it is not installed."""
    return load_extra(
        "confluent_kafka",
        feature="the connector `kafka`",
        extra="kafka",
        package="confluent-kafka",
        submodules=["admin"],
    )
