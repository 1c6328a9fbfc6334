"""A standalone cluster of Spark on this machine, from the installed package: a master and its workers."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

DAEMON = "org.apache.spark.deploy"
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}


class Standalone:
    """A master at `url`, and its workers with a core each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        _, self.url = self._start("master", r"Starting Spark master at (spark://\S+)", "master.Master")

    def start_worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """A worker with variables of its own, which its executors have too."""
        name = f"worker-{len(self._processes)}"
        options = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / name), self.url]
        registered = "(Successfully registered with master)"
        process, _ = self._start(name, registered, "worker.Worker", *options, **environment)
        return process

    def _start(
        self, name: str, until: str, main: str, *arguments: str, **environment: str
    ) -> tuple[subprocess.Popen[bytes], str]:
        log = self._directory / f"{name}.log"
        ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [SPARK_CLASS, f"{DAEMON}.{main}", *ports, *arguments],
                stdout=file,
                stderr=file,
                env={**os.environ, **ENVIRONMENT, "SPARK_NO_DAEMONIZE": "1", **environment},
            )
        self._processes.append(process)
        for _ in range(1200):
            if match := re.search(until, log.read_text(errors="replace")):
                return process, match[1]
            if process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"{name} did not start:\n{log.read_text(errors='replace')}")

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    """A cluster with two workers for as long as the block lasts."""
    cluster = Standalone(directory)
    try:
        cluster.workers = [cluster.start_worker() for _ in range(2)]
        yield cluster
    finally:
        cluster.close()


def executors_of(worker: subprocess.Popen[bytes]) -> list[int]:
    """The processes of the executors that a worker has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found += [int(entry.name)] if parent == worker.pid else []
        except OSError:  # it has ended meanwhile
            continue
    return found
