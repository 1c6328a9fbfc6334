"""What every source and every sink promises, kept by Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.kafka import client
from headrace.connectors.kafka import sink as kafka_sink
from headrace.connectors.kafka.sink import KafkaSink
from headrace.model.operator import SourceOperator
from tests.contract.test_sinks import Case, SinkContract
from tests.contract.test_sources import ROWS, SourceContract, build_source
from tests.servers.kafka import KafkaBroker


@pytest.fixture(scope="module")
def topic(kafka: KafkaBroker) -> str:
    """Rows in some partitions, and none in others."""
    topic, first = kafka.create(4), 0
    for partition, size in ((0, ROWS - 60), (1, 50), (3, 10)):
        rows = [json.dumps({"a": i, "b": "ü" * (i % 13)}) for i in range(first, first + size)]
        kafka.send(topic, rows, partition=partition)
        first += size
    return topic


@pytest.fixture
def source(kafka: KafkaBroker, topic: str) -> SourceOperator:
    options = {"schema": {"a": "int64", "b": "string"}, "source.offset": "earliest", "source.bounded": True}
    return build_source("kafka", kafka.options(topic, **options))


@pytest.fixture
def case(kafka: KafkaBroker, tmp_path: Path) -> Case:
    topic = kafka.create()
    options = kafka.options(topic, **{"sink.commit_mode": "exactly_once"})

    def visible() -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in kafka.read(topic)]

    inside: list[tuple[Any, str]] = [
        (KafkaSink, name) for name in ("_transactional", "_start", "_last_commit", "_send", "_flush")
    ]
    inside += [(kafka_sink, "_with_timeout"), (client, "_close")]
    return Case("kafka", options, visible, {"topic": ""}, tmp_path, job=topic, inside=inside)


class TestSource(SourceContract):
    """kafka."""


class TestSink(SinkContract):
    """kafka."""
