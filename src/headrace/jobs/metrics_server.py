"""The HTTP server of a run: `/metrics` for Prometheus, `/healthz` and `/readyz` for what keeps it running."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from headrace.base.errors import ConfigurationError
from headrace.jobs.prometheus import CONTENT_TYPE, exposition

_REQUEST_SECONDS = 10.0
"""How long a client may take for its request."""


class MetricsServer:
    """Serves the metrics of a run for as long as the block lasts, in threads of their own.

    `snapshot` is what the run has measured, empty before there is anything; `state` is the state of the run.
    Port 0 takes any that is free: `address` says which.
    """

    def __init__(
        self, host: str, port: int, *, snapshot: Callable[[], Mapping[str, Any]], state: Callable[[], str]
    ) -> None:
        exposition([])  # what is not installed is told now
        handler = type(
            "_Handler", (_Answers,), {"snapshot": staticmethod(snapshot), "state": staticmethod(state)}
        )
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        except OverflowError:
            raise ConfigurationError(f"there is no port {port}", hint="a port is from 1 to 65535") from None

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="headrace-metrics", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        import socket

        addresses = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = addresses[0][0]
        super().__init__(addresses[0][4][:2], handler)  # type: ignore[arg-type]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have closed the connection."""


class _Answers(BaseHTTPRequestHandler):
    snapshot: Callable[[], Mapping[str, Any]]
    state: Callable[[], str]
    timeout = _REQUEST_SECONDS
    server_version = "headrace"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a question."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            snapshot = self.snapshot()
            self._answer(HTTPStatus.OK, exposition([snapshot] if snapshot else []), CONTENT_TYPE)
        elif path == "/healthz":
            state = self.state()
            self._say(HTTPStatus.SERVICE_UNAVAILABLE if state == "failed" else HTTPStatus.OK, state)
        elif path == "/readyz":
            state = self.state()
            self._say(HTTPStatus.OK if state == "running" else HTTPStatus.SERVICE_UNAVAILABLE, state)
        else:
            self._say(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    do_HEAD = do_GET  # noqa: N815 - the name is that of the base class

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, f"{text}\n".encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
        """Requests are not logged."""


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigurationError:
    where = f"{host}, port {port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(
            f"the metrics cannot be served at {where}: another program listens there",
            hint="choose another with --metrics-port (or `[metrics] port`)",
        )
    if error.errno == errno.EACCES:
        return ConfigurationError(
            f"the metrics cannot be served at {where}: this user may not listen there",
            hint="choose a port from 1024 on with --metrics-port (or `[metrics] port`)",
        )
    return ConfigurationError(
        f"the metrics cannot be served at {where}: {error.strerror or error}",
        hint="--metrics-host takes an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all",
    )
