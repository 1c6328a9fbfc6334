from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ConfigurationError
from headrace.connectors.impulse import LANE, ImpulseSource
from headrace.model.operator import Limit
from headrace.model.registry import registry
from tests.support import plan, read_range, read_split

NOW = 1_700_000_000.0
NOW_NS = 1_700_000_000 * 10**9
START = 1_767_225_600 * 10**9  # 2026-01-01


def read(source: Any, *, rows: Any = 100, time: Any = NOW, begin: Any = NOW) -> Any:
    start = source.initial_offset(time=begin)
    return read_range(source, start, source.latest_offset(start, Limit(rows, time), parallelism=1))


def counts(source: Any, start: Any, *times: Any, rows: Any = 10**9) -> Any:
    """How many events are planned at each of these seconds after the start."""
    made = []
    for time in times:
        end = source.latest_offset(start, Limit(rows, NOW + time), parallelism=1)
        made.append(end[LANE]["counter"] - start[LANE]["counter"])
        start = end
    return made


def test_the_counter_is_one_count_over_all_subtasks() -> None:
    source = ImpulseSource(message_count=10)
    start = source.initial_offset(time=NOW)
    end = source.latest_offset(start, Limit(100, NOW), parallelism=4)
    rows = read_range(source, start, end, parallelism=4)
    assert [row["counter"] for row in rows] == list(range(10))
    assert [row["subtask_index"] for row in rows] == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]


def test_rows_have_the_documented_columns() -> None:
    source = ImpulseSource(message_count=1)
    start = source.initial_offset(time=NOW)
    (split,) = source.splits(start, source.latest_offset(start, Limit(1, NOW), parallelism=1), parallelism=1)
    (batch,), _ = read_split(source, split)
    assert str(batch.schema.field("counter")) == "pyarrow.Field<counter: int64 not null>"
    assert str(batch.schema.field("subtask_index")) == "pyarrow.Field<subtask_index: int64 not null>"
    assert str(batch.schema.field("_timestamp").type) == "timestamp[ns]"


def test_an_interval_gives_timestamps_that_depend_on_nothing_else() -> None:
    source = ImpulseSource(message_count=5, event_time_interval="10ms", start_time="2026-01-01T00:00:00")
    assert [row["_timestamp"] for row in read(source)] == [START + i * 10**7 for i in range(5)]
    assert read(source) == read(source, time=NOW + 999)


@pytest.mark.parametrize("interval", [1_000_000, "1000000", "1ms"])
def test_an_interval_is_a_duration_or_a_number_of_nanoseconds(interval: Any) -> None:
    assert ImpulseSource(event_time_interval=interval).options.event_time_interval == 10**6


def test_without_an_interval_event_time_follows_the_rate_from_the_start() -> None:
    rows = read(ImpulseSource(message_count=4, event_rate=3), time=NOW + 100)
    assert [row["_timestamp"] - NOW_NS for row in rows] == [0, 333_333_333, 666_666_666, 10**9]


def test_without_a_rate_event_time_is_when_the_epoch_was_planned() -> None:
    source = ImpulseSource()
    assert {row["_timestamp"] for row in read(source, time=NOW + 2.5)} == {NOW_NS + 2_500_000_000}


def test_event_time_does_not_go_back_with_the_clock() -> None:
    source = ImpulseSource()
    start = source.initial_offset(time=NOW)
    first = source.latest_offset(start, Limit(1, NOW + 10), parallelism=1)
    second = source.latest_offset(first, Limit(1, NOW + 5), parallelism=1)
    assert second[LANE]["time"] == first[LANE]["time"]


def test_the_start_is_truncated_to_the_boundary() -> None:
    source = ImpulseSource(
        message_count=1, event_time_interval=1, start_time="2026-01-01T10:07:31", align="5m"
    )
    assert read(source)[0]["_timestamp"] == START + (10 * 60 + 5) * 60 * 10**9


def test_a_rate_is_held_and_stalls_are_made_up_for() -> None:
    source = ImpulseSource(event_rate=10)
    start = source.initial_offset(time=NOW)
    assert counts(source, start, 0, 0.05, 0.1, 1, 60, 61) == [1, 0, 1, 9, 590, 10]


def test_a_delay_is_a_rate_the_other_way_round() -> None:
    source = ImpulseSource(delay="100ms")
    assert counts(source, source.initial_offset(time=NOW), 0, 1, 60) == [1, 10, 590]


def test_an_epoch_takes_no_more_than_its_limit_even_when_more_is_due() -> None:
    source = ImpulseSource(event_rate=1000)
    assert counts(source, source.initial_offset(time=NOW), 10, 10, rows=7) == [7, 7]


def test_nothing_is_due_before_the_start() -> None:
    source = ImpulseSource(event_rate=10)
    start = source.initial_offset(time=NOW)
    assert source.latest_offset(start, Limit(10, NOW - 5), parallelism=1) is start


def test_a_changed_rate_counts_from_where_it_was_changed() -> None:
    fast, slow = ImpulseSource(event_rate=1000), ImpulseSource(event_rate=10)
    start = fast.initial_offset(time=NOW)
    middle = fast.latest_offset(start, Limit(10**9, NOW + 10), parallelism=1)
    assert middle[LANE]["counter"] == 10_001
    after = slow.latest_offset(middle, Limit(10**9, NOW + 20), parallelism=1)
    assert after[LANE]["counter"] == 10_002
    assert counts(slow, after, 21, 30) == [10, 90]
    rows = read_range(fast, start, middle) + read_range(slow, middle, after)
    times = [row["_timestamp"] for row in rows]
    assert times == sorted(times)


def test_no_number_is_lost_or_repeated_over_restarts_at_other_parallelisms() -> None:
    rows, offset = [], ImpulseSource(message_count=1000).initial_offset(time=NOW)
    for parallelism in (2, 3, 1, 8, 5):
        source = ImpulseSource(message_count=1000)
        end = source.latest_offset(offset, Limit(200, NOW), parallelism=parallelism)
        rows += read_range(source, offset, end, parallelism=parallelism)
        offset = end
    assert [row["counter"] for row in rows] == list(range(1000))


def test_a_message_count_of_zero_is_finished_at_once() -> None:
    source = ImpulseSource(message_count=0)
    start = source.initial_offset(time=NOW)
    assert source.is_finished(start)
    assert read(source) == []


def test_a_source_without_message_count_never_finishes() -> None:
    source = ImpulseSource()
    start = source.initial_offset(time=NOW)
    assert not source.is_finished(source.latest_offset(start, Limit(10**12, NOW), parallelism=1))


@given(
    rate=st.floats(min_value=1e-3, max_value=1e9),
    counter=st.integers(min_value=0, max_value=2**40),
)
def test_timestamps_are_exact_at_any_rate_and_beyond_32_bits(rate: Any, counter: Any) -> None:
    source = ImpulseSource(event_rate=rate, start_time=0)
    period = source._period
    assert period is not None
    assert abs(period - 10**9 / Fraction(str(rate))) * 2**40 < 2
    if counter * period > 2**62:
        return
    start, end = (source.initial_offset(time=NOW) for _ in range(2))
    start[LANE]["counter"], end[LANE]["counter"] = counter, counter + 3
    times = [row["_timestamp"] for row in read_range(source, start, end)]
    assert times == [(counter + i) * period.numerator // period.denominator for i in range(3)]


def test_batches_and_shares_join_without_a_seam() -> None:
    source = ImpulseSource(event_rate=123.456789, start_time=0, message_count=200_000)
    rows = read(source, rows=10**9, time=NOW + 10**7)
    period = source._period
    assert period is not None
    expected = [i * period.numerator // period.denominator for i in range(200_000)]
    assert [row["_timestamp"] for row in rows] == expected


def test_event_times_past_the_end_of_time_are_refused() -> None:
    source = ImpulseSource(message_count=10**9, event_time_interval="1h")
    with pytest.raises(ConfigurationError, match="event_time_interval"):
        source.validate()
    unbounded = ImpulseSource(event_time_interval="1h")
    with pytest.raises(ConfigurationError, match="event_time_interval"):
        read(unbounded, rows=10**9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"event_rate": 0}, "event_rate"),
        ({"event_rate": 5, "delay": "1s"}, "either event_rate or delay"),
        ({"delay": 0}, "delay must be greater than zero"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"event_time_interval": "1ns"}, "number of nanoseconds"),
        ({"event_time_interval": 0}, "event_time_interval"),
        ({"mesage_count": 1}, "did you mean `message_count`"),
    ],
)
def test_bad_options_are_named(options: Any, message: Any) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ImpulseSource(**options)
    with pytest.raises(ConfigurationError, match=message):
        registry.build("source", "impulse", options)


def test_declared_columns_come_in_their_order_and_types() -> None:
    schema = pa.schema({"subtask_index": pa.int32(), "counter": pa.uint64()})
    source = ImpulseSource(message_count="3", schema=schema)
    start, end = plan(source, [10], start=0.0, now=1.0)
    (batch,) = read_split(source, source.splits(start, end, parallelism=1)[0])[0]
    assert batch.schema.names == ["subtask_index", "counter", "_timestamp"]
    assert batch.schema.types[:2] == schema.types
    assert batch.column("counter").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize(
    "schema",
    [{"counter": "string"}, {"counter": "int64", "x": "int64"}, {"Counter": "int64"}],
)
def test_columns_that_impulse_does_not_have_are_refused(schema: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"invalid schema for impulse source: .*counter BIGINT"):
        ImpulseSource(schema=schema)


def test_a_counter_that_outgrows_its_column_ends_the_run() -> None:
    source = ImpulseSource(message_count=200, schema={"counter": "int8"})
    start, end = plan(source, [1000], start=0.0, now=1.0)
    with pytest.raises(ConfigurationError, match="outgrown"):
        read_split(source, source.splits(start, end, parallelism=1)[0])
