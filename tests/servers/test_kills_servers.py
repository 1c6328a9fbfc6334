"""kill -9 of pipelines from and to databases and web servers, and the promises that are counted."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.http import Answer, Request, run_http, table
from tests.servers.killing import Files, Output, copying, kill_and_count, lines
from tests.servers.postgres import Database
from tests.servers.redis import run_cluster
from tests.servers.test_sse import STREAM
from tests.servers.test_websocket import Heard, run_socket
from tests.servers.victim import EPOCH_ROWS

# ------------------------------------------------------------------------------------------ databases


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
    kill_and_count(sql, tmp_path / "state", feed=feed, seen=seen)
    assert len(postgres.slots()) == 1


TARGETS = {
    "string": {"target__key_prefix": "n:", "target__key_column": "n"},
    "list": {"target__key_prefix": "rows"},
    "hash": {"target__key_prefix": "rows", "target__field_column": "n"},
}


def entries(client: Any, target: str) -> Counter[int]:
    """The numbers of the entries, whatever they are in."""
    if target == "list":
        found = client.lrange("rows", 0, -1)
    elif target == "hash":
        found = client.hvals("rows")
    else:
        keys = client.keys("n:*")
        found = client.mget(keys) if keys else []
    return Counter(json.loads(one)["n"] for one in found)


@pytest.mark.parametrize("target", TARGETS)
def test_to_redis(redis_client: Any, redis_port: int, tmp_path: Path, target: str) -> None:
    files = Files(tmp_path)
    options = {"address": f"redis://127.0.0.1:{redis_port}", "target": target, **TARGETS[target]}
    sql = copying(files.sql, table("redis", "n BIGINT", "sink", "copied", **options))
    kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=lambda: entries(redis_client, target))


def test_to_a_list_of_a_cluster_of_redis(redis_program: Path, tmp_path: Path) -> None:
    import redis

    files = Files(tmp_path)
    (tmp_path / "cluster").mkdir()
    with run_cluster(redis_program, tmp_path / "cluster") as ports:
        addresses = ",".join(f"redis://127.0.0.1:{port}" for port in ports)
        options = {"cluster__addresses": addresses, "target": "list", **TARGETS["list"]}
        sql = copying(files.sql, table("redis", "n BIGINT", "sink", "copied", **options))
        with redis.RedisCluster(host="127.0.0.1", port=ports[0]) as client:
            kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=lambda: entries(client, "list"))


# ------------------------------------------------------------------------------------------- web servers


def test_from_server_sent_events(tmp_path: Path) -> None:
    out, numbers = Output(tmp_path), list[int]()

    def answer(request: Request) -> Answer:
        return Answer(headers=STREAM, parts=events(int(request.headers.get("Last-Event-ID") or -1) + 1))

    def events(place: int) -> Iterator[bytes]:
        while not server.stopping.wait(0.01):
            for n in numbers[place:]:
                yield f'id: {place}\ndata: {{"n": {n}}}\n\n'.encode()
                place += 1
            yield b": still here\n"

    with run_http(answer) as server:
        kill_and_count(
            copying(table("sse", "n BIGINT", endpoint=server.url), out.sql),
            tmp_path / "state",
            feed=numbers.extend,
            seen=out.seen,
            holds=["events have ids and the server honours Last-Event-ID"],
        )


def test_from_a_web_server_that_is_polled(tmp_path: Path) -> None:
    """Some numbers are the answer until they have come through, then the next are."""
    out, answers = Output(tmp_path), deque[list[int]]()

    def feed(numbers: Sequence[int]) -> None:
        answers.extend(list(numbers[at : at + EPOCH_ROWS]) for at in range(0, len(numbers), EPOCH_ROWS))

    def answer(_: Request) -> Answer:
        if len(answers) > 1 and set(answers[0]) <= set(out.seen()):
            answers.popleft()
        return Answer(body="\n".join(lines(answers[0])).encode())

    options: dict[str, Any] = {"poll_interval_ms": 5, "emit_behavior": "changed", "framing": "newline"}
    with run_http(answer) as server:
        sql = copying(table("polling_http", "n BIGINT", endpoint=server.url, **options), out.sql)
        kill_and_count(sql, tmp_path / "state", feed=feed, seen=out.seen)


def test_from_a_socket(tmp_path: Path) -> None:
    out, numbers = Output(tmp_path), deque[int]()

    def talk(connection: Any) -> None:
        while True:
            while numbers:
                connection.send(json.dumps({"n": numbers.popleft()}))
            try:
                connection.recv(0.02)
            except TimeoutError:
                continue

    with run_socket(talk) as server:
        sql = copying(table("websocket", "n BIGINT", endpoint=server.url), out.sql)
        kill_and_count(sql, tmp_path / "state", feed=numbers.extend, seen=out.seen)


def test_to_a_socket(tmp_path: Path) -> None:
    files, heard = Files(tmp_path), Heard()
    with run_socket(heard) as server:
        sql = copying(files.sql, table("websocket", "n BIGINT", "sink", "copied", endpoint=server.url))
        kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=heard.numbers)


def test_to_a_web_server(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with run_http(lambda _: Answer(201)) as server:

        def seen() -> Counter[int]:
            return Counter(json.loads(request.body)["n"] for request in list(server.requests))

        sql = copying(files.sql, table("webhook", "n BIGINT", "sink", "copied", endpoint=server.url))
        kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=seen)
        by_key = {one.headers["Idempotency-Key"]: one.body for one in server.requests}
    assert set(Counter(json.loads(body)["n"] for body in by_key.values()).values()) == {1}
