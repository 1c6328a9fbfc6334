"""A Spark Connect server on this machine, from the installed package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
LISTENS = re.compile(r"Spark Connect server started at: \S*?:(\d+)")


class ConnectServer:
    """A server at `url`; it can be killed and started again at the same place."""

    def __init__(self, directory: Path, *, master: str = "local[2]", python: str = sys.executable) -> None:
        self._directory = directory
        self._master = master
        self._python = python
        self._number = 0
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self._directory / f"server-{self._number}.log"

    def start(self, **environ: str) -> None:
        """Start the server, on the port that it had before."""
        self._number += 1
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
        }
        command = [str(HOME / "bin" / "spark-submit"), "--master", self._master, "--class", MAIN]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "spark-internal"],
                stdout=file,
                stderr=file,
                cwd=self._directory,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": self._python,
                    "SPARK_HOME": str(HOME),
                    **environ,
                },
            )
        for _ in range(1200):
            if match := LISTENS.search(self.log.read_text(errors="replace")):
                self.port = int(match[1])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"the server did not start:\n{self.log.read_text(errors='replace')}")

    def kill(self) -> None:
        """End the server as a machine that fails would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def connect_server(directory: Path, **options: str) -> Iterator[ConnectServer]:
    """A server for as long as the block lasts."""
    server = ConnectServer(directory, **options)
    try:
        yield server
    finally:
        server.kill()
