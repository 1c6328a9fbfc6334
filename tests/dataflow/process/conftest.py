"""Nodes from scripts, started and ended for a test."""

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.dataflow.document.model import Input, Output, Unit
from headrace.dataflow.runtime.process import UNREAD, ProcessNode


class Running:
    """A started node, with what it printed, logged and sent while it handled events."""

    def __init__(self, unit: Unit, *, directory: Path, limit: int | None = None) -> None:
        self.lines: list[tuple[str, str]] = []
        self.sent: list[tuple[str, pa.Array, Mapping[str, Any] | None]] = []
        self._printed = threading.Condition()
        self.node = ProcessNode(
            unit,
            directory=directory,
            python=sys.executable,
            descriptor={
                "nodes": [{"id": unit.node, "inputs": {one.id: str(one.source) for one in unit.inputs}}]
            },
            log=self._log,
            dataflow_id="flow",
            limit=UNREAD if limit is None else limit,
        )
        self.node.start(None)

    def _log(self, stream: str, line: str) -> None:
        with self._printed:
            self.lines.append((stream, line))
            self._printed.notify_all()

    def send(self, output: str, data: Any, metadata: Mapping[str, Any] | None) -> None:
        self.sent.append((output, data, metadata))

    @property
    def values(self) -> list[list[Any]]:
        return [data.to_pylist() for _, data, _ in self.sent]

    def printed(self, stream: str = "stdout") -> list[str]:
        return [line for name, line in self.lines if name == stream]

    def wait_for(self, line: str) -> None:
        with self._printed:
            self._printed.wait_for(lambda: any(line in text for _, text in self.lines))

    def handle(self, *events: Mapping[str, Any]) -> int:
        return self.node.handle(events, self.send)

    def finish(self, grace: float | None = None) -> None:
        self.node.finish(self.send, grace)

    def receive_all(self) -> list[tuple[str, pa.Array, int, Mapping[str, Any] | None]]:
        """Everything a source sends until it ends."""
        received = []
        while self.node.ended is None:
            received += self.node.receive(60)
        return received


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(script, inputs=…, outputs=…)`: a node that runs it; `name` says what kind of file it is."""
    started: list[Running] = []

    def start(
        script: str,
        *,
        inputs: tuple[str, ...] = (),
        outputs: tuple[str, ...] = ("out",),
        args: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        name: str = "script.py",
        limit: int | None = None,
    ) -> Running:
        file = tmp_path / name
        file.write_text(textwrap.dedent(script))
        file.chmod(0o755)
        unit = Unit(
            node="worker",
            kind="process",
            file=file,
            command=(*(("python",) if name.endswith(".py") else ()), str(file), *args),
            inputs=tuple(Input(one, Output("before", one)) for one in inputs),
            outputs=outputs,
            env=env or {},
        )
        running = Running(unit, directory=tmp_path, limit=limit)
        started.append(running)
        return running

    yield start
    for running in started:
        running.node.close()
