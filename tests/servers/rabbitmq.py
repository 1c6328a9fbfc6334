"""A real RabbitMQ for tests: unpacked from Debian's packages and kept in the user's cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.processes import cache_folder, fetch, fetching, free_port, keep

ERLANG = ("asn1", "base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key")
MORE_ERLANG = ("runtime-tools", "ssl", "syntax-tools", "tools", "xmerl")
PACKAGES = ("rabbitmq-server", *(f"erlang-{name}" for name in (*ERLANG, *MORE_ERLANG)))


def fetch_server() -> Path:
    """The folder with the server and Erlang; skips the test, saying why, if they cannot be had."""
    server = cache_folder() / "rabbitmq"
    if server.exists():
        return server
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("RabbitMQ is unpacked from Debian's packages, and there is no apt-get here")
    with fetching() as part:
        fetch("RabbitMQ", ["apt-get", "-qq", "download", *PACKAGES], part)
        unpack = "for package in *.deb; do dpkg -x $package root || exit 1; done"
        fetch("RabbitMQ", ["sh", "-c", unpack], part)
        erl = part / "root/usr/lib/erlang/bin/erl"
        erl.write_text(erl.read_text().replace("=/usr/lib/erlang", f"={server}/usr/lib/erlang"))
        keep(part / "root", server)
    return server


class RabbitServer:
    """A server on a free loopback port, with its data in `folder`; it can be stopped and started again."""

    def __init__(self, folder: Path, certificate: tuple[Path, Path] | None = None) -> None:
        """Prepare a server; with a certificate it also listens over TLS, to whoever shows the same one."""
        root = fetch_server()
        (home,) = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
        erlang = root / "usr/lib/erlang/bin"
        self.port, self.secured_port = free_port(), free_port()
        self._folder, self._epmd = folder, free_port()
        self._program = [str(home / "sbin" / "rabbitmq-server")]
        self._names = [str(erlang / "epmd"), "-port", str(self._epmd), "-address", "127.0.0.1"]
        self._running: list[subprocess.Popen[bytes]] = []
        settings: dict[str, Any] = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "consumer_timeout": 600000,
            "loopback_users": "none",
        }
        if certificate is not None:
            settings |= {
                "listeners.ssl.1": f"127.0.0.1:{self.secured_port}",
                "ssl_options.certfile": certificate[0],
                "ssl_options.keyfile": certificate[1],
                "ssl_options.cacertfile": certificate[0],
                "ssl_options.verify": "verify_peer",
                "ssl_options.fail_if_no_peer_cert": "true",
            }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (folder / "rabbitmq.conf").write_text("".join(lines))
        (folder / "plugins").write_text("[].\n")
        self._environment = {
            "HOME": str(folder),
            "PATH": f"{erlang}:{os.environ.get('PATH', '')}",
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_HOME": str(home),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(folder / "expanded"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
            "RABBITMQ_NODENAME": f"headrace{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RUNNING_UNDER_SYSTEMD": "true",  # the script then becomes the server
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def start(self) -> None:
        """Run the server and wait until it answers."""
        import pika  # type: ignore[import-untyped]

        log = self._folder / "server.log"
        for command in (self._names, self._program):
            with log.open("ab") as out:
                started = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=self._environment,
                    cwd=self._folder,
                )
            self._running.append(started)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self._running[-1].poll() is None:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError), self.connect():
                return
            time.sleep(0.1)
        self.kill()
        pytest.fail(f"RabbitMQ did not start:\n{log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """End the server in good order; its data stays."""
        if self._running:
            self._running[-1].terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running[-1].wait(30)
        self.kill()

    def kill(self) -> None:
        """End the server at once."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running = []

    def connect(self) -> Any:
        """A connection of the client's library."""
        import pika

        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))

    def create(self, *, stream: bool = False, **arguments: Any) -> str:
        """A new durable queue and its name."""
        name = f"queue-{uuid.uuid4().hex[:12]}"
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        if stream:
            given["x-queue-type"] = "stream"
        with self.connect() as connection:
            connection.channel().queue_declare(name, durable=True, arguments=given)
        return name

    def send(self, queue: str, values: Sequence[bytes | str], **properties: Any) -> None:
        """Put messages into a queue, in one transaction."""
        import pika

        with self.connect() as connection:
            channel = connection.channel()
            channel.tx_select()
            for value in values:
                channel.basic_publish("", queue, value, pika.BasicProperties(**properties))
            channel.tx_commit()

    def read(self, queue: str) -> list[tuple[Any, Any, bytes]]:
        """Take all messages out of a queue: how they came, their properties, their content."""
        found = []
        with self.connect() as connection:
            channel = connection.channel()
            while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(message)
        return found

    def waiting(self, queue: str) -> int:
        """How many messages are in a queue and with nobody."""
        with self.connect() as connection:
            count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
            return count

    def there(self, queue: str) -> bool:
        """Whether a queue answers; that of a stream does so a moment after the server."""
        import pika

        with self.connect() as connection:
            try:
                connection.channel().queue_declare(queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                return False
        return True

    def options(self, **more: Any) -> Mapping[str, Any]:
        """The options that a connector needs to reach the server."""
        return {"host": "127.0.0.1", "port": self.port, **more}


@contextlib.contextmanager
def run_server(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[RabbitServer]:
    """Run a server until the block ends."""
    server = RabbitServer(folder, certificate)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def rabbitmq(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[RabbitServer]:
    """One server for all tests of a run."""
    pytest.importorskip("pika")
    with run_server(tmp_path_factory.mktemp("rabbitmq"), certificate) as server:
        yield server
