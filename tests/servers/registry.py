"""A real schema registry for tests: Apicurio with its Confluent-compatible API, fetched with Maven."""

from __future__ import annotations

import base64
import contextlib
import ssl
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.servers.processes import (
    cache_folder,
    find_java,
    free_port,
    from_maven,
    keep,
    wait_until_ended,
    wait_until_up,
)

VERSION = "2.6.13.Final"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
API = "/apis/ccompat/v7"


def fetch_registry() -> Path:
    """The registry's jar, beside its libraries; skips the test, saying why, if it cannot be had."""
    folder = cache_folder() / f"apicurio-{VERSION}"
    if not folder.exists():
        with from_maven("the registry", folder, "copy", f"-Dartifact={ARTIFACT}") as fetched:
            (archive,) = fetched.iterdir()
            with tarfile.open(archive) as packed:
                packed.extractall(fetched / "unpacked", filter="data")
            keep(fetched / "unpacked", folder)
    return folder / f"apicurio-registry-app-{VERSION}-runner.jar"


@contextlib.contextmanager
def run_registry(folder: Path) -> Iterator[str]:
    """Run a registry that keeps everything in memory; gives its address."""
    java, port = find_java("the registry"), free_port()
    settings = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", *settings, "-jar", str(fetch_registry())]
    address, log = f"http://127.0.0.1:{port}{API}", folder / "registry.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)

    def is_up() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/subjects", timeout=5):
            return True
        return False

    try:
        wait_until_up("the registry", process, log, is_up, seconds=120)
        yield address
    finally:
        process.terminate()
        wait_until_ended(process)


class Guard(ThreadingHTTPServer):
    """Stands before a registry: asks for a name and a password, and can be told to fail for a while."""

    daemon_threads = True

    def __init__(
        self,
        registry: str,
        *,
        user: str = "me",
        password: str = "hunter2",
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Guarded)
        self.scheme = "http"
        if certificate is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.registry = registry
        self.login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.failures = 0
        """How many requests more are answered with `503 Service Unavailable`."""
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"


class _Guarded(BaseHTTPRequestHandler):
    server: Guard

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        self.server.asked.append(f"{self.command} {self.path}")
        if self.headers.get("Authorization") != self.server.login:
            self._answer(401, b'{"error_code": 40101, "message": "Unauthorized"}')
            return
        if self.server.failures:
            self.server.failures -= 1
            self._answer(503, b"busy")
            return
        kind = {"Content-Type": self.headers["Content-Type"]} if body else {}
        request = urllib.request.Request(self.server.registry + self.path, body, kind, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                self._answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                self._answer(error.code, error.read())

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()


@contextlib.contextmanager
def run_guard(registry: str, *, certificate: tuple[Path, Path] | None = None) -> Iterator[Guard]:
    """Run a guard before a registry until the block ends, behind TLS with a certificate and its key."""
    with Guard(registry, certificate=certificate) as guard:
        thread = threading.Thread(target=guard.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield guard
        finally:
            guard.shutdown()
            thread.join(10)


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one registry for all tests of a run."""
    with run_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address
