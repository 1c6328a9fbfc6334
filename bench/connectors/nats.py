"""Streams of NATS, beside nats-py alone."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.nats_sink import NatsSink
from headrace.connectors.nats_source import NatsSource
from headrace.operator import Limit
from tests.servers.nats import NatsServer, run_server
from tests.support import SinkDriver, read_range

ROWS, FEW = 50_000, 5_000


def measure() -> dict[str, float]:
    """Read and write a stream with the connector, and with the client alone."""
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder) / "server") as server:
        stream, alone = server.create(), server.create()
        rows = pa.record_batch({"n": list(range(ROWS)), "text": [f"row {n}" for n in range(ROWS)]})
        values = [json.dumps(row).encode() for row in rows.to_pylist()]
        driver = SinkDriver(lambda: NatsSink(**server.options(subject=stream, stream=stream)), Path(folder))
        begun = time.perf_counter()
        driver.run(1, [rows])
        written = ROWS / (time.perf_counter() - begun)
        begun = time.perf_counter()
        server.ask(lambda connection: _publish(connection, alone, values[:FEW]))
        client_write = FEW / (time.perf_counter() - begun)
        return {
            "source, stream": _source(server, stream),
            "client, fetch and json.loads": _read_alone(server, stream),
            "sink, stream": written,
            "client, publish_async": client_write,
        }


def _source(server: NatsServer, stream: str) -> float:
    columns = {"n": "int64", "text": "string"}
    source = NatsSource(**server.options(stream=stream, schema=columns))
    start = source.initial_offset(time=0)
    end = source.latest_offset(start, Limit(ROWS, 0), parallelism=1)
    begun = time.perf_counter()
    assert len(read_range(source, start, end)) == ROWS
    return ROWS / (time.perf_counter() - begun)


async def _publish(connection: Any, stream: str, values: list[bytes]) -> None:
    jetstream = connection.jetstream()
    for value in values:
        await jetstream.publish_async(stream, value, wait_stall=10)
    await jetstream.publish_async_completed()


def _read_alone(server: NatsServer, stream: str) -> float:
    begun = time.perf_counter()
    assert sum(json.loads(message.data)["n"] >= 0 for message in server.read(stream)) == ROWS
    return ROWS / (time.perf_counter() - begun)
