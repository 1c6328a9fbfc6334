"""What a kafka connector waits for and what it refuses at once, with a small broker that is in trouble."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import ExternalError, RefusedError
from headrace.connectors.kafka import client as kafka
from headrace.connectors.kafka.client import Cluster
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.kafka.source import KafkaSource
from tests.support import served

METADATA, OFFSETS, COORDINATOR, HANDSHAKE, VERSIONS, LOGIN = 3, 9, 10, 17, 18, 36
SPOKEN = {METADATA: 1, OFFSETS: 1, COORDINATOR: 0, HANDSHAKE: 1, VERSIONS: 0, LOGIN: 0}
"""What the broker can be asked, and the newest version of each question that it understands."""

UNKNOWN_VERSION, WRONG_MECHANISM, WRONG_PASSWORD, NO_RIGHT = 35, 33, 58, 29
SASL = {
    "auth.type": "sasl",
    "auth.mechanism": "PLAIN",
    "auth.protocol": "SASL_PLAINTEXT",
    "auth.username": "ada",
    "auth.password": "x",
}


def text(value: str) -> bytes:
    return struct.pack("!h", len(value)) + value.encode()


class Trouble(socketserver.ThreadingTCPServer):
    """A broker of one topic, `t`, with one partition; `instead` may give another answer, b"" to hang up."""

    daemon_threads = True

    def __init__(self, instead: Callable[[int], bytes | None]) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.instead, self.asked = instead, list[int]()

    def answer(self, question: int, version: int) -> bytes:
        self.asked.append(question)
        given = self.instead(question)
        if given is not None:
            return given
        me = text("127.0.0.1") + struct.pack("!i", self.server_address[1])
        partition = struct.pack("!hiiiiii", 0, 0, 1, 1, 1, 1, 1)
        if question == VERSIONS and version > SPOKEN[VERSIONS]:
            return struct.pack("!hi", UNKNOWN_VERSION, 0)
        return {
            VERSIONS: lambda: (
                struct.pack("!hi", 0, len(SPOKEN))
                + b"".join(struct.pack("!hhh", key, 0, newest) for key, newest in SPOKEN.items())
            ),
            HANDSHAKE: lambda: struct.pack("!hi", 0, 1) + text("PLAIN"),
            LOGIN: lambda: struct.pack("!hhi", 0, -1, 0),
            METADATA: lambda: (
                struct.pack("!ii", 1, 1)
                + me
                + struct.pack("!hiih", -1, 1, 1, 0)
                + text("t")
                + struct.pack("!bi", 0, 1)
                + partition
            ),
            COORDINATOR: lambda: struct.pack("!hi", 0, 1) + me,
        }[question]()


class Connection(socketserver.StreamRequestHandler):
    server: Trouble

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while size := self.rfile.read(4):
                question, version, number = struct.unpack(
                    "!hhi", self.rfile.read(*struct.unpack("!i", size))[:8]
                )
                content = self.server.answer(question, version)
                if not content:
                    return
                self.wfile.write(struct.pack("!ii", len(content) + 4, number) + content)


@contextlib.contextmanager
def serving(instead: Callable[[int], bytes | None]) -> Iterator[Trouble]:
    with served(Trouble(instead)) as server:
        try:
            yield server
        finally:
            for held, _ in kafka._IDLE.values():
                kafka._close(held)
            kafka._IDLE.clear()


def cluster(server: Trouble, **options: Any) -> Cluster:
    given = {"bootstrap_servers": server.address, "topic": "t", "format": "raw_string", **options}
    return KafkaSource(**given).cluster


def test_a_broker_that_goes_away_while_it_is_logged_in_to_is_waited_for() -> None:
    handshakes = []

    def instead(question: int) -> bytes | None:
        if question != HANDSHAKE:
            return None
        handshakes.append(question)
        return b"" if len(handshakes) < 3 else None

    with serving(instead) as server:
        assert cluster(server, **SASL).partitions("t", patience=20) == [("t", 0)]
    assert len(handshakes) >= 3


def test_a_broker_that_never_lets_anybody_log_in_is_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []
    kept, began = kafka.Trouble.__call__, time.monotonic()

    def hear(trouble: kafka.Trouble, error: Any) -> None:
        kept(trouble, error)
        heard.append(error.str())

    def monotonic() -> float:
        """A clock that stands still until the client has said what is wrong."""
        told = any("handshake failed" in text for text in heard)
        return 2.0 if told or time.monotonic() > began + 60 else 0.0

    monkeypatch.setattr(kafka.Trouble, "__call__", hear)
    monkeypatch.setattr(kafka, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    with serving(lambda question: b"" if question == HANDSHAKE else None) as server:
        with pytest.raises(ExternalError, match=r"does not answer: .*handshake failed") as caught:
            cluster(server, **SASL).partitions("t", patience=1)
        assert caught.value.retry


@pytest.mark.parametrize(
    ("question", "answer", "told"),
    [
        (HANDSHAKE, struct.pack("!hi", WRONG_MECHANISM, 1) + text("GSSAPI"), "Unsupported SASL mechanism"),
        (
            LOGIN,
            struct.pack("!h", WRONG_PASSWORD) + text("wrong password") + struct.pack("!i", 0),
            "wrong pass",
        ),
    ],
)
def test_a_login_that_is_refused_is_told_at_once(question: int, answer: bytes, told: str) -> None:
    with (
        serving(lambda asked: answer if asked == question else None) as server,
        pytest.raises(RefusedError, match=f"refuses access .*{told}"),
    ):
        cluster(server, **SASL).partitions("t", patience=60)


def test_offsets_that_a_broker_does_not_tell_are_not_taken_for_none() -> None:
    offsets = struct.pack("!i", 1) + text("t") + struct.pack("!iiqhh", 1, 0, -1, 0, NO_RIGHT)
    with serving(lambda asked: offsets if asked == OFFSETS else None) as server:
        with pytest.raises(RefusedError, match=r"topic `t`: .*authorization failed"):
            cluster(server).group_offsets("g", [("t", 0)])
        sink = KafkaSink(bootstrap_servers=server.address, topic="t")
        client = kafka.load_client()
        with (
            pytest.raises(client.KafkaException, match="authorization failed"),
            sink.cluster.connect("Consumer", {"group.id": "g"}) as (consumer, _),
        ):
            sink._last_commit(consumer)
