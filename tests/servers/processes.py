"""What real servers for tests share: how they are fetched, started and ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest


def cache_folder() -> Path:
    """Where servers are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests"


@contextlib.contextmanager
def fetching() -> Iterator[Path]:
    """A folder of the cache for what is being fetched, until the block ends."""
    part = cache_folder() / f"part-{uuid.uuid4().hex}"
    part.mkdir(parents=True)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def fetch(
    what: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> str:
    """What a command prints that fetches something; skips the test, saying why, if it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=290, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} could not be fetched in five minutes")
    if done.returncode:
        pytest.skip(f"{what} could not be fetched: {(done.stdout + done.stderr).strip()[:300]}")
    return done.stdout


@contextlib.contextmanager
def from_maven(what: str, place: Path, goal: str, setting: str, *, pom: str = "") -> Iterator[Path]:
    """A folder with what a goal of Maven copies, until the block ends; what is moved from it stays."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"{what} is fetched with Maven, which is not installed; or put it at {place}")
    with fetching() as part:
        if pom:
            (part / "pom.xml").write_text(pom)
        fetched = part / "fetched"
        fetch(what, [maven, "-q", "-B", f"dependency:{goal}", setting, f"-DoutputDirectory={fetched}"], part)
        yield fetched


def keep(fetched: Path, place: Path) -> None:
    """Move what was fetched to where it is looked for."""
    with contextlib.suppress(OSError):  # another run was faster
        fetched.replace(place)


def find_java(what: str) -> str:
    """The program that runs Java; skips the test without it."""
    java = shutil.which("java")
    if java is None:
        pytest.skip(f"{what} needs Java")
    return java


_PORTS = 1000


def _ports() -> Iterator[int]:
    """Ports of this process alone, from 10000 to 19999."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 10_000 + worker % 10 * _PORTS
    for number in itertools.count(random.randrange(_PORTS)):  # other runs may be under way
        yield first + number % _PORTS


_OWN_PORTS = _ports()


def free_port() -> int:
    """A port that nobody listens on, nor will before a server does.

    A port that the system gives may be gone by then: it gives the same ones to clients that connect.
    """
    for port in itertools.islice(_OWN_PORTS, _PORTS):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
            return port
    pytest.fail("all ports for servers are taken")


def listens(port: int) -> bool:
    """Whether somebody listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def wait_until_up(
    what: str,
    process: subprocess.Popen[bytes],
    log: Path,
    is_up: Callable[[], bool],
    *,
    seconds: float = 30,
) -> None:
    """Wait until a server answers; fails with the end of its log if it does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if is_up():
            return
        time.sleep(0.02)
    pytest.fail(f"{what} did not start:\n{log.read_text(errors='replace')[-2000:]}")


def wait_until_ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a server that was told to end, and then no longer."""
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
