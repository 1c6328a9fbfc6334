"""Streams of NATS, beside nats-py alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from bench.connectors._rows import COLUMNS, make_rows, make_values, rate, sink_rate
from headrace.connectors.nats.sink import NatsSink
from headrace.connectors.nats.source import NatsSource
from headrace.model.operator import Limit
from tests.servers.nats import NatsServer, run_server
from tests.support import read_range

ROWS, FEW = 50_000, 5_000


def measure() -> dict[str, float]:
    """Read and write a stream with the connector, and with the client alone."""
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder) / "server") as server:
        stream, alone = server.create(), server.create()
        values = make_values(FEW)

        def sink() -> NatsSink:
            return NatsSink(**server.options(subject=stream, stream=stream))

        written = sink_rate(sink, [make_rows(ROWS)], Path(folder))
        return {
            "source, stream": _source(server, stream),
            "client, fetch and json.loads": _read_alone(server, stream),
            "sink, stream": written,
            "client, publish_async": rate(
                lambda: server.ask(lambda connection: _publish(connection, alone, values)), FEW
            ),
        }


def _source(server: NatsServer, stream: str) -> float:
    source = NatsSource(**server.options(stream=stream, schema=COLUMNS))
    start = source.initial_offset(time=0)
    end = source.latest_offset(start, Limit(ROWS, 0), parallelism=1)
    return rate(lambda: read_range(source, start, end), ROWS)


async def _publish(connection: Any, stream: str, values: list[bytes]) -> None:
    jetstream = connection.jetstream()
    for value in values:
        await jetstream.publish_async(stream, value, wait_stall=10)
    await jetstream.publish_async_completed()


def _read_alone(server: NatsServer, stream: str) -> float:
    return rate(lambda: [json.loads(message.data)["n"] for message in server.read(stream)], ROWS)
