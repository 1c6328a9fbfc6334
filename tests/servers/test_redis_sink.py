"""The redis sink against real servers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError, ExternalError, PlanError, ReplacedError
from headrace.connectors.redis import client as redis_server
from headrace.connectors.redis import sink as redis_sink
from headrace.connectors.redis.sink import RedisSink
from headrace.testing.in_process import CrashError, run_in_process
from tests.contract.test_sinks import suspend_before
from tests.servers.redis import run_cluster, run_server, tls_before
from tests.support import SinkDriver

STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")
ROWS = 60


def sink(port: int, target: str, **more: Any) -> RedisSink:
    named = {name.replace("__", "."): value for name, value in more.items()}
    given = {"address": f"redis://127.0.0.1:{port}", "target": target, **named}
    return RedisSink(**{name: value for name, value in given.items() if value is not None})


def driver(port: int, folder: Path, target: str, **more: Any) -> SinkDriver:
    return SinkDriver(lambda: sink(port, target, **more), folder)


def values(client: Any, pattern: str = "*") -> dict[str, Any]:
    return {key.decode(): json.loads(client.get(key)) for key in sorted(own_keys(client, pattern))}


def own_keys(client: Any, pattern: str = "*") -> list[bytes]:
    """The keys of rows."""
    return [key for key in client.keys(pattern) if not key.startswith(b"headrace:")]


# ----------------------------------------------------------------------------------------- what is written


def test_strings_hold_the_last_row_of_their_key(redis_client: Any, redis_port: int, tmp_path: Path) -> None:
    one = driver(redis_port, tmp_path, "string", target__key_prefix="k:", target__key_column="k")
    rows = pa.record_batch({"k": ["a", "b", "a"], "n": [1, 2, 3]})
    one.run(1, [rows], [pa.record_batch({"k": ["c"], "n": [4]})])
    expected = {"k:a": {"k": "a", "n": 3}, "k:b": {"k": "b", "n": 2}, "k:c": {"k": "c", "n": 4}}
    assert values(redis_client) == expected
    assert redis_client.ttl("k:a") == -1
    timed = driver(redis_port, tmp_path / "t", "string", target__key_prefix="one", target__ttl_secs=100)
    timed.run(1, [rows])
    assert json.loads(redis_client.get("one")) == {"k": "a", "n": 3}
    assert 0 < redis_client.ttl("one") <= 100


@pytest.mark.parametrize(
    ("keys", "written"),
    [(pa.array([-7]), b"-7"), (pa.array([b"\x00\xff"]), b"\x00\xff"), (pa.array([True]), b"true")],
)
def test_keys_of_other_types_are_written_as_texts(
    redis_client: Any, redis_port: int, tmp_path: Path, keys: pa.Array, written: bytes
) -> None:
    one = driver(redis_port, tmp_path, "string", target__key_column="k")
    one.run(1, [pa.record_batch({"k": keys})])
    assert own_keys(redis_client) == [written]


def test_hashes_have_a_field_for_each_row(redis_client: Any, redis_port: int, tmp_path: Path) -> None:
    one = driver(
        redis_port,
        tmp_path,
        "hash",
        target__key_prefix="h:",
        target__key_column="k",
        target__field_column="f",
        target__ttl_secs=100,
    )
    one.run(1, [pa.record_batch({"k": ["a", "a", "b", "a"], "f": ["x", "y", "x", "x"], "n": [1, 2, 3, 4]})])
    found = {field: json.loads(value)["n"] for field, value in redis_client.hgetall("h:a").items()}
    assert found == {b"x": 4, b"y": 2}
    assert redis_client.hlen("h:b") == 1
    assert 0 < redis_client.ttl("h:a") <= 100


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"target__operation": "prepend"}, [4, 3, 2, 1, 0]),
        ({"target__max_length": 2}, [3, 4]),
        ({"target__max_length": 2, "target__operation": "prepend"}, [4, 3]),
    ],
)
def test_lists_grow_at_one_end_and_are_cut_at_the_other(
    redis_client: Any, redis_port: int, tmp_path: Path, options: dict[str, Any], expected: list[int]
) -> None:
    one = driver(redis_port, tmp_path, "list", target__key_prefix="l", target__ttl_secs=50, **options)
    one.run(1, [pa.record_batch({"n": [0, 1, 2]})])
    one.run(2, [pa.record_batch({"n": [3, 4]})])
    assert [json.loads(entry)["n"] for entry in redis_client.lrange("l", 0, -1)] == expected
    assert 0 < redis_client.ttl("l") <= 50


def test_texts_and_changes_can_be_entries(redis_client: Any, redis_port: int, tmp_path: Path) -> None:
    raw = driver(redis_port, tmp_path / "a", "list", target__key_prefix="raw", format="raw_string")
    raw.run(1, [pa.record_batch({"value": ["a\nb", ""]})])
    assert redis_client.lrange("raw", 0, -1) == [b"a\nb", b""]
    more = {"format": "debezium_json", "schema": {"k": "string"}, "primary_key": ["k"]}
    changes = driver(redis_port, tmp_path / "b", "list", target__key_prefix="changes", **more)
    changes.run(1, [pa.record_batch({"k": ["a", "b", "b"], "_retract": [False, False, True]})])
    assert [json.loads(entry)["op"] for entry in redis_client.lrange("changes", 0, -1)] == ["c"]


# --------------------------------------------------------------------------------------------- updates


def changes(*rows: tuple[str, int, bool]) -> pa.RecordBatch:
    keys, numbers, taken_back = zip(*rows, strict=True)
    return pa.record_batch({"k": keys, "n": pa.array(numbers, pa.int64()), "_retract": taken_back})


def test_a_row_that_is_taken_back_and_not_replaced_deletes_its_key(
    redis_client: Any, redis_port: int, tmp_path: Path
) -> None:
    one = driver(redis_port, tmp_path, "string", target__key_prefix="k:", target__key_column="k")
    one.run(1, [changes(("a", 1, False), ("b", 1, False), ("c", 1, False), ("d", 1, False))])
    one.run(
        2,
        # b is replaced; c is replaced, told the other way round; d leaves; e came and went; a stays.
        [
            changes(("b", 1, True), ("b", 2, False), ("c", 2, False), ("c", 1, True)),
            changes(("d", 1, True), ("e", 1, False), ("e", 1, True), ("a", 1, True), ("a", 1, False)),
        ],
    )
    found = {key: row["n"] for key, row in values(redis_client).items()}
    assert found == {"k:a": 1, "k:b": 2, "k:c": 2}
    one.run(3, [changes(("b", 2, True))], [changes(("b", 3, False))])  # it moved to another subtask
    one.run(4, [changes(("c", 3, False))], [changes(("c", 2, True))])
    assert {key: row["n"] for key, row in values(redis_client).items()} == {"k:a": 1, "k:b": 3, "k:c": 3}


def test_a_field_is_deleted_with_its_row(redis_client: Any, redis_port: int, tmp_path: Path) -> None:
    one = driver(redis_port, tmp_path, "hash", target__key_prefix="h", target__field_column="k")
    one.run(1, [changes(("a", 1, False), ("b", 1, False))])
    one.run(2, [changes(("a", 1, True), ("b", 1, True), ("b", 2, False))])
    assert {field: json.loads(value)["n"] for field, value in redis_client.hgetall("h").items()} == {b"b": 2}
    with pytest.raises(PlanError, match="can only add rows"):
        driver(redis_port, tmp_path, "list", target__key_prefix="l").prepare(1, [changes(("a", 1, False))])


def test_an_updating_query_keeps_its_result_in_redis(
    redis_client: Any, redis_port: int, tmp_path: Path
) -> None:
    lines = tmp_path / "in.json"
    lines.write_text("\n".join(json.dumps({"k": k, "n": n}) for n, k in enumerate("aababcab")))
    sql = f"""
        CREATE TABLE numbers (k TEXT, n BIGINT)
        WITH (connector = 'single_file', path = '{lines}', format = 'json', type = 'source');
        CREATE TABLE totals (k TEXT, total BIGINT) WITH (
          connector = 'redis', type = 'sink', format = 'json', address = 'redis://127.0.0.1:{redis_port}',
          target = 'string', 'target.key_prefix' = 'total:', 'target.key_column' = 'k'
        );
        INSERT INTO totals SELECT k, sum(n) FROM numbers GROUP BY k HAVING count(*) < 4;
    """
    run_in_process(Pipeline.from_sql(sql, name="totals"), tmp_path / "state", parallelism=3, epoch_rows=3)
    assert {key: row["total"] for key, row in values(redis_client).items()} == {
        "total:b": 2 + 4 + 7,
        "total:c": 5,
    }


# ------------------------------------------------------------------------------------------ guarantees


def copying(port: int, target: str) -> Pipeline:
    options = {
        "string": "'target.key_prefix' = 'n:', 'target.key_column' = 'n'",
        "list": "'target.key_prefix' = 'rows'",
        "hash": "'target.key_prefix' = 'rows', 'target.field_column' = 'n'",
    }[target]
    return Pipeline.from_sql(
        f"""
        CREATE TABLE numbers WITH (connector = 'impulse', message_count = {ROWS});
        CREATE TABLE copied (n BIGINT) WITH (
          connector = 'redis', type = 'sink', format = 'json', address = 'redis://127.0.0.1:{port}',
          target = '{target}', {options}
        );
        INSERT INTO copied SELECT CAST(counter AS BIGINT) FROM numbers;
        """,
        name="copying",
    )


def counted(client: Any, target: str) -> Counter[int]:
    if target == "list":
        return Counter(json.loads(entry)["n"] for entry in client.lrange("rows", 0, -1))
    if target == "hash":
        return Counter(json.loads(value)["n"] for value in client.hvals("rows"))
    return Counter(row["n"] for row in values(client, "n:*").values())


def crash_at(step: str, epoch: int) -> Callable[[str, int], None]:
    def on_step(name: str, at: int) -> None:
        if name.startswith(step) and at == epoch:
            raise CrashError

    return on_step


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("target", ["string", "list", "hash"])
def test_a_crash_at_any_step_counts_each_row_once(
    redis_client: Any, redis_port: int, tmp_path: Path, target: str, step: str
) -> None:
    with pytest.raises(CrashError):
        run_in_process(copying(redis_port, target), tmp_path, epoch_rows=20, on_step=crash_at(step, 2))
    run_in_process(copying(redis_port, target), tmp_path, parallelism=3, epoch_rows=20)
    assert counted(redis_client, target) == Counter(range(ROWS))


@pytest.mark.parametrize("after", [True, False], ids=["after the transaction", "before it"])
def test_a_crash_inside_a_commit_adds_each_row_to_a_list_once(
    redis_client: Any, redis_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(redis_sink, "BATCH_ROWS", 7)
    add, calls = RedisSink._add, []

    def crashing(*arguments: Any) -> bool:
        calls.append(arguments)
        if len(calls) == 5:
            if after:
                add(*arguments)
            raise CrashError
        return add(*arguments)

    monkeypatch.setattr(RedisSink, "_add", crashing)
    with pytest.raises(CrashError):
        run_in_process(copying(redis_port, "list"), tmp_path, epoch_rows=20)
    assert 20 < sum(counted(redis_client, "list").values()) < 40
    run_in_process(copying(redis_port, "list"), tmp_path, epoch_rows=20)
    assert counted(redis_client, "list") == Counter(range(ROWS))


@pytest.mark.parametrize("target", ["string", "hash"])
@pytest.mark.parametrize("moment", ["watch", "multi", "execute"])
def test_a_run_that_was_replaced_does_not_replace_newer_values(
    redis_client: Any,
    redis_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    moment: str,
) -> None:
    from redis.client import Pipeline as Batch

    more = {"target__field_column": "k"} if target == "hash" else {"target__key_column": "k"}
    one = driver(redis_port, tmp_path, target, target__key_prefix="h", **more)

    def held() -> Any:
        return json.loads(redis_client.hget("h", "a") if target == "hash" else redis_client.get("ha"))["n"]

    one.take_over()
    one.run(1, [pa.record_batch({"k": ["a"], "n": [1]})])
    data = one.prepare(2, [pa.record_batch({"k": ["a"], "n": [2]})])

    def take_over() -> None:
        one.take_over()
        one.commit(2, data)
        one.run(3, [pa.record_batch({"k": ["a"], "n": [3]})])

    with monkeypatch.context() as patch:
        suspend_before(patch, Batch, moment, take_over)
        with pytest.raises(ReplacedError):
            one.commit(2, data)
    assert held() == 3


def test_a_list_whose_progress_an_earlier_version_wrote_is_continued(
    redis_client: Any, redis_port: int, tmp_path: Path
) -> None:
    one = driver(redis_port, tmp_path, "list", target__key_prefix="rows")
    data = one.prepare(1, [pa.record_batch({"n": [1, 2]})])
    one.commit(1, data)
    progress = json.loads(redis_client.get("headrace:job:op"))["batches"]
    redis_client.set("headrace:job:op", json.dumps(progress))
    one.take_over()
    one.commit(1, data)
    assert counted(redis_client, "list") == Counter([1, 2])


def test_an_answer_that_is_lost_adds_nothing_twice(
    redis_client: Any, redis_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis.client import Pipeline as Batch
    from redis.exceptions import ConnectionError as LostError

    execute = Batch.execute
    lost: list[Any] = []

    def losing(self: Any, *arguments: Any) -> Any:
        answer = execute(self, *arguments)
        if self.transaction and not lost:
            lost.append(answer)
            raise LostError("the answer was lost")
        return answer

    monkeypatch.setattr(Batch, "execute", losing)
    driver(redis_port, tmp_path, "list", target__key_prefix="rows").run(1, [pa.record_batch({"n": [1, 2]})])
    assert lost
    assert counted(redis_client, "list") == Counter([1, 2])


def test_a_connection_that_is_lost_before_a_transaction_costs_no_row_and_adds_none_twice(
    redis_client: Any, redis_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis.client import Pipeline as Batch

    watch: Any = Batch.watch
    lost: list[Any] = []

    def losing(self: Any, *names: Any) -> Any:
        answer = watch(self, *names)
        if not lost:
            lost.append(redis_client.client_kill_filter(_type="normal", skipme=True))
        return answer

    monkeypatch.setattr(Batch, "watch", losing)
    driver(redis_port, tmp_path, "list", target__key_prefix="rows").run(1, [pa.record_batch({"n": [1, 2]})])
    assert lost
    assert counted(redis_client, "list") == Counter([1, 2])


def test_going_back_to_an_earlier_epoch_does_not_add_that_epoch_again(
    redis_client: Any, redis_port: int, tmp_path: Path
) -> None:
    run_in_process(copying(redis_port, "list"), tmp_path, epoch_rows=20)
    run_in_process(copying(redis_port, "list"), tmp_path, epoch_rows=20, from_epoch=1)
    assert Counter(counted(redis_client, "list").values()) == {1: 20, 2: 40}


def test_a_server_that_restarts_in_the_middle_of_a_run_costs_no_row(
    redis_program: Path, tmp_path: Path
) -> None:
    import redis

    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with run_server(redis_program, tmp_path / "server", *kept) as port:
        pass
    stop, up = threading.Event(), threading.Event()

    def serve() -> None:
        with run_server(redis_program, tmp_path / "server", *kept, port=port):
            up.set()
            stop.wait(60)

    def start() -> threading.Thread:
        stop.clear()
        thread = threading.Thread(target=serve)
        thread.start()
        return thread

    threads = [start()]
    assert up.wait(30)

    def restart(step: str, epoch: int) -> None:
        if (step, epoch) == ("metadata_written", 2):
            stop.set()
            threads[0].join()
            threading.Timer(0.5, lambda: threads.append(start())).start()

    try:
        run_in_process(copying(port, "list"), tmp_path / "state", epoch_rows=20, on_step=restart)
        with redis.Redis(port=port) as client:
            assert counted(client, "list") == Counter(range(ROWS))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# ------------------------------------------------------------------------------------- clusters, TLS


def test_a_cluster_is_written_across_its_slots(redis_program: Path, tmp_path: Path) -> None:
    import redis

    keys = [f"key{n}" for n in range(100)]
    rows = pa.record_batch({"k": keys, "n": list(range(100))})
    taken_back = pa.record_batch({"k": keys[:50], "n": list(range(50)), "_retract": [True] * 50})
    with run_cluster(redis_program, tmp_path) as ports, redis.RedisCluster("127.0.0.1", ports[0]) as client:
        addresses = f"redis://127.0.0.1:{ports[0]}, redis://127.0.0.1:{ports[1]}"
        given = {"address": None, "cluster__addresses": addresses, "target__key_column": "k"}
        for target, more in (("string", {}), ("hash", {"target__field_column": "n"}), ("list", {})):
            one = driver(0, tmp_path / target, target, target__key_prefix=f"{target}:", **given, **more)
            assert sink(0, target, **given, **more).reach().startswith("a Redis cluster of 2 servers")
            data = one.prepare(1, [rows])
            one.commit(1, data)
            if target == "list":
                assert {client.llen(f"{target}:{key}") for key in keys} == {1}
                continue
            one.commit(1, data)
            one.run(2, [taken_back])
            assert [key for key in keys if client.exists(f"{target}:{key}")] == keys[50:]


def test_servers_are_reached_through_tls(
    redis_client: Any, redis_port: int, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    with tls_before(redis_port, certificate) as port:
        address = f"rediss://127.0.0.1:{port}"
        known = {"address": address, "target__key_prefix": "s", "tls__ca": str(certificate[0])}
        driver(0, tmp_path, "string", **known).run(1, [pa.record_batch({"n": [1]})])
        assert values(redis_client) == {"s": {"n": 1}}
        with pytest.raises(ExternalError, match="certificate"):
            sink(0, "string", address=address, target__key_prefix="s").reach()


# ---------------------------------------------------------------------------------- when things fail


def test_a_server_that_does_not_answer_fails_the_epoch_within_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "PATIENCE_SECONDS", 0.3)
    for target in ("string", "list"):
        one = driver(1, tmp_path / target, target, target__key_prefix="x")
        with pytest.raises(ExternalError, match=r"redis does not answer: .*refused"):
            one.run(1, [pa.record_batch({"n": [1]})])


@pytest.mark.parametrize("target", ["string", "list"])
def test_a_server_without_its_replicas_is_waited_for(
    redis_client: Any, redis_port: int, tmp_path: Path, target: str
) -> None:
    redis_client.config_set("min-replicas-to-write", 1)
    back = threading.Timer(0.4, redis_client.config_set, ("min-replicas-to-write", 0))
    back.start()
    try:
        driver(redis_port, tmp_path, target, target__key_prefix="x").run(1, [pa.record_batch({"n": [1]})])
    finally:
        back.join()
    assert redis_client.exists("x")


def test_wrong_passwords_and_rights_are_named_without_the_secret(redis_program: Path, tmp_path: Path) -> None:
    import redis

    with run_server(redis_program, tmp_path, "--requirepass", "open-sesame") as port:
        good = driver(port, tmp_path / "a", "list", target__key_prefix="x", password="open-sesame")
        good.run(1, [pa.record_batch({"n": [1]})])
        shown = [good.make().display(), repr(good.make())]
        wrong = sink(port, "list", target__key_prefix="x", password="wrong-sesame")
        bad = driver(port, tmp_path / "b", "list", target__key_prefix="x", password="wrong-sesame")
        for attempt in (wrong.reach, lambda: bad.run(1, [pa.record_batch({"n": [1]})])):
            with pytest.raises(ExternalError, match="redis refuses access") as caught:
                attempt()
            shown.append(str(caught.value))
        with redis.Redis(port=port, password="open-sesame") as client:
            client.execute_command("ACL SETUSER ada on >open-sesame ~y* +@all")
        login = {"username": "ada", "password": "open-sesame"}
        rights = driver(port, tmp_path / "c", "string", target__key_prefix="x", **login)
        with pytest.raises(ExternalError, match="redis refuses access"):
            rights.run(1, [pa.record_batch({"n": [1]})])
        assert not [text for text in shown if "sesame" in text]


def test_a_key_that_holds_something_else_fails_the_epoch_and_nothing_is_added(
    redis_client: Any, redis_port: int, tmp_path: Path
) -> None:
    redis_client.set("k:b", "a text")
    one = driver(redis_port, tmp_path, "list", target__key_prefix="k:", target__key_column="k")
    data = one.prepare(1, [pa.record_batch({"k": ["a", "b"]})])
    with pytest.raises(ExternalError, match="the key `k:b` in redis is no list but a string"):
        one.commit(1, data)
    assert not redis_client.exists("k:a")
    redis_client.delete("k:b")
    one.commit(1, data)
    assert [redis_client.llen(key) for key in ("k:a", "k:b")] == [1, 1]
    redis_client.set("h", "a text")
    with pytest.raises(ExternalError, match="WRONGTYPE"):
        driver(redis_port, tmp_path, "hash", target__key_prefix="h", target__field_column="k").run(
            1, [pa.record_batch({"k": ["a"]})]
        )


def test_rows_without_a_key_and_columns_that_can_be_none_are_refused(redis_port: int, tmp_path: Path) -> None:
    one = driver(redis_port, tmp_path, "string", target__key_column="k")
    with pytest.raises(ExternalError, match="column `k` is null"):
        one.prepare(1, [pa.record_batch({"k": ["a", None]})])
    with pytest.raises(PlanError, match="cannot be a key"):
        one.prepare(1, [pa.record_batch({"k": pa.array([{"a": 1}])})])
    with pytest.raises(ConfigurationError, match="no column `k`"):
        one.prepare(1, [pa.record_batch({"kk": ["a"]})])
