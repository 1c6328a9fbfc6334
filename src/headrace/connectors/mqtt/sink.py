"""The `mqtt` sink: publish rows as messages of a topic."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from headrace.base.errors import ExternalError
from headrace.base.retry import is_retryable, with_retry
from headrace.connectors._shared.message_sink import RECHECK_SECONDS, VALUE, MessageSink
from headrace.connectors.base import Delivery, Refusal, excerpt, longer_than
from headrace.connectors.mqtt import connection as mqtt
from headrace.connectors.mqtt.connection import Broker, BrokerOptions, connected, load_client
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import OperatorContext

_MOST_UNDER_WAY = 1000
_LARGEST_PACKET = 268_435_455
"""The most bytes of a packet of MQTT."""


class MqttSink(MessageSink):
    """Publishes each row as a message of a topic, in order, after the commit point of its epoch.

    An epoch is complete when the broker has acknowledged each of its messages, or with QoS 0 has answered
    after the last one. An epoch whose commit was interrupted by a crash is sent again.
    """

    deliveries = (
        Delivery(
            "at least once", "an epoch is sent again unless the broker acknowledged all of its messages"
        ),
    )

    class Options(BrokerOptions, DropOptions, FormatOptions):
        """The options of the mqtt sink."""

        SINGLE_TOPIC: ClassVar[bool] = True

        sink_retain: bool = Field(
            default=False,
            alias="sink.retain",
            description="Whether the broker retains the last message for later subscribers.",
        )

    options: Options

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or certificates cannot be read."""
        super().validate()
        load_client()
        self.options.tls_context()

    def display(self) -> str:
        """Return the broker and the topic."""
        return f"{type(self).__name__}({self.options.address})"

    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        """Publish the messages of an epoch; after a lost connection, the unacknowledged ones again."""
        left = deque(messages.column(VALUE).to_pylist())
        with_retry(
            lambda: self._send(left, ctx),
            is_transient=is_retryable,
            backoff=mqtt.BACKOFF,
            deadline=mqtt.PATIENCE_SECONDS,
            progress=lambda: len(left),
            waits_for=f"the MQTT broker at {self.options.address}",
        )

    def _send(self, left: deque[bytes], ctx: OperatorContext) -> None:
        """Publish the remaining messages, and remove those that the broker acknowledged."""
        with connected(self._broker()) as broker:
            if not self.options.level:
                for value in left:
                    ctx.check_generation(every=RECHECK_SECONDS)
                    broker.publish(value, retain=self.options.sink_retain)
                broker.roundtrip()
                return
            window = min(broker.window, _MOST_UNDER_WAY)
            under_way: deque[Any] = deque()
            for value in list(left):
                ctx.check_generation(every=RECHECK_SECONDS)
                under_way.append(broker.publish(value, retain=self.options.sink_retain))
                self._settle(broker, under_way, left, window)
            self._settle(broker, under_way, left, 1)

    def _broker(self) -> Broker:
        prefix = self.options.client_prefix or "headrace"
        return Broker(self.options, f"{prefix}-{uuid.uuid4().hex[:12]}")

    def _settle(self, broker: Broker, under_way: deque[Any], left: deque[bytes], window: int) -> None:
        """Wait until fewer than `window` messages are unacknowledged."""
        deadline = time.monotonic() + mqtt.ANSWER_SECONDS
        while len(under_way) >= window:
            if broker.acknowledged(under_way[0]):
                under_way.popleft()
                left.popleft()
                deadline = time.monotonic() + mqtt.ANSWER_SECONDS
            elif time.monotonic() > deadline:
                where = self.options.address
                raise ExternalError("mqtt: the broker does not acknowledge messages", where=where)
            else:
                broker.turn(0.1)

    def refusals(self, staged: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which messages are larger than a packet may be."""
        most, values = self.options.max_packet_size or _LARGEST_PACKET, staged.column(VALUE)
        # A packet also has the topic, its length, an id, properties and a header of up to five bytes.
        room = most - len(self.options.topic.encode()) - 10
        return [
            Refusal(
                longer_than(values, room),
                lambda row: (
                    f"a message of {len(values[row].as_py())} bytes is larger than `max_packet_size` allows: "
                    f"`{excerpt(values[row].as_py())}`"
                ),
                f"it is {most}",
            )
        ]

    def reach(self) -> str:
        """Connect, and return a line about the broker."""
        with connected(self._broker()):
            return f"a broker of MQTT {self.options.protocol} at {self.options.address}"
