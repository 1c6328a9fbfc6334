"""The `rabbitmq` sink: publish rows to an exchange."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExternalError, HeadraceError, PlanError
from headrace.base.retry import Backoff, with_retry
from headrace.connectors._shared.message_sink import RECHECK_SECONDS, VALUE, MessageSink
from headrace.connectors.base import Delivery, Refusal, check_column, excerpt, longer_than
from headrace.connectors.rabbitmq import client as rabbitmq
from headrace.connectors.rabbitmq.client import (
    RabbitConnector,
    RabbitServer,
    RabbitServerOptions,
    cause_of,
    client_errors,
    is_transient,
    load_client,
)
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import OperatorContext

KEY, TIME = "key", "time"
_PERSISTENT, _TRANSIENT = 2, 1
_UNCONFIRMED = 4_000
"""The most unconfirmed messages."""
_LONGEST_KEY = 255
_BACKOFF = Backoff(first=0.1, longest=2.0)


class RabbitSink(RabbitConnector, MessageSink):
    """Publishes rows as messages to an exchange, when their epoch is committed.

    The server confirms each message; the commit ends when all are confirmed. After a crash in the middle of a
    commit its messages are sent again, under the same ids (`message_id`), by which a consumer can drop
    duplicates. By default messages are persistent, and unroutable messages end the run. The `timestamp` of a
    message is the event time of the row, in seconds.
    """

    class Options(RabbitServerOptions, DropOptions, FormatOptions):
        """The options of the rabbitmq sink."""

        exchange: str = Field(
            "",
            description=(
                "The exchange to publish to; by default the default exchange, which routes to queues by name."
            ),
        )
        routing_key: str | None = Field(
            None,
            description="The routing key of the messages; without `exchange`, the name of the queue.",
        )
        sink_routing_key_field: str | None = Field(
            None,
            alias="sink.routing_key_field",
            description="The column with the routing key; where it is null, `routing_key` is used.",
        )
        sink_persistent: bool = Field(
            default=True,
            alias="sink.persistent",
            description="Whether messages in durable queues survive a restart of the server.",
        )
        sink_unroutable: Literal["fail", "drop"] = Field(
            "fail",
            alias="sink.unroutable",
            description="What to do with unroutable messages: end the run, or drop them.",
        )

        @model_validator(mode="after")
        def _can_be_written(self) -> Self:
            if len((self.routing_key or "").encode()) > _LONGEST_KEY:
                raise ValueError(f"`routing_key` has more than {_LONGEST_KEY} bytes")
            if not self.exchange and not self.routing_key and self.sink_routing_key_field is None:
                raise ValueError("it takes `exchange`, or `routing_key`, the name of a queue")
            if self.sink_routing_key_field is not None and self.format == "debezium_json":
                raise ValueError("`sink.routing_key_field` does not go with debezium_json")
            return self

    options: Options
    parallel = True
    deliveries = (
        Delivery(
            "at least once",
            (
                "the commit ends when the server has confirmed all messages; if it is interrupted, they "
                "are sent again under the same ids"
            ),
        ),
    )

    def display(self) -> str:
        """Return the exchange and the server, without secrets."""
        to = self.options.exchange or self.options.routing_key or self.options.sink_routing_key_field
        return f"{type(self).__name__}({to} at {self.server.address})"

    @property
    def _of(self) -> str:
        return f"exchange `{self.options.exchange}`" if self.options.exchange else "default exchange"

    def reach(self) -> str:
        """Check that the exchange exists, and return a line about the server."""
        try:
            with self.server.connect() as connection:
                if self.options.exchange:
                    connection.channel().exchange_declare(self.options.exchange, passive=True)
        except client_errors() as error:
            raise self.server.failure(error, of=self._of) from None
        return f"RabbitMQ at {self.server.address}, {self._of.replace('`', '')}"

    def attributes(self, rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """Return the routing key of each message, if it is in a column, and its time."""
        attributes: dict[str, pa.Array] = {}
        name = self.options.sink_routing_key_field
        if name is not None:
            check_column(name, rows.schema.names, what="rabbitmq sink, option `sink.routing_key_field`")
            try:
                keys = rows.column(name).cast(pa.string())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise PlanError(
                    f"column `{name}` has the type {rows.column(name).type} and cannot be a routing key",
                    hint="a routing key is a string or a number",
                ) from None
            attributes[KEY] = keys.fill_null(self.options.routing_key or "")
        if TIMESTAMP in rows.schema.names:
            attributes[TIME] = rows.column(TIMESTAMP).cast(pa.timestamp("s"), safe=False).cast(pa.int64())
        return attributes

    def refusals(self, staged: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which messages have a routing key that is too long."""
        if KEY not in staged.schema.names:
            return ()
        keys = staged.column(KEY)
        return [
            Refusal(
                longer_than(keys, _LONGEST_KEY),
                lambda row: (
                    f"column `{self.options.sink_routing_key_field}`: the routing key "
                    f"`{excerpt(keys[row].as_py())}` has more than {_LONGEST_KEY} bytes"
                ),
                "leave such rows out, or shorten the key",
            )
        ]

    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        """Publish the messages, and wait until the server has confirmed all of them."""
        values = messages.column(VALUE).to_pylist()
        nothing = [None] * len(values)
        keys, times = (
            messages.column(name).to_pylist() if name in messages.column_names else nothing
            for name in (KEY, TIME)
        )
        batch, options = hashlib.sha256(batch_id.encode()).hexdigest()[:24], self.options
        properties, left = load_client().BasicProperties, {}
        for index, (value, key, at) in enumerate(zip(values, keys, times, strict=True)):
            described = properties(
                content_type="application/json" if "json" in options.format else None,
                delivery_mode=_PERSISTENT if options.sink_persistent else _TRANSIENT,
                message_id=f"{batch}-{index}",
                timestamp=at if at is not None and at > 0 else None,
            )
            left[index] = ((options.routing_key or "") if key is None else key, value, described)
        self._send(left, ctx)

    def _send(self, left: dict[int, Any], ctx: OperatorContext) -> None:
        if not left:
            return
        try:
            with_retry(
                lambda: _Sending(self.server, self.options, left, ctx).run(),
                is_transient=lambda error: (
                    is_transient(error) and self.server.failure(error, of=self._of).retry
                ),
                backoff=_BACKOFF,
                deadline=rabbitmq.PATIENCE_SECONDS,
                progress=lambda: len(left),
                waits_for=f"RabbitMQ at {self.server.address}",
            )
        except client_errors() as error:
            raise self.server.failure(error, of=self._of) from None


class _Sending:
    """Publishes messages over one connection, and removes confirmed ones from `left`.

    The client's blocking connection waits for each confirmation; this one has many messages in flight.
    """

    def __init__(
        self, server: RabbitServer, options: Any, left: dict[int, Any], ctx: OperatorContext
    ) -> None:
        self._server, self._options, self._left, self._ctx = server, options, left, ctx
        self._waiting = iter(list(left.items()))
        self._tags: dict[int, int] = {}
        self._sent = 0
        self._channel: Any = None
        self._problem: BaseException | None = None
        self._nacked = False
        self._heard = time.monotonic()

    def run(self) -> None:
        """Publish all messages; raises an error of the client or an ExternalError."""
        self._connection = load_client().SelectConnection(
            self._server.settings(),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._over(cause_of(error)),
            on_close_callback=lambda _, reason: self._over(reason if self._left else None),
        )
        self._connection.ioloop.call_later(1, self._check_silence)
        try:
            self._connection.ioloop.start()
        finally:
            self._connection.ioloop.close()
        if self._problem is not None:
            raise self._problem

    def _over(self, problem: BaseException | None) -> None:
        self._problem = self._problem or problem
        self._connection.ioloop.stop()

    def _fail(self, problem: BaseException) -> None:
        """Stop with this error, and close the connection."""
        self._problem = self._problem or problem
        if self._connection.is_open:
            self._connection.close()
        elif self._connection.is_closed:
            self._connection.ioloop.stop()

    def _check_silence(self) -> None:
        """Stop if the server is silent for too long."""
        if time.monotonic() - self._heard > rabbitmq.ANSWER_SECONDS:
            self._over(TimeoutError(f"no answer came in {rabbitmq.ANSWER_SECONDS} s"))
        self._connection.ioloop.call_later(1, self._check_silence)

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, reason: self._fail(reason) if self._left else None)
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._more())

    def _more(self) -> None:
        """Publish messages up to the limit of unconfirmed ones."""
        mandatory = self._options.sink_unroutable == "fail"
        room = _UNCONFIRMED - len(self._tags)
        for index, (key, value, properties) in itertools.islice(self._waiting, room):
            try:
                self._ctx.check_generation(every=RECHECK_SECONDS)
            except HeadraceError as error:
                self._fail(error)
                return
            self._sent += 1
            self._tags[self._sent] = index
            self._channel.basic_publish(self._options.exchange, key, value, properties, mandatory)

    def _confirmed(self, frame: Any) -> None:
        self._heard = time.monotonic()
        last, answer = frame.method.delivery_tag, type(frame.method).__name__
        until = (
            list(itertools.takewhile(lambda tag: tag <= last, self._tags))
            if frame.method.multiple
            else [last]
        )
        indices = [self._tags.pop(tag) for tag in until]
        if answer == "Ack":
            for index in indices:
                self._left.pop(index, None)
        else:
            self._nacked = True
        if not self._left:
            self._connection.close()
        elif self._nacked:
            if not self._tags:  # those on the way are answered first: what is confirmed is not sent again
                self._fail(load_client().exceptions.NackError([]))
        elif len(self._tags) < _UNCONFIRMED // 2 and self._problem is None:
            self._more()

    def _returned(self, _channel: Any, how: Any, _properties: Any, _body: bytes) -> None:
        exchange = f"exchange `{self._options.exchange}`" if self._options.exchange else "default exchange"
        self._fail(
            ExternalError(
                f"RabbitMQ at {self._server.address}, {exchange}: "
                f"no queue takes messages with the routing key `{how.routing_key}`",
                hint="bind a queue, or drop such messages with `sink.unroutable` = 'drop'",
                where="rabbitmq",
            )
        )
