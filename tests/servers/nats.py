"""A real NATS server for tests: the installed one, or one built by Go and kept in the user's cache."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.servers.processes import cache_folder, fetch, fetching, free_port, keep, listens, wait_until_up

VERSION = "2.11.8"
MODULE = f"github.com/nats-io/nats-server/v2@v{VERSION}"

T = TypeVar("T")


def fetch_server() -> Path:
    """The server's program; skips the test, saying why, if it cannot be had."""
    installed = shutil.which("nats-server")
    if installed is not None:
        return Path(installed)
    program = cache_folder() / f"nats-{VERSION}" / "nats-server"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"nats-server is built with Go, which is not installed; or put it at {program}")
    with fetching() as part:
        fetch("nats-server", [go, "install", MODULE], part, {**os.environ, "GOBIN": str(part / "made")})
        keep(part / "made", program.parent)
    return program


class NatsServer:
    """A server with JetStream on a free loopback port, with its data in `folder`; it can be started again."""

    def __init__(self, folder: Path, config: str = "", **login: Any) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder, self._login = folder, login
        self._streams: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "server.conf").write_text(
            f"listen: 127.0.0.1:{self.port}\njetstream {{ store_dir: '{folder / 'data'}' }}\n{config}\n"
        )
        self._command = [str(fetch_server()), "-c", str(folder / "server.conf")]

    def start(self, *, wait: bool = True) -> None:
        """Run the server, and wait until it answers."""
        log = self._folder / "server.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)

        def is_up() -> bool:
            return listens(self.port) and (not wait or "Server is ready" in log.read_text())

        wait_until_up("nats-server", self._process, log, is_up)

    def stop(self) -> None:
        """End the server at once; its data stays."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """What `work` answers, given a connection."""
        import nats

        async def run() -> T:
            connection = await nats.connect(self.url, **self._login)
            try:
                return await work(connection)
            finally:
                await connection.close()

        return asyncio.run(run())

    def create(self, **settings: Any) -> str:
        """A new stream and its name; it keeps the subjects that begin with it."""
        name = f"stream-{uuid.uuid4().hex[:12]}"

        async def work(connection: Any) -> None:
            await connection.jetstream().add_stream(name=name, subjects=[name, f"{name}.>"], **settings)

        self.ask(work)
        self._streams.add(name)
        return name

    def send(self, subject: str, values: Sequence[bytes | str], **headers: str) -> None:
        """Send messages, and wait until the server has them, in the stream where there is one."""
        kept = subject.partition(".")[0] in self._streams

        async def work(connection: Any) -> None:
            publish = connection.jetstream(timeout=60).publish if kept else connection.publish
            for value in values:
                data = value.encode() if isinstance(value, str) else value
                await publish(subject, data, headers=headers or None)
            await connection.flush()

        self.ask(work)

    def read(self, stream: str) -> list[Any]:
        """The messages of a stream, by their sequence."""
        from nats.js.api import AckPolicy, ConsumerConfig

        async def work(connection: Any) -> list[Any]:
            jetstream = connection.jetstream()
            info = await jetstream.stream_info(stream)
            if not info.state.messages:
                return []
            config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
            subscription = await jetstream.pull_subscribe("", stream=stream, config=config)
            found: list[Any] = []
            while len(found) < info.state.messages:
                found += await subscription.fetch(1000, timeout=10)
            return found

        return self.ask(work)

    def options(self, **more: Any) -> Mapping[str, Any]:
        """The options that a connector needs to reach the server."""
        return {"servers": self.url, **more}


@contextlib.contextmanager
def run_server(folder: Path, config: str = "", **login: Any) -> Iterator[NatsServer]:
    """Run a server until the block ends."""
    folder.mkdir(exist_ok=True)
    server = NatsServer(folder, config, **login)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests of a run."""
    pytest.importorskip("nats")
    with run_server(tmp_path_factory.mktemp("nats")) as server:
        yield server
