"""Drives a native operator without an engine, in this process or in one that may crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.dataflow.runtime.hosts import Event
from headrace.dataflow.runtime.native import NativeOperator

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SOURCES = HERE / "sources"
EXAMPLE = ROOT / "examples" / "dataflow-native"
DECLARED = ("out", "said", "count", "average", "level")


class Driver:
    """A library's operator with its declared outputs, and all that it has sent."""

    def __init__(self, library: Path, state: bytes | None = None) -> None:
        self.sent: list[tuple[str, pa.Array, Mapping[str, Any] | None]] = []
        self.logged: list[tuple[str, str]] = []
        self.operator = NativeOperator(
            library, address="camera", log=lambda stream, line: self.logged.append((stream, line))
        )
        self.operator.start(state)

    def send(self, output: str, data: Any, metadata: Mapping[str, Any] | None) -> None:
        if output not in DECLARED:
            raise ValueError(f"`{output}` is not one of the outputs of camera: {', '.join(DECLARED)}")
        self.sent.append((output, data, metadata))

    def handle(self, *events: Event) -> int:
        return self.operator.handle(events, self.send)

    def give(self, name: str, value: pa.Array | None = None, **metadata: Any) -> int:
        return self.handle(message(name, value, **metadata))

    @property
    def values(self) -> list[Any]:
        return [value.to_pylist() for _, value, _ in self.sent]

    @property
    def said(self) -> list[str]:
        """What it sent as bytes, as texts."""
        return [bytes(value).decode() for value in self.values]


def message(name: str, value: pa.Array | None = None, **metadata: Any) -> Event:
    value = pa.nulls(0) if value is None else value
    return {"type": "INPUT", "id": name, "kind": "dora", "value": value, "metadata": metadata}


def happening(kind: str, name: str, **more: str) -> Event:
    return {"type": kind, "id": name, "kind": "dora", **more}


def run_apart(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, which may crash."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
