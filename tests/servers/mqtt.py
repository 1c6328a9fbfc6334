"""A real MQTT broker for tests: Mosquitto, the installed one or one unpacked from Debian's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace import Pipeline
from headrace.connectors.mqtt.connection import Broker
from headrace.testing.in_process import run_in_process
from tests.servers.processes import (
    cache_folder,
    fetch,
    fetching,
    free_port,
    keep,
    listens,
    wait_until_ended,
    wait_until_up,
)

USER, PASSWORD = "tester", "s3cret-w0rd"
_FROM_THE_SYSTEM = {"libc6", "libgcc-s1", "libssl3", "libssl3t64"}
_DEPENDS = ("--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces")


def fetch_mosquitto() -> tuple[Path, dict[str, str]]:
    """The broker's program and its environment; skips the test, saying why, if it cannot be had."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    installed = shutil.which("mosquitto", path=path)
    if installed is not None:
        return Path(installed), dict(os.environ)
    root = cache_folder() / "mosquitto"
    if not root.exists():
        _unpack(root)
    folders = [str(folder) for part in ("usr/lib", "lib") for folder in (root / part).glob("*-linux-*")]
    return root / "usr/sbin/mosquitto", {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def _unpack(root: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("mosquitto is not installed, and is unpacked only from Debian's packages")
    with fetching() as part:
        needed = fetch("mosquitto", ["apt-cache", "depends", *_DEPENDS, "mosquitto"], part)
        libraries = {line.split()[-1] for line in needed.splitlines() if " Depends: lib" in line}
        for name in sorted(libraries):  # and what these need
            more = fetch("mosquitto", ["apt-cache", "depends", *_DEPENDS, name], part).splitlines()
            libraries |= {line.split()[-1] for line in more if " Depends: lib" in line}
        packages = ["mosquitto", *sorted(libraries - _FROM_THE_SYSTEM)]
        fetch("mosquitto", ["apt-get", "download", *packages], part)
        for package in part.glob("*.deb"):
            fetch("mosquitto", ["dpkg", "-x", str(package), str(part / "root")], part)
        keep(part / "root", root)


class Mosquitto:
    """A broker on free loopback ports: open to all, for a user, over TLS, and the same over web sockets.

    It can be stopped and started.
    """

    def __init__(self, folder: Path, certificate: tuple[Path, Path] | None = None) -> None:
        self._program, self._environ = fetch_mosquitto()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port, guarded, secured = free_port(), free_port(), free_port()
        self.url, self.guarded_url = f"mqtt://127.0.0.1:{self.port}", f"mqtt://127.0.0.1:{guarded}"
        self.secured_url = f"mqtts://127.0.0.1:{secured}"
        web, secured_web = free_port(), free_port()
        self.web_url, self.secured_web_url = f"ws://127.0.0.1:{web}", f"wss://127.0.0.1:{secured_web}"
        folder.chmod(0o755)
        passwords = folder / "passwords"
        passwords.write_text(f"{USER}:{PASSWORD}\n")
        passwords.chmod(0o600)
        hasher = self._program.parent.parent / "bin" / "mosquitto_passwd"
        subprocess.run([hasher, "-U", passwords], env=self._environ, check=True, capture_output=True)
        (folder / "rights").write_text(f"user {USER}\ntopic readwrite open/#\n")
        lines = [
            "per_listener_settings true",
            "persistence true",
            f"persistence_location {folder}/",
            "max_queued_messages 0",
            "user root",
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            f"listener {guarded} 127.0.0.1",
            "allow_anonymous false",
            f"password_file {passwords}",
            f"acl_file {folder / 'rights'}",
        ]
        self.has_web = b"Websockets support not available" not in self._program.read_bytes()
        if self.has_web:
            lines += [f"listener {web} 127.0.0.1", "protocol websockets"]
            lines += ["allow_anonymous false", f"password_file {passwords}"]
        if certificate is not None:
            tls = [f"certfile {certificate[0]}", f"keyfile {certificate[1]}", "allow_anonymous true"]
            lines += [f"listener {secured} 127.0.0.1", *tls]
            if self.has_web:
                lines += [f"listener {secured_web} 127.0.0.1", "protocol websockets", *tls]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Run the broker and wait until it answers."""
        log = self._folder / "broker.log"
        with log.open("ab") as out:
            command = [str(self._program), "-c", str(self._folder / "mosquitto.conf")]
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=self._environ)
        wait_until_up("mosquitto", self._process, log, lambda: listens(self.port))

    def stop(self) -> None:
        """End the broker; what it keeps for its clients stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        wait_until_ended(process)

    def topic(self) -> str:
        """A name that no other test has."""
        return f"tests/{uuid.uuid4().hex[:12]}"

    def client(
        self, client_id: str = "", on_message: Callable[[Any], None] | None = None, **more: Any
    ) -> Any:
        """A connected client with a thread of its own."""
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        client = Client(CallbackAPIVersion.VERSION2, client_id, **more)
        if on_message is not None:
            client.on_message = lambda _, __, message: on_message(message)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        deadline = time.monotonic() + 30
        while not client.is_connected() and time.monotonic() < deadline:
            time.sleep(0.002)
        return client

    def send(self, topic: str, values: Sequence[bytes | str], *, qos: int = 1, retain: bool = False) -> None:
        """Publish messages, and wait until the broker has them."""
        client = self.client()
        last = [client.publish(topic, value, qos, retain) for value in values]
        for one in last:
            one.wait_for_publish(30)
        self._end(client)

    @contextlib.contextmanager
    def listening(self, topic: str, *, qos: int = 2, name: str = "") -> Iterator[list[Any]]:
        """The messages that come to a topic, in a list that grows; with a name, also those kept for it."""
        found: list[Any] = []
        subscribed: list[Any] = []
        client = self.client(name, found.append, clean_session=not name)
        client.on_subscribe = lambda *given: subscribed.append(given)
        client.subscribe(topic, qos)
        deadline = time.monotonic() + 30
        while not subscribed and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            yield found
        finally:
            self._end(client)

    @staticmethod
    def _end(client: Any) -> None:
        client.disconnect()
        client.loop_stop()


def subscribe(pipeline: Pipeline, state: Path) -> None:
    """A first run that reads nothing: from now on the broker keeps messages for the pipeline."""
    done, really = threading.Event(), Broker.subscribe

    def telling(broker: Broker) -> None:
        really(broker)
        done.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Broker, "subscribe", telling)
        run_in_process(pipeline, state, idle_epochs=1000, stop=done.is_set)
    assert done.is_set()


@contextlib.contextmanager
def run_mosquitto(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[Mosquitto]:
    """Run a broker until the block ends."""
    broker = Mosquitto(folder, certificate)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def mosquitto(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[Mosquitto]:
    """One broker for all tests of a run."""
    pytest.importorskip("paho.mqtt.client")
    with run_mosquitto(tmp_path_factory.mktemp("mosquitto"), certificate) as broker:
        yield broker
