"""A real S3-compatible server for tests: S3Proxy, fetched with Maven and kept in the user's cache.

It knows the conditional put (`If-None-Match: *`), but checks and writes in two steps: of creators at the same
moment several may win, which S3 itself excludes. So tests here create one after the other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

VERSION = "3.1.0"
ARTIFACT = f"org.gaul:s3proxy:{VERSION}:jar:jar-with-dependencies"
JAR = f"s3proxy-{VERSION}-jar-with-dependencies.jar"
IDENTITY, SECRET = "tests", "tests-secret"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    endpoint: str
    bucket: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that S3 clients read, spelled as the cloud's own tools spell them."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": IDENTITY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def fetch_server() -> Path:
    """The server's jar; skips the test, saying why, if it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests"
    jar = cache / JAR
    if jar.exists():
        return jar
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"the S3 server is fetched with Maven, which is not installed; or put {JAR} into {cache}")
    part = cache / f"part-{os.getpid()}"
    part.mkdir(parents=True, exist_ok=True)
    command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={part}"]
    try:
        done = subprocess.run(command, cwd=part, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"the S3 server could not be fetched: {(done.stdout + done.stderr).strip()[:300]}")
        (part / JAR).replace(jar)
    except subprocess.TimeoutExpired:
        pytest.skip("the S3 server could not be fetched in five minutes")
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return jar


@contextlib.contextmanager
def run_server(folder: Path) -> Iterator[S3Server]:
    """Run a server on a free loopback port over `folder`, with one new bucket, until the block ends."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("the S3 server needs Java")
    jar = fetch_server()
    # A name of its own for each server: clients may keep connections by the bucket's address.
    bucket = f"headrace-{uuid.uuid4().hex[:12]}"
    data = folder / "data"
    (data / bucket).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    settings = folder / "s3proxy.conf"
    settings.write_text(
        f"s3proxy.endpoint={endpoint}\n"
        "s3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity={IDENTITY}\n"
        f"s3proxy.credential={SECRET}\n"
        # Deleting comes with a checksum header of its own, which the server does not know.
        "s3proxy.ignore-unknown-headers=true\n"
        "jclouds.provider=filesystem-nio2\n"
        f"jclouds.filesystem.basedir={data}\n"
    )
    log = folder / "s3proxy.log"
    command = [java, "-Xmx256m", "-jar", str(jar), "--properties", str(settings)]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    try:
        _wait(server, port, log)
        yield S3Server(endpoint, bucket)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    pytest.fail(f"the S3 server did not start:\n{log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a run."""
    with run_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty prefix in the bucket, with the environment that a client needs to reach it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.bucket}/{uuid.uuid4().hex}"
