"""The websocket source and sink against a real server."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError, ExternalError, RefusedError
from headrace.connectors import received
from headrace.connectors.http import client as http_client
from headrace.connectors.http import websocket
from headrace.connectors.http.websocket import WebSocketSink, WebSocketSource
from headrace.model.operator import Limit
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.http import IN_TIME, Patience, found, query, run_until, table, wait_for
from tests.support import SinkDriver

ROWS = 60
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


class SocketServer:
    """A server that talks to each connection with a function, and can be restarted on its port."""

    def __init__(self, talk: Callable[[Any], None], **options: Any) -> None:
        self.talk, self._options = talk, options
        self.headers: list[dict[str, str]] = []
        self._port = 0
        self._server: Any = None

    @property
    def url(self) -> str:
        return f"{'wss' if self._options.get('ssl') else 'ws'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        from websockets.exceptions import ConnectionClosed
        from websockets.sync.server import serve

        def handle(connection: Any) -> None:
            self.headers.append(dict(connection.request.headers.raw_items()))
            with contextlib.suppress(ConnectionClosed):
                self.talk(connection)

        self._server = serve(handle, "127.0.0.1", self._port, **self._options)
        self._port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()


@contextlib.contextmanager
def run_socket(talk: Callable[[Any], None], **options: Any) -> Iterator[SocketServer]:
    server = SocketServer(talk, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def send(*messages: str | bytes, hold: bool = True) -> Callable[[Any], None]:
    """Send these to every connection, and wait until it is closed."""

    def talk(connection: Any) -> None:
        for message in messages:
            connection.send(message)
        if hold:
            for _ in connection:
                pass

    return talk


def numbered(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


def reading(url: str, columns: str = "n BIGINT", select: str = "n", **more: Any) -> Any:
    return query(table("websocket", columns, endpoint=url, **more) + f"SELECT {select} FROM numbers")


# ----------------------------------------------------------------------------------------- the source


def test_texts_and_bytes_are_messages_in_their_order(tmp_path: Path) -> None:
    with run_socket(send("a", b"\xc3\xbc\n", "", "c" * 2_000_000)) as server:
        pipeline = reading(server.url, "value TEXT", "value", format="raw_string")
        result = run_until(pipeline, tmp_path, 4)
    assert found(result, column="value") == ["a", "ü\n", "", "c" * 2_000_000]


@pytest.mark.parametrize(
    "options",
    [
        {"subscription_messages__1": "two", "subscription_messages__0": "one"},
        {"subscription_message": "one"},
    ],
)
def test_what_is_to_be_said_first_is_said_after_every_connection(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    heard: list[list[str]] = []

    def talk(connection: Any) -> None:
        heard.append([connection.recv() for _ in options])
        connection.send(numbered(len(heard), len(heard) + 1)[0])

    with run_socket(talk) as server:
        pipeline = reading(server.url, headers="Authorization: Bearer t0ken, X-A: b", **options)
        assert found(run_until(pipeline, tmp_path, 3))[:3] == [1, 2, 3]
        assert {one["Authorization"] for one in server.headers} == {"Bearer t0ken"}
    assert heard[0] == heard[1] == ["one", "two"][: len(options)]


@pytest.mark.parametrize("step", ["begin", "tasks_done", "metadata_written", "committed"])
def test_a_crash_at_any_step_repeats_no_message_and_loses_none_that_was_kept(
    tmp_path: Path, step: str
) -> None:
    out, sent = tmp_path / "out.json", iter(range(10**6))

    def talk(connection: Any) -> None:
        while True:
            connection.send(json.dumps({"n": next(sent)}))
            with contextlib.suppress(TimeoutError):
                connection.recv(timeout=0.001)

    def crash(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    with run_socket(talk) as server:

        def build() -> Any:
            return query(
                table("websocket", "n BIGINT", endpoint=server.url)
                + table("single_file", "n BIGINT", "sink", "copied", path=out)
                + "INSERT INTO copied SELECT n FROM numbers;"
            )

        with pytest.raises(CrashError):
            run_until(build(), tmp_path / "state", 10**9, on_step=crash)
        run_until(build(), tmp_path / "state", 5)
    numbers = [json.loads(line)["n"] for line in out.read_text().splitlines()]
    assert set(Counter(numbers).values()) == {1}
    assert numbers == sorted(numbers)
    # What was under way when the connection ended is gone, and only that: one gap for each.
    assert sum(after - before != 1 for before, after in itertools.pairwise(numbers)) <= 1


def test_a_server_that_restarts_is_found_again(tmp_path: Path) -> None:
    sent = threading.Event()

    def talk(connection: Any) -> None:
        send(*numbered(0, 3), hold=False)(connection)
        sent.set()
        send()(connection)

    with run_socket(talk) as server:

        def restart(step: str, epoch: int) -> None:
            if step == "begin" and epoch == 1:
                assert sent.wait(IN_TIME)
                server.stop()
                server.talk = send(*numbered(3, 6))
                server.start()

        assert found(run_until(reading(server.url), tmp_path, 6, on_step=restart)) == list(range(6))


def test_a_side_that_does_not_answer_a_ping_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.2)
    monkeypatch.setattr(websocket, "PONG_SECONDS", 0.4)
    released = threading.Event()

    def talk(connection: Any) -> None:
        connection.send(numbered(len(server.headers), len(server.headers) + 1)[0])
        if len(server.headers) == 1:
            with connection.protocol_mutex:  # nothing that comes is handled, as if it were gone
                released.wait(30)
        for _ in connection:
            pass

    with run_socket(talk) as server:
        assert found(run_until(reading(server.url), tmp_path, 2)) == [1, 2]
        released.set()


def test_a_quiet_socket_that_answers_pings_outlives_the_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(monkeypatch)
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.1)

    def talk(connection: Any) -> None:
        if len(server.headers) == 1:
            return
        for contacts in (2, 4):  # the second connection, and two answers to a ping
            wait_for(lambda most=contacts: patience.contacts >= most)  # type: ignore[misc]
            patience.run_out()
        connection.send(numbered(1, 2)[0])
        for _ in connection:
            pass

    with run_socket(talk) as server:
        assert found(run_until(reading(server.url), tmp_path, 1)) == [1]
    assert len(server.headers) == 2


def test_a_slow_pipeline_makes_the_server_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "BUFFERED_BYTES", 1_000_000)
    sent = []

    def talk(connection: Any) -> None:
        for n in range(1000):
            connection.send(json.dumps({"n": n, "x": "x" * 100_000}))
            sent.append(n)
        for _ in connection:
            pass

    with run_socket(talk, compression=None) as server:
        source = WebSocketSource(endpoint=server.url, schema={"n": "int64"})
        source.open(open_storage(str(tmp_path)), job_id="job", node="op")
        start = source.initial_offset(time=0)
        wait_for(lambda: source.latest_offset(start, Limit(1, 0), parallelism=1) != start)
        assert source._inbox is not None
        wait_for(lambda: source._inbox._bytes >= 1_000_000)  # type: ignore[union-attr]
        before = -1
        while before != len(sent):
            before = len(sent)
            threading.Event().wait(0.3)
        source.close()
    assert before < 500  # the rest did not fit into the buffers of the way


def test_a_message_that_cannot_be_read_is_told_or_dropped(tmp_path: Path) -> None:
    with run_socket(send('{"n": 1}', "{", '{"n": 2}')) as server:
        with pytest.raises(BadLineError, match="of what was received"):
            run_until(reading(server.url), tmp_path / "a", 3)
        assert found(run_until(reading(server.url, bad_data="drop"), tmp_path / "b", 2)) == [1, 2]


def test_a_message_that_is_too_large_ends_the_run(tmp_path: Path) -> None:
    with (
        run_socket(send("x" * 2000)) as server,
        pytest.raises(ExternalError, match="more than 1000 bytes"),
    ):
        run_until(reading(server.url, max_message_size=1000), tmp_path, 1)


def test_who_is_refused_is_told_so_at_once(tmp_path: Path) -> None:
    def refuse(connection: Any, _: Any) -> Any:
        return connection.respond(HTTPStatus.UNAUTHORIZED, "who is t0ken123?\n")

    with (
        run_socket(send(), process_request=refuse) as server,
        pytest.raises(ExternalError, match="401 Unauthorized: who is") as caught,
    ):
        run_until(reading(server.url, headers="Authorization: Bearer t0ken123"), tmp_path, 1)
    assert "t0ken123" not in str(caught.value)
    with (
        run_socket(lambda connection: connection.close(1008, "not you")) as server,
        pytest.raises(ExternalError, match="closed the connection: 1008 not you"),
    ):
        run_until(reading(server.url), tmp_path / "b", 1)


def test_a_server_that_is_not_there_ends_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.3)
    for name in ("ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(ExternalError, match=r"websocket does not answer: .*refused"):
        run_until(reading("ws://127.0.0.1:9/?key=s3cret"), tmp_path, 1)


def test_no_log_holds_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    logging.getLogger("websockets.server").setLevel("WARNING")  # it is the server's own
    with run_socket(send(*numbered(0, 1))) as server:
        options = {"headers": "X-Key: s3cret2", "subscription_message": "s3cret3"}
        run_until(reading(server.url + "/?key=s3cret1", **options), tmp_path, 1)
    assert "s3cret" not in caplog.text


def test_certificates_are_checked(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with run_socket(send(*numbered(0, 2)), ssl=context) as server:
        with pytest.raises(ExternalError, match="certificate of the server is not trusted"):
            run_until(reading(server.url), tmp_path / "a", 1)
        trusted: dict[str, Any] = {"tls__ca": certificate[0]}
        assert found(run_until(reading(server.url, **trusted), tmp_path / "b", 2)) == [0, 1]
        source = WebSocketSource(endpoint=server.url, format="raw_string", tls_ca=str(certificate[0]))
        assert source.reach() == f"{server.url} is a web socket"


def test_a_redirect_to_another_port_gets_no_header_and_no_subscription(tmp_path: Path) -> None:
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    def away(_: Any, request: Any) -> Any:
        location = f"{server.url}/" if request.path == "/first" else f"{other.url}/there"
        return Response(302, "Found", Headers(Location=location), b"")

    with (
        run_socket(send(*numbered(0, 2))) as other,
        run_socket(send(), process_request=away) as server,
    ):
        secrets = {"headers": "X-Api-Key: s3cret1", "subscription_message": "s3cret2"}
        for path in ("/", "/first"):
            with pytest.raises(RefusedError, match=f"sent elsewhere: 302 Found, to {other.url}/there"):
                run_until(reading(server.url + path, **secrets), tmp_path / path[1:], 1)
        assert not other.headers


def test_a_look_sends_no_subscription() -> None:
    heard: list[Any] = []
    with run_socket(heard.extend) as server:
        options = {"endpoint": server.url, "format": "raw_string", "subscription_message": "all of it"}
        assert WebSocketSource(**options).reach() == f"{server.url} is a web socket"
        wait_for(lambda: server.headers)
    assert not heard


# ------------------------------------------------------------------------------------------- the sink


class Heard:
    """A server that keeps what it hears."""

    def __init__(self) -> None:
        self.messages: list[str | bytes] = []
        self.ended = 0
        """How many connections have nothing more to say."""

    def __call__(self, connection: Any) -> None:
        self.messages.extend(connection)
        self.ended += 1

    def numbers(self) -> Counter[int]:
        return Counter(json.loads(message)["n"] for message in self.messages)


def copying(url: str) -> Any:
    Path("in.json").write_text("\n".join(numbered(0, ROWS)))
    return query(
        table("single_file", "n BIGINT", path="in.json", wait_for_control="false")
        + table("websocket", "n BIGINT", "sink", "copied", endpoint=url)
        + "INSERT INTO copied SELECT n FROM numbers;"
    )


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_shows_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.chdir(tmp_path)

    def crash(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    heard = Heard()
    with run_socket(heard) as server:
        with pytest.raises(CrashError):
            run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20, on_step=crash)
        run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
    assert heard.numbers() == Counter(range(ROWS))


def test_a_crash_inside_a_commit_sends_the_epoch_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heard = Heard()
    kept = WebSocketSink.deliver

    def crashing(sink: WebSocketSink, *arguments: Any) -> None:
        kept(sink, *arguments)
        raise CrashError

    with run_socket(heard) as server:
        monkeypatch.setattr(WebSocketSink, "deliver", crashing)
        with pytest.raises(CrashError):
            run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
        monkeypatch.setattr(WebSocketSink, "deliver", kept)
        run_in_process(copying(server.url), tmp_path / "state", epoch_rows=20)
    assert heard.numbers() == Counter(range(ROWS)) + Counter(range(20))


def test_texts_are_sent_as_texts_and_bytes_as_bytes(tmp_path: Path) -> None:
    heard = Heard()
    with run_socket(heard) as server:
        for epoch, (form, value) in enumerate((("raw_string", "ü"), ("raw_bytes", b"\xff")), 1):
            driver = SinkDriver(
                lambda form=form: WebSocketSink(endpoint=server.url, format=form, subscription_message="hi"),  # type: ignore[misc]
                tmp_path / form,
            )
            driver.run(epoch, [pa.record_batch({"value": [value]})])
            # A ping is answered before what came ahead of it was read here.
            wait_for(lambda most=epoch: heard.ended >= most)  # type: ignore[misc]
        assert WebSocketSink(endpoint=server.url).reach().endswith("is a web socket")
    assert heard.messages == ["hi", "ü", "hi", b"\xff"]


def test_a_receiver_that_goes_away_fails_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PONG_SECONDS", 0.3)
    monkeypatch.setattr(http_client, "PATIENCE_SECONDS", 0.5)
    with run_socket(lambda connection: connection.close(1011, "no room")) as server:
        driver = SinkDriver(lambda: WebSocketSink(endpoint=server.url), tmp_path)
        with pytest.raises(ExternalError, match=r"websocket.*(1011 no room|does not answer|lost)"):
            driver.run(1, [pa.record_batch({"n": list(range(1000))})])
    with pytest.raises(ExternalError, match="does not answer"):
        driver.run(2, [pa.record_batch({"n": [1]})])


def test_a_receiver_that_restarts_during_a_commit_costs_no_rows(tmp_path: Path) -> None:
    heard, restarted = Heard(), list[threading.Thread]()

    def restart() -> None:
        server.stop()
        server.start()

    def talk(connection: Any) -> None:
        for message in connection:
            heard.messages.append(message)
            if len(heard.messages) == 100 and not restarted:
                restarted.append(threading.Thread(target=restart))
                restarted[0].start()

    with run_socket(talk) as server:
        driver = SinkDriver(lambda: WebSocketSink(endpoint=server.url), tmp_path)
        driver.run(1, [pa.record_batch({"n": list(range(5000))})])
        driver.run(2, [pa.record_batch({"n": list(range(5000, 5100))})])
        restarted[0].join()
        wait_for(lambda: len(heard.numbers()) >= 5100, "the rows")
    assert set(heard.numbers()) == set(range(5100))


def test_a_sink_that_is_refused_is_told_so_at_once(tmp_path: Path) -> None:
    def refuse(connection: Any, _: Any) -> Any:
        return connection.respond(HTTPStatus.UNAUTHORIZED, "who is t0ken123?\n")

    with run_socket(send(), process_request=refuse) as server:
        given = {"endpoint": server.url, "headers": "Authorization: Bearer t0ken123"}
        driver = SinkDriver(lambda: WebSocketSink(**given), tmp_path)
        with pytest.raises(ExternalError, match="401 Unauthorized: who is") as caught:
            driver.run(1, [pa.record_batch({"n": [1]})])
    assert not caught.value.retry
    assert "t0ken123" not in str(caught.value)
