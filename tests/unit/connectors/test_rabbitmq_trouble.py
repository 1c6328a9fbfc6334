"""What a rabbitmq sink waits for and what it refuses at once, with a small server that is in trouble."""

from __future__ import annotations

import contextlib
import socketserver
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pika import frame, spec  # type: ignore[import-untyped]

from headrace.base.errors import ExternalError
from headrace.connectors.rabbitmq import client as shared
from headrace.connectors.rabbitmq.sink import RabbitSink
from tests.support import SinkDriver, served

CAN = {"capabilities": {"publisher_confirms": True, "basic.nack": True}}
HEADER, HANG_UP = "ProtocolHeader", "hang up"
ANSWERS: dict[str, Any] = {
    HEADER: spec.Connection.Start(0, 9, CAN, "PLAIN", "en_US"),
    "Connection.StartOk": spec.Connection.Tune(0, 131_072, 0),
    "Connection.Open": spec.Connection.OpenOk(),
    "Connection.Close": spec.Connection.CloseOk(),
    "Channel.Open": spec.Channel.OpenOk(),
    "Channel.Close": spec.Channel.CloseOk(),
    "Confirm.Select": spec.Confirm.SelectOk(),
}
Instead = Callable[[int, str], Any]


class Trouble(socketserver.ThreadingTCPServer):
    """A server that confirms messages.

    `instead`, given the number of a connection and what was said, may have another answer, or HANG_UP.
    """

    daemon_threads = True

    def __init__(self, instead: Instead) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.instead, self.connections = instead, 0
        self.came: list[tuple[int, str]] = []
        """The messages, with the numbers of their connections."""


class Connection(socketserver.StreamRequestHandler):
    server: Trouble

    def handle(self) -> None:
        self.server.connections += 1
        number, tag = self.server.connections, 0
        with contextlib.suppress(ConnectionError):
            for said in self._frames():
                if isinstance(said, frame.Body):
                    tag += 1
                    text = said.fragment.decode()
                    self.server.came.append((number, text))
                    answer = self.server.instead(number, text) or spec.Basic.Ack()
                    if isinstance(answer, (spec.Basic.Ack, spec.Basic.Nack)):
                        answer.delivery_tag = tag
                else:
                    name = said.method.NAME if isinstance(said, frame.Method) else said.NAME
                    answer = self.server.instead(number, name) or ANSWERS.get(name)
                if answer is HANG_UP:
                    return
                if answer is not None:
                    channel = 0 if answer.NAME.startswith("Connection") else 1
                    self.wfile.write(frame.Method(channel, answer).marshal())

    def _frames(self) -> Iterator[Any]:
        data = b""
        while part := self.request.recv(65_536):
            data += part
            while (found := frame.decode_frame(data))[1] is not None:
                data = data[found[0] :]
                yield found[1]


def serving(instead: Instead) -> contextlib.AbstractContextManager[Trouble]:
    return served(Trouble(instead))


def send(server: Trouble, folder: Path) -> None:
    """Let a sink send three messages."""
    given = {
        "host": "127.0.0.1",
        "port": server.server_address[1],
        "routing_key": "q",
        "format": "raw_string",
    }
    rows = pa.record_batch({"value": ["a", "b", "c"]})
    SinkDriver(lambda: RabbitSink(**given), folder).run(1, [rows])


def closing(code: int) -> Any:
    return spec.Connection.Close(code, f"CODE {code}", 0, 0)


@pytest.mark.parametrize("moment", ["Connection.StartOk", "Connection.Open", "Channel.Open"])
@pytest.mark.parametrize("answer", [HANG_UP, closing(320), closing(541)])
def test_a_server_that_restarts_is_waited_for(tmp_path: Path, moment: str, answer: Any) -> None:
    with serving(lambda number, said: answer if number == 1 and said == moment else None) as server:
        send(server, tmp_path)
        assert server.came == [(2, "a"), (2, "b"), (2, "c")]


@pytest.mark.parametrize("answer", [HANG_UP, closing(320)])
def test_what_was_confirmed_before_a_restart_is_not_sent_again(tmp_path: Path, answer: Any) -> None:
    with serving(lambda number, said: answer if number == 1 and said == "c" else None) as server:
        send(server, tmp_path)
        assert server.came == [(1, "a"), (1, "b"), (1, "c"), (2, "c")]


def test_a_message_that_is_not_kept_is_sent_again_alone(tmp_path: Path) -> None:
    with serving(lambda number, said: spec.Basic.Nack() if number < 3 and said == "b" else None) as server:
        send(server, tmp_path)
        assert server.came == [(1, "a"), (1, "b"), (1, "c"), (2, "b"), (3, "b")]


def test_messages_that_are_never_kept_fail_the_epoch_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.3)
    with (
        serving(lambda _, said: spec.Basic.Nack() if said == "b" else None) as server,
        pytest.raises(ExternalError, match="default exchange: the server could not keep a message"),
    ):
        send(server, tmp_path)


@pytest.mark.parametrize(
    ("moment", "code", "told"),
    [
        ("Connection.StartOk", 403, "refuses access: .*CODE 403"),
        ("Connection.Open", 530, "refuses access: .*CODE 530"),
        ("Channel.Open", 504, "default exchange: CODE 504"),
    ],
)
def test_a_server_that_says_no_is_not_asked_again(tmp_path: Path, moment: str, code: int, told: str) -> None:
    with serving(lambda _, said: closing(code) if said == moment else None) as server:
        with pytest.raises(ExternalError, match=told):
            send(server, tmp_path)
        assert server.connections == 1
