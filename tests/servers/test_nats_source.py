"""The nats source against a real server: streams, and subjects."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.errors import BadLineError, ConfigurationError, ExternalError
from headrace.connectors import received
from headrace.connectors.nats import client as shared
from headrace.connectors.nats import source as nats_source
from headrace.connectors.nats.source import NatsSource
from headrace.connectors.sample import read_sample
from headrace.jobs.progress import RunResult
from headrace.model.operator import Limit, Offset, SourceContext
from headrace.testing.in_process import CrashError, run_in_process
from tests.servers.nats import NatsServer, run_server
from tests.support import ListCollector, read_range, task

NOW = 1_700_000_000.0
ALL = Limit(10**9, NOW)
STEPS = ("begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed")


def source(server: NatsServer, stream: str, **more: Any) -> NatsSource:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return NatsSource(**server.options(**{"stream": stream, "schema": {"n": "int64"}, **named}))


def numbers(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


def read(one: NatsSource, start: Offset | None = None) -> tuple[list[dict[str, Any]], Offset]:
    """Everything from `start` on, and where that ends."""
    start = one.initial_offset(time=NOW) if start is None else start
    end = one.latest_offset(start, ALL, parallelism=2)
    return read_range(one, start, end, parallelism=2), end


def table(server: NatsServer, columns: str = "n BIGINT", **more: str) -> str:
    options = {"connector": "nats", "type": "source", "format": "json", **server.options(**more)}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    return f"CREATE TABLE numbers ({columns}) WITH ({listed});"


def query(sql: str) -> Pipeline:
    return Pipeline.from_sql(sql, name="numbers", preview=lambda _: ("memory", {}))


def run(pipeline: Pipeline, state: Path, **more: Any) -> RunResult:
    return run_in_process(pipeline, state, **{"idle_epochs": 3, **more})


def found(*lives: RunResult) -> list[int]:
    return sorted(n for life in lives for rows in life.rows.values() for n in rows.column("n").to_pylist())


# ------------------------------------------------------------------------------------------- streams


def test_a_stopped_pipeline_resumes_with_the_next_message(nats_server: NatsServer, tmp_path: Path) -> None:
    stream = nats_server.create()
    nats_server.send(stream, numbers(0, 100))
    sql = table(nats_server, stream=stream) + "SELECT n FROM numbers"
    first = run(query(sql), tmp_path, parallelism=1, epoch_rows=30, max_epochs=2)
    assert found(first) == list(range(60))
    nats_server.send(f"{stream}.more", numbers(100, 110))
    second = run(query(sql), tmp_path, parallelism=3, epoch_rows=70)
    assert found(first, second) == list(range(110))


def test_each_run_with_available_now_reads_what_came_since_the_last(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    stream = nats_server.create()
    nats_server.send(stream, numbers(0, 10))
    sql = table(nats_server, stream=stream) + "SELECT n FROM numbers"

    def send_more(_: Any) -> None:
        nats_server.send(f"{stream}.more", numbers(100, 101))

    first = run(
        query(sql), tmp_path, epoch_rows=4, options=RunOptions(available_now=True), on_progress=send_more
    )
    assert (first.reason, found(first)) == ("available_now", list(range(10)))
    second = run(query(sql), tmp_path, options=RunOptions(available_now=True))
    assert (second.reason, found(second)) == ("available_now", [100] * first.epochs)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_counts_each_message_once(
    nats_server: NatsServer, tmp_path: Path, step: str
) -> None:
    stream, out = nats_server.create(), tmp_path / "out.json"
    nats_server.send(stream, numbers(0, 60))
    sql = f"""
        {table(nats_server, stream=stream, **{"source.bounded": "true"})}
        CREATE TABLE copied (n BIGINT) WITH (
          connector = 'single_file', type = 'sink', format = 'json', path = '{out}'
        );
        INSERT INTO copied SELECT n FROM numbers;
    """

    def crash(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    with pytest.raises(CrashError):
        run(query(sql), tmp_path / "state", epoch_rows=20, on_step=crash)
    assert run(query(sql), tmp_path / "state", epoch_rows=20).reason == "finished"
    assert sorted(json.loads(line)["n"] for line in out.read_text().splitlines()) == list(range(60))


def test_latest_skips_what_is_there_and_earliest_does_not(nats_server: NatsServer) -> None:
    stream = nats_server.create()
    nats_server.send(stream, numbers(0, 3))
    latest, earliest = source(nats_server, stream, source__offset="latest"), source(nats_server, stream)
    start = latest.initial_offset(time=NOW)
    nats_server.send(stream, numbers(3, 5))
    assert [row["n"] for row in read(latest, start)[0]] == [3, 4]
    assert [row["n"] for row in read(earliest)[0]] == [0, 1, 2, 3, 4]


def test_a_stream_is_read_in_parts_and_shares_in_its_order(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_source, "BATCH_MESSAGES", 30)
    monkeypatch.setattr(nats_source, "_WORTH_SPLITTING", 20)
    stream = nats_server.create()
    nats_server.send(stream, numbers(0, 101))
    one = source(nats_server, stream)
    start = one.initial_offset(time=NOW)
    end = one.latest_offset(start, ALL, parallelism=3)
    assert len(one.splits(start, end, parallelism=3)) == 3
    assert [row["n"] for row in read_range(one, start, end, parallelism=3)] == list(range(101))
    few_bytes = source(nats_server, stream, consumer__max_bytes=500)
    assert [row["n"] for row in read(few_bytes)[0]] == list(range(101))


def test_only_wanted_subjects_are_read_and_gaps_end_no_range(nats_server: NatsServer, tmp_path: Path) -> None:
    stream = nats_server.create()
    for n in range(20):
        nats_server.send(f"{stream}.{'odd' if n % 2 else 'even'}", numbers(n, n + 1))
    wanted = {"consumer.filter_subjects": f"{stream}.odd", "consumer.description": "only odd"}
    sql = table(nats_server, stream=stream, **wanted) + "SELECT n FROM numbers"
    assert found(run(query(sql), tmp_path, epoch_rows=3)) == list(range(1, 20, 2))
    several = source(nats_server, stream, consumer__filter_subjects=f"{stream}.odd,{stream}.even")
    assert [row["n"] for row in read(several)[0]] == list(range(20))
    nobody = source(nats_server, stream, consumer__filter_subjects=f"{stream}.nobody")
    assert read(nobody)[0] == []


def test_messages_that_were_deleted_leave_gaps(nats_server: NatsServer) -> None:
    stream = nats_server.create()
    nats_server.send(stream, numbers(0, 10))

    async def delete(connection: Any) -> None:
        for sequence in (5, 10):
            await connection.jetstream().delete_msg(stream, sequence)

    nats_server.ask(delete)
    one = source(nats_server, stream, source__bounded=True)
    start, rows = one.initial_offset(time=NOW), []
    while not one.is_finished(start):
        end = one.latest_offset(start, Limit(3, NOW), parallelism=1)
        rows += read_range(one, start, end)
        start = end
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 5, 6, 7, 8]


def test_messages_that_were_dropped_before_they_were_read_end_the_run_or_are_skipped(
    nats_server: NatsServer,
) -> None:
    stream = nats_server.create(max_msgs=4)
    strict, lenient = source(nats_server, stream), source(nats_server, stream, source__lost_messages="skip")
    nats_server.send(stream, numbers(0, 3))
    start = strict.initial_offset(time=NOW)
    nats_server.send(stream, numbers(3, 10))
    with pytest.raises(ExternalError, match="no longer has sequence 1") as caught:
        read(strict, start)
    assert "source.lost_messages" in str(caught.value)
    assert [row["n"] for row in read(lenient, start)[0]] == [6, 7, 8, 9]


def test_messages_that_newer_ones_replaced_are_not_lost(nats_server: NatsServer) -> None:
    stream = nats_server.create(max_msgs_per_subject=1)
    one = source(nats_server, stream)
    nats_server.send(stream, numbers(0, 3))
    start = one.initial_offset(time=NOW)
    nats_server.send(stream, numbers(3, 5))
    assert [row["n"] for row in read(one, start)[0]] == [4]


def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(nats_server: NatsServer) -> None:
    stream = nats_server.create()
    with pytest.raises(ExternalError, match="it ends at sequence 1, and was read up to 9"):
        source(nats_server, stream).latest_offset({stream: {"sequence": 9}}, ALL, parallelism=1)


def test_a_stream_that_forgets_what_was_read_is_refused(nats_server: NatsServer) -> None:
    stream = nats_server.create(retention="workqueue")
    with pytest.raises(ConfigurationError, match="its retention is workqueue"):
        source(nats_server, stream).initial_offset(time=NOW)


def test_a_stream_that_is_not_there_is_named(nats_server: NatsServer) -> None:
    with pytest.raises(ExternalError, match="no stream `nowhere`") as caught:
        source(nats_server, "nowhere").initial_offset(time=NOW)
    assert "option `stream`" in str(caught.value)
    assert source(nats_server, nats_server.create()).reach().endswith("with 0 messages")


def test_a_sample_can_be_looked_at(nats_server: NatsServer) -> None:
    stream = nats_server.create()
    nats_server.send(stream, numbers(0, 3))
    batches, bad = read_sample(source(nats_server, stream).for_sampling(), 2, 10)
    assert ([batch.column("n").to_pylist() for batch in batches], bad) == ([[0, 1]], [])
    nothing = NatsSource(**nats_server.options(subject="quiet", schema={"n": "int64"}))
    assert read_sample(nothing.for_sampling(), 2, 0.3) == ([], [])


def test_the_messages_tell_the_columns(nats_server: NatsServer) -> None:
    stream = nats_server.create()
    nats_server.send(stream, [*numbers(0, 3), '{"name": "x"}'])
    latest = NatsSource(**nats_server.options(stream=stream, **{"source.offset": "latest"}))
    assert latest.find_columns() == pa.schema({"n": pa.int64(), "name": pa.string()})


def test_no_consumer_is_left_behind(nats_server: NatsServer) -> None:
    stream = nats_server.create()
    nats_server.send(stream, numbers(0, 3))
    read(source(nats_server, stream))

    async def left(connection: Any) -> int:
        return len(await connection.jetstream().consumers_info(stream))

    for _ in range(100):
        if not nats_server.ask(left):
            break
        time.sleep(0.02)
    assert nats_server.ask(left) == 0


# ------------------------------------------------------------------------------------------- content


def test_metadata_columns_hold_the_subject_and_the_sequence(nats_server: NatsServer, tmp_path: Path) -> None:
    stream = nats_server.create()
    nats_server.send(f"{stream}.a", numbers(0, 1))
    nats_server.send(f"{stream}.b", numbers(1, 2))
    columns = "n BIGINT, s TEXT METADATA FROM 'subject', q BIGINT METADATA FROM 'sequence'"
    result = run(query(table(nats_server, columns, stream=stream) + "SELECT n, s, q FROM numbers"), tmp_path)
    (rows,) = result.rows.values()
    listed = sorted((row["n"], row["s"], row["q"]) for row in rows.to_pylist())
    assert listed == [(0, f"{stream}.a", 1), (1, f"{stream}.b", 2)]


def collect(one: NatsSource) -> tuple[ListCollector, SourceContext]:
    start = one.initial_offset(time=NOW)
    (split,) = one.splits(start, one.latest_offset(start, ALL, parallelism=1), parallelism=1)
    ctx, collector = SourceContext(task(), split), ListCollector()
    one.run(ctx, collector)
    return collector, ctx


def test_a_message_that_cannot_be_read_is_named_by_its_sequence(nats_server: NatsServer) -> None:
    stream = nats_server.create()
    nats_server.send(stream, [*numbers(0, 5), '{"n": "x"}', *numbers(5, 7)])
    with pytest.raises(BadLineError, match="the message at sequence 6 cannot be read") as caught:
        read(source(nats_server, stream))
    assert stream in str(caught.value)
    collector, ctx = collect(source(nats_server, stream, bad_data="drop"))
    assert [row["n"] for row in collector.rows] == list(range(7))
    assert ctx.metrics.values["bad_rows"] == 1
    collector, _ = collect(source(nats_server, stream, bad_data="dead_letter"))
    (letter,) = [row for row in collector.rows if "record" in row]
    assert (letter["record"], letter["position"]) == (b'{"n": "x"}', "sequence 6")


# ------------------------------------------------------------------------------------------ subjects


def stop_when(ready: Callable[[], bool]) -> Callable[[], bool]:
    """A stop that waits for something, and gives up after half a minute."""
    deadline = time.monotonic() + 30
    return lambda: ready() or time.monotonic() > deadline


def listening(server: NatsServer, subject: str) -> bool:
    """Whether somebody listens to a subject."""

    async def work(connection: Any) -> bool:
        from nats.errors import NoRespondersError
        from nats.errors import TimeoutError as LateError

        try:
            await connection.request(subject, b'{"n": -1}', timeout=1)
        except NoRespondersError:
            return False
        except LateError:
            return True
        return True

    return server.ask(work)


def send_while_it_runs(
    server: NatsServer,
    subject: str,
    parts: list[list[str]],
    state: Path,
    pipeline: Pipeline,
    between: Callable[[], None] = lambda: None,
) -> RunResult:
    """Run until the parts were sent to who listens, and have come."""
    sent = threading.Event()
    counted: list[int] = []

    def send() -> None:
        for index, part in enumerate(parts):
            if index:
                between()
            deadline = time.monotonic() + 30
            while not listening(server, subject) and time.monotonic() < deadline:
                time.sleep(0.02)
            server.send(subject, part)
            # With each part comes what was asked by `listening`.
            wanted = sum(len(one) + 1 for one in parts[: index + 1])
            while sum(counted) < wanted and time.monotonic() < deadline:
                time.sleep(0.02)
        sent.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        return run_in_process(
            pipeline,
            state,
            idle_epochs=10**9,
            clock=time.time,
            on_progress=lambda progress: counted.append(progress.rows_in),
            stop=stop_when(sent.is_set),
        )
    finally:
        thread.join()


def test_what_comes_on_a_subject_is_counted_once_and_a_restart_goes_on(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    subject = nats_server.create().replace("stream", "plain")
    columns = "n BIGINT, s TEXT METADATA FROM 'subject'"
    sql = table(nats_server, columns, subject=f"{subject}.*") + "SELECT n, s FROM numbers WHERE n >= 0"
    first = send_while_it_runs(nats_server, f"{subject}.a", [numbers(0, 500)], tmp_path, query(sql))
    nats_server.send(f"{subject}.a", numbers(500, 600))  # nobody listens: these are lost
    second = send_while_it_runs(nats_server, f"{subject}.b", [numbers(600, 700)], tmp_path, query(sql))
    assert found(first, second) == [*range(500), *range(600, 700)]
    (rows,) = second.rows.values()
    assert {row["s"] for row in rows.to_pylist() if row["n"] >= 600} == {f"{subject}.b"}


def test_a_server_that_restarts_is_listened_to_again(tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server:
        sql = table(server, subject="plain") + "SELECT n FROM numbers WHERE n >= 0"

        def restart() -> None:
            server.stop()
            server.start()

        parts = [numbers(0, 5), numbers(5, 9)]
        result = send_while_it_runs(server, "plain", parts, tmp_path / "state", query(sql), restart)
        assert found(result) == list(range(9))


def test_a_subject_without_a_server_ends_the_run_within_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.5)
    sql = """
        CREATE TABLE numbers (n BIGINT) WITH (
          connector = 'nats', type = 'source', format = 'json', servers = '127.0.0.1:1', subject = 's'
        );
        SELECT n FROM numbers;
    """
    with pytest.raises(ExternalError, match=r"NATS at 127\.0\.0\.1:1 does not answer: .*[Rr]efused|Connect"):
        run(query(sql), tmp_path, idle_epochs=10**9, clock=time.time, stop=stop_when(lambda: False))


# ---------------------------------------------------------------------------------- when things fail


def test_a_server_that_does_not_answer_is_named_within_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "FIRST_CONTACT_SECONDS", 0.5)
    one = NatsSource(servers="nats://me:hush@127.0.0.1:1", stream="s", format="raw_string")
    with pytest.raises(ExternalError, match=r"NATS at nats://127\.0\.0\.1:1 does not answer") as caught:
        one.initial_offset(time=NOW)
    assert "hush" not in str(caught.value)


def test_a_server_without_jetstream_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "FIRST_CONTACT_SECONDS", 0.5)
    with run_server(tmp_path, "jetstream: disabled") as server:
        one = NatsSource(**server.options(stream="s", format="raw_string"))
        with pytest.raises(ExternalError, match="has no JetStream"):
            one.initial_offset(time=NOW)
        assert NatsSource(**server.options(subject="s", format="raw_string")).reach().startswith("NATS 2.")


def test_a_server_that_restarts_in_the_middle_of_a_run_costs_no_message(tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server:
        stream, out = server.create(), server.create()
        server.send(stream, numbers(0, 1000))
        sql = f"""
            {table(server, stream=stream, **{"source.bounded": "true"})}
            CREATE TABLE copied (n BIGINT) WITH (
              connector = 'nats', type = 'sink', format = 'json', servers = '{server.url}',
              subject = '{out}.rows', stream = '{out}'
            );
            INSERT INTO copied SELECT n FROM numbers;
        """

        def restart(when: str, epoch: int) -> Callable[[str, int], None]:
            def on_step(step: str, at: int) -> None:
                if (step, at) == (when, epoch):
                    server.stop()
                    threading.Timer(0.3, server.start).start()

            return on_step

        run(query(sql), tmp_path / "a", epoch_rows=300, max_epochs=2, on_step=restart("begin", 2))
        result = run(query(sql), tmp_path / "a", epoch_rows=300, on_step=restart("metadata_written", 3))
        assert result.reason == "finished"
        assert [json.loads(one.data)["n"] for one in server.read(out)] == list(range(1000))
