"""kill -9 of pipelines from and to brokers, and the promises that are counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers.http import query, table
from tests.servers.kafka import KafkaBroker
from tests.servers.killing import Files, Output, copying, kill_and_count, lines
from tests.servers.mqtt import Mosquitto, subscribe
from tests.servers.nats import NatsServer
from tests.servers.rabbitmq import RabbitServer


@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_from_topic_to_topic(kafka: KafkaBroker, tmp_path: Path, mode: str) -> None:
    topic, out = kafka.create(2), kafka.create(2)

    def feed(numbers: Sequence[int]) -> None:
        for partition in range(2):
            kafka.send(topic, lines(numbers[partition::2]), partition=partition)

    def seen() -> Counter[int]:
        return Counter(json.loads(message.value())["n"] for message in kafka.read(out))

    source = table("kafka", "n BIGINT", **kafka.options(topic, source__offset="earliest"))
    options = kafka.options(out, sink__commit_mode=mode, sink__key_field="n")
    sql = copying(source, table("kafka", "n BIGINT", "sink", "copied", **options))
    kill_and_count(sql, tmp_path / "state", feed=feed, seen=seen)


@pytest.mark.parametrize("kept", [True, False], ids=["stream", "subject"])
def test_from_stream_to_stream(nats_server: NatsServer, tmp_path: Path, kept: bool) -> None:
    origin, out = nats_server.create(), nats_server.create()

    def seen() -> Counter[int]:
        return Counter(json.loads(message.data)["n"] for message in nats_server.read(out))

    options = {"servers": nats_server.url, "subject": f"{out}.rows"} | ({"stream": out} if kept else {})
    sql = copying(
        table("nats", "n BIGINT", servers=nats_server.url, stream=origin),
        table("nats", "n BIGINT", "sink", "copied", **options),
    )
    kill_and_count(
        sql,
        tmp_path / "state",
        feed=lambda numbers: nats_server.send(origin, lines(numbers)),
        seen=seen,
    )


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_from_a_queue_or_a_stream_of_rabbitmq(rabbitmq: RabbitServer, tmp_path: Path, kind: str) -> None:
    name, out = rabbitmq.create(stream=kind == "stream"), Output(tmp_path)
    options = {kind: name, "source__prefetch": 30}
    if kind == "stream":
        options["source__offset"] = "earliest"
    kill_and_count(
        copying(table("rabbitmq", "n BIGINT", **rabbitmq.options(**options)), out.sql),
        tmp_path / "state",
        feed=lambda numbers: rabbitmq.send(name, lines(numbers)),
        seen=out.seen,
    )


def test_to_a_queue_of_rabbitmq(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    files, queue = Files(tmp_path), rabbitmq.create()
    found: Counter[int] = Counter()

    def seen() -> Counter[int]:
        found.update(json.loads(content)["n"] for _, _, content in rabbitmq.read(queue))
        return found

    options = rabbitmq.options(routing_key=queue)
    sql = copying(files.sql, table("rabbitmq", "n BIGINT", "sink", "copied", **options))
    kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=seen)


@pytest.mark.parametrize("qos", ["AtLeastOnce", "ExactlyOnce"])
def test_from_a_topic_of_mqtt(mosquitto: Mosquitto, tmp_path: Path, qos: str) -> None:
    topic, out = mosquitto.topic(), Output(tmp_path)
    sql = copying(table("mqtt", "n BIGINT", url=mosquitto.url, topic=topic, qos=qos), out.sql)
    subscribe(query(sql), tmp_path / "state")
    kill_and_count(
        sql,
        tmp_path / "state",
        feed=lambda numbers: mosquitto.send(topic, lines(numbers), qos=2),
        seen=out.seen,
    )


def test_to_a_topic_of_mqtt(mosquitto: Mosquitto, tmp_path: Path) -> None:
    files, topic = Files(tmp_path), mosquitto.topic()
    sql = copying(files.sql, table("mqtt", "n BIGINT", "sink", "copied", url=mosquitto.url, topic=topic))
    with mosquitto.listening(topic) as messages:
        kill_and_count(
            sql,
            tmp_path / "state",
            feed=files.feed,
            seen=lambda: Counter(json.loads(message.payload)["n"] for message in messages),
        )
