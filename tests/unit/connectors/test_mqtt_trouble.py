"""What an mqtt connector waits for and what it refuses at once, with a small broker that is in trouble."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ExternalError, RefusedError
from headrace.connectors import received
from headrace.connectors.mqtt.connection import Broker
from headrace.connectors.mqtt.sink import MqttSink
from headrace.connectors.mqtt.source import MqttSource
from headrace.model.operator import Limit
from headrace.storage.open import open_storage
from tests.support import SinkDriver, served

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x20, 0x30, 0x40, 0x50, 0x60, 0x70
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 0x80, 0x90, 0xA0, 0xB0
CLEAN, EXACTLY_ONCE = 0x02, 0x04
GRANTED, UNSPECIFIED, SPECIFIC, NOT_AUTHORIZED, WRONG_FILTER, IN_USE, QUOTA = 1, 128, 131, 135, 143, 145, 151
NO_SHARED, NO_WILDCARD = 158, 162


class Trouble(socketserver.ThreadingTCPServer):
    """A broker that gives up some connections once they are there, and answers subscriptions as it is told.

    The last of `answers` is for all that follow. Whoever may subscribe gets a message.
    """

    daemon_threads = True

    def __init__(self, *, lost: int = 0, answers: tuple[int, ...] = (GRANTED,)) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.url = f"mqtt://127.0.0.1:{self.server_address[1]}"
        self.lost, self.answers, self.connections, self.subscriptions = lost, answers, 0, 0
        self.session = False
        self.gone = threading.Event()
        self.taken: list[bytes] = []


class Connection(socketserver.StreamRequestHandler):
    server: Trouble

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            _, hello = self._packet()
            self.newest = hello[6] == 5
            anew = bool(hello[7] & CLEAN)
            known, self.server.session = self.server.session and not anew, not anew
            self.server.connections += 1
            self._say(CONNACK, bytes([known, 0]), b"")
            if self.server.connections <= self.server.lost:
                at_once = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                self.rfile.close()
                self.wfile.close()
                self.connection.close()
                self.server.gone.set()
                return
            while (packet := self._packet())[0]:
                self._answer(*packet)

    def _packet(self) -> tuple[int, bytes]:
        head = self.rfile.read(2)
        return (head[0], self.rfile.read(head[1])) if head else (0, b"")

    def _say(self, kind: int, before: bytes, after: bytes) -> None:
        """Send a packet; between its parts the properties of MQTT 5, none."""
        content = before + b"\0" * self.newest + after
        self.wfile.write(bytes([kind, len(content)]) + content)

    def _answer(self, kind: int, content: bytes) -> None:
        if kind & 0xF0 == SUBSCRIBE:
            answers = self.server.answers
            code = answers[min(self.server.subscriptions, len(answers) - 1)]
            self.server.subscriptions += 1
            self._say(SUBACK, content[:2], bytes([code]))
            if code == GRANTED:
                self._say(PUBLISH, b"\0\1t", b"hello")
        elif kind & 0xF0 == UNSUBSCRIBE:
            self._say(UNSUBACK, content[:2], b"\0" * self.newest)
        elif kind & 0xF0 == PUBLISH:
            place = 2 + struct.unpack("!h", content[:2])[0]
            self.server.taken.append(content[place + 2 + self.newest :])
            answer = PUBREC if kind & EXACTLY_ONCE else PUBACK
            self.wfile.write(bytes([answer, 2]) + content[place : place + 2])
        elif kind & 0xF0 == PUBREL:
            self.wfile.write(bytes([PUBCOMP, 2]) + content[:2])


def serving(**more: Any) -> contextlib.AbstractContextManager[Trouble]:
    return served(Trouble(**more))


def receive(server: Trouble, folder: Path, version: str = "5") -> None:
    """Run a source until a message has come."""
    source = MqttSource(url=server.url, topic="t", format="raw_string", protocol=version)
    source.open(open_storage(str(folder)), job_id="job", node="op")
    start = source.initial_offset(time=0)
    deadline = time.monotonic() + 20
    try:
        while source.latest_offset(start, Limit(10, 0), parallelism=1) == start:
            assert time.monotonic() < deadline
    finally:
        source.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_connection_that_is_lost_before_the_first_message_is_written_costs_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    kept = Broker.publish

    def late(broker: Broker, value: bytes, *, retain: bool) -> Any:
        server.gone.wait(20)
        return kept(broker, value, retain=retain)

    monkeypatch.setattr(Broker, "publish", late)
    with serving(lost=1) as server:
        sink = MqttSink(url=server.url, topic="t", qos=qos, format="raw_string")
        SinkDriver(lambda: sink, tmp_path).run(1, [pa.record_batch({"value": ["a", "b", "c"]})])
        assert (server.taken, server.connections) == ([b"a", b"b", b"c"], 2)


@pytest.mark.parametrize(
    ("version", "code", "passes"),
    [
        ("5", UNSPECIFIED, True),
        ("5", SPECIFIC, True),
        ("5", IN_USE, True),
        ("5", QUOTA, True),
        ("5", NOT_AUTHORIZED, False),
        ("5", WRONG_FILTER, False),
        ("5", NO_SHARED, False),
        ("5", NO_WILDCARD, False),
        ("3.1.1", UNSPECIFIED, False),
    ],
)
def test_a_subscription_is_asked_for_again_unless_it_is_refused(
    version: str, code: int, passes: bool
) -> None:
    with serving(answers=(code,)) as server:
        source = MqttSource(url=server.url, topic="t", format="raw_string", protocol=version)
        with pytest.raises(ExternalError, match="the broker refuses the subscription") as caught:
            source.reach()
        assert caught.value.retry == passes


def test_a_subscription_that_is_not_taken_at_first_is_there_later(tmp_path: Path) -> None:
    with serving(answers=(QUOTA, GRANTED)) as server:
        receive(server, tmp_path)
        assert server.subscriptions == 2


@pytest.mark.parametrize(("version", "code"), [("5", NOT_AUTHORIZED), ("3.1.1", UNSPECIFIED)])
def test_a_run_after_one_that_was_refused_subscribes(tmp_path: Path, version: str, code: int) -> None:
    with serving(answers=(code, GRANTED)) as server:
        with pytest.raises(RefusedError, match="refuses the subscription"):
            receive(server, tmp_path, version)
        receive(server, tmp_path, version)
        assert server.subscriptions == 2


def test_a_subscription_that_is_never_taken_ends_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(answers=(QUOTA,)) as server:

        def monotonic() -> float:
            """The time, which goes on by more than the patience once the subscription was tried again."""
            return time.monotonic() + 2 * received.PATIENCE_SECONDS * (server.subscriptions > 1)

        clock = SimpleNamespace(monotonic=monotonic, time_ns=time.time_ns)
        monkeypatch.setattr(received, "clock", clock)
        with pytest.raises(ExternalError, match="refuses the subscription: Quota exceeded"):
            receive(server, tmp_path)
        assert server.subscriptions > 1
