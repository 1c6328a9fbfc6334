"""The page of `headrace run --ui`: how the pipeline of this process is, for a browser on this machine.

It asks the run's control socket, as `headrace top` does. Its address has a secret part, so that other users
of the machine, and pages of other sites, cannot read it.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace.base.errors import HeadraceError
from headrace.jobs.control import RunningPipeline, running_in
from headrace.model.plan import Plan

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


@contextmanager
def live_page(plan: Plan) -> Iterator[str]:
    """Serve the page while the block runs; gives its address."""
    server = _PageServer(plan)
    thread = threading.Thread(target=server.serve_forever, name="headrace-ui", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{server.secret}/"
    finally:
        server.shutdown()
        server.server_close()


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.secret = secrets.token_urlsafe(16)
        self._edges = [[edge.source, edge.target] for edge in plan.edges]
        self._run: RunningPipeline | None = None

    def status(self) -> dict[str, Any]:
        """How the run is and what it has measured; nothing before it answers."""
        self._run = running_in(os.getpid()) if self._run is None else self._run.ask_again()
        if self._run is None:
            return {"status": None}
        return {"status": self._run.status, "metrics": self._run.metrics(), "edges": self._edges}

    def rows(self, operator: str, where: str, after: int) -> Any:
        """Rows that an operator sends on."""
        if self._run is None:
            return []
        return self._run.ask("tap", operator, None, where, after)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have closed the connection."""


class _Answers(BaseHTTPRequestHandler):
    server: _PageServer
    timeout = 10.0
    server_version = "headrace"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a question of the page."""
        asked = urlsplit(self.path)
        _, secret, what = [*asked.path.split("/", 2), "", ""][:3]
        if not secrets.compare_digest(secret.encode(), self.server.secret.encode()):
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")
            return
        values = {name: texts[-1] for name, texts in parse_qs(asked.query).items()}
        try:
            if what == "":
                page = files("headrace.cli").joinpath("live_page.html").read_bytes()
                self._answer(HTTPStatus.OK, page, "text/html; charset=utf-8")
            elif what == "status":
                self._tell(self.server.status())
            elif what == "rows":
                rows = self.server.rows(
                    values.get("operator", ""), values.get("where", ""), int(values.get("after", "0"))
                )
                self._tell(rows)
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"there are status and rows\n", "text/plain")
        except (HeadraceError, OSError, ValueError) as error:
            text = str(error)
            if isinstance(error, HeadraceError):
                text = f"{error.message}; {error.hint}" if error.hint else error.message
            self._tell({"error": text}, HTTPStatus.BAD_REQUEST)

    def _tell(self, what: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._answer(status, json.dumps(what, default=str).encode(), "application/json")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": _POLICY,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
        """Requests are not logged."""
