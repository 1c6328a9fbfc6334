from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ConfigurationError
from headrace.connectors.nexmark import BATCH_ROWS, LANE, NexmarkSource
from headrace.model.operator import Limit
from headrace.model.registry import registry
from tests.support import read_range, read_split

NOW = 1_700_000_000.0
NOW_NS = 1_700_000_000 * 10**9
START = 1_767_225_600 * 10**9  # 2026-01-01
EVENTS = 20_000


def events(first: int = 0, count: int = EVENTS, **options: Any) -> pa.Table:
    """Events number `first` and on, as a table."""
    source = NexmarkSource(**({"event_rate": 1000, "base_time": START} | options))
    start = source.initial_offset(time=NOW)
    end = {LANE: {**start[LANE], "event": first + count}}
    start[LANE]["event"] = first
    batches = [b for split in source.splits(start, end, parallelism=1) for b in read_split(source, split)[0]]
    return pa.Table.from_batches(batches)


def of_kind(table: pa.Table, kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """The inner columns of one kind, without the rows of the others."""
    structs = table[kind].combine_chunks().drop_null()
    return {field.name: structs.field(field.name).to_numpy(zero_copy_only=False) for field in structs.type}


def counts(source: NexmarkSource, start: Any, *times: float, rows: int = 10**9) -> list[int]:
    """How many events are planned at each of these seconds after the start."""
    made = []
    for time in times:
        end = source.latest_offset(start, Limit(rows, NOW + time), parallelism=1)
        made.append(end[LANE]["event"] - start[LANE]["event"])
        start = end
    return made


def test_rows_have_the_documented_columns() -> None:
    schema = events(count=50).schema
    assert schema.names == ["person", "auction", "bid", "_timestamp"]
    assert NexmarkSource.table_schema.names == ["person", "auction", "bid"]
    assert all(schema.field(name) == NexmarkSource.table_schema.field(name) for name in schema.names[:3])
    assert all(schema.field(name).nullable for name in schema.names)
    bid = schema.field("bid").type
    assert [str(field) for field in bid] == [
        "pyarrow.Field<auction: int64 not null>",
        "pyarrow.Field<bidder: int64 not null>",
        "pyarrow.Field<price: int64 not null>",
        "pyarrow.Field<channel: string not null>",
        "pyarrow.Field<url: string not null>",
        "pyarrow.Field<datetime: timestamp[ns] not null>",
        "pyarrow.Field<extra: string not null>",
    ]
    assert " ".join(field.name for field in schema.field("person").type) == (
        "id name email_address credit_card city state datetime extra"
    )
    assert " ".join(field.name for field in schema.field("auction").type) == (
        "id description item_name initial_bid reserve datetime expires seller category extra"
    )


def test_arrays_are_well_formed_at_any_cut() -> None:
    for first, count in [(0, 1), (1, 1), (3, 1), (17, 1), (49, 2), (50, 50), (BATCH_ROWS - 1, 3)]:
        events(first, count).validate(full=True)
    events(0, BATCH_ROWS + 1).validate(full=True)


def test_of_every_50_events_one_is_a_person_three_are_auctions_and_the_rest_bids() -> None:
    table = events()
    kinds = {kind: pc.is_valid(table[kind]).to_numpy() for kind in ("person", "auction", "bid")}
    assert (sum(set_.astype(int) for set_ in kinds.values()) == 1).all()
    for kind, number in (("person", 1), ("auction", 3), ("bid", 46)):
        assert set(kinds[kind].reshape(-1, 50).sum(axis=1)) == {number}


def test_people_and_auctions_are_numbered_from_1000_without_a_gap() -> None:
    table = events()
    assert sorted(of_kind(table, "person")["id"]) == list(range(1000, 1000 + EVENTS // 50))
    assert sorted(of_kind(table, "auction")["id"]) == list(range(1000, 1000 + EVENTS // 50 * 3))


def test_ids_follow_event_time() -> None:
    for kind in ("person", "auction"):
        columns = of_kind(events(), kind)
        assert (np.diff(columns["id"][np.argsort(columns["datetime"])]) == 1).all()


def test_event_time_is_out_of_order_only_within_groups_of_50() -> None:
    times = events()["_timestamp"].cast(pa.int64()).to_numpy() - START
    groups = times.reshape(-1, 50)
    assert (np.sort(groups, axis=1) == np.arange(EVENTS).reshape(-1, 50) * 10**6).all()
    assert [t // 10**6 for t in groups[0][:4]] == [0, 3, 6, 9]
    assert (np.diff(times) < 0).any()


def test_the_struct_has_the_event_time_too() -> None:
    table = events(count=500)
    for kind in ("person", "auction", "bid"):
        assert (
            of_kind(table, kind)["datetime"]
            == table.filter(pc.is_valid(table[kind]))["_timestamp"].to_numpy()
        ).all()


def test_half_of_the_bids_go_to_the_hot_auction_and_the_others_to_auctions_in_flight() -> None:
    bids = of_kind(events(), "bid")
    last = (bids["datetime"].astype(np.int64) - START) // 10**6 // 50 * 3 + 2
    auction = bids["auction"] - 1000
    hot = auction == last // 100 * 100
    assert 0.49 < hot.mean() < 0.52
    behind = (last - auction)[~hot]
    assert behind.min() == -10
    assert behind.max() == 100
    assert auction.min() >= 0


def test_three_in_four_bids_and_auctions_are_by_the_hot_person() -> None:
    table = events(count=100_000)
    for kind, column in (("bid", "bidder"), ("auction", "seller")):
        columns = of_kind(table, kind)
        last = (columns["datetime"].astype(np.int64) - START) // 10**6 // 50
        person = columns[column] - 1000
        hot = person == last // 100 * 100
        assert 0.73 < hot.mean() < 0.77
        assert person.min() >= 0
        assert (last - person)[~hot].min() == -10
        assert 950 < (last - person)[~hot].max() <= 1000


def test_prices_are_spread_evenly_over_six_orders_of_magnitude() -> None:
    prices = of_kind(events(), "bid")["price"]
    magnitudes = Counter(np.floor(np.log10(prices)).astype(int).tolist())
    assert sorted(magnitudes) == [2, 3, 4, 5, 6, 7]
    assert max(magnitudes.values()) < 1.15 * min(magnitudes.values())


def test_reserves_are_above_initial_bids_and_categories_are_five() -> None:
    auctions = of_kind(events(), "auction")
    assert (auctions["reserve"] > auctions["initial_bid"]).all()
    assert set(auctions["category"]) == {10, 11, 12, 13, 14}


@pytest.mark.parametrize("rate", [0.5, 1000, 10**6])
def test_about_a_hundred_auctions_are_open_at_any_rate(rate: float) -> None:
    auctions = of_kind(events(event_rate=rate), "auction")
    begun, expires = (auctions[name].astype(np.int64) for name in ("datetime", "expires"))
    assert (expires > begun).all()
    at = begun[len(begun) // 2 :]
    open_auctions = (begun <= at[:, None]).sum(axis=1) - (expires <= at[:, None]).sum(axis=1)
    assert 85 < open_auctions.mean() < 115


def test_half_of_the_bids_come_through_four_of_ten_thousand_channels() -> None:
    bids = of_kind(events(count=300_000), "bid")
    channels = Counter(bids["channel"].tolist())
    hot = [channels[name] for name in ("Google", "Facebook", "Baidu", "Apple")]
    assert 0.49 < sum(hot) / len(bids["channel"]) < 0.51
    assert max(hot) < 1.05 * min(hot)
    assert len(channels) == 10_004
    assert len(set(zip(bids["channel"], bids["url"], strict=True))) == 10_004


def test_urls_have_three_folders_and_most_name_their_channel() -> None:
    bids = of_kind(events(), "bid")
    tagged = 0
    for channel, url in zip(bids["channel"], bids["url"], strict=True):
        assert url.startswith("https://www.nexmark.com/")
        assert len(url.split("/")) == 7
        tagged += url.endswith(f"&channel_id={channel.removeprefix('channel-')}")
    cold = sum(channel.startswith("channel-") for channel in bids["channel"])
    assert 0.88 < tagged / cold < 0.92


def test_events_have_about_the_size_of_the_benchmark() -> None:
    table = events()

    def size(kind: str, columns: str) -> float:
        values = of_kind(table, kind)
        return sum(float(np.mean([len(text) for text in values[column]])) for column in columns.split())

    assert 190 < 8 + size("person", "name email_address credit_card city state extra") < 210
    assert 490 < 48 + size("auction", "item_name description extra") < 510
    assert 32 + size("bid", "extra") == 200


@given(first=st.integers(0, 10**12), count=st.integers(1, 200), cut=st.integers(0, 200))
def test_an_event_does_not_depend_on_what_it_is_read_with(first: int, count: int, cut: int) -> None:
    cut = min(cut, count)
    parts = [events(f, n) for f, n in ((first, cut), (first + cut, count - cut)) if n]
    assert pa.concat_tables(parts).to_pylist() == events(first, count).to_pylist()


def test_another_seed_gives_other_events_of_the_same_shape() -> None:
    one, other = events(count=100), events(count=100, seed=-1)
    assert one["_timestamp"] == other["_timestamp"]
    assert one["bid"].is_null() == other["bid"].is_null()
    assert (of_kind(one, "bid")["price"] != of_kind(other, "bid")["price"]).all()


def test_events_are_the_same_in_every_version() -> None:
    """A change here changes the results of every saved run: it has to be meant."""
    bids = of_kind(events(count=50), "bid")
    assert bids["price"][:3].tolist() == [93117, 116, 1309550]
    assert bids["channel"][:3].tolist() == ["Baidu", "channel-4128", "Baidu"]


def test_the_base_time_is_when_the_pipeline_was_first_started() -> None:
    source = NexmarkSource(event_rate=1000)
    start = source.initial_offset(time=NOW)
    later = source.latest_offset(start, Limit(1, NOW + 99), parallelism=1)
    end = source.latest_offset(later, Limit(49, NOW + 999), parallelism=1)
    times = sorted(row["_timestamp"] for row in read_range(source, start, end))
    assert times == [NOW_NS + i * 10**6 for i in range(50)]


@given(rate=st.floats(min_value=1e-3, max_value=1e9), group=st.integers(0, 2**34))
def test_event_times_are_exact_at_any_rate(rate: float, group: int) -> None:
    period = NexmarkSource(event_rate=rate).options.period
    assert abs(period - 10**9 / Fraction(str(rate))) * 2**40 < 2
    first = group * 50
    if (first + 10_000) * period > 2**62:
        return
    times = sorted(events(first, 50, event_rate=rate, base_time=0)["_timestamp"].cast(pa.int64()).to_pylist())
    assert times == [(first + i) * period.numerator // period.denominator for i in range(50)]


def test_a_rate_is_held_and_stalls_are_made_up_for() -> None:
    source = NexmarkSource(event_rate=10)
    assert counts(source, source.initial_offset(time=NOW), 0, 0.05, 0.1, 1, 60, 61) == [1, 0, 1, 9, 590, 10]


def test_an_epoch_takes_no_more_than_its_limit_even_when_more_is_due() -> None:
    source = NexmarkSource(event_rate=1000)
    assert counts(source, source.initial_offset(time=NOW), 10, 10, rows=7) == [7, 7]


def test_nothing_is_due_before_the_start() -> None:
    source = NexmarkSource(event_rate=10)
    start = source.initial_offset(time=NOW)
    assert source.latest_offset(start, Limit(10, NOW - 5), parallelism=1) is start


def test_without_a_pace_everything_is_due_at_once() -> None:
    source = NexmarkSource(event_rate=10, message_count=1000, paced=False)
    start = source.initial_offset(time=NOW)
    assert counts(source, start, 0, 0, rows=600) == [600, 400]


def test_a_changed_rate_counts_from_where_it_was_changed() -> None:
    fast, slow = NexmarkSource(event_rate=1000), NexmarkSource(event_rate=10)
    start = fast.initial_offset(time=NOW)
    middle = fast.latest_offset(start, Limit(10**9, NOW + 9.999), parallelism=1)
    assert middle[LANE]["event"] == 10_000
    after = slow.latest_offset(middle, Limit(10**9, NOW + 20), parallelism=1)
    assert after[LANE]["event"] == 10_001
    assert counts(slow, after, 21, 30) == [10, 90]
    end = slow.latest_offset(after, Limit(49, NOW + 30), parallelism=1)
    rows = read_range(slow, middle, after) + read_range(slow, after, end)
    times = sorted(row["_timestamp"] - NOW_NS for row in rows)
    assert times == [10 * 10**9 + i * 10**8 for i in range(50)]


def test_a_pace_can_be_switched_off_and_on_between_runs() -> None:
    paced = NexmarkSource(event_rate=10, message_count=1000)
    unpaced = NexmarkSource(event_rate=10, message_count=1000, paced=False)
    start = paced.initial_offset(time=NOW)
    middle = unpaced.latest_offset(start, Limit(500, NOW), parallelism=1)
    assert middle[LANE]["event"] == 500
    assert counts(paced, middle, 100, 101, 110) == [1, 10, 90]


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({"event_rate": 1000, "runtime": 2}, 2000),
        ({"event_rate": 0.3, "runtime": "10s"}, 3),
        ({"event_rate": 0.7, "runtime": 2}, 1),
        ({"event_rate": 1000, "runtime": "1m", "message_count": 7}, 7),
        ({"event_rate": 1000, "runtime": "1ms", "message_count": 7}, 1),
        ({"event_rate": 1000, "message_count": 0}, 0),
        ({"event_rate": 1000, "runtime": 0}, 0),
    ],
)
def test_the_events_end_after_the_runtime_or_the_count(options: Any, total: int) -> None:
    source = NexmarkSource(**options)
    start = source.initial_offset(time=NOW)
    end = source.latest_offset(start, Limit(10**9, NOW + 1000), parallelism=1)
    assert len(read_range(source, start, end)) == total
    assert source.is_finished(end)


def test_a_source_without_a_bound_never_finishes() -> None:
    source = NexmarkSource(event_rate=1)
    start = source.initial_offset(time=NOW)
    assert not source.is_finished(source.latest_offset(start, Limit(10**12, NOW + 10**6), parallelism=1))


def test_event_times_past_the_end_of_time_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="base_time"):
        NexmarkSource(event_rate=1e-6, message_count=10**6).validate()
    with pytest.raises(ConfigurationError, match="2262"):
        events(event_rate=1e-9, count=1)
    NexmarkSource(event_rate=1000, message_count=10**9).validate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option `event_rate` is required"),
        ({"event_rate": 0}, "`event_rate`"),
        ({"event_rate": "nan"}, "`event_rate`"),
        ({"event_rate": 1, "runtime": "soon"}, "`runtime`"),
        ({"event_rate": 1, "runtime": -5}, "runtime"),
        ({"event_rate": 1, "message_count": -1}, "`message_count`"),
        ({"event_rate": 1, "paced": False}, "give message_count or runtime"),
        ({"event_rate": 1, "base_time": "yesterday"}, "`base_time`"),
        ({"event_rat": 1}, "did you mean `event_rate`"),
    ],
)
def test_bad_options_are_named(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        NexmarkSource(**options)
    with pytest.raises(ConfigurationError, match=message):
        registry.build("source", "nexmark", options)
