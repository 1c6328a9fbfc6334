"""The MQTT client, corrected where messages could be lost. Its package is an extra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from headrace.base.errors import ConfigurationError

HANDSHAKE_SECONDS = 10

# These are corrected below: a version without them would go on to lose messages, in silence.
_INSIDE = ("handle_publish", "handle_pubrel", "handle_pubrec", "send_pubrec", "send_pubcomp", "create_socket")
if not all(hasattr(mqtt.Client, f"_{name}") for name in _INSIDE):
    raise ConfigurationError(
        "this version of paho-mqtt is not supported", hint="install another one: pip install 'paho-mqtt<3'"
    )


class LateClient(mqtt.Client):
    """A client that acknowledges QoS 2 messages when they are logged instead of when they arrive.

    The base class sends PUBREC at once: the broker then drops the content, and a crash before the message is
    logged would lose it. When it publishes, it takes a refusal for an acknowledgement. Overriding its private
    methods is the only way to change that.
    """

    take: Callable[[Any], None] | None = None
    """Called with each QoS 2 message."""
    released: Callable[[int], None] | None = None
    """Called with the id of a QoS 2 message that the broker will not send again."""
    on_refusal: Callable[[Any], None] | None = None
    """Called with the reason if the broker refuses a QoS 2 message."""
    _line: Any = None

    def confirm(self, mid: int, level: int) -> None:
        """Acknowledge a message."""
        if level == 2:
            super()._send_pubrec(mid)
        else:
            self.ack(mid, level)

    def _handle_publish(self) -> Any:
        code = super()._handle_publish()
        while self._in_messages:
            _, message = self._in_messages.popitem(last=False)
            if self.take is not None:
                self.take(message)
        return code

    def _send_pubrec(self, mid: int) -> Any:
        return mqtt.MQTT_ERR_SUCCESS

    def _handle_pubrel(self) -> Any:
        self.manual_ack_set(on=False)
        try:
            return super()._handle_pubrel()
        finally:
            self.manual_ack_set(on=True)

    def _send_pubcomp(self, mid: int) -> Any:
        if self.released is not None:
            self.released(mid)
        return super()._send_pubcomp(mid)

    def _handle_pubrec(self) -> Any:
        reason = bytes(self._in_packet["packet"][2:3])
        if not reason or reason[0] < 0x80 or self.on_refusal is None:
            return super()._handle_pubrec()
        self.on_refusal(ReasonCode(PacketTypes.PUBREC, identifier=reason[0]))
        return mqtt.MQTT_ERR_SUCCESS

    def _create_socket(self) -> Any:
        # Of its own accord it leaves a socket open that leads to no web socket, or to nobody who is trusted.
        try:
            return super()._create_socket()
        except BaseException:
            if self._line is not None:
                self._line.close()
            raise

    def _create_socket_connection(self) -> Any:
        self._line = super()._create_socket_connection()
        return self._line

    def _ssl_wrap_socket(self, tcp_sock: Any) -> Any:
        assert self._ssl_context is not None
        self._line = wrapped = self._ssl_context.wrap_socket(
            tcp_sock, server_hostname=self._host, do_handshake_on_connect=False
        )
        wrapped.settimeout(HANDSHAKE_SECONDS)
        wrapped.do_handshake()
        return wrapped


def connect_properties() -> Any:
    """Return empty CONNECT properties of MQTT 5."""
    return Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
