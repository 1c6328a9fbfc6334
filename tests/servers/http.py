"""Real HTTP servers for tests, on free loopback ports, and what tests of sources that never end need."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace import Pipeline
from headrace.connectors import received
from headrace.connectors.received import Inbox, ReceivedSource
from headrace.jobs.progress import Progress, RunResult
from headrace.testing.in_process import run_in_process

IN_TIME = 60.0
"""Nothing in these tests takes longer, unless it never happens."""


@dataclass(frozen=True)
class Request:
    """What was asked."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is answered: a body, or parts that are sent as they come."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: Iterable[bytes] | None = None


class HttpServer:
    """A server that answers with a function, and can be stopped and started again on its port."""

    def __init__(self, answer: Callable[[Request], Answer], *, tls: tuple[Path, Path] | None = None) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._tls = tls
        self._port = 0
        self._server: http.server.ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65_536
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                owner._open.add(self.connection)

            def finish(self) -> None:
                owner._open.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def _any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                if len(body) < size:  # whoever sent it has died over it
                    self.close_connection = True
                    return
                request = Request(self.command, self.path, dict(self.headers), body)
                owner.requests.append(request)
                with contextlib.suppress(OSError):
                    self._reply(owner.answer(request))

            def _reply(self, answer: Answer) -> None:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.parts is None:
                    self.send_header("Content-Length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                    return
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.flush()
                for part in answer.parts:
                    if owner.stopping.is_set():
                        break
                    self.wfile.write(part)
                    self.wfile.flush()
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        for method in ("GET", "POST", "PUT", "PATCH", "OPTIONS"):
            setattr(Handler, f"do_{method}", Handler._any)
        self.stopping.clear()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        server.daemon_threads = True
        server.block_on_close = False
        if self._tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._tls)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._port, self._server = server.server_address[1], server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """End the server and every connection to it."""
        self.stopping.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        self._server = None


@contextlib.contextmanager
def run_http(
    answer: Callable[[Request], Answer], *, tls: tuple[Path, Path] | None = None
) -> Iterator[HttpServer]:
    """Run a server until the block ends."""
    server = HttpServer(answer, tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody else trusts, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("certificates are made with openssl, which is not installed")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    done = subprocess.run(
        [*command, "-keyout", key, "-out", cert], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"openssl could not make a certificate: {done.stderr.strip()[:300]}")
    return cert, key


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


# ------------------------------------------------------------------------------------- sources without end


def table(connector: str, columns: str, kind: str = "source", name: str = "numbers", **options: Any) -> str:
    """The SQL of a table; `__` in the name of an option stands for a dot, and None leaves it out."""
    given = {"connector": connector, "type": kind, "format": "json", **options}
    listed = ", ".join(
        f"'{key.replace('__', '.')}' = '{value}'" for key, value in given.items() if value is not None
    )
    return f"CREATE TABLE {name} ({columns}) WITH ({listed});"


def query(sql: str) -> Pipeline:
    return Pipeline.from_sql(sql, name="numbers", preview=lambda _: ("memory", {}))


def run_until(pipeline: Pipeline, state: Path, count: int, **more: Any) -> RunResult:
    """Run until so many rows have been read."""
    deadline, seen = time.monotonic() + IN_TIME, 0

    def on_progress(progress: Progress) -> None:
        nonlocal seen
        seen += progress.rows_in

    def stop() -> bool:
        assert time.monotonic() < deadline, f"{seen} of {count} rows came"
        return seen >= count

    return run_in_process(
        pipeline, state, **{"idle_epochs": 10**9, "stop": stop, "on_progress": on_progress, **more}
    )


def found(*lives: RunResult, column: str = "n") -> list[Any]:
    """What the runs have read, in its order."""
    tables = [rows for life in lives for rows in life.rows.values() if rows.num_rows]
    return [one for rows in tables for one in rows.column(column).to_pylist()]


def wait_for(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + IN_TIME
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


class Patience:
    """The clock by which sources lose their patience: a test puts it forward instead of being quick."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contacts = 0
        """How often a source was known to be connected."""
        self._ahead = 0.0
        self._looks = 0
        connected, check = Inbox.connected, ReceivedSource._check

        def count_contact(inbox: Inbox) -> None:
            connected(inbox)
            self.contacts += 1

        def count_look(source: ReceivedSource, inbox: Inbox) -> None:
            check(source, inbox)
            self._looks += 1

        monkeypatch.setattr(Inbox, "connected", count_contact)
        monkeypatch.setattr(ReceivedSource, "_check", count_look)
        monkeypatch.setattr(received, "clock", self)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def time_ns(self) -> int:
        return time.time_ns()

    def run_out(self) -> None:
        """Let more time pass than a source without a connection is given, and the run see that."""
        self._ahead += 2 * received.PATIENCE_SECONDS
        self.be_looked_at()

    def be_looked_at(self) -> None:
        """Wait until the run has looked at the connection, unless the run has ended over that."""
        before, deadline = self._looks, time.monotonic() + 5
        # The first look may have begun before.
        while self._looks < before + 2 and time.monotonic() < deadline:
            time.sleep(0.005)
