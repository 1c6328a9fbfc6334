"""The `websocket` source and sink: messages of a WebSocket."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self
from urllib.parse import urljoin

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.errors import ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Secret, Size
from headrace.base.retry import is_retryable, with_retry
from headrace.connectors._shared.message_sink import RECHECK_SECONDS, VALUE, MessageSink
from headrace.connectors._shared.messages import MessageOptions
from headrace.connectors.base import Delivery
from headrace.connectors.http import client as http_client
from headrace.connectors.http.client import (
    CONNECT_SECONDS,
    Address,
    EndpointConnector,
    EndpointOptions,
    elsewhere,
    is_same_origin,
    no_answer,
    quieten,
)
from headrace.connectors.received import Inbox, ReceivedSource
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import OperatorContext

PING_SECONDS, PONG_SECONDS = 20.0, 20.0
"""The interval of pings on a quiet connection, and the timeout for an answer."""
_BYTES = {"raw_bytes", "avro", "protobuf"}
_NUMBERED = re.compile(r"subscription_messages\.(\d+)")


class SocketOptions(EndpointOptions):
    """The address of a WebSocket, and the subscription messages."""

    SCHEMES: ClassVar = ("ws", "wss")

    endpoint: Address = Field(repr=False, description="The address, such as wss://host/path.")
    subscription_message: Secret | None = Field(
        None, repr=False, description="A message to send after connecting, such as a subscription."
    )
    subscription_messages: list[Secret] = Field(
        default=[],
        repr=False,
        description=(
            "Several such messages; in SQL as subscription_messages.0, subscription_messages.1 and so on."
        ),
    )
    max_message_size: Size = Field(
        16 * 1024 * 1024, ge=1, description="The largest incoming message, uncompressed."
    )

    @model_validator(mode="before")
    @classmethod
    def _collect_numbered(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        numbered = {
            int(match[1]): name for name in values if (match := _NUMBERED.fullmatch(str(name))) is not None
        }
        if not numbered:
            return values
        rest = {name: value for name, value in values.items() if name not in numbered.values()}
        listed = [str(values[name]) for _, name in sorted(numbered.items())]
        return {**rest, "subscription_messages": [*rest.get("subscription_messages", []), *listed]}

    @model_validator(mode="after")
    def _check_messages(self) -> Self:
        if self.subscription_message is not None and self.subscription_messages:
            raise ValueError("it takes either `subscription_message` or `subscription_messages`")
        return self

    @property
    def first_messages(self) -> list[str]:
        """Return the messages to send after connecting."""
        return (
            self.subscription_messages if self.subscription_message is None else [self.subscription_message]
        )


class _SocketConnector(EndpointConnector):
    label = "websocket"

    def load_client(self) -> None:
        """Have the client's package."""
        load_client()

    def reach(self) -> str:
        """Connect, and return a line about the server."""
        with _connect(self.options, subscribe=False):
            return f"{self.address} is a web socket"


class WebSocketSource(_SocketConnector, ReceivedSource):
    """Reads the messages of a WebSocket, text or binary; each is logged before it is processed.

    After a lost connection, or a ping without an answer, the source reconnects and sends the subscription
    messages again. A WebSocket cannot replay: messages that are sent while disconnected are lost.
    """

    deliveries = (
        Delivery(
            "at most once",
            "messages are logged before they are processed; those sent while disconnected are lost",
        ),
    )

    class Options(SocketOptions, MessageOptions):
        """The options of the websocket source."""

    options: Options

    def listen(self, inbox: Inbox) -> None:
        """Read messages until the run ends."""
        with _connect(self.options, connected_before=inbox.contacts > 0) as socket:
            inbox.connected()
            heard, pong = time.monotonic(), None
            while not inbox.closed.is_set():
                try:
                    message = socket.recv(timeout=0.2, decode=False)
                except TimeoutError:
                    # The client's own pings count a wait of ours, for a slow sink, as one of the other side.
                    quiet = time.monotonic() - heard
                    if pong is None and quiet >= PING_SECONDS:
                        pong = socket.ping()
                    elif pong is not None and pong.is_set():
                        inbox.connected()
                        heard, pong = time.monotonic(), None
                    elif pong is not None and quiet >= PING_SECONDS + PONG_SECONDS:
                        raise ExternalError(
                            "websocket: the other side does not answer a ping", where=self.address
                        ) from None
                    continue
                inbox.put(message)
                heard, pong = time.monotonic(), None


class WebSocketSink(_SocketConnector, MessageSink):
    """Sends each row as a WebSocket message, in order, after the commit point of its epoch.

    An epoch is complete when the server has answered a ping that was sent after its last message. Text
    formats are sent as text messages, others as binary messages.
    """

    deliveries = (
        Delivery("at least once", "an epoch is sent again unless the server answered a ping after it"),
    )

    class Options(SocketOptions, DropOptions, FormatOptions):
        """The options of the websocket sink."""

    options: Options

    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        """Send the messages of an epoch over one connection; if it is lost, send all of them again."""
        values = messages.column(VALUE).to_pylist()
        with_retry(
            lambda: self._send(values, ctx),
            is_transient=is_retryable,
            backoff=http_client.BACKOFF,
            deadline=http_client.PATIENCE_SECONDS,
            waits_for=f"websocket {self.address}",
        )

    def _send(self, values: Sequence[bytes], ctx: OperatorContext) -> None:
        text = self.options.format not in _BYTES
        with _connect(self.options) as socket:
            for value in values:
                ctx.check_generation(every=RECHECK_SECONDS)
                socket.send(value, text=text)
            if not socket.ping().wait(PONG_SECONDS):
                raise ExternalError(
                    "websocket: the other side does not answer a ping", where=self.options.address
                )


def load_client() -> Any:
    """Import the client's package."""
    client = load_extra(
        "websockets",
        feature="the connector `websocket`",
        extra="websocket",
        package="websockets",
        submodules=["sync.client"],
    )
    quieten("websockets.client")
    return client


@contextmanager
def _connect(
    options: SocketOptions, *, connected_before: bool = False, subscribe: bool = True
) -> Iterator[Any]:
    """Yield a connection, on which the subscription messages are sent; its errors become ExternalErrors."""
    client = load_client()
    try:
        with client.sync.client.connect(
            options.endpoint,
            ssl=options.tls_context() if options.endpoint.startswith("wss:") else None,
            additional_headers=options.headers,
            user_agent_header="headrace",
            proxy=None if options.is_local else True,
            open_timeout=CONNECT_SECONDS,
            close_timeout=2,
            ping_interval=None,
            max_size=options.max_message_size,
            create_connection=_connection_class(options, connected_before),
        ) as socket:
            for message in options.first_messages if subscribe else ():
                socket.send(message)
            yield socket
    except client.exceptions.InvalidStatus as error:
        response = error.response
        body = options.hide((response.body or b"")[:300].decode("utf-8", "replace").strip())
        message = f"websocket is answered {response.status_code} {response.reason_phrase}"
        message = f"{message}: {body}" if body else message
        if connected_before or response.status_code in {408, 425, 429} or response.status_code >= 500:
            raise ExternalError(message, where=options.address) from None
        hint = "check the options `endpoint` and `headers`"
        raise RefusedError(message, hint=hint, where=options.address) from None
    except client.exceptions.ConnectionClosed as error:
        raise _closed(error, options) from None
    except (OSError, TimeoutError, ssl.SSLError, client.exceptions.WebSocketException) as error:
        failure = no_answer(error, options.address, "websocket")
        failure.message = failure.message.replace(options.endpoint, options.address)
        raise failure from None


def _connection_class(options: SocketOptions, connected_before: bool) -> Any:
    """Return a connection that does not follow a redirect to another origin.

    The client would send it the headers, `Authorization` excepted, and the subscription messages.
    """
    client = load_client()

    class Connection(client.sync.client.ClientConnection):  # type: ignore[misc, name-defined]
        def handshake(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().handshake(*args, **kwargs)
            except client.exceptions.InvalidStatus as error:
                response = error.response
                location = response.headers.get("Location")
                target = None if location is None else urljoin(options.endpoint, location)
                if 300 <= response.status_code < 400 and not is_same_origin(options.endpoint, target or ""):
                    status = f"websocket is sent elsewhere: {response.status_code} {response.reason_phrase}"
                    raise elsewhere(
                        status, target, where=options.address, answered_before=connected_before
                    ) from None
                raise

    return Connection


def _closed(error: Any, options: SocketOptions) -> ExternalError:
    sent, received = error.sent, error.rcvd
    if sent is not None and sent.code == 1009:
        return RefusedError(
            f"websocket: a message has more than {options.max_message_size} bytes",
            hint="allow more with `max_message_size`",
            where=options.address,
        )
    if received is None:
        return ExternalError("websocket: the connection is lost", where=options.address)
    reason = options.hide(f"{received.code} {received.reason}".strip())
    if received.code == 1008:
        return RefusedError(
            f"websocket: the other side has closed the connection: {reason}", where=options.address
        )
    return ExternalError(
        f"websocket: the other side has closed the connection: {reason}", where=options.address
    )
