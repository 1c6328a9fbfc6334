"""The kafka sink against a real broker, and whole pipelines from topic to topic."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ExternalError, PlanError, RefusedError, ReplacedError, SqlError
from headrace.connectors import base
from headrace.connectors.kafka import client as shared
from headrace.connectors.kafka import sink as kafka_sink
from headrace.connectors.kafka.sink import KafkaSink
from headrace.connectors.kafka.source import KafkaSource
from headrace.jobs.progress import RunResult
from headrace.state.generation import Generation
from headrace.testing.in_process import CrashError, run_in_process
from tests.contract.test_sinks import suspend_before
from tests.servers.kafka import PASSWORD, USER, KafkaBroker
from tests.support import SinkDriver

ROWS = 60
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


def with_options(kafka: KafkaBroker, topic: str, kind: str, **more: str) -> str:
    options = {"connector": "kafka", "type": kind, "format": "json", **kafka.options(topic), **more}
    if kind == "source":
        options = {"source.offset": "earliest", "source.bounded": "true", **options}
    return "WITH (" + ", ".join(f"'{name}' = '{value}'" for name, value in options.items()) + ")"


def copying(kafka: KafkaBroker, topic: str, out: str, mode: str) -> Pipeline:
    sink = with_options(kafka, out, "sink", **{"sink.commit_mode": mode, "sink.key_field": "n"})
    return Pipeline.from_sql(
        f"""
        CREATE TABLE numbers (n BIGINT) {with_options(kafka, topic, "source")};
        CREATE TABLE copied (n BIGINT) {sink};
        INSERT INTO copied SELECT n FROM numbers;
        """,
        name="copying",
    )


def filled(kafka: KafkaBroker) -> str:
    topic = kafka.create(2)
    for partition in range(2):
        values = [json.dumps({"n": n}) for n in range(partition, ROWS, 2)]
        kafka.send(topic, values, partition=partition)
    return topic


def crash_at(step: str, epoch: int) -> Callable[[str, int], None]:
    def on_step(name: str, at: int) -> None:
        if name.startswith(step) and at == epoch:
            raise CrashError

    return on_step


def run(pipeline: Pipeline, state: Path, **more: Any) -> RunResult:
    return run_in_process(pipeline, state, epoch_rows=20, **more)


@pytest.fixture
def _in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit in tasks, however little is staged."""
    monkeypatch.setattr(base, "_DRIVER_BYTES", -1)


def found(kafka: KafkaBroker, topic: str) -> Counter[int]:
    return Counter(json.loads(message.value())["n"] for message in kafka.read(topic))


# ------------------------------------------------------------------------------------------- guarantees


@pytest.mark.usefixtures("_in_tasks")
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_shows_each_message_once_to_who_reads_what_is_committed(
    kafka: KafkaBroker, tmp_path: Path, step: str
) -> None:
    topic, out = filled(kafka), kafka.create(2)
    with pytest.raises(CrashError):
        run(copying(kafka, topic, out, "exactly_once"), tmp_path, on_step=crash_at(step, 2))
    result = run(copying(kafka, topic, out, "exactly_once"), tmp_path, parallelism=3)
    assert result.reason == "finished"
    assert found(kafka, out) == Counter(range(ROWS))


@pytest.mark.parametrize("moment", ["before the messages", "before the mark", "before the end", "after it"])
def test_a_crash_inside_a_commit_shows_each_message_once(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    topic, out = filled(kafka), kafka.create(2)
    place = {
        "before the messages": (KafkaSink, "_send"),
        "before the mark": (kafka_sink, "_with_timeout"),
        "before the end": (kafka_sink, "_with_timeout"),
        "after it": (shared, "_close"),
    }[moment]
    kept, crashed = getattr(*place), []

    def crashing(*arguments: Any) -> Any:
        if moment in {"before the end", "after it"}:
            kept(*arguments)
        crashed.append(moment)
        raise CrashError

    pipeline = copying(kafka, topic, out, "exactly_once")
    monkeypatch.setattr(*place, crashing)
    with pytest.raises(CrashError):
        run(pipeline, tmp_path)
    assert crashed
    monkeypatch.undo()
    assert run(copying(kafka, topic, out, "exactly_once"), tmp_path).reason == "finished"
    assert found(kafka, out) == Counter(range(ROWS))


@pytest.mark.usefixtures("_in_tasks")
@pytest.mark.parametrize("moment", ["_send", "_with_timeout"])
@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_crash_in_the_commit_of_some_subtasks_shows_each_message_once_at_any_parallelism(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, part: int
) -> None:
    topic, out = filled(kafka), kafka.create(2)
    place = KafkaSink if moment == "_send" else kafka_sink
    kept, calls = getattr(place, moment), 0

    def crashing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        result = kept(*arguments)
        if calls == part:
            raise CrashError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(place, moment, crashing)
        with pytest.raises(CrashError):
            run(copying(kafka, topic, out, "exactly_once"), tmp_path, parallelism=3)
    assert run(copying(kafka, topic, out, "exactly_once"), tmp_path, parallelism=1).reason == "finished"
    assert found(kafka, out) == Counter(range(ROWS))


def test_an_attempt_that_wakes_up_long_after_another_has_committed_sends_nothing(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sink, "_REMEMBERED", 1)
    out = kafka.create()
    values = kafka.options(out, **{"sink.commit_mode": "exactly_once"})
    driver = SinkDriver(lambda: KafkaSink(**values), tmp_path, job=out)
    driver.take_over()
    late = driver.prepare(1, [pa.record_batch({"n": [1]})], [pa.record_batch({"n": [2]})])
    driver.commit(1, late)
    for epoch in (2, 3):
        driver.run(epoch, [pa.record_batch({"n": [2 * epoch - 1]})], [pa.record_batch({"n": [2 * epoch]})])
    driver.commit(1, late)  # its mark is forgotten
    assert found(kafka, out) == Counter(range(1, 7))


def test_a_state_directory_that_was_restored_from_a_copy_loses_nothing(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    out = kafka.create()
    values = kafka.options(out, **{"sink.commit_mode": "exactly_once"})
    first = SinkDriver(lambda: KafkaSink(**values), tmp_path / "first", job=out)
    first.take_over()
    for epoch in (1, 2):
        first.run(epoch, [pa.record_batch({"n": [epoch]})])
    # Both runs have the same number.
    restored = SinkDriver(lambda: KafkaSink(**values), tmp_path / "restored", job=out)
    restored.claim = Generation.claim(restored.storage, "another run")
    restored.run(1, [pa.record_batch({"n": [3]})])
    assert found(kafka, out) == Counter([1, 2, 3])


def test_a_subtask_that_a_successor_no_longer_has_is_fenced(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = kafka.create()
    values = kafka.options(out, **{"sink.commit_mode": "exactly_once"})
    driver = SinkDriver(lambda: KafkaSink(**values), tmp_path, job=out)
    driver.take_over()
    data = driver.prepare(1, [pa.record_batch({"n": [1]})], [pa.record_batch({"n": [2]})])
    replaced = driver.take_over()
    newest = driver.claim

    def take_over() -> None:
        driver.claim = newest
        driver.commit(1, data)  # with both, and then goes on with one
        driver.run(2, [pa.record_batch({"n": [3]})])

    with monkeypatch.context() as patch:
        asleep = suspend_before(patch, kafka_sink, "_with_timeout", take_over)
        driver.claim = replaced
        with pytest.raises(ReplacedError):
            driver.commit(1, {"messages": {1: data["messages"][1]}})
    assert asleep
    assert found(kafka, out) == Counter([1, 2, 3])


@pytest.mark.parametrize("name", ["_send", "_flush", "_with_timeout"])
def test_a_run_whose_transaction_is_ended_by_one_that_it_replaced_writes_it_again(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out = kafka.create()
    values = kafka.options(out, **{"sink.commit_mode": "exactly_once"})
    driver = SinkDriver(lambda: KafkaSink(**values), tmp_path, job=out)
    driver.take_over()
    late = driver.prepare(1, [pa.record_batch({"n": [1]})])
    driver.commit(1, late)
    replaced = driver.take_over()
    driver.run(2, [pa.record_batch({"n": [2]})])
    newest = driver.claim

    def wake_up() -> None:
        driver.claim = replaced
        with pytest.raises(ReplacedError):
            driver.commit(1, late)
        driver.claim = newest

    with monkeypatch.context() as patch:
        owner: Any = kafka_sink if name == "_with_timeout" else KafkaSink
        asleep = suspend_before(patch, owner, name, wake_up)
        driver.run(3, [pa.record_batch({"n": [3]})])
    assert asleep
    assert found(kafka, out) == Counter([1, 2, 3])


def test_marks_of_earlier_versions_count(kafka: KafkaBroker, tmp_path: Path) -> None:
    import confluent_kafka

    out = kafka.create()
    values = kafka.options(out, **{"sink.commit_mode": "exactly_once"})
    driver = SinkDriver(lambda: KafkaSink(**values), tmp_path, job=out)
    data = driver.prepare(1, [pa.record_batch({"n": [1]})])
    driver.commit(1, data)
    settings = {"bootstrap.servers": kafka.address, "group.id": f"headrace-{out}-op/0"}
    consumer = confluent_kafka.Consumer(settings)
    (saved,) = consumer.committed([confluent_kafka.TopicPartition(out, 0)], 30)
    assert saved.metadata is not None
    marks = saved.metadata.partition(":")[2]
    for earlier in (f"1:{marks}", marks):
        old = confluent_kafka.TopicPartition(out, 0, saved.offset, earlier)
        consumer.commit(offsets=[old], asynchronous=False)
        driver.take_over()
        driver.commit(1, data)
    consumer.close()
    driver.run(2, [pa.record_batch({"n": [2]})])
    assert found(kafka, out) == Counter([1, 2])


def test_an_epoch_that_an_earlier_version_has_staged_is_committed_as_that_version_did(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    out = kafka.create()
    values = kafka.options(out, **{"sink.commit_mode": "exactly_once"})
    driver = SinkDriver(lambda: KafkaSink(**values), tmp_path, job=out)
    data = driver.prepare(1, [pa.record_batch({"n": [1]})], [pa.record_batch({"n": [2]})])
    old = {}
    for subtask, content in data["messages"].items():
        described = json.loads(content)
        assert described.pop("apart")
        old[subtask] = json.dumps(described).encode()
    for _ in range(2):
        driver.commit(1, {"messages": old})
    driver.run(2, [pa.record_batch({"n": [3]})])
    assert found(kafka, out) == Counter([1, 2, 3])


def test_going_back_to_an_earlier_epoch_loses_nothing(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, out = filled(kafka), kafka.create()
    run(copying(kafka, topic, out, "exactly_once"), tmp_path)
    run(copying(kafka, topic, out, "exactly_once"), tmp_path, from_epoch=1)
    again = found(kafka, out)
    assert set(again) == set(range(ROWS))
    assert Counter(again.values()) == {1: 20, 2: 40}  # the first epoch was not written again, the others were


@pytest.mark.parametrize("step", STEPS)
def test_at_least_once_loses_nothing_in_a_crash_at_any_step(
    kafka: KafkaBroker, tmp_path: Path, step: str
) -> None:
    topic, out = filled(kafka), kafka.create(2)
    try:
        run(copying(kafka, topic, out, "at_least_once"), tmp_path, on_step=crash_at(step, 2))
    except CrashError:
        run(copying(kafka, topic, out, "at_least_once"), tmp_path, parallelism=3)
    seen = found(kafka, out)
    assert set(seen) == set(range(ROWS))
    assert set(seen.values()) <= {1, 2}


def test_what_another_run_with_the_same_name_left_open_is_ended(kafka: KafkaBroker, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    out = kafka.create()
    options = kafka.options(out, **{"sink.commit_mode": "exactly_once"})
    driver = SinkDriver(lambda: KafkaSink(**options), tmp_path, job=out)
    old = Producer({"bootstrap.servers": kafka.address, "transactional.id": f"headrace-{out}-op/0"})
    old.init_transactions(30)
    old.begin_transaction()
    old.produce(out, b'{"n": 666}')
    old.flush(10)
    driver.run(1, [pa.record_batch({"n": [1]})])
    assert found(kafka, out) == Counter([1])


# --------------------------------------------------------------------------------------------- content


COLUMNS = """
    b BOOLEAN, i INT, l BIGINT, u BIGINT UNSIGNED, f FLOAT, d DOUBLE, m DECIMAL(12, 3), s TEXT, x BYTEA,
    t TIMESTAMP, y DATE, j JSON, g STRUCT<a INT, c TEXT>, h INT[]
"""


def test_every_type_comes_back_from_a_topic_as_it_was(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, out = kafka.create(), kafka.create()
    row = {
        "b": True,
        "i": -(2**31),
        "l": 2**63 - 1,
        "u": 2**64 - 1,
        "f": 1.5,
        "d": 0.1,
        "m": 123456789.125,
        "s": 'ü "quoted"\nnew line',
        "x": base64.b64encode(b"\x00\xff").decode(),
        "t": "2023-09-18T14:23:10.123456789",
        "y": "2024-02-29",
        "j": {"any": [1, None]},
        "g": {"a": 1, "c": None},
        "h": [1, 2, None],
    }
    kafka.send(topic, [json.dumps(row), "{}"], time=1_700_000_000_000)
    names = "b, i, l, u, f, d, m, s, x, t, y, j, g, h"

    def copy(origin: str, target: str) -> None:
        sql = f"""
            CREATE TABLE a ({COLUMNS}) {with_options(kafka, origin, "source")};
            CREATE TABLE z ({COLUMNS}) {with_options(kafka, target, "sink")};
            INSERT INTO z SELECT {names} FROM a;
        """
        run_in_process(Pipeline.from_sql(sql, name="types"), tmp_path / target)

    copy(topic, out)
    again = kafka.create()
    copy(out, again)
    first, second = ([one.value() for one in kafka.read(each)] for each in (out, again))
    assert first == second
    assert json.loads(first[0]) == row
    assert json.loads(first[1]) == dict.fromkeys(row)
    assert {one.timestamp()[1] for one in kafka.read(again)} == {1_700_000_000_000}


def test_keys_and_times_are_those_of_the_named_columns(kafka: KafkaBroker, tmp_path: Path) -> None:
    out = kafka.create(8)
    fields = {"sink.key_field": "k", "sink.timestamp_field": "at"}
    driver = SinkDriver(lambda: KafkaSink(**kafka.options(out, **fields)), tmp_path)
    times = pa.array([1_700_000_000_123_456_789, None, -5], pa.int64()).cast(pa.timestamp("ns"))
    driver.run(1, [pa.record_batch({"k": ["foobar", None, ""], "at": times, "n": [1, 2, 3]})])
    by_number = {json.loads(one.value())["n"]: one for one in kafka.read(out)}
    assert [by_number[n].key() for n in (1, 2, 3)] == [b"foobar", None, b""]
    assert by_number[1].timestamp()[1] == 1_700_000_000_123
    assert by_number[2].timestamp()[1] > 1_700_000_000_123  # a null is the time of sending
    assert by_number[3].timestamp()[1] == 1  # Kafka has no times before 1970
    # As Java's client does: murmur2("foobar") = -790332482.
    assert by_number[1].partition() == (-790332482 & 0x7FFFFFFF) % 8


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        (pa.array([12], pa.int32()), b"12"),
        (pa.array([b"\x00\xff"], pa.binary()), b"\x00\xff"),
        (pa.array([True]), b"true"),
        (pa.array([0], pa.timestamp("ms")), b"1970-01-01 00:00:00.000"),
    ],
)
def test_a_key_that_is_no_text_is_written_as_one(
    kafka: KafkaBroker, tmp_path: Path, keys: pa.Array, written: bytes
) -> None:
    out = kafka.create()
    driver = SinkDriver(lambda: KafkaSink(**kafka.options(out, **{"sink.key_field": "k"})), tmp_path)
    driver.run(1, [pa.record_batch({"k": keys})])
    (message,) = kafka.read(out)
    assert message.key() == written


def test_a_key_that_has_no_text_is_refused(kafka: KafkaBroker, tmp_path: Path) -> None:
    driver = SinkDriver(lambda: KafkaSink(**kafka.options("out", **{"sink.key_field": "k"})), tmp_path)
    with pytest.raises(PlanError, match="column `k` has the type struct"):
        driver.run(1, [pa.record_batch({"k": pa.array([{"a": 1}])})])
    with pytest.raises(PlanError, match="the rows have no column `k`"):
        driver.run(1, [pa.record_batch({"kk": [1]})])


def test_an_updating_result_is_written_as_changes_with_the_key_of_their_row(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic, out = kafka.create(), kafka.create()
    kafka.send(topic, [json.dumps({"k": k, "n": n}) for n, k in enumerate("aababc")])
    more = {"format": "debezium_json", "sink.key_field": "k", "sink.commit_mode": "exactly_once"}
    sql = f"""
        CREATE TABLE numbers (k TEXT, n BIGINT) {with_options(kafka, topic, "source")};
        CREATE TABLE totals (k TEXT PRIMARY KEY, total BIGINT, amount DECIMAL(10, 2))
        {with_options(kafka, out, "sink", **more)};
        INSERT INTO totals SELECT k, sum(n) AS a, CAST(sum(n) AS DECIMAL(10, 2)) AS b FROM numbers GROUP BY k;
    """
    run_in_process(Pipeline.from_sql(sql, name="totals"), tmp_path, epoch_rows=3)
    state: dict[str, int] = {}
    for message in kafka.read(out):
        change = json.loads(message.value())
        assert message.key().decode() == (change["after"] or change["before"])["k"]
        if change["before"] is not None:
            assert state.pop(change["before"]["k"]) == change["before"]["total"]
        if change["after"] is not None:
            state[change["after"]["k"]] = change["after"]["total"]
    assert state == {"a": 0 + 1 + 3, "b": 2 + 4, "c": 5}


def test_a_deleted_row_has_its_key_and_its_time(kafka: KafkaBroker, tmp_path: Path) -> None:
    out = kafka.create()
    options = {
        "format": "debezium_json",
        "schema": {"k": "string", "at": "timestamp"},
        "primary_key": ["k"],
        "sink.key_field": "k",
        "sink.timestamp_field": "at",
    }
    driver = SinkDriver(lambda: KafkaSink(**kafka.options(out, **options)), tmp_path)
    at = pa.array([1_700_000_000_123_000_000], pa.int64()).cast(pa.timestamp("ns"))
    driver.run(1, [pa.record_batch({"k": ["x"], "at": at, "_retract": [True]})])
    both = pa.record_batch({"k": ["y", "y"], "at": pa.concat_arrays([at, at]), "_retract": [False, True]})
    driver.run(2, [both])  # it came and went: nothing is told
    (message,) = kafka.read(out)
    assert json.loads(message.value())["op"] == "d"
    assert (message.key(), message.timestamp()[1]) == (b"x", 1_700_000_000_123)


def test_an_updating_result_is_refused_by_a_sink_that_only_adds(kafka: KafkaBroker) -> None:
    sql = f"""
        CREATE TABLE numbers (k TEXT, n BIGINT) {with_options(kafka, "a", "source")};
        CREATE TABLE totals (k TEXT, n BIGINT) {with_options(kafka, "b", "sink")};
        INSERT INTO totals SELECT k, count(*) FROM numbers GROUP BY k;
    """
    with pytest.raises(SqlError, match="cannot take an updating result"):
        Pipeline.from_sql(sql, name="totals")


def test_raw_values_are_messages_as_they_are(kafka: KafkaBroker, tmp_path: Path) -> None:
    out = kafka.create()
    driver = SinkDriver(lambda: KafkaSink(**kafka.options(out, format="raw_bytes")), tmp_path)
    driver.run(1, [pa.record_batch({"value": [b"a\nb", b"", b"\xff"]})])
    assert [one.value() for one in kafka.read(out)] == [b"a\nb", b"", b"\xff"]


def test_more_messages_than_the_client_holds_at_once_are_all_written(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    out = kafka.create()
    options = kafka.options(out, client_configs="queue.buffering.max.messages=100,linger.ms=0")
    driver = SinkDriver(lambda: KafkaSink(**options), tmp_path)
    driver.run(1, [pa.record_batch({"n": list(range(5000))})])
    assert [json.loads(one.value())["n"] for one in kafka.read(out)] == list(range(5000))


# ------------------------------------------------------------------------------------- when things fail


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_a_message_that_is_too_large_fails_the_epoch_and_says_what_to_change(
    kafka: KafkaBroker, tmp_path: Path, mode: str
) -> None:
    out = kafka.create()
    options = kafka.options(out, **{"sink.commit_mode": mode})
    driver = SinkDriver(lambda: KafkaSink(**options), tmp_path, job=out)
    with pytest.raises(ExternalError, match=r"has 2000008 bytes with its key") as caught:
        driver.run(1, [pa.record_batch({"s": ["x", "y" * 2_000_000]})])
    assert "message.max.bytes" in str(caught.value)
    if mode == "exactly_once":
        assert kafka.read(out) == []


def test_a_message_that_the_broker_refuses_fails_the_epoch(kafka: KafkaBroker, tmp_path: Path) -> None:
    out = kafka.create(max_message_bytes="1000")
    driver = SinkDriver(lambda: KafkaSink(**kafka.options(out)), tmp_path)
    with pytest.raises(ExternalError, match="too large"):
        driver.run(1, [pa.record_batch({"s": ["y" * 5000]})])
    driver.run(2, [pa.record_batch({"s": ["fits"]})])
    assert len(kafka.read(out)) == 1


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_a_broker_that_does_not_answer_fails_the_epoch_within_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 2)
    monkeypatch.setattr(kafka_sink, "DELIVERY_SECONDS", 2)
    options = {"bootstrap_servers": "127.0.0.1:1", "topic": "t", "sink.commit_mode": mode}
    driver = SinkDriver(lambda: KafkaSink(**options), tmp_path)
    with pytest.raises(ExternalError, match=r"Kafka at 127\.0\.0\.1:1 does not answer"):
        driver.run(1, [pa.record_batch({"n": [1]})])


def test_a_call_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.05)
    never = threading.Event()
    with pytest.raises(ExternalError, match="late"):
        kafka_sink._with_timeout(lambda: never.wait(20), lambda: ExternalError("late"))
    never.set()
    with pytest.raises(ZeroDivisionError):
        kafka_sink._with_timeout(lambda: 1 // 0, lambda: ExternalError("late"))


def test_who_is_not_known_is_refused_at_once_and_others_copy(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out = filled(kafka), kafka.create()
    given = {"bootstrap_servers": kafka.guarded_address, "auth.type": "sasl", "auth.mechanism": "PLAIN"}
    given |= {"auth.protocol": "SASL_PLAINTEXT", "auth.username": USER}

    def pipeline(password: str) -> Pipeline:
        login = {**given, "auth.password": password}
        return Pipeline.from_sql(
            f"""
            CREATE TABLE numbers (n BIGINT) {with_options(kafka, topic, "source", **login)};
            CREATE TABLE copied (n BIGINT) {with_options(kafka, out, "sink", **login)};
            INSERT INTO copied SELECT n FROM numbers;
            """,
            name="copying",
        )

    wrong = {"topic": topic, "format": "raw_string", "auth.password": "wr0ng-one", **given}
    with pytest.raises(RefusedError, match=r"refuses access .* Invalid username or password") as caught:
        run(pipeline("wr0ng-one"), tmp_path / "a")
    assert "wr0ng-one" not in str(caught.value)
    for kind in (KafkaSource, KafkaSink):
        with pytest.raises(RefusedError, match="refuses access"):
            kind(**wrong).reach()
    for mode in ("at_least_once", "exactly_once"):
        mistaken = KafkaSink(**{**wrong, "sink.commit_mode": mode})
        driver = SinkDriver(lambda sink=mistaken: sink, tmp_path / mode)  # type: ignore[misc]
        with pytest.raises(RefusedError, match="refuses access"):
            driver.run(1, [pa.record_batch({"value": ["a"]})])
    assert run(pipeline(PASSWORD), tmp_path / "c").reason == "finished"
    assert found(kafka, out) == Counter(range(ROWS))

    monkeypatch.setattr(shared, "FIRST_CONTACT_SECONDS", 2)
    anonymous = {"bootstrap_servers": kafka.guarded_address, "topic": topic, "format": "raw_string"}
    with pytest.raises(ExternalError, match=r"does not answer(.|\n)*whether they ask for a login"):
        KafkaSource(**anonymous).reach()
