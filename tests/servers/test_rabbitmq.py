"""The rabbitmq source and sink against a real server; one file, since that takes long to start."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import BadLineError, ExternalError, PlanError
from headrace.connectors import received
from headrace.connectors.rabbitmq import client as shared
from headrace.connectors.rabbitmq import sink as rabbitmq_sink
from headrace.connectors.rabbitmq.sink import RabbitSink
from headrace.connectors.rabbitmq.source import RabbitSource
from headrace.connectors.sample import read_sample
from headrace.testing.in_process import CrashError, run_in_process
from tests.contract.test_sinks import Case, SinkContract
from tests.servers.http import found, query, run_until, table, wait_for
from tests.servers.rabbitmq import RabbitServer
from tests.support import SinkDriver

STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


def numbers(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


def reading(server: RabbitServer, columns: str = "n BIGINT", **more: Any) -> Pipeline:
    return query(table("rabbitmq", columns, **server.options(**more)) + "SELECT * FROM numbers")


def copying(server: RabbitServer, origin: str, target: Path, **more: Any) -> Pipeline:
    source = table("rabbitmq", "n BIGINT", **server.options(queue=origin, **more))
    sink = table("single_file", "n BIGINT", "sink", "copied", path=str(target))
    return query(f"{source} {sink} INSERT INTO copied SELECT n FROM numbers;")


def copy_until_all_are_there(
    server: RabbitServer, queue: str, state: Path, out: Path, expected: range, **more: Any
) -> None:
    """Go on copying until the file has all numbers, some perhaps twice, and the queue is empty."""

    def all_there() -> bool:
        lines = out.read_text().splitlines() if out.exists() else []
        return {json.loads(line)["n"] for line in lines} == set(expected)

    pipeline = copying(server, queue, out, **more)
    run_in_process(
        pipeline,
        state,
        idle_epochs=2000,
        stop=lambda: all_there() and server.waiting(queue) == 0,
    )
    assert all_there()


def crash_at(step: str, epoch: int) -> Callable[[str, int], None]:
    def on_step(name: str, at: int) -> None:
        if name.startswith(step) and at == epoch:
            raise CrashError

    return on_step


# -------------------------------------------------------------------------------------------- queues


def test_a_queue_is_read_and_emptied_and_a_restart_goes_on(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    queue = rabbitmq.create()
    rabbitmq.send(queue, numbers(0, 500))
    first = run_until(reading(rabbitmq, queue=queue), tmp_path, 500)
    wait_for(lambda: rabbitmq.waiting(queue) == 0)
    rabbitmq.send(queue, numbers(500, 600))
    second = run_until(reading(rabbitmq, queue=queue), tmp_path, 100)
    assert found(first, second) == list(range(600))


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_no_message(rabbitmq: RabbitServer, tmp_path: Path, step: str) -> None:
    queue, out = rabbitmq.create(), tmp_path / "out.json"
    rabbitmq.send(queue, numbers(0, 60))
    # One more than is in an epoch may be on the way, so that some are not acknowledged at the crash.
    pipeline = copying(rabbitmq, queue, out, source__prefetch=21)
    with pytest.raises(CrashError):
        run_until(pipeline, tmp_path / "state", 60, epoch_rows=20, on_step=crash_at(step, 2))

    copy_until_all_are_there(rabbitmq, queue, tmp_path / "state", out, range(60), source__prefetch=21)


def test_what_is_not_in_the_log_is_not_taken_out_of_the_queue(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    queue, out = rabbitmq.create(), tmp_path / "out.json"
    rabbitmq.send(queue, numbers(0, 30))
    run_until(copying(rabbitmq, queue, out, source__prefetch=5), tmp_path / "state", 10, epoch_rows=5)
    wait_for(lambda: 10 <= 30 - rabbitmq.waiting(queue) <= 20)
    copy_until_all_are_there(rabbitmq, queue, tmp_path / "state", out, range(30))


def test_a_sample_can_be_looked_at_and_stays_where_it_is(rabbitmq: RabbitServer) -> None:
    queue = rabbitmq.create()
    rabbitmq.send(queue, numbers(0, 3))
    source = RabbitSource(**rabbitmq.options(queue=queue, schema={"n": "int64"}))
    batches, bad = read_sample(source.for_sampling(), 2, 10)
    assert ([batch.column("n").to_pylist()[:1] for batch in batches], bad) == ([[0]], [])
    wait_for(lambda: rabbitmq.waiting(queue) == 3)


def test_metadata_columns_hold_how_a_message_came(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    queue = rabbitmq.create()
    rabbitmq.send(queue, numbers(0, 1), message_id="first", timestamp=1_700_000_000)
    columns = """
        n BIGINT, x TEXT METADATA FROM 'exchange', k TEXT METADATA FROM 'routing_key',
        i TEXT METADATA FROM 'message_id', r BOOLEAN METADATA FROM 'redelivered'
    """
    result = run_until(reading(rabbitmq, columns, queue=queue), tmp_path, 1)
    (rows,) = result.rows.values()
    (row,) = rows.to_pylist()
    assert row.pop("_timestamp").timestamp() == 1_700_000_000
    assert row == {"n": 0, "x": "", "k": queue, "i": "first", "r": False}


def test_a_message_that_cannot_be_read_ends_the_run_or_is_dropped(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    for name, bad_data in (("a", "fail"), ("b", "drop")):
        queue = rabbitmq.create()
        rabbitmq.send(queue, [*numbers(0, 2), '{"n": "x"}', *numbers(2, 4)])
        pipeline = reading(rabbitmq, queue=queue, bad_data=bad_data)
        if bad_data == "fail":
            with pytest.raises(BadLineError, match="cannot be read") as caught:
                run_until(pipeline, tmp_path / name, 5)
            assert f"queue {queue}" in str(caught.value)
        else:
            assert found(run_until(pipeline, tmp_path / name, 4)) == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------- streams


def test_a_stream_is_read_from_where_it_is_told_and_stays_as_it_is(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    stream = rabbitmq.create(stream=True)
    rabbitmq.send(stream, numbers(0, 300))
    columns = "n BIGINT, o BIGINT METADATA FROM 'offset'"
    options = {"stream": stream, "source__offset": "first", "source__prefetch": 50}
    first = run_until(reading(rabbitmq, columns, **options), tmp_path / "a", 100, epoch_rows=40)
    rabbitmq.send(stream, numbers(300, 400))
    count = 400 - len(found(first))
    second = run_until(reading(rabbitmq, columns, **options), tmp_path / "a", count)
    assert found(first, second) == list(range(400))
    assert found(first, second, column="o") == list(range(400))
    again = run_until(reading(rabbitmq, columns, **options), tmp_path / "b", 400)
    assert found(again) == list(range(400))
    last = run_until(reading(rabbitmq, stream=stream, source__offset="last"), tmp_path / "c", 1)
    assert found(last)[0] > 0


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_counts_each_message_of_a_stream_once(
    rabbitmq: RabbitServer, tmp_path: Path, step: str
) -> None:
    stream, out = rabbitmq.create(stream=True), tmp_path / "out.json"
    rabbitmq.send(stream, numbers(0, 60))
    options = rabbitmq.options(stream=stream, source__offset="first")
    sink = table("single_file", "n BIGINT", "sink", "copied", path=str(out))
    sql = f"{table('rabbitmq', 'n BIGINT', **options)} {sink} INSERT INTO copied SELECT n FROM numbers;"
    with pytest.raises(CrashError):
        run_until(query(sql), tmp_path / "state", 60, epoch_rows=20, on_step=crash_at(step, 2))

    def seen() -> list[int]:
        return [json.loads(line)["n"] for line in out.read_text().splitlines()] if out.exists() else []

    run_in_process(
        query(sql),
        tmp_path / "state",
        idle_epochs=2000,
        stop=lambda: len(seen()) >= 60,
    )
    assert seen() == list(range(60))


def test_what_comes_to_a_stream_between_the_first_start_and_the_first_message_is_not_missed(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    stream = rabbitmq.create(stream=True)
    rabbitmq.send(stream, numbers(0, 5))
    threading.Event().wait(1.1)  # the server finds instants by the second
    run_in_process(reading(rabbitmq, stream=stream), tmp_path, idle_epochs=10)  # `next`: nothing came
    wait_for((tmp_path / "received-from").exists)
    threading.Event().wait(1.1)
    rabbitmq.send(stream, numbers(5, 10))
    result = run_until(reading(rabbitmq, stream=stream), tmp_path, 5)
    assert found(result) == list(range(5, 10))


# --------------------------------------------------------------------------------------------- sinks


def sink_options(server: RabbitServer, queue: str, **more: Any) -> dict[str, Any]:
    return {**server.options(routing_key=queue), **{key.replace("__", "."): one for key, one in more.items()}}


@pytest.fixture
def case(rabbitmq: RabbitServer, tmp_path: Path) -> Case:
    queue = rabbitmq.create()
    seen: list[dict[str, Any]] = []
    options = sink_options(rabbitmq, queue)

    def visible() -> list[dict[str, Any]]:
        seen.extend(json.loads(body) for _, _, body in rabbitmq.read(queue))
        return list(seen)

    return Case("rabbitmq", options, visible, {"host": ""}, tmp_path, job=queue)


class TestSink(SinkContract):
    """What every sink promises."""


def test_messages_are_persistent_with_an_id_and_their_time(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    queue = rabbitmq.create()
    driver = SinkDriver(lambda: RabbitSink(**sink_options(rabbitmq, queue)), tmp_path)
    at = pa.array([1_700_000_000_999_999_999], pa.int64()).cast(pa.timestamp("ns"))
    driver.run(1, [pa.record_batch({"n": [1], "_timestamp": at})])
    ((_, properties, body),) = rabbitmq.read(queue)
    assert json.loads(body) == {"n": 1}
    assert (properties.delivery_mode, properties.content_type) == (2, "application/json")
    assert properties.timestamp == 1_700_000_000
    assert properties.message_id.endswith("-0")


def test_more_messages_than_may_be_on_the_way_are_all_written_in_their_order(
    rabbitmq: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_sink, "_UNCONFIRMED", 100)
    queue = rabbitmq.create()
    driver = SinkDriver(lambda: RabbitSink(**sink_options(rabbitmq, queue)), tmp_path)
    driver.run(1, [pa.record_batch({"n": list(range(2000))})])
    assert [json.loads(body)["n"] for _, _, body in rabbitmq.read(queue)] == list(range(2000))


def test_a_column_can_be_the_routing_key(rabbitmq: RabbitServer, tmp_path: Path) -> None:
    one, two = rabbitmq.create(), rabbitmq.create()
    options = sink_options(rabbitmq, two, sink__routing_key_field="to")
    driver = SinkDriver(lambda: RabbitSink(**options), tmp_path)
    driver.run(1, [pa.record_batch({"n": [1, 2], "to": [one, None]})])
    assert [len(rabbitmq.read(queue)) for queue in (one, two)] == [1, 1]
    with pytest.raises(PlanError, match="cannot be a routing key"):
        driver.prepare(2, [pa.record_batch({"to": pa.array([{"a": 1}])})])


def test_messages_that_no_queue_takes_end_the_run_or_are_dropped(
    rabbitmq: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.3)
    rows = [pa.record_batch({"n": [1]})]
    strict = RabbitSink(**sink_options(rabbitmq, "nobody"))
    with pytest.raises(ExternalError, match="no queue takes messages with the routing key `nobody`"):
        SinkDriver(lambda: strict, tmp_path / "a").run(1, rows)
    lenient = RabbitSink(**sink_options(rabbitmq, "nobody", sink__unroutable="drop"))
    SinkDriver(lambda: lenient, tmp_path / "b").run(1, rows)
    nowhere = RabbitSink(**rabbitmq.options(exchange="nowhere"))
    with pytest.raises(ExternalError, match="has no exchange `nowhere`"):
        SinkDriver(lambda: nowhere, tmp_path / "c").run(1, rows)
    with pytest.raises(ExternalError, match="has no exchange `nowhere`"):
        nowhere.reach()
    full = rabbitmq.create(x_max_length=1, x_overflow="reject-publish")
    refused = RabbitSink(**sink_options(rabbitmq, full))
    with pytest.raises(ExternalError, match="could not keep a message"):
        SinkDriver(lambda: refused, tmp_path / "d").run(1, [pa.record_batch({"n": list(range(50))})])


def test_a_queue_that_is_full_for_a_while_has_each_message_once(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    queue = rabbitmq.create(x_max_length=20, x_overflow="reject-publish")
    driver = SinkDriver(lambda: RabbitSink(**sink_options(rabbitmq, queue)), tmp_path)
    seen: Counter[int] = Counter()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.update(json.loads(body)["n"] for _, _, body in rabbitmq.read(queue))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        driver.run(1, [pa.record_batch({"n": list(range(300))})])
    finally:
        done.set()
        reader.join()
    seen.update(json.loads(body)["n"] for _, _, body in rabbitmq.read(queue))
    assert seen == Counter(range(300))


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_writes_each_message_at_least_once(
    rabbitmq: RabbitServer, tmp_path: Path, step: str
) -> None:
    queue = rabbitmq.create()
    source = "CREATE TABLE numbers WITH (connector = 'impulse', message_count = 60);"
    sink = table("rabbitmq", "n BIGINT", "sink", "copied", **rabbitmq.options(routing_key=queue))
    sql = f"{source} {sink} INSERT INTO copied SELECT CAST(counter AS BIGINT) FROM numbers;"
    with pytest.raises(CrashError):
        run_in_process(query(sql), tmp_path, epoch_rows=20, on_step=crash_at(step, 2))
    assert run_in_process(query(sql), tmp_path, epoch_rows=20).reason == "finished"
    seen = Counter(json.loads(body)["n"] for _, _, body in rabbitmq.read(queue))
    assert set(seen) == set(range(60))
    assert set(seen.values()) <= {1, 2}


# ---------------------------------------------------------------------------------- when things fail


def test_a_server_that_restarts_in_the_middle_of_a_run_costs_no_message(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    queue, stream, out = rabbitmq.create(), rabbitmq.create(stream=True), rabbitmq.create()
    rabbitmq.send(queue, numbers(0, 100), delivery_mode=2)
    rabbitmq.send(stream, numbers(100, 200))
    stored = rabbitmq.options(stream=stream, source__offset="first")
    sql = f"""
        {table("rabbitmq", "n BIGINT", **rabbitmq.options(queue=queue))}
        {table("rabbitmq", "n BIGINT", name="more", **stored)}
        {table("rabbitmq", "n BIGINT", "sink", "copied", **rabbitmq.options(routing_key=out))}
        INSERT INTO copied SELECT n FROM numbers UNION ALL SELECT n FROM more;
    """
    restarted = threading.Event()

    def restart(step: str, _: int) -> None:
        if step == "metadata_written" and not restarted.is_set():
            restarted.set()
            rabbitmq.stop()
            rabbitmq.start()
            wait_for(lambda: rabbitmq.there(stream), "the stream")
            rabbitmq.send(queue, numbers(200, 300), delivery_mode=2)
            rabbitmq.send(stream, numbers(300, 400))

    seen: Counter[int] = Counter()
    deadline = time.monotonic() + 60

    def all_came() -> bool:
        # Those of the queue whose acknowledgement was lost come twice: rows cannot simply be counted.
        seen.update(json.loads(body)["n"] for _, _, body in rabbitmq.read(out))
        return len(seen) == 400 or time.monotonic() > deadline

    run_in_process(query(sql), tmp_path, on_step=restart, epoch_rows=80, idle_epochs=10**9, stop=all_came)
    all_came()
    assert set(seen) == set(range(400))
    assert {seen[n] for n in (*range(100, 200), *range(300, 400))} == {1}  # the stream


def test_wrong_passwords_and_missing_queues_are_named_without_the_secret(
    rabbitmq: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.2)
    given = {"queue": "nowhere", "schema": {"n": "int64"}}
    wrong = RabbitSource(**rabbitmq.options(**given, password="open-sesame"))
    with pytest.raises(ExternalError, match="refuses access") as caught:
        wrong.reach()
    assert not [text for text in (str(caught.value), wrong.display(), repr(wrong)) if "sesame" in text]
    with pytest.raises(ExternalError, match="has no queue `nowhere`"):
        RabbitSource(**rabbitmq.options(**given)).reach()
    with pytest.raises(ExternalError, match="has no queue `nowhere`"):
        run_until(reading(rabbitmq, queue="nowhere"), tmp_path / "a", 1)
    with pytest.raises(ExternalError, match="refuses access"):
        RabbitSource(**rabbitmq.options(**given, virtual_host="moon")).reach()
    sink = RabbitSink(**rabbitmq.options(routing_key="q", password="open-sesame"))
    with pytest.raises(ExternalError, match="refuses access"):
        SinkDriver(lambda: sink, tmp_path / "b").run(1, [pa.record_batch({"n": [1]})])
    queue = rabbitmq.create()
    rabbitmq.send(queue, numbers(0, 3))
    there = RabbitSource(**rabbitmq.options(queue=queue, schema={"n": "int64"}))
    assert there.reach().endswith(f"queue {queue} with 3 messages")


def test_a_server_that_does_not_answer_is_named_within_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(ExternalError, match=r"RabbitMQ at 127\.0\.0\.1:1 does not answer: .*refused"):
        RabbitSource(host="127.0.0.1", port=1, queue="q", format="raw_string").reach()
    sink = RabbitSink(host="127.0.0.1", port=1, routing_key="q")
    with pytest.raises(ExternalError, match=r"RabbitMQ at 127\.0\.0\.1:1 does not answer: .*refused"):
        SinkDriver(lambda: sink, tmp_path).run(1, [pa.record_batch({"n": [1]})])
