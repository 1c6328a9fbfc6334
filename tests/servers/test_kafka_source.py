"""The kafka source against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, SqlError
from headrace.connectors.kafka import client as shared
from headrace.connectors.kafka.source import KafkaSource
from headrace.connectors.sample import read_sample
from headrace.jobs.progress import RunResult
from headrace.model.operator import Limit, Offset, SourceContext
from headrace.testing.in_process import run_in_process
from tests.servers.kafka import KafkaBroker, run_broker
from tests.support import ListCollector, read_range, task, to_rows

NOW = 1_700_000_000.0
ALL = Limit(10**9, NOW)


def source(kafka: KafkaBroker, topic: str, **more: Any) -> KafkaSource:
    named = {name.replace("__", "."): value for name, value in more.items()}
    given = {"schema": {"n": "int64"}, "source.offset": "earliest", **named}
    return KafkaSource(**kafka.options(topic, **given))


def numbers(first: int, last: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, last)]


def read(one: KafkaSource, start: Offset | None = None) -> tuple[list[dict[str, Any]], Offset]:
    """Everything from `start` on, and where that ends."""
    start = one.initial_offset(time=NOW) if start is None else start
    end = one.latest_offset(start, ALL, parallelism=2)
    return read_range(one, start, end, parallelism=2), end


def table(kafka: KafkaBroker, topic: str, columns: str = "n BIGINT", **more: str) -> str:
    options = {"connector": "kafka", "type": "source", "format": "json", "source.offset": "earliest", **more}
    options |= kafka.options(topic)
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    return f"CREATE TABLE numbers ({columns}) WITH ({listed});"


def query(sql: str) -> Pipeline:
    return Pipeline.from_sql(sql, name="numbers", preview=lambda _: ("memory", {}))


def run(pipeline: Pipeline, state: Path, **more: Any) -> RunResult:
    return run_in_process(pipeline, state, **{"idle_epochs": 3, **more})


def found(*lives: RunResult) -> list[int]:
    return sorted(n for life in lives for rows in life.rows.values() for n in rows.column("n").to_pylist())


# ------------------------------------------------------------------------------------ where it reads


def test_a_stopped_pipeline_resumes_at_another_parallelism_with_the_next_messages(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create(3)
    for partition in range(3):
        kafka.send(topic, numbers(partition * 100, partition * 100 + 50), partition=partition)
    sql = table(kafka, topic) + "SELECT n FROM numbers"
    first = run(query(sql), tmp_path, parallelism=1, epoch_rows=40, max_epochs=2)
    kafka.send(topic, numbers(1000, 1010), partition=1)
    second = run(query(sql), tmp_path, parallelism=3, epoch_rows=70)
    assert len(found(first)) == 80
    expected = [n for p in range(3) for n in range(p * 100, p * 100 + 50)] + list(range(1000, 1010))
    assert found(first, second) == sorted(expected)


def test_an_epoch_shares_its_rows_fairly_over_the_partitions(kafka: KafkaBroker) -> None:
    topic = kafka.create(3)
    for partition, size in ((0, 100), (1, 5), (2, 100)):
        kafka.send(topic, numbers(0, size), partition=partition)
    one = source(kafka, topic)
    start = one.initial_offset(time=NOW)
    end = one.latest_offset(start, Limit(65, NOW), parallelism=1)
    assert {lane: position["offset"] for lane, position in end.items()} == {"0": 30, "1": 5, "2": 30}
    assert one.count(start, end) == 65


def test_a_large_partition_is_cut_into_shares_in_its_order(kafka: KafkaBroker) -> None:
    one = source(kafka, kafka.create())
    start, end = {"0": {"offset": 5, "group": "g"}}, {"0": {"offset": 400_005, "group": "g"}}
    splits = one.splits(start, end, parallelism=3)
    bounds = [(split.detail["offset"], split.detail["end"]) for split in splits]
    assert bounds == [(5, 133_338), (133_338, 266_671), (266_671, 400_005)]


def test_a_partition_that_is_added_is_read_from_its_beginning(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create()
    kafka.send(topic, numbers(0, 3))
    sql = table(kafka, topic) + "SELECT n FROM numbers"
    assert found(run(query(sql), tmp_path)) == [0, 1, 2]
    kafka.widen(topic, 2)
    kafka.send(topic, numbers(10, 13), partition=1)
    assert found(run(query(sql), tmp_path)) == [10, 11, 12]


def test_a_partition_that_is_added_is_found_by_a_running_pipeline_that_reads_the_latest(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.create()
    one = source(kafka, topic, source__offset="latest")
    start = one.initial_offset(time=NOW)
    kafka.widen(topic, 2)
    kafka.send(topic, numbers(0, 3), partition=1)
    rows, end = read(one, start)
    more, _ = read(one, end)
    assert [row["n"] for row in rows + more] == [0, 1, 2]


def test_a_quiet_partition_is_not_read_again_after_two_restarts(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create(2)
    kafka.send(topic, numbers(0, 5), partition=0)
    kafka.send(topic, numbers(100, 105), partition=1)
    sql = table(kafka, topic) + "SELECT n FROM numbers"
    assert found(run(query(sql), tmp_path)) == [*range(5), *range(100, 105)]
    for first in (10, 20):
        kafka.send(topic, numbers(first, first + 5), partition=0)
        assert found(run(query(sql), tmp_path)) == list(range(first, first + 5))


def test_latest_skips_what_is_there_and_earliest_does_not(kafka: KafkaBroker) -> None:
    topic = kafka.create()
    kafka.send(topic, numbers(0, 3))
    latest, earliest = source(kafka, topic, source__offset="latest"), source(kafka, topic)
    start = latest.initial_offset(time=NOW)
    kafka.send(topic, numbers(3, 5))
    assert [row["n"] for row in read(latest, start)[0]] == [3, 4]
    assert [row["n"] for row in read(earliest)[0]] == [0, 1, 2, 3, 4]


def test_a_group_starts_where_it_stands_and_what_is_committed_moves_it(kafka: KafkaBroker) -> None:
    topic = kafka.create(2)
    kafka.send(topic, numbers(0, 4))
    group = {"source__offset": "group", "source__group_id": f"group-{topic}"}
    one = source(kafka, topic, **group)
    assert [p["offset"] for p in one.initial_offset(time=NOW).values()] == [4, 0]  # it stands nowhere yet
    begin = source(kafka, topic).initial_offset(time=NOW)
    moved = one.latest_offset(begin, Limit(3, NOW), parallelism=1)
    one.committed(moved)
    one.committed(moved)
    kafka.send(topic, numbers(10, 11), partition=1)
    assert [row["n"] for row in read(one)[0]] == [3, 10]


def test_a_partition_that_the_group_does_not_know_is_read_from_its_beginning(kafka: KafkaBroker) -> None:
    topic = kafka.create()
    kafka.send(topic, numbers(0, 2))
    one = source(kafka, topic, source__offset="group", source__group_id=f"group-{topic}")
    one.committed(one.initial_offset(time=NOW))
    kafka.widen(topic, 2)
    kafka.send(topic, numbers(10, 12), partition=1)
    assert [row["n"] for row in read(one)[0]] == [10, 11]


def test_a_pipeline_without_a_group_shows_how_far_it_is_in_one_of_its_own(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create()
    kafka.send(topic, numbers(0, 7))
    run(query(table(kafka, topic, **{"source.group_id_prefix": "mine"}) + "SELECT n FROM numbers"), tmp_path)
    groups = [one.group_id for one in kafka.admin.list_consumer_groups().result(10).valid]
    (group,) = [one for one in groups if one.startswith(f"mine-{topic}-")]
    cluster = source(kafka, topic).cluster
    assert cluster.group_offsets(group, [(topic, 0)]) == {(topic, 0): 7}


def test_a_bounded_source_does_not_read_what_comes_later(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create(2)
    kafka.send(topic, numbers(0, 10))
    sql = table(kafka, topic, **{"source.bounded": "true"}) + "SELECT n FROM numbers"
    first = run(query(sql), tmp_path, epoch_rows=4, max_epochs=1)
    kafka.send(topic, numbers(100, 110), partition=1)
    second = run(query(sql), tmp_path)
    assert second.reason == "finished"
    assert found(first, second) == list(range(10))


def test_each_run_with_available_now_reads_what_came_since_the_last(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create(2)
    kafka.send(topic, numbers(0, 10))
    sql = table(kafka, topic) + "SELECT n FROM numbers"

    def send_more(_: Any) -> None:
        kafka.send(topic, numbers(100, 101), partition=1)

    first = run(
        query(sql), tmp_path, epoch_rows=4, options=RunOptions(available_now=True), on_progress=send_more
    )
    assert (first.reason, found(first)) == ("available_now", list(range(10)))
    second = run(query(sql), tmp_path, options=RunOptions(available_now=True))
    assert (second.reason, found(second)) == ("available_now", [100] * first.epochs)
    assert run(query(sql), tmp_path, options=RunOptions(available_now=True)).epochs == 0


def test_a_bounded_source_of_an_empty_topic_finishes_at_once(kafka: KafkaBroker, tmp_path: Path) -> None:
    sql = table(kafka, kafka.create(), **{"source.bounded": "true"}) + "SELECT count(*) AS n FROM numbers"
    assert run(query(sql), tmp_path).reason == "finished"


# ----------------------------------------------------------------------------------- transactions, gaps


def wait_for_markers(kafka: KafkaBroker, topic: str, end: int) -> None:
    """A transaction ends for its producer before the mark of its end is in the partition."""
    cluster = source(kafka, topic).cluster
    for _ in range(600):
        if cluster.offsets([(topic, 0)], at="latest", committed=True)[topic, 0] >= end:
            return
        time.sleep(0.05)
    pytest.fail(f"the transactions do not end at offset {end}")


def test_read_committed_leaves_out_what_was_aborted_and_waits_for_what_is_open(kafka: KafkaBroker) -> None:
    from confluent_kafka import Producer

    topic = kafka.create()
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": f"tests-{topic}"})
    producer.init_transactions(30)
    for first, finish in ((0, producer.commit_transaction), (10, producer.abort_transaction)):
        producer.begin_transaction()
        for one in numbers(first, first + 3):
            producer.produce(topic, one)
        producer.flush(10)
        finish(10)
    wait_for_markers(kafka, topic, 8)
    producer.begin_transaction()
    producer.produce(topic, numbers(20, 21)[0])
    producer.flush(10)
    strict = source(kafka, topic, source__read_mode="read_committed")
    rows, end = read(strict)
    assert [row["n"] for row in rows] == [0, 1, 2]
    assert [row["n"] for row in read(source(kafka, topic))[0]] == [0, 1, 2, 10, 11, 12, 20]
    assert strict.latest_offset(end, ALL, parallelism=1) == end
    producer.commit_transaction(10)
    wait_for_markers(kafka, topic, 10)
    assert [row["n"] for row in read(strict, end)[0]] == [20]


def test_every_cut_through_the_gaps_of_transactions_gives_the_same_rows(kafka: KafkaBroker) -> None:
    from confluent_kafka import Producer

    topic = kafka.create()
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": f"tests-{topic}"})
    producer.init_transactions(30)
    for first in range(0, 6, 2):
        producer.begin_transaction()
        for one in numbers(first, first + 2):
            producer.produce(topic, one)
        producer.commit_transaction(10)
    wait_for_markers(kafka, topic, 9)
    numbered = source(kafka, topic, source__bounded=True)
    start, rows = numbered.initial_offset(time=NOW), []
    while not numbered.is_finished(start):
        end = numbered.latest_offset(start, Limit(1, NOW), parallelism=1)
        rows += read_range(numbered, start, end)
        start = end
    assert start["0"]["offset"] == 9  # each commit takes an offset
    assert [row["n"] for row in rows] == list(range(6))


def test_messages_that_were_deleted_before_they_were_read_end_the_run_or_are_skipped(
    kafka: KafkaBroker,
) -> None:
    from confluent_kafka import TopicPartition

    topic = kafka.create()
    kafka.send(topic, numbers(0, 10))
    strict, lenient = source(kafka, topic), source(kafka, topic, source__lost_messages="skip")
    start = strict.initial_offset(time=NOW)
    (done,) = kafka.admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    done.result(10)
    with pytest.raises(ExternalError, match="no longer has offset 0 of partition 0") as caught:
        read(strict, start)
    assert "source.lost_messages" in str(caught.value)
    assert [row["n"] for row in read(lenient, start)[0]] == list(range(4, 10))


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(kafka: KafkaBroker) -> None:
    topic = kafka.create()
    kafka.send(topic, numbers(0, 3))
    one = source(kafka, topic)
    with pytest.raises(ExternalError, match="partition 0 ends at offset 3, and was read up to offset 9"):
        one.latest_offset({"0": {"offset": 9, "group": "g"}}, ALL, parallelism=1)
    with pytest.raises(ExternalError, match="partition 4 is gone"):
        one.latest_offset({"4": {"offset": 9, "group": "g"}}, ALL, parallelism=1)


def test_a_topic_that_is_not_there_is_named(kafka: KafkaBroker) -> None:
    with pytest.raises(ExternalError, match="has no topic `nowhere`") as caught:
        source(kafka, "nowhere").initial_offset(time=NOW)
    assert kafka.address in str(caught.value)


def test_a_start_time_begins_with_the_first_message_of_each_partition_that_is_not_older(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create(3)
    for n, (partition, at) in enumerate([(0, 1_000), (0, 2_000), (0, 3_000), (1, 1_500), (2, 2_500)]):
        kafka.send(topic, numbers(n, n + 1), partition=partition, time=1_700_000_000_000 + at)
    for begins in ("1700000002000", "2023-11-14T22:13:22Z", "2023-11-14T23:13:22+01:00"):
        one = source(kafka, topic, source__offset="timestamp", source__timestamp=begins)
        assert {lane: at["offset"] for lane, at in one.initial_offset(time=NOW).items()} == {
            "0": 1,
            "1": 1,  # where it ends: it has nothing so late
            "2": 0,
        }
    sql = table(kafka, topic, **{"source.offset": "timestamp", "source.timestamp": "2023-11-14T22:13:22Z"})
    assert found(run(query(sql + "SELECT n FROM numbers"), tmp_path)) == [1, 2, 4]


def test_a_pipeline_starts_at_the_offsets_that_are_named_and_at_the_beginning_of_others(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create(3)
    for partition in range(3):
        kafka.send(topic, numbers(partition * 10, partition * 10 + 3), partition=partition)
    sql = table(kafka, topic, **{"source.offset": "offsets", "source.offsets": "0:2, 2:3"})
    assert found(run(query(sql + "SELECT n FROM numbers"), tmp_path)) == [2, 10, 11, 12]
    # As with every start, this is for the first one only.
    kafka.send(topic, numbers(40, 41))
    assert found(run(query(sql + "SELECT n FROM numbers"), tmp_path)) == [40]


def test_offsets_that_a_topic_does_not_have_are_refused_with_those_it_has(kafka: KafkaBroker) -> None:
    topic = kafka.create(2)
    kafka.send(topic, numbers(0, 3))
    with pytest.raises(ConfigurationError, match="starts with offset 4 of the partition `0`, which ends at"):
        source(kafka, topic, source__offset="offsets", source__offsets={0: 4}).initial_offset(time=NOW)
    with pytest.raises(ConfigurationError, match=r"the partition `2`: topic .* has no such") as caught:
        source(kafka, topic, source__offset="offsets", source__offsets="2:0").initial_offset(time=NOW)
    assert caught.value.hint == "there are 0, 1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source.offset": "timestamp"}, "needs `source.timestamp`"),
        ({"source.offset": "offsets"}, "needs `source.offsets`"),
        ({"source.timestamp": "2026-01-01"}, "needs `source.offset` = 'timestamp'"),
        ({"source.offsets": "0:1"}, "needs `source.offset` = 'offsets'"),
        ({"source.offset": "offsets", "source.offsets": "5"}, "write offsets as `0:42, 1:7`"),
        ({"source.offset": "offsets", "source.offsets": "0:1,0:2"}, "partition `0` is named twice"),
        ({"source.offset": "offsets", "source.offsets": "a/0:1"}, "`a/0` is not the name of a partition"),
        ({"source.offset": "offsets", "source.offsets": {"0": -1}}, "source.offsets"),
        ({"source.offset": "timestamp", "source.timestamp": "noon"}, "write a time as"),
        ({"topic_pattern": "t.*"}, "either `topic` or `topic_pattern`"),
        ({"topic": None}, "either `topic` or `topic_pattern`"),
        ({"topic": None, "topic_pattern": "("}, "not a regular expression"),
        ({"metadata": {"h": "headers."}}, "no metadata `headers.`"),
    ],
)
def test_starts_and_topics_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KafkaSource(**{"bootstrap_servers": "b:9092", "topic": "t", "schema": {"n": "int64"}, **options})


def test_a_pattern_reads_its_topics_and_those_that_are_created_while_it_runs(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    first, other = kafka.create(2, prefix="orders-eu"), kafka.create(prefix="xorders")
    for partition in range(2):
        kafka.send(first, numbers(partition, partition + 1), partition=partition)
    kafka.send(other, numbers(90, 92))
    sql = (
        table(
            kafka,
            "",
            "n BIGINT, t TEXT METADATA FROM 'topic'",
            topic_pattern="orders-.*",
        )
        .replace("'topic' = '', ", "")
        .replace(", 'topic' = ''", "")
    )
    pipeline = query(sql + "SELECT n, t FROM numbers")
    assert found(run(pipeline, tmp_path)) == [0, 1]
    kafka.send(first, numbers(2, 3))
    second = kafka.create(prefix="orders-us")
    kafka.send(second, numbers(10, 13))
    life = run(query(sql + "SELECT n, t FROM numbers"), tmp_path)
    (rows,) = life.rows.values()
    assert sorted((row["t"], row["n"]) for row in rows.to_pylist()) == [
        (first, 2),
        *((second, n) for n in range(10, 13)),
    ]
    kafka.widen(second, 2)
    kafka.send(second, numbers(20, 21), partition=1)
    assert found(run(query(sql + "SELECT n, t FROM numbers"), tmp_path)) == [20]


def test_a_pattern_that_no_topic_matches_yet_waits_for_one(kafka: KafkaBroker) -> None:
    prefix = f"later{time.time_ns()}"
    options = {"bootstrap_servers": kafka.address, "topic_pattern": f"{prefix}-.*", "schema": {"n": "int64"}}
    one = KafkaSource(**options)
    assert "0 topics match" in one.reach()
    start = one.initial_offset(time=NOW)
    assert start == {}
    topic = kafka.create(prefix=prefix)
    kafka.send(topic, numbers(0, 2))
    lanes = one.latest_offset(start, ALL, parallelism=1)
    assert list(lanes) == [f"{topic}/0"]
    assert [row["n"] for row in read(one, lanes)[0]] == [0, 1]
    one.committed(read(one, lanes)[1])
    group = lanes[f"{topic}/0"]["group"]
    assert one.cluster.group_offsets(group, [(topic, 0)]) == {(topic, 0): 2}


# ------------------------------------------------------------------------------------------- content


def test_headers_are_read_together_and_one_by_one(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create()
    kafka.send(topic, numbers(0, 1), headers=[("trace", b"\xff"), ("empty", None), ("trace", b"2")])
    kafka.send(topic, numbers(1, 2))
    columns = """
        n BIGINT, trace BYTEA METADATA FROM 'headers.trace', nothing BYTEA METADATA FROM 'headers.empty',
        all_of_them STRUCT<key TEXT, value BYTEA>[] METADATA FROM 'headers'
    """
    result = run(query(table(kafka, topic, columns) + "SELECT * FROM numbers"), tmp_path)
    (rows,) = result.rows.values()
    assert [(row["n"], row["trace"], row["nothing"], row["all_of_them"]) for row in rows.to_pylist()] == [
        (
            0,
            b"2",
            None,
            [
                {"key": "trace", "value": b"\xff"},
                {"key": "empty", "value": None},
                {"key": "trace", "value": b"2"},
            ],
        ),
        (1, None, None, []),
    ]


def test_metadata_columns_hold_what_kafka_knows_of_a_message(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create(2)
    kafka.send(topic, numbers(0, 2), partition=1, key=b"\xff\x00", time=1_700_000_000_123)
    kafka.send(topic, numbers(2, 3), partition=0, time=1_700_000_000_124)
    columns = """
        at BIGINT METADATA FROM 'timestamp', n BIGINT, k BYTEA METADATA FROM 'key',
        o BIGINT METADATA FROM 'offset_id', p INT METADATA FROM 'partition', t TEXT METADATA FROM 'topic'
    """
    result = run(query(table(kafka, topic, columns) + "SELECT at, n, k, o, p, t FROM numbers"), tmp_path)
    (rows,) = result.rows.values()
    listed = sorted(to_rows(rows.to_batches()), key=lambda row: row["n"])
    expected = {"at": 1_700_000_000_123, "k": b"\xff\x00", "p": 1, "t": topic}
    stamp = {"_timestamp": 1_700_000_000_123_000_000}
    assert listed == [
        {**expected, "n": 0, "o": 0, **stamp},
        {**expected, "n": 1, "o": 1, **stamp},
        {"at": 1_700_000_000_124, "n": 2, "k": None, "o": 0, "p": 0, "t": topic}
        | {"_timestamp": 1_700_000_000_124_000_000},
    ]


def test_metadata_alone_can_be_read(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create()
    kafka.send(topic, [*numbers(0, 2), "", None])
    columns = "n BIGINT, o BIGINT METADATA FROM 'offset_id'"
    sql = table(kafka, topic, columns) + "SELECT o AS n FROM numbers"
    assert found(run(query(sql), tmp_path)) == [0, 1]


def collect(one: KafkaSource) -> tuple[list[dict[str, Any]], SourceContext]:
    start = one.initial_offset(time=NOW)
    (split,) = one.splits(start, one.latest_offset(start, ALL, parallelism=1), parallelism=1)
    ctx, collector = SourceContext(task(), split), ListCollector()
    one.run(ctx, collector)
    return collector.rows, ctx


def test_a_topic_can_be_read_while_it_is_being_created(kafka: KafkaBroker) -> None:
    for _ in range(5):  # the partitions get their leaders one after the other
        rows, offset = read(source(kafka, kafka.create(200)))
        assert (rows, len(offset)) == ([], 200)


def test_a_message_that_cannot_be_read_is_named_by_its_partition_and_offset(kafka: KafkaBroker) -> None:
    topic = kafka.create(3)
    kafka.send(topic, [*numbers(0, 5), '{"n": "x"}', *numbers(5, 7)], partition=2)
    with pytest.raises(BadLineError, match="the message at offset 5 of partition 2 cannot be read") as caught:
        read(source(kafka, topic))
    assert caught.value.column == "n"
    assert topic in str(caught.value)


def test_bad_messages_are_dropped_and_the_others_keep_their_offsets_and_times(kafka: KafkaBroker) -> None:
    topic = kafka.create()
    values = ['{"n": 0}', "{", '{"n": 2}', None, "", '{"n": "x"}', '{"n": 6}']
    for index, value in enumerate(values):
        kafka.send(topic, [value], time=1000 + index)
    columns = {"schema": {"n": "int64", "o": "int64"}, "metadata": {"o": "offset_id"}}
    rows, ctx = collect(source(kafka, topic, bad_data="drop", **columns))
    assert [(row["n"], row["o"], row["_timestamp"]) for row in rows] == [
        (n, n, (1000 + n) * 10**6) for n in (0, 2, 6)
    ]
    assert ctx.metrics.values == {
        "tombstones": 1,
        "bad_rows": 2,
        "bad_rows.malformed": 1,
        "bad_rows.wrong-value": 1,
    }
    assert "the message at offset 1 of partition 0" in ctx.errors[0]


def test_framed_messages_have_a_row_for_each_line_with_the_time_of_the_message(kafka: KafkaBroker) -> None:
    topic = kafka.create()
    for index, lines in enumerate(
        (numbers(0, 3), [], [*numbers(3, 4), "", "{", *numbers(4, 5)], numbers(5, 6))
    ):
        kafka.send(topic, ["\n".join(lines)], time=1000 + index)
    columns = {"schema": {"n": "int64", "o": "int64"}, "metadata": {"o": "offset_id"}}
    rows, ctx = collect(source(kafka, topic, framing="newline", bad_data="drop", **columns))
    assert [(row["n"], row["o"]) for row in rows] == [(0, 0), (1, 0), (2, 0), (3, 2), (4, 2), (5, 3)]
    assert ctx.metrics.values["bad_rows"] == 1
    assert "offset 2" in ctx.errors[0]


def test_changes_are_read_with_the_time_and_the_offset_of_their_message(kafka: KafkaBroker) -> None:
    topic = kafka.create()
    changes: list[dict[str, Any] | None] = [
        {"before": None, "after": {"n": 1}, "op": "c"},
        {"before": {"n": 1}, "after": {"n": 2}, "op": "u"},
        None,
        {"payload": {"before": {"n": 2}, "after": {"n": 3}, "op": "u"}},
        {"before": {"n": 3}, "after": None, "op": "d"},
    ]
    kafka.send(topic, [None if change is None else json.dumps(change) for change in changes])
    columns = {"schema": {"n": "int64", "o": "int64"}, "metadata": {"o": "offset_id"}, "primary_key": ["n"]}
    rows, _ = collect(source(kafka, topic, format="debezium_json", **columns))
    assert [(row["n"], row["_retract"], row["o"]) for row in rows] == [
        (1, False, 0),
        (1, True, 1),
        (2, False, 1),
        (2, True, 3),
        (3, False, 3),
        (3, True, 4),
    ]


@pytest.mark.parametrize("name", ["raw_string", "raw_bytes"])
def test_raw_messages_are_rows_as_they_are(kafka: KafkaBroker, name: str) -> None:
    topic = kafka.create()
    kafka.send(topic, ["a\nb", "", "ü"])
    one = KafkaSource(**kafka.options(topic, format=name, source_offset="earliest"))
    values = [row["value"] for row in read(one)[0]]
    assert values == (["a\nb", "", "ü"] if name == "raw_string" else [b"a\nb", b"", "ü".encode()])


def test_compressed_messages_are_read(kafka: KafkaBroker) -> None:
    from confluent_kafka import Producer

    topic = kafka.create()
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": kafka.address, "compression.type": codec})
        producer.produce(topic, numbers(0, 1)[0] + " " * 1000)
        producer.flush(10)
    assert [row["n"] for row in read(source(kafka, topic))[0]] == [0] * 4


# ----------------------------------------------------------------------------------- when things fail


def test_the_messages_tell_the_columns_of_a_table_without_any(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create()
    kafka.send(topic, [*numbers(0, 3), '{"n": 3, "name": "x"}'])
    sql = table(kafka, topic).replace("(n BIGINT) ", "") + "SELECT * FROM numbers"
    (rows,) = run(query(sql), tmp_path).rows.values()
    assert sorted(row["name"] or "" for row in rows.to_pylist()) == ["", "", "", "x"]
    with pytest.raises(SqlError, match="nothing is there yet to find them out from"):
        query(sql.replace(topic, kafka.create()))


def test_bad_messages_fail_a_look_unless_they_would_be_dropped(kafka: KafkaBroker) -> None:
    topic = kafka.create()
    kafka.send(topic, [*numbers(0, 1), "nonsense"])
    with pytest.raises(BadLineError, match="nonsense"):
        read_sample(source(kafka, topic).for_sampling(), 5, 10)
    batches, told = read_sample(source(kafka, topic, bad_data="drop").for_sampling(), 5, 10)
    assert sum(batch.num_rows for batch in batches) == 1
    assert "dropped 1 bad rows" in told[0]


def test_a_broker_that_does_not_answer_is_named_within_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "FIRST_CONTACT_SECONDS", 2)
    one = KafkaSource(bootstrap_servers="127.0.0.1:1", topic="t", format="raw_string")
    before = time.monotonic()
    with pytest.raises(ExternalError, match=r"Kafka at 127\.0\.0\.1:1 does not answer: .*refused"):
        one.initial_offset(time=NOW)
    assert time.monotonic() - before < 10


def test_a_broker_that_goes_away_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 2)
    with run_broker(tmp_path) as broker:
        topic = broker.create()
        broker.send(topic, numbers(0, 3))
        one = source(broker, topic)
        start = one.initial_offset(time=NOW)
        (split,) = one.splits(start, one.latest_offset(start, ALL, parallelism=1), parallelism=1)
    with pytest.raises(ExternalError, match=f"Kafka at {broker.address} does not answer"):
        one.run(SourceContext(task(), split), ListCollector())
    with pytest.raises(ExternalError, match=f"Kafka at {broker.address} does not answer"):
        one.latest_offset(start, ALL, parallelism=1)


def test_a_group_that_cannot_be_moved_does_not_stop_the_pipeline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 1)
    one = KafkaSource(bootstrap_servers="127.0.0.1:1", topic="t", format="raw_string")
    one.committed({"0": {"offset": 3, "group": "mine"}})
    assert "consumer group `mine` was not moved: Kafka at 127.0.0.1:1" in caplog.text


def test_a_broker_that_restarts_in_the_middle_of_a_run_costs_no_message(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with run_broker(tmp_path / "broker") as broker:
        topic, out = broker.create(2), broker.create()
        for partition in range(2):
            broker.send(topic, numbers(partition * 500, partition * 500 + 500), partition=partition)
        sink = f"""
            CREATE TABLE copied (n BIGINT) WITH (
              connector = 'kafka', type = 'sink', format = 'json', topic = '{out}',
              bootstrap_servers = '{broker.address}', 'sink.commit_mode' = 'exactly_once'
            );
            INSERT INTO copied SELECT n FROM numbers;
        """
        pipeline = query(table(broker, topic, **{"source.bounded": "true"}) + sink)

        def restart(when: str, epoch: int) -> Callable[[str, int], None]:
            def on_step(step: str, at: int) -> None:
                if (step, at) == (when, epoch):
                    broker.stop()
                    broker.start()

            return on_step

        run(pipeline, tmp_path / "a", epoch_rows=300, max_epochs=2, on_step=restart("begin", 2))
        result = run(pipeline, tmp_path / "a", epoch_rows=300, on_step=restart("metadata_written", 3))
        assert result.reason == "finished"
        assert sorted(json.loads(one.value())["n"] for one in broker.read(out)) == list(range(1000))


def test_settings_that_the_client_does_not_know_are_refused_before_anything_runs() -> None:
    one = KafkaSource(bootstrap_servers="h:1", topic="t", format="raw_string", client_configs="fetch.moon=1")
    with pytest.raises(ConfigurationError, match=r"fetch\.moon"):
        one.validate()


# --------------------------------------------------------------------------------- compacted topics


def upsert_table(kafka: KafkaBroker, name: str, topic: str, columns: str, kind: str, **more: str) -> str:
    options = {"connector": "kafka", "type": kind, "format": "json", "upsert": "true", **more}
    if kind == "source":
        options["source.offset"] = "earliest"
    options |= kafka.options(topic)
    listed = ", ".join(f"'{option}' = '{value}'" for option, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed});"


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_a_compacted_topic_is_a_table_from_its_keys_and_tombstones_to_those_of_another(
    kafka: KafkaBroker, tmp_path: Path, mode: str
) -> None:
    users, cities = kafka.create(2, cleanup_policy="compact"), kafka.create(cleanup_policy="compact")

    def send(user: str, city: str | None) -> None:
        value = None if city is None else json.dumps({"city": city})
        kafka.send(users, [value], partition=int(user) % 2, key=user.encode())

    sql = (
        upsert_table(kafka, "users", users, "id BIGINT PRIMARY KEY, city TEXT", "source")
        + upsert_table(
            kafka, "cities", cities, "city TEXT PRIMARY KEY, n BIGINT", "sink", **{"sink.commit_mode": mode}
        )
        + "INSERT INTO cities SELECT city, count(*) AS n FROM users GROUP BY city;"
    )

    def table() -> dict[str, int]:
        latest = {message.key().decode(): message.value() for message in kafka.read(cities)}
        return {key: json.loads(value)["n"] for key, value in latest.items() if value is not None}

    send("1", "Oslo")
    send("2", "Oslo")
    send("3", "Rome")
    run(query(sql), tmp_path)
    assert table() == {"Oslo": 2, "Rome": 1}
    send("1", "Rome")
    send("2", None)
    send("9", None)
    run(query(sql), tmp_path)
    assert table() == {"Rome": 2}
    tombstones = [message.key() for message in kafka.read(cities) if message.value() is None]
    assert tombstones == [b"Oslo"]
