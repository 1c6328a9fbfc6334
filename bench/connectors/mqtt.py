"""Topics of MQTT, beside paho-mqtt alone."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from bench.connectors._received import read_received
from bench.connectors._rows import COLUMNS, make_rows, make_values, rate, sink_rate
from headrace.connectors.mqtt.sink import MqttSink
from headrace.connectors.mqtt.source import MqttSource
from tests.servers.mqtt import Mosquitto, run_mosquitto

ROWS = 20_000


def measure() -> dict[str, float]:
    """Read and write a topic with the connector, and with the client alone."""
    with tempfile.TemporaryDirectory() as folder, run_mosquitto(Path(folder)) as broker:
        return {
            "source, QoS 1": _source(broker, Path(folder), 1),
            "source, QoS 2": _source(broker, Path(folder), 2),
            "client, QoS 1, read and json.loads": _read_alone(broker),
            "sink, QoS 1": sink_rate(
                lambda: MqttSink(url=broker.url, topic="copy"), [make_rows(ROWS)], Path(folder) / "sink"
            ),
            "client, QoS 1, write": _write(broker, broker.topic(), 1),
        }


def _write(broker: Mosquitto, topic: str, qos: int) -> float:
    values = make_values(ROWS)
    return rate(lambda: broker.send(topic, values, qos=qos), ROWS)


def _source(broker: Mosquitto, folder: Path, qos: int) -> float:
    topic = broker.topic()
    source = MqttSource(url=broker.url, topic=topic, qos=qos, schema=COLUMNS)
    broker.send(topic, ['{"n": -1}'], retain=True)
    read_received(source, folder / topic, 1)  # from now on the broker keeps messages for it
    _write(broker, topic, qos)
    return read_received(source, folder / topic, ROWS)


def _read_alone(broker: Mosquitto) -> float:
    topic = broker.topic()
    numbers: list[int] = []
    with broker.listening(topic, qos=1, name="alone"):
        pass
    _write(broker, topic, 1)
    begun = time.perf_counter()
    with broker.listening(topic, qos=1, name="alone") as messages:
        while len(numbers) < ROWS:
            time.sleep(0.001)
            numbers += [json.loads(message.payload)["n"] for message in messages[len(numbers) :]]
    return ROWS / (time.perf_counter() - begun)
