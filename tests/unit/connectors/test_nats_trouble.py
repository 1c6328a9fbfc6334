"""What a nats connector waits for and what it refuses at once, with a small server that is in trouble."""

from __future__ import annotations

import contextlib
import socketserver
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import ExternalError
from headrace.connectors.nats.client import ApiError, NatsServers
from headrace.connectors.nats.sink import NatsSink
from tests.support import served

INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true,"proto":1}\r\n'


class Trouble(socketserver.ThreadingTCPServer):
    """A server that refuses the first `refused` connections: with a text, or by hanging up."""

    daemon_threads = True

    def __init__(self, text: str = "", refused: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.text, self.refused, self.seen = text, refused, 0


class Connection(socketserver.StreamRequestHandler):
    server: Trouble

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.server.seen += 1
            refuses = self.server.seen <= self.server.refused
            if refuses and not self.server.text:
                return
            self.wfile.write(INFO)
            while line := self.rfile.readline():
                if line == b"PING\r\n" and refuses:
                    self.wfile.write(f"-ERR '{self.server.text}'\r\n".encode())
                    return
                if line == b"PING\r\n":
                    self.wfile.write(b"PONG\r\n")


@contextlib.contextmanager
def serving(text: str = "", refused: int = 0) -> Iterator[tuple[Trouble, NatsServers]]:
    with served(Trouble(text, refused)) as server:
        yield server, NatsSink(servers=f"nats://127.0.0.1:{server.server_address[1]}", subject="s").servers


async def work(connection: Any) -> str:
    assert connection.is_connected
    return "done"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "maximum connections exceeded",
        "maximum account active connections exceeded",
        "Authentication Timeout",
    ],
)
def test_a_server_that_does_not_take_connections_yet_is_waited_for(text: str) -> None:
    with serving(text, refused=2) as (server, servers):
        assert servers.ask(work, patience=20) == "done"
        assert server.seen == 3


@pytest.mark.parametrize("text", ["Authorization Violation", "User Authentication Expired"])
def test_a_server_that_does_not_know_the_user_is_not_asked_again(text: str) -> None:
    with serving(text, refused=9) as (server, servers):
        with pytest.raises(ExternalError, match=text):
            servers.ask(work, patience=20)
        assert server.seen == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (500, "JetStream cluster can not handle request"),
        (500, "JetStream cluster not assigned to this server"),
        (503, "JetStream system temporarily unavailable"),
        (429, "Too Many Requests"),
    ],
)
def test_jetstream_is_asked_again_while_it_elects_a_leader_or_is_busy(code: int, text: str) -> None:
    answers = []

    async def ask(_: Any) -> str:
        answers.append(code)
        if len(answers) < 3:
            raise ApiError(code, text)
        return "done"

    with serving() as (_, servers):
        assert servers.ask(ask, patience=20) == "done"
        answers.clear()
        with pytest.raises(ExternalError, match=text):
            servers.ask(ask, patience=0)


def test_what_jetstream_refuses_is_not_asked_again() -> None:
    asked = []

    async def ask(_: Any) -> None:
        asked.append(1)
        raise ApiError(400, "bad request")

    with serving() as (_, servers):
        with pytest.raises(ExternalError, match=r"NATS at .*: bad request"):
            servers.ask(ask, patience=20)
        assert len(asked) == 1
