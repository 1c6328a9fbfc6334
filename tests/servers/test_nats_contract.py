"""What every source and every sink promises, kept by NATS with JetStream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.nats import sink as nats_sink
from headrace.connectors.nats.sink import NatsSink
from headrace.model.operator import SourceOperator
from tests.contract.test_sinks import Case, SinkContract
from tests.contract.test_sources import ROWS, SourceContract, build_source
from tests.servers.nats import NatsServer


@pytest.fixture(scope="module")
def stream(nats_server: NatsServer) -> str:
    """Some rows."""
    stream = nats_server.create()
    nats_server.send(stream, [json.dumps({"a": i, "b": "ü" * (i % 13)}) for i in range(ROWS)])
    return stream


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.nats.source._WORTH_SPLITTING", 10)


@pytest.fixture
def source(nats_server: NatsServer, stream: str) -> SourceOperator:
    options = {"stream": stream, "schema": {"a": "int64", "b": "string"}, "source.bounded": True}
    return build_source("nats", nats_server.options(**options))


@pytest.fixture
def case(nats_server: NatsServer, tmp_path: Path) -> Case:
    stream = nats_server.create()
    options = nats_server.options(subject=f"{stream}.rows", stream=stream)

    def visible() -> list[dict[str, Any]]:
        return [json.loads(message.data) for message in nats_server.read(stream)]

    inside = [(NatsSink, "_begin"), (nats_sink, "NatsReading")]
    return Case("nats", options, visible, {"subject": ""}, tmp_path, job=stream, inside=inside)


class TestSource(SourceContract):
    """nats."""


class TestSink(SinkContract):
    """nats."""
