"""Topics of Kafka, beside confluent-kafka alone."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from headrace.connectors.kafka_sink import KafkaSink
from headrace.connectors.kafka_source import KafkaSource
from headrace.operator import Limit
from tests.servers.kafka import KafkaBroker
from tests.support import SinkDriver, read_split

ROWS = 90_000


def measure() -> dict[str, float]:
    """Read and write a topic with the connector, and with the client alone."""
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder))
        broker.start()
        try:
            return _measure(broker, Path(folder))
        finally:
            broker.stop()


def _measure(broker: KafkaBroker, folder: Path) -> dict[str, float]:
    topic, copy = broker.create(), broker.create()
    values = [json.dumps({"n": n, "text": f"row {n}"}) for n in range(ROWS)]
    begun = time.perf_counter()
    broker.send(topic, values)
    client_write = ROWS / (time.perf_counter() - begun)

    columns = pa.schema({"n": pa.int64(), "text": pa.string()})
    source = KafkaSource(**broker.options(topic), **{"source.offset": "earliest", "schema": columns})
    start = source.initial_offset(time=0)
    end = source.latest_offset(start, Limit(ROWS, 0), parallelism=1)
    splits = source.splits(start, end, parallelism=1)
    batches: list[pa.RecordBatch] = []
    for _ in range(2):  # the first time it connects
        begun = time.perf_counter()
        batches = [batch for split in splits for batch in read_split(source, split)[0]]
    read = ROWS / (time.perf_counter() - begun)

    begun = time.perf_counter()
    found = sum(json.loads(message.value())["n"] >= 0 for message in broker.read(topic))
    client_read = found / (time.perf_counter() - begun)

    driver = SinkDriver(
        lambda: KafkaSink(**broker.options(copy), **{"sink.commit_mode": "exactly_once"}), folder
    )
    begun = time.perf_counter()
    driver.run(1, batches)
    written = ROWS / (time.perf_counter() - begun)
    return {
        "source": read,
        "client, read and json.loads": client_read,
        "sink, exactly once": written,
        "client, write": client_write,
    }
