"""Queues of RabbitMQ, beside pika alone."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from bench.connectors._received import read_received
from bench.connectors._rows import COLUMNS, make_rows, make_values, sink_rate
from headrace.connectors.rabbitmq.sink import RabbitSink
from headrace.connectors.rabbitmq.source import RabbitSource
from tests.servers.rabbitmq import RabbitServer, run_server

ROWS, FEW = 30_000, 3_000


def measure() -> dict[str, float]:
    """Read and write a queue with the connector, and with the client alone."""
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder)) as server:
        queue, alone, stream = server.create(), server.create(), server.create(stream=True)
        values = make_values(ROWS)

        def sink() -> RabbitSink:
            return RabbitSink(**server.options(routing_key=queue))

        written = sink_rate(sink, [make_rows(ROWS)], Path(folder))
        for name in (alone, stream):
            server.send(name, values)
        source = RabbitSource(**server.options(queue=queue, schema=COLUMNS))
        options = {"stream": stream, "schema": COLUMNS, "source.offset": "first"}
        return {
            "source, queue": read_received(source, Path(folder) / "queue", ROWS),
            "source, stream": read_received(
                RabbitSource(**server.options(**options)), Path(folder) / "stream", ROWS
            ),
            "client, consume and json.loads": _read_alone(server, alone),
            "sink": written,
            "client, publish with confirms": _write_alone(server, alone, values[:FEW]),
        }


def _read_alone(server: RabbitServer, queue: str) -> float:
    begun, numbers = time.perf_counter(), []
    with server.connect() as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20_000)
        for how, _, body in channel.consume(queue):
            numbers.append(json.loads(body)["n"])
            if len(numbers) % FEW == 0:
                channel.basic_ack(how.delivery_tag, multiple=True)
            if len(numbers) == ROWS:
                break
    return ROWS / (time.perf_counter() - begun)


def _write_alone(server: RabbitServer, queue: str, values: list[bytes]) -> float:
    begun = time.perf_counter()
    with server.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for value in values:
            channel.basic_publish("", queue, value, mandatory=True)
    return len(values) / (time.perf_counter() - begun)
