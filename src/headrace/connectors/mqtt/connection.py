"""The connection to an MQTT broker that the source and the sink share."""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field, model_validator

from headrace.base.errors import ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Secret, Size
from headrace.base.retry import Backoff
from headrace.connectors.http.client import Address, TlsOptions, display_address, no_answer

CONNECT_SECONDS, ANSWER_SECONDS, KEEP_ALIVE_SECONDS = 10, 30, 60
"""The timeout for connecting and for answers, and the keepalive interval."""
PATIENCE_SECONDS = 60.0
"""How long to retry a broker that does not accept messages."""
BACKOFF = Backoff(first=0.1, longest=10.0)

PORTS: Mapping[str, int] = {
    "mqtt": 1883,
    "tcp": 1883,
    "mqtts": 8883,
    "ssl": 8883,
    "tls": 8883,
    "ws": 80,
    "wss": 443,
}
_WITH_TLS = {"mqtts", "ssl", "tls", "wss"}
_REFUSED = {
    "Bad user name or password",
    "Not authorized",
    "Bad authentication method",
    "Banned",
    "Client identifier not valid",
    "Unsupported protocol version",
}
_TRANSIENT = {
    "Unspecified error",
    "Implementation specific error",
    "Packet identifier in use",
    "Quota exceeded",
}
_PACKETS = 100
_QOS = ("AtMostOnce", "AtLeastOnce", "ExactlyOnce")


def _read_qos(value: Any) -> Any:
    text = "".join(filter(str.isalnum, str(value))).lower()
    names = {name.lower(): name for name in _QOS} | {str(level): name for level, name in enumerate(_QOS)}
    return names.get(text, value)


Qos = Annotated[Literal["AtMostOnce", "AtLeastOnce", "ExactlyOnce"], BeforeValidator(_read_qos)]
"""An option that takes a QoS by its name or its number."""


class BrokerOptions(TlsOptions):
    """A broker, the login and a topic."""

    SINGLE_TOPIC: ClassVar[bool] = False

    url: Address = Field(
        repr=False,
        description="The broker, such as mqtt://host:1883, or mqtts://, ws:// or wss:// (WebSocket).",
    )
    username: str | None = Field(None, description="The user, if the broker asks for one.")
    password: Secret | None = Field(None, repr=False, description="The password of the user.")
    client_prefix: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Prefix of the MQTT client id.",
    )
    max_packet_size: Size | None = Field(
        None, ge=16, le=268_435_455, description="The largest message to receive or send."
    )
    protocol: Literal["5", "3.1.1"] = Field("5", description="The version of MQTT.")
    topic: str = Field(min_length=1, max_length=65_535, description="The topic.")
    qos: Qos = Field(
        "AtLeastOnce",
        description="The quality of service: AtMostOnce, AtLeastOnce or ExactlyOnce (QoS 0, 1 or 2).",
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        try:
            parts = urlsplit(self.url)
            good = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        else:
            good = good and not parts.query
        if not good:
            raise ValueError(f"option `url` is an address such as mqtt://host:1883, with {', '.join(PORTS)}")
        check_topic(self.topic, wildcards=not self.SINGLE_TOPIC)
        return self

    @property
    def level(self) -> int:
        """Return the number of `qos`."""
        return _QOS.index(self.qos)

    @property
    def address(self) -> str:
        """Return the broker and the topic, without secrets."""
        return f"{display_address(self.url)}, topic {self.topic}"


def check_topic(topic: str, *, wildcards: bool) -> None:
    """Raise a ValueError unless a topic is valid."""
    levels = topic.split("/")
    if not wildcards and any(sign in topic for sign in "+#"):
        raise ValueError(f"option `topic`: rows are written to one topic, and `{topic}` stands for several")
    for index, level in enumerate(levels):
        last = index == len(levels) - 1
        if ("+" in level and level != "+") or ("#" in level and (level != "#" or not last)):
            raise ValueError(
                f"option `topic`: in `{topic}`, a `+` has to be a whole level, and a `#` the whole last one"
            )
    if "\0" in topic:
        raise ValueError("option `topic`: a topic has no null character")


def load_client() -> Any:
    """Import the client; raises a MissingExtraError if its package is not installed."""
    load_extra("paho.mqtt.client", feature="the connector `mqtt`", extra="mqtt", package="paho-mqtt")
    from headrace.connectors.mqtt import client as mqtt_client

    return mqtt_client


class Broker:
    """A connection to a broker, driven by `turn`: everything happens in one thread.

    Messages are passed to `on_message`, and acknowledged with `confirm`.
    """

    def __init__(
        self,
        options: BrokerOptions,
        client_id: str,
        *,
        on_message: Callable[[Any], None] | None = None,
        on_release: Callable[[int], None] | None = None,
        session_seconds: int = 0,
    ) -> None:
        """Prepare a connection; with `session_seconds` the broker stores undelivered messages that long."""
        self._options, self._session = options, session_seconds
        self._client = _make_client(options, client_id, on_message, on_release, keep=session_seconds > 0)
        self._client.on_connect = self._connected
        self._client.on_subscribe = self._answered
        self._client.on_unsubscribe = self._answered
        self._client.on_disconnect = self._disconnected
        self._client.on_publish = self._published
        self._client.on_refusal = self._on_refusal
        self._codes: list[Any] = []
        self._lost: str | None = None
        self._refusal: ExternalError | None = None
        self.session_present = False
        """Whether the broker resumed the session, with its subscriptions."""
        self.window = 20
        """The most unacknowledged messages."""

    def _connected(self, _: Any, __: Any, flags: Any, code: Any, properties: Any) -> None:
        self.session_present = bool(flags.session_present)
        if self._options.protocol == "5":
            self.window = getattr(properties, "ReceiveMaximum", 65_535)
        self._codes = [code]

    def _answered(self, _: Any, __: Any, ___: Any, codes: Any, ____: Any) -> None:
        self._codes = list(codes) or [None]

    def _published(self, _: Any, __: Any, ___: Any, code: Any, ____: Any) -> None:
        if code.is_failure:
            self._on_refusal(code)

    def _on_refusal(self, code: Any) -> None:
        self._refusal = self._refused("the broker refuses a message", code)

    def _disconnected(self, _: Any, __: Any, ___: Any, code: Any, ____: Any) -> None:
        self._lost = str(code)

    def connect(self) -> None:
        """Connect, and wait for CONNACK; raises a RefusedError if the broker refuses."""
        client, options, parts = self._client, self._options, urlsplit(self._options.url)
        more: dict[str, Any] = {}
        if options.protocol == "5":
            more = {"clean_start": self._session == 0, "properties": self._properties()}
        try:
            client.connect(parts.hostname, parts.port or PORTS[parts.scheme], KEEP_ALIVE_SECONDS, **more)
        except (OSError, ssl.SSLError, ValueError) as error:
            failure = no_answer(error, options.address, "mqtt")
            if "handshake" in str(error) and parts.scheme in {"ws", "wss"}:
                failure.hint = "check that the broker has web sockets at this port and path"
            raise failure from None
        (code,) = self._wait("mqtt: the broker does not answer")
        if code.is_failure:
            raise self._refused("the broker refuses the connection", code)

    def _properties(self) -> Any:
        properties = load_client().connect_properties()
        properties.SessionExpiryInterval = self._session
        # What is acknowledged late must not keep the broker from sending more.
        properties.ReceiveMaximum = 65_535
        if self._options.max_packet_size is not None:
            properties.MaximumPacketSize = self._options.max_packet_size
        return properties

    def _refused(self, what: str, code: Any) -> ExternalError:
        kind = RefusedError if code.getName() in _REFUSED else ExternalError
        hint = "check `username`, `password` and the rights of the user"
        if code.getName() == "Unsupported protocol version":
            hint = "try the option `protocol` = '3.1.1'"
        return kind(f"mqtt: {what}: {code}", hint=hint, where=self._options.address)

    def subscribe(self) -> None:
        """Subscribe to the topic; raises a RefusedError if retrying cannot help."""
        self._client.subscribe(self._options.topic, self._options.level)
        for code in self._wait("mqtt: the broker does not answer to a subscription"):
            if code.is_failure:
                # MQTT 3.1.1 knows one failure, and it stands for missing rights as well.
                passing = self._options.protocol == "5" and code.getName() in _TRANSIENT
                kind = ExternalError if passing else RefusedError
                message = f"mqtt: the broker refuses the subscription: {code}"
                hint = "check the option `topic`, and the rights of the user"
                raise kind(message, hint=hint, where=self._options.address)

    def publish(self, value: bytes, *, retain: bool) -> Any:
        """Publish a message; pass the result to `acknowledged`."""
        return self._client.publish(self._options.topic, value, self._options.level, retain)

    def acknowledged(self, message: Any) -> bool:
        """Whether the broker acknowledged a published message."""
        try:
            return bool(message.is_published())
        except (RuntimeError, ValueError):
            return False  # it was not sent, for want of a connection: `turn` tells why

    def roundtrip(self) -> None:
        """Wait for the broker's acknowledgement of everything sent before."""
        self._client.unsubscribe("headrace/nothing")
        self._wait("mqtt: the broker does not answer after the last message")

    def confirm(self, message_id: int, level: int) -> None:
        """Acknowledge a message."""
        self._client.confirm(message_id, level)

    def turn(self, seconds: float) -> None:
        """Send and receive for up to `seconds`; raises an ExternalError if the connection is lost."""
        code = self._turn(seconds)
        if self._refusal is not None:
            raise self._refusal
        if code or self._lost is not None:
            text = self._lost or load_client().mqtt.error_string(code)
            raise ExternalError(f"mqtt: the connection is lost: {text}", where=self._options.address)

    def _turn(self, seconds: float) -> int:
        """Do what the client's own loop does, with fewer system calls for each packet."""
        client, code = self._client, 0
        for _ in range(_PACKETS):
            line = client.socket()
            if line is None or code:
                break
            waiting = line.pending() if hasattr(line, "pending") else 0
            poller = select.poll()
            poller.register(line, select.POLLIN | (select.POLLOUT if client.want_write() else 0))
            ready = poller.poll(0 if waiting else seconds * 1000)
            if not (waiting or ready):
                break
            if waiting or any(event & ~select.POLLOUT for _, event in ready):
                code = client.loop_read()
            if not code and any(event & select.POLLOUT for _, event in ready):
                code = client.loop_write()
            seconds = 0.0
        return int(code or client.loop_misc())

    def _wait(self, late: str) -> list[Any]:
        deadline, self._codes = time.monotonic() + ANSWER_SECONDS, []
        while not self._codes:
            if time.monotonic() > deadline:
                raise ExternalError(late, where=self._options.address)
            try:
                self.turn(0.1)
            except ExternalError:
                if not self._codes:
                    raise
        return self._codes

    def close(self) -> None:
        """Close the connection; the broker may keep its session."""
        client = self._client
        client.on_disconnect = client.on_message = client.on_connect = None
        client.on_subscribe = client.on_unsubscribe = client.on_publish = None
        client.take = client.released = client.on_refusal = None
        client.disconnect()


@contextmanager
def connected(broker: Broker) -> Iterator[Broker]:
    """Yield a connection, and close it after the block."""
    try:
        broker.connect()
        yield broker
    finally:
        broker.close()


def _make_client(
    options: BrokerOptions,
    client_id: str,
    on_message: Callable[[Any], None] | None,
    on_release: Callable[[int], None] | None,
    *,
    keep: bool,
) -> Any:
    mqtt, parts = load_client().mqtt, urlsplit(options.url)
    newest = options.protocol == "5"
    client = load_client().LateClient(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id,
        clean_session=None if newest else not keep,
        protocol=mqtt.MQTTv5 if newest else mqtt.MQTTv311,
        transport="websockets" if parts.scheme in {"ws", "wss"} else "tcp",
        reconnect_on_failure=False,
        manual_ack=True,
    )
    client.take, client.released = on_message, on_release
    client.on_message = None if on_message is None else lambda _, __, message: on_message(message)
    client.connect_timeout = CONNECT_SECONDS
    client.max_inflight_messages_set(0)  # the sink counts them
    if parts.scheme in {"ws", "wss"}:
        client.ws_set_options(path=parts.path or "/mqtt")
    if parts.scheme in _WITH_TLS:
        client.tls_set_context(options.tls_context())
    username = options.username or (None if parts.username is None else unquote(parts.username))
    password = options.password or (None if parts.password is None else unquote(parts.password))
    if username is not None:
        client.username_pw_set(username, password)
    return client
