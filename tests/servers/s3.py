"""A real S3-compatible server for tests: S3Proxy, fetched with Maven and kept in the user's cache.

It knows the conditional put (`If-None-Match: *`), but checks and writes in two steps: of creators at the same
moment several may win, which S3 itself excludes. So tests here create one after the other; where several
drivers claim one state directory, tests use `tests/servers/seaweedfs.py`.
"""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.processes import (
    cache_folder,
    find_java,
    free_port,
    from_maven,
    keep,
    listens,
    wait_until_ended,
    wait_until_up,
)

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

    def new_prefix(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """The URL of an empty prefix in the bucket; until the test ends, the environment is the server's."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"


def fetch_server() -> Path:
    """The server's jar; skips the test, saying why, if it cannot be had."""
    jar = cache_folder() / JAR
    if not jar.exists():
        with from_maven("the S3 server", jar, "copy", f"-Dartifact={ARTIFACT}") as fetched:
            keep(fetched / JAR, jar)
    return jar


@contextlib.contextmanager
def run_server(folder: Path, again: S3Server | None = None) -> Iterator[S3Server]:
    """Run a server over `folder` until the block ends.

    It has a free loopback port and one new bucket, or is one that was stopped and runs `again`.
    """
    java = find_java("the S3 server")
    jar = fetch_server()
    # A name of its own for each server: clients may keep connections by the bucket's address.
    bucket = f"headrace-{uuid.uuid4().hex[:12]}" if again is None else again.bucket
    data = folder / "data"
    (data / bucket).mkdir(parents=True, exist_ok=True)
    endpoint = f"http://127.0.0.1:{free_port()}" if again is None else again.endpoint
    port = int(endpoint.rpartition(":")[2])
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
        wait_until_up("the S3 server", server, log, lambda: listens(port))
        yield S3Server(endpoint, bucket)
    finally:
        server.terminate()
        wait_until_ended(server)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a run."""
    with run_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty prefix in the bucket, with the environment that a client needs to reach it."""
    return s3_server.new_prefix(monkeypatch)
