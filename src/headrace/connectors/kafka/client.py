"""The Kafka client that the source and the sink share: connections, metadata requests, errors."""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Literal

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff, with_retry
from headrace.base.waits import current_waits
from headrace.connectors.base import Connector

FIRST_CONTACT_SECONDS = 10
"""How long to wait for a cluster that never answered: its address may be wrong."""

PATIENCE_SECONDS = 30
"""How long to wait for a cluster that answered before: brokers restart."""

_GROUP_SECONDS = 5
_LISTING_SECONDS = 1
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
Partition = tuple[str, int]
"""A topic, and the number of one of its partitions."""


class KafkaConnector(Connector):
    """What a Kafka source and a Kafka sink share: the connection to the cluster."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.cluster = Cluster(self.options.bootstrap_servers, self.options.settings())

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or its settings are not valid."""
        self.cluster.check_settings()

    def reach(self) -> str:
        """Connect, and return a line with the number of partitions of the topic."""
        topic, patience = self.options.topic, FIRST_CONTACT_SECONDS
        if topic is None:
            partitions = self.cluster.matching(self.options.pattern, patience=patience, once=True)
            what = f"{len({name for name, _ in partitions})} topics match `{self.options.topic_pattern}`,"
        else:
            partitions, what = self.cluster.partitions(topic, patience=patience, once=True), f"topic {topic}"
        count = len(partitions)
        if self.options.names_schemas and (registry := self.options.registry()) is not None:
            registry.reach()
        return f"Kafka at {self.cluster.servers}, {what} with {count} partition{'s' * (count != 1)}"

    def display(self) -> str:
        """Return the topic and the brokers, without secrets."""
        topic = self.options.topic or self.options.topic_pattern
        return f"{type(self).__name__}({topic} at {self.cluster.servers})"


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

    def partitions(self, topic: str, *, patience: float | None = None, once: bool = False) -> list[Partition]:
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
        return sorted((topic, partition.id) for partition in answers[topic].partitions)

    def matching(
        self, pattern: re.Pattern[str], *, patience: float | None = None, once: bool = False
    ) -> list[Partition]:
        """Return the partitions of all topics whose whole name matches; not of Kafka's own (`__…`)."""
        client = load_client()

        def list_topics(admin: Any, seconds: float) -> Mapping[str, Future[Any]]:
            answer: Future[Any] = Future()
            try:  # in slices: this call does not hear of a wrong password
                answer.set_result(admin.list_topics(timeout=min(seconds, _LISTING_SECONDS)).topics)
            except client.KafkaException as error:
                answer.set_exception(error)
            return {"topics": answer}

        topics = self._ask(list_topics, pattern.pattern, patience, once=once)["topics"]
        return sorted(
            (name, partition)
            for name, topic in topics.items()
            if topic.error is None and pattern.fullmatch(name) and not name.startswith("__")
            for partition in topic.partitions
        )

    def creates_topics(self) -> bool:
        """Whether the brokers create missing topics on write; True if that is not known."""
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
        self, partitions: Sequence[Partition], *, at: Literal["earliest", "latest"] | int, committed: bool
    ) -> dict[Partition, int]:
        """Return the first or the end offset of each partition; `committed` excludes open transactions.

        A number is a time in milliseconds: the offset of the first message that is not older, and the end of
        a partition without one. The partitions exist, so a broker that does not know them yet is asked again.
        """
        if not partitions:
            return {}
        client = load_client()
        specs = client.admin.OffsetSpec
        if isinstance(at, int):
            spec = specs.for_timestamp(at)
        else:
            spec = specs.earliest() if at == "earliest" else specs.latest()
        request = {client.TopicPartition(*partition): spec for partition in partitions}
        levels = client.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        answers = self._ask(
            lambda admin, seconds: admin.list_offsets(
                request, isolation_level=level, request_timeout=seconds
            ),
            partitions[0][0],
            also_transient=_UNKNOWN_TOPIC,
        )
        offsets = {(answer.topic, answer.partition): result.offset for answer, result in answers.items()}
        none_so_late = [partition for partition, offset in offsets.items() if offset < 0]
        return offsets | self.offsets(none_so_late, at="latest", committed=committed)

    def group_offsets(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the committed offsets of a consumer group, without partitions that have none."""
        if not partitions:
            return {}
        client = load_client()
        positions = [client.TopicPartition(*partition) for partition in partitions]
        request = [client.ConsumerGroupTopicPartitions(group, positions)]
        topic = partitions[0][0]
        answers = self._ask(
            lambda admin, seconds: admin.list_consumer_group_offsets(request, request_timeout=seconds), topic
        )
        positions = answers[group].topic_partitions
        problems = [position.error for position in positions if position.error is not None]
        if problems:
            raise self.failure(problems[0], topic)
        return {
            (position.topic, position.partition): position.offset
            for position in positions
            if position.offset >= 0
        }

    def commit_group(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets for a consumer group."""
        client = load_client()
        positions = [client.TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        request = [client.ConsumerGroupTopicPartitions(group, positions)]
        self._ask(
            lambda admin, seconds: admin.alter_consumer_group_offsets(request, request_timeout=seconds),
            next(iter(offsets), ("", 0))[0],
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


def topic_names(options: Any, *, timeout: float) -> list[str]:
    """Return the names of the topics of the cluster of a source; raises an ExternalError."""
    client = load_client()
    try:
        admin = client.admin.AdminClient(options.settings())
        topics = admin.list_topics(timeout=timeout).topics
    except client.KafkaException as error:
        failure = error.args[0]
        raise ExternalError(
            f"Kafka at {options.bootstrap_servers} does not answer: {failure.str()}",
            hint="are the brokers, and the login, right?",
        ) from None
    return sorted(name for name in topics if not name.startswith("_"))
