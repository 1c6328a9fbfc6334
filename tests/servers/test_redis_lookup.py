"""Lookups in a real Redis: alone, in SQL, with passwords, in a cluster, and while it is down."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import BadLineError, ExternalError
from headrace.connectors.redis import client as redis_server
from headrace.connectors.redis.lookup import RedisLookup
from headrace.model.operator import OperatorContext
from headrace.testing.in_process import run_in_process
from tests.servers.redis import run_server
from tests.support import task

JOBS = itertools.count()
COLUMNS = {"id": "string", "name": "string", "age": "int64"}


def lookup(port: int, **options: Any) -> RedisLookup:
    values = {
        "address": f"redis://127.0.0.1:{port}",
        "schema": COLUMNS,
        "primary_key": "id",
        "metadata": {"id": "key"},
        **options,
    }
    made: RedisLookup = pickle.loads(pickle.dumps(RedisLookup(**values)))
    made.validate()
    return made


def context() -> OperatorContext:
    return OperatorContext(task(job=f"redis-{next(JOBS)}"), None)  # type: ignore[arg-type]


def ask(table: RedisLookup, keys: Any, ctx: OperatorContext | None = None) -> list[dict[str, Any]]:
    keys = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    found: list[dict[str, Any]] = table.lookup(keys, ctx or context()).to_pylist()
    return found


def test_records_are_found_by_their_key_with_one_request(redis_client: Any, redis_port: int) -> None:
    redis_client.set("ada", '{"name": "Ada", "age": 36, "more": true}')
    redis_client.set("ädä", '{\n"name": "Ä"}')
    redis_client.hset("hash", "name", "not a string")
    before = redis_client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]
    assert ask(lookup(redis_port), ["nobody", "ada", "hash", "ädä"]) == [
        {"id": "ada", "name": "Ada", "age": 36},
        {"id": "ädä", "name": "Ä", "age": None},
    ]
    assert redis_client.info("commandstats")["cmdstat_mget"]["calls"] == before + 1


def test_keys_of_other_types_are_written_as_texts(redis_client: Any, redis_port: int) -> None:
    redis_client.set("-7", '{"name": "seven"}')
    redis_client.set(b"\xff", '{"name": "bytes"}')
    numbers = lookup(redis_port, schema={**COLUMNS, "id": "int64"})
    assert ask(numbers, pa.array([7, -7])) == [{"id": -7, "name": "seven", "age": None}]
    raw = lookup(redis_port, schema={**COLUMNS, "id": "binary"})
    assert ask(raw, pa.array([b"\xff"])) == [{"id": b"\xff", "name": "bytes", "age": None}]


def test_values_may_be_texts_or_not_matter(redis_client: Any, redis_port: int) -> None:
    redis_client.mset({"a": "any text\nof two lines", "b": ""})
    texts = lookup(redis_port, schema={"id": "string", "value": "string"}, format="raw_string")
    assert ask(texts, ["a", "b", "c"]) == [
        {"id": "a", "value": "any text\nof two lines"},
        {"id": "b", "value": ""},
    ]
    assert ask(lookup(redis_port, schema={"id": "string"}), ["b", "c"]) == [{"id": "b"}]


@pytest.mark.parametrize("record", ["{", "", "7", '{"name": "x", "age": "old"}'])
def test_a_record_that_cannot_be_read_is_named_by_its_key(
    redis_client: Any, redis_port: int, record: str
) -> None:
    redis_client.mset({"good": '{"name": "Good"}', "bad one": record, "last": '{"name": "Last"}'})
    with pytest.raises(BadLineError, match="the record of key `bad one` cannot be read"):
        ask(lookup(redis_port), ["good", "bad one", "last"])


def test_records_that_cannot_be_read_are_dropped_and_counted(redis_client: Any, redis_port: int) -> None:
    redis_client.mset({"a": '{"name": "A"}', "b": "{", "c": "", "d": '{"name": "D"}'})
    ctx = context()
    found = ask(lookup(redis_port, bad_data="drop"), ["a", "b", "c", "d"], ctx)
    assert [(row["id"], row["name"]) for row in found] == [("a", "A"), ("d", "D")]
    assert ctx.metrics.values == {"bad_rows": 2}
    assert "`b`" in ctx.errors[0]


def test_a_server_that_is_down_is_an_outside_failure_and_is_asked_again(
    redis_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import redis

    monkeypatch.setattr(redis_server, "PATIENCE_SECONDS", 0.3)
    ctx = context()
    with run_server(redis_program, tmp_path) as port:
        table = lookup(port)
        assert ask(table, ["a"], ctx) == []
    with pytest.raises(ExternalError, match="redis does not answer") as caught:
        ask(table, ["a"], ctx)
    assert caught.value.retry
    with run_server(redis_program, tmp_path, port=port), redis.Redis(port=port) as client:
        client.set("a", '{"name": "back"}')
        assert [row["name"] for row in ask(table, ["a"], ctx)] == ["back"]


def test_a_server_that_answers_nothing_for_a_moment_is_waited_for(redis_client: Any, redis_port: int) -> None:
    import redis

    def run_script() -> None:
        with contextlib.suppress(redis.ResponseError):  # it is killed
            redis_client.eval("while true do end", 0)

    redis_client.set("a", '{"name": "A"}')
    redis_client.config_set("lua-time-limit", 10)
    script, end = threading.Thread(target=run_script), threading.Timer(0.4, redis_client.script_kill)
    script.start()
    with contextlib.suppress(redis.ResponseError):  # it is busy
        while redis_client.ping():
            time.sleep(0.01)
    end.start()
    try:
        assert [row["name"] for row in ask(lookup(redis_port), ["a"])] == ["A"]
    finally:
        end.join()
        script.join()


def test_passwords_are_used_and_never_shown(redis_program: Path, tmp_path: Path) -> None:
    with run_server(redis_program, tmp_path, "--requirepass", "open-sesame") as port:
        assert ask(lookup(port, password="open-sesame"), ["a"]) == []
        inside = lookup(port, address=f"redis://:open-sesame@127.0.0.1:{port}/0")
        assert ask(inside, ["a"]) == []
        shown = [inside.display(), lookup(port, password="open-sesame").display()]
        for table in (lookup(port), lookup(port, address=f"redis://:wrong-sesame@127.0.0.1:{port}")):
            with pytest.raises(ExternalError) as caught:
                ask(table, ["a"])
            shown.append(str(caught.value))
        assert not [text for text in shown if "sesame" in text]


def test_a_cluster_is_asked_across_its_slots(
    redis_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import redis

    with run_server(redis_program, tmp_path, "--cluster-enabled", "yes") as port:
        address = f"redis://127.0.0.1:{port}"
        with redis.Redis(port=port) as client:
            client.execute_command("CLUSTER ADDSLOTS", *range(16_384))
            deadline = time.monotonic() + 20
            while client.cluster("info")["cluster_state"] != "ok" and time.monotonic() < deadline:
                time.sleep(0.05)
            for name in "abc":
                client.set(name, json.dumps({"name": name.upper()}))
        table = lookup(port, address=None, **{"cluster.addresses": f"redis://127.0.0.1:1, {address}"})
        assert [row["name"] for row in ask(table, ["c", "x", "a", "b"])] == ["C", "A", "B"]
    monkeypatch.setattr(redis_server, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(ExternalError, match="redis does not answer"):
        ask(table, ["a"])


SQL = """
CREATE TABLE orders (n BIGINT, customer_id TEXT)
WITH (connector = 'single_file', path = '{orders}', format = 'json', type = 'source');

CREATE TEMPORARY TABLE customers (
  id TEXT METADATA FROM 'key' PRIMARY KEY,
  name TEXT,
  plan TEXT
) WITH (
  connector = 'redis', type = 'lookup', format = 'json', address = '{address}',
  'lookup.cache.max_bytes' = 1000000, 'lookup.cache.ttl' = interval '10 seconds'
);

SELECT o.n, c.id, c.name FROM orders o {join} customers c ON o.customer_id = c.id WHERE {where};
"""


@pytest.mark.parametrize(
    ("join", "where", "expected"),
    [
        ("JOIN", "c.plan = 'Premium'", [(0, "ada", "Ada"), (3, "ada", "Ada")]),
        ("LEFT JOIN", "c.plan IS NULL", [(1, None, None), (2, None, None), (4, "bob", "Bob")]),
    ],
)
def test_a_stream_is_joined_with_redis_in_sql(
    redis_client: Any, redis_port: int, tmp_path: Path, join: str, where: str, expected: list[Any]
) -> None:
    redis_client.set("ada", '{"name": "Ada", "plan": "Premium"}')
    redis_client.set("bob", '{"name": "Bob", "plan": null}')
    keys = ["ada", None, "eve", "ada", "bob"]
    orders = tmp_path / "orders.json"
    lines = [json.dumps({"n": n, "customer_id": key}) for n, key in enumerate(keys)]
    orders.write_text("\n".join(lines))
    sql = SQL.format(orders=orders, address=f"redis://127.0.0.1:{redis_port}", join=join, where=where)
    pipeline = hr.Pipeline.from_sql(sql, preview=lambda _: ("memory", {"name": "out"}))
    result = run_in_process(pipeline, tmp_path / "state", parallelism=2, epoch_rows=2)
    found = [(row["n"], row["id"], row["name"]) for row in result.rows["out"].to_pylist()]
    assert sorted(found) == expected
    (metrics,) = [value for name, value in result.metrics.items() if "lookup_customers" in name]
    assert metrics["lookups"] == 3
    assert metrics["cache_hits"] == 1
