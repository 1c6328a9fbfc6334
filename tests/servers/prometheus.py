"""A real Prometheus for tests: the installed one, or one unpacked from Debian's package."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.processes import (
    cache_folder,
    fetch,
    fetching,
    free_port,
    keep,
    wait_until_ended,
    wait_until_up,
)


def find_program(name: str) -> Path:
    """`prometheus` or `promtool`; skips the test, saying why, if it cannot be had."""
    installed = shutil.which(name)
    if installed is not None:
        return Path(installed)
    root = cache_folder() / "prometheus"
    if not root.exists():
        _unpack(root)
    return root / "usr/bin" / name


def _unpack(root: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("prometheus is not installed, and is unpacked only from Debian's package")
    with fetching() as part:
        fetch("prometheus", ["apt-get", "-qq", "download", "prometheus"], part)
        (package,) = part.glob("*.deb")
        fetch("prometheus", ["dpkg", "-x", package.name, "root"], part)
        keep(part / "root", root)


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    port: int

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now; fails if it cannot be parsed."""
        query = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{query}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


@contextlib.contextmanager
def run_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes one address every second, until the block ends."""
    port = free_port()
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        "scrape_configs:\n"
        "  - job_name: headrace\n"
        "    scrape_interval: 1s\n"
        f"    static_configs: [{{targets: ['{target}']}}]\n"
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                find_program("prometheus"),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until_up("prometheus", process, folder / "prometheus.log", lambda: _is_ready(port), seconds=120)
        yield Prometheus(port)
    finally:
        process.terminate()
        wait_until_ended(process)


def _is_ready(port: int) -> bool:
    """Whether it answers queries: it listens before it does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
