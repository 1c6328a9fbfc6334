"""SIGSTOP of pipelines whose state directory another run takes over: the promises hold when they wake up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.http import table
from tests.servers.kafka import KafkaBroker
from tests.servers.killing import Files, copying, freeze_and_count, lines
from tests.servers.nats import NatsServer
from tests.servers.postgres import Database
from tests.servers.rabbitmq import RabbitServer
from tests.servers.test_kills_servers import TARGETS, entries


def test_from_topic_to_topic(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, out = kafka.create(), kafka.create(2)

    def seen() -> Counter[int]:
        return Counter(json.loads(message.value())["n"] for message in kafka.read(out))

    source = table("kafka", "n BIGINT", **kafka.options(topic, source__offset="earliest"))
    options = kafka.options(out, sink__commit_mode="exactly_once", sink__key_field="n")
    sql = copying(source, table("kafka", "n BIGINT", "sink", "copied", **options))
    freeze_and_count(
        sql, tmp_path / "state", feed=lambda numbers: kafka.send(topic, lines(numbers)), seen=seen
    )


def test_from_a_table_of_postgres_to_another(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE numbers (n bigint PRIMARY KEY)", "CREATE TABLE copied (n bigint)")

    def feed(numbers: Sequence[int]) -> None:
        values = ", ".join(f"({n})" for n in numbers)
        postgres.run(f"INSERT INTO numbers VALUES {values}")

    def seen() -> Counter[int]:
        return Counter(n for (n,) in postgres.rows("SELECT n FROM copied"))

    given: dict[str, Any] = {"url": postgres.url, "format": None}
    source = table("postgres", "n BIGINT", table="numbers", source__changes="inserts", **given)
    sql = copying(source, table("postgres", "n BIGINT", "sink", "copied", table="copied", **given))
    freeze_and_count(sql, tmp_path / "state", feed=feed, seen=seen)


@pytest.mark.parametrize("target", TARGETS)
def test_to_redis(redis_client: Any, redis_port: int, tmp_path: Path, target: str) -> None:
    files = Files(tmp_path)
    options = {"address": f"redis://127.0.0.1:{redis_port}", "target": target, **TARGETS[target]}
    sql = copying(files.sql, table("redis", "n BIGINT", "sink", "copied", **options))
    freeze_and_count(sql, tmp_path / "state", feed=files.feed, seen=lambda: entries(redis_client, target))


def test_from_stream_to_stream(nats_server: NatsServer, tmp_path: Path) -> None:
    origin, out = nats_server.create(), nats_server.create()

    def seen() -> Counter[int]:
        return Counter(json.loads(message.data)["n"] for message in nats_server.read(out))

    sql = copying(
        table("nats", "n BIGINT", servers=nats_server.url, stream=origin),
        table(
            "nats", "n BIGINT", "sink", "copied", servers=nats_server.url, subject=f"{out}.rows", stream=out
        ),
    )
    freeze_and_count(
        sql, tmp_path / "state", feed=lambda numbers: nats_server.send(origin, lines(numbers)), seen=seen
    )


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_from_rabbitmq(
    rabbitmq: RabbitServer, redis_client: Any, redis_port: int, tmp_path: Path, kind: str
) -> None:
    name = rabbitmq.create(stream=kind == "stream")
    options: dict[str, Any] = {kind: name, "source__prefetch": 30}
    if kind == "stream":
        options["source__offset"] = "earliest"
    address = f"redis://127.0.0.1:{redis_port}"
    sql = copying(
        table("rabbitmq", "n BIGINT", **rabbitmq.options(**options)),
        table("redis", "n BIGINT", "sink", "copied", address=address, target="list", **TARGETS["list"]),
    )
    freeze_and_count(
        sql,
        tmp_path / "state",
        feed=lambda numbers: rabbitmq.send(name, lines(numbers)),
        seen=lambda: entries(redis_client, "list"),
        holds_messages=kind == "queue",
    )
