"""The `rabbitmq` source: read the messages of a queue or a stream."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.errors import ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.messages import MessageOptions
from headrace.connectors.base import Delivery
from headrace.connectors.rabbitmq.client import RabbitConnector, RabbitServerOptions, client_errors
from headrace.connectors.received import Inbox, Received, ReceivedSource

METADATA: Mapping[str, pa.DataType] = {
    "exchange": pa.string(),
    "routing_key": pa.string(),
    "message_id": pa.string(),
    "redelivered": pa.bool_(),
    "offset": pa.int64(),
}
"""What METADATA FROM can name, with the type of the column."""

_OFFSET = "x-stream-offset"
_WAIT_SECONDS = 0.05


class RabbitSource(RabbitConnector, ReceivedSource):
    """Reads the messages of a queue, or of a stream.

    Messages are logged in the state directory before they are processed. Messages of a queue are then
    acknowledged, which removes them: none is lost, and one whose acknowledgement was lost is redelivered (its
    metadata `redelivered` is true). Messages of a stream stay there; the log holds their offsets, so each
    counts once. `_timestamp` is the timestamp property of the message, or else the time of receipt. One
    connection on the driver reads.
    """

    class Options(RabbitServerOptions, MessageOptions):
        """The options of the rabbitmq source."""

        METADATA: ClassVar = METADATA

        queue: str | None = Field(None, min_length=1, description="The queue to read; instead of `stream`.")
        stream: str | None = Field(None, min_length=1, description="The stream to read; instead of `queue`.")
        source_offset: Literal["first", "last", "next", "earliest", "latest"] = Field(
            "next",
            alias="source.offset",
            description=(
                "Where a new pipeline starts in a stream: with the `first` message (or `earliest`), with the "
                "`last` chunk of messages, or with the `next` one to come (or `latest`)."
            ),
        )
        source_prefetch: int = Field(
            20_000,
            ge=1,
            le=65_535,
            alias="source.prefetch",
            description="The prefetch count: the most messages that are not acknowledged.",
        )
        metadata: Mapping[str, str] = Field(
            default={}, description=f"Column → what of a message it holds: {', '.join(METADATA)}."
        )

        @model_validator(mode="after")
        def _can_be_read(self) -> Self:
            if (self.queue is None) == (self.stream is None):
                raise ValueError("it takes either `queue` or `stream`")
            if self.queue is not None and "source_offset" in self.model_fields_set:
                raise ValueError("`source.offset` needs `stream`: a queue starts with what it holds")
            return self

    options: Options
    label = "rabbitmq"
    deliveries = (
        Delivery(
            "at least once",
            (
                "a message is logged before it is acknowledged; it is redelivered if the acknowledgement "
                "is lost"
            ),
            when="`queue`",
        ),
        Delivery(
            "exactly once",
            (
                "messages are logged with their offsets before they are processed; reading resumes after "
                "the last one"
            ),
            when="`stream`",
        ),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._since: float | None = None

    def validate(self) -> None:
        """Raise an error for columns that cannot be read and settings that are not valid."""
        RabbitConnector.validate(self)
        ReceivedSource.validate(self)

    @property
    def _name(self) -> str:
        return self.options.queue or self.options.stream or ""

    @property
    def _of(self) -> str:
        return f"{'stream' if self.options.queue is None else 'queue'} `{self._name}`"

    @property
    def address(self) -> str:
        kind = "queue" if self.options.stream is None else "stream"
        return f"rabbitmq at {self.server.address}, {kind} {self._name}"

    def reach(self) -> str:
        """Connect, and return a line with the number of messages in the queue."""
        try:
            with self.server.connect() as connection:
                count = connection.channel().queue_declare(self._name, passive=True).method.message_count
        except client_errors() as error:
            raise self.server.failure(error, of=self._of) from None
        kind = "queue" if self.options.stream is None else "stream"
        return f"RabbitMQ at {self.server.address}, {kind} {self._name} with {count} messages"

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Take the state storage, and find the position in a stream."""
        super().open(storage, job_id=job_id, node=node)
        if self.options.stream is None or self._resume is not None:
            return
        # Nothing has come yet: what comes while nobody listens is found by the time of the first start.
        begun = f"received-from/{node}.json"
        if not storage.create(begun, json.dumps({"time": clock.time()}).encode()):
            self._since = json.loads(storage.read(begun))["time"]

    def listen(self, inbox: Inbox) -> None:
        """Put messages into the inbox, and acknowledge those that are logged."""
        began = clock.time()
        try:
            with self.server.connect() as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=self.options.source_prefetch)
                cancellations: list[Any] = []
                channel.add_on_cancel_callback(cancellations.append)
                channel.basic_consume(
                    self._name,
                    lambda _channel, how, properties, body: self._take(inbox, how, properties, body),
                    arguments=self._start_at(),
                )
                self._since = self._since or began
                while not inbox.closed.is_set():
                    inbox.connected()
                    connection.process_data_events(_WAIT_SECONDS)
                    self._acknowledge(channel, inbox)
                    if cancellations:
                        raise self._deleted()
                self._acknowledge(channel, inbox)
        except client_errors() as error:
            raise self.server.failure(error, of=self._of) from None

    def _deleted(self) -> ExternalError:
        return ExternalError(
            f"RabbitMQ at {self.server.address} no longer has {self._of}, or has moved it",
            hint="create it again if it was deleted",
            where="rabbitmq",
        )

    def _start_at(self) -> Mapping[str, Any] | None:
        if self.options.stream is None:
            return None
        if self._resume is not None:
            return {_OFFSET: self._resume + 1}
        start = {"earliest": "first", "latest": "next"}.get(
            self.options.source_offset, self.options.source_offset
        )
        if start == "next" and self._since is not None:
            return {_OFFSET: datetime.fromtimestamp(self._since, UTC)}
        return {_OFFSET: start}

    def _take(self, inbox: Inbox, how: Any, properties: Any, body: bytes) -> None:
        sent = properties.timestamp
        metadata = {
            "exchange": how.exchange,
            "routing_key": how.routing_key,
            "message_id": properties.message_id,
            "redelivered": how.redelivered,
            "offset": (properties.headers or {}).get(_OFFSET),
        }
        inbox.put(
            body, time=None if sent is None else sent * 10**9, metadata=metadata, token=how.delivery_tag
        )

    @staticmethod
    def _acknowledge(channel: Any, inbox: Inbox) -> None:
        """Acknowledge the logged messages: all messages up to the last logged one."""
        tags = inbox.take_logged_tokens()
        if tags:
            channel.basic_ack(max(tags), multiple=True)

    def settle(self, resume: Any, messages: Sequence[Received]) -> tuple[Sequence[Received], Any]:
        """Skip messages that a stream sent again after a lost connection."""
        if self.options.stream is None:
            return messages, None
        last = -1 if resume is None else resume
        new = [message for message in messages if message.metadata["offset"] > last]
        return new, new[-1].metadata["offset"] if new else resume
