"""The `mqtt` source: read the messages of topics."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.errors import ExternalError
from headrace.base.options import Duration
from headrace.connectors._shared.messages import MessageOptions
from headrace.connectors.base import Delivery
from headrace.connectors.mqtt.connection import Broker, BrokerOptions, connected, load_client
from headrace.connectors.received import Inbox, Received, ReceivedSource

_ALL = -1
_LONGEST_SESSION = 0xFFFF_FFFF  # seconds; MQTT takes it for ever


class MqttSource(ReceivedSource):
    """Reads the messages of a topic, or with `+` and `#` of several; each is logged before it is processed.

    The pipeline has a stable client id. The broker stores QoS 1 and 2 messages for it while it does not run,
    as long as `session_expiry` and as much as the broker's own limits allow. A message is acknowledged after
    it is logged. With QoS 1 a message is redelivered if its acknowledgement is lost; with QoS 2 the log also
    holds the ids that the broker may send again, and each message counts once.
    """

    label = "mqtt"
    deliveries = (
        Delivery("exactly once", "messages are logged with their ids", when="qos = 'ExactlyOnce'"),
        Delivery(
            "at least once", "a message is logged before it is acknowledged", when="qos = 'AtLeastOnce'"
        ),
        Delivery("at most once", "the broker sends a message once", when="qos = 'AtMostOnce'"),
    )

    class Options(BrokerOptions, MessageOptions):
        """The options of the mqtt source."""

        METADATA: ClassVar = {"topic": pa.string()}

        topic: str = Field(
            min_length=1,
            max_length=65_535,
            description="The topic; `+` matches any level, and `#` at the end all further levels.",
        )
        session_expiry: Duration = Field(
            timedelta(days=7),
            description="How long the broker stores messages for a stopped pipeline (MQTT 5).",
        )

        @model_validator(mode="after")
        def _can_be_read(self) -> Self:
            if not 1 <= self.session_expiry.total_seconds() <= _LONGEST_SESSION:
                raise ValueError("`session_expiry` is at least a second, and less than 136 years")
            return self

    options: Options

    def __init__(self, options: Options | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._client_id = ""
        self._released: list[int] = []
        self._looks = False

    def for_sampling(self) -> Self:
        """Return a copy without a session on the broker."""
        sampler = super().for_sampling()
        sampler._looks = True  # noqa: SLF001 - it is of the same class
        return sampler

    @property
    def address(self) -> str:
        """Return the broker and the topic."""
        return self.options.address

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or certificates cannot be read."""
        super().validate()
        load_client()
        self.options.tls_context()

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Derive the client id from the job, the node and the topic."""
        super().open(storage, job_id=job_id, node=node)
        options = self.options
        known_by = f"{job_id}\0{node}\0{options.topic}\0{options.qos}"
        name = uuid.uuid4().hex if self._looks else hashlib.sha256(known_by.encode()).hexdigest()
        self._client_id = f"{options.client_prefix or 'headrace'}-{name[:12]}"

    def listen(self, inbox: Inbox) -> None:
        """Receive messages, and acknowledge those that are logged."""

        def take(message: Any) -> None:
            topic, payload, token = message.topic, bytes(message.payload), None
            if message.qos:
                content = topic.encode() + b"\0" + payload if message.qos == 2 else b""
                digest = hashlib.sha256(content).hexdigest()[:16]
                token = _Token(message.mid, message.qos, message.dup, digest)
            inbox.put(payload, metadata={"topic": topic}, token=token)

        seconds = 0 if self._looks else int(self.options.session_expiry.total_seconds())
        broker = Broker(
            self.options,
            self._client_id,
            on_message=take,
            on_release=self._released.append,
            session_seconds=seconds,
        )
        with connected(broker):
            if not broker.session_present:
                self._released.append(_ALL)
                self._subscribe(broker)
            inbox.connected()
            while not inbox.closed.is_set():
                broker.turn(0.05)
                self._confirm(broker, inbox)
            self._confirm(broker, inbox)
            if self.options.level:
                broker.roundtrip()  # closed with something unread, a connection may drop what was sent last

    def _subscribe(self, broker: Broker) -> None:
        try:
            broker.subscribe()
        except ExternalError:
            # The broker would know the pipeline the next time, and have nothing for it: it has to forget it.
            with suppress(ExternalError), connected(Broker(self.options, self._client_id)):
                pass
            raise

    @staticmethod
    def _confirm(broker: Broker, inbox: Inbox) -> None:
        for token in inbox.take_logged_tokens():
            broker.confirm(token.id, token.level)

    def settle(self, resume: Any, messages: Sequence[Received]) -> tuple[Sequence[Received], Any]:
        """Skip QoS 2 messages that are logged already; the log holds the ids that may be repeated.

        Those are the ids that the broker has not released (PUBREL) yet.
        """
        unreleased: dict[str, str] = dict(resume or {})
        released = self._released[:]
        del self._released[: len(released)]
        for message_id in released:
            if message_id == _ALL:
                unreleased.clear()
            unreleased.pop(str(message_id), None)
        fresh = []
        for message in messages:
            token = message.token
            if token is not None and token.level == 2:
                if token.again and unreleased.get(str(token.id)) == token.digest:
                    continue
                unreleased[str(token.id)] = token.digest
            fresh.append(message)
        return fresh, unreleased or None

    def reach(self) -> str:
        """Connect and subscribe, and return a line about the broker."""
        with connected(Broker(self.options, f"headrace-{uuid.uuid4().hex[:12]}")) as broker:
            if not self.options.topic.startswith("$share/"):  # it would get messages in place of others
                broker.subscribe()
        return f"a broker of MQTT {self.options.protocol} at {self.address}"


class _Token(NamedTuple):
    """What is needed to acknowledge a message and to recognize it."""

    id: int
    level: int
    again: bool
    """Whether the broker marked it as a duplicate."""
    digest: str
