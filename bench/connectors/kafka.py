"""Topics of Kafka, beside confluent-kafka alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa

from bench.connectors._rows import COLUMNS, make_values, rate, sink_rate
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.kafka.source import KafkaSource
from headrace.model.operator import Limit
from tests.servers.kafka import KafkaBroker, run_broker
from tests.support import read_split

ROWS = 90_000


def measure() -> dict[str, float]:
    """Read and write a topic with the connector, and with the client alone."""
    with tempfile.TemporaryDirectory() as folder, run_broker(Path(folder)) as broker:
        return _measure(broker, Path(folder))


def _measure(broker: KafkaBroker, folder: Path) -> dict[str, float]:
    topic, copy = broker.create(), broker.create()
    values = make_values(ROWS)
    client_write = rate(lambda: broker.send(topic, values), ROWS)

    source = KafkaSource(**broker.options(topic), **{"source.offset": "earliest", "schema": COLUMNS})
    start = source.initial_offset(time=0)
    end = source.latest_offset(start, Limit(ROWS, 0), parallelism=1)
    splits = source.splits(start, end, parallelism=1)

    def read() -> list[pa.RecordBatch]:
        return [batch for split in splits for batch in read_split(source, split)[0]]

    def read_alone() -> None:
        assert sum(json.loads(message.value())["n"] >= 0 for message in broker.read(topic)) == ROWS

    def sink() -> KafkaSink:
        return KafkaSink(**broker.options(copy), **{"sink.commit_mode": "exactly_once"})

    batches = read()  # the first time it connects
    return {
        "source": rate(read, ROWS),
        "client, read and json.loads": rate(read_alone, ROWS),
        "sink, exactly once": sink_rate(sink, batches, folder),
        "client, write": client_write,
    }
