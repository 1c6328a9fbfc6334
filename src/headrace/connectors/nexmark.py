"""The `nexmark` source: people, auctions and bids, the data of the Nexmark benchmark."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import nanoseconds
from headrace.base.errors import ConfigurationError
from headrace.base.options import Duration
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.ranges import even_ranges
from headrace.connectors.base import TIMESTAMP_TYPE, Connector, Delivery, parse_instant, wall_clock
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split

Numbers: TypeAlias = NDArray[np.int64]


def _struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


PERSON = _struct(
    id=pa.int64(),
    name=pa.string(),
    email_address=pa.string(),
    credit_card=pa.string(),
    city=pa.string(),
    state=pa.string(),
    datetime=TIMESTAMP_TYPE,
    extra=pa.string(),
)
AUCTION = _struct(
    id=pa.int64(),
    description=pa.string(),
    item_name=pa.string(),
    initial_bid=pa.int64(),
    reserve=pa.int64(),
    datetime=TIMESTAMP_TYPE,
    expires=TIMESTAMP_TYPE,
    seller=pa.int64(),
    category=pa.int64(),
    extra=pa.string(),
)
BID = _struct(
    auction=pa.int64(),
    bidder=pa.int64(),
    price=pa.int64(),
    channel=pa.string(),
    url=pa.string(),
    datetime=TIMESTAMP_TYPE,
    extra=pa.string(),
)
TABLE_SCHEMA = pa.schema({"person": PERSON, "auction": AUCTION, "bid": BID})
SCHEMA = TABLE_SCHEMA.append(pa.field(TIMESTAMP, TIMESTAMP_TYPE))

LANE = "nexmark"
BATCH_ROWS = 16_384
"""Rows in a batch, about 7 MB: more would not be faster."""

GROUP = 50
"""One person, three auctions and 46 bids; also the events among which event time is out of order."""
AUCTIONS = 3
STRIDE = 953
"""Prime to 50: event n of a group has the index `953 × n mod 50` in event time."""
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
IN_FLIGHT, ACTIVE_PEOPLE, LEAD = 100, 1000, 10
"""Bids go to the last 100 auctions and come from the last 1,000 people, or from the next 10 of each."""
HOT_EVERY = 100
"""Every 100th auction and person is hot, until the next one is."""
HORIZON = IN_FLIGHT * GROUP // AUCTIONS
"""Events until 100 more auctions have been opened: how long an auction is open on average."""
CHANNELS = 10_000
WORDS = 4096
"""Distinct strings of each column of random strings."""

_FINEST = 10**12
_LAST_INSTANT = 2**63 - 1


class NexmarkSource(Connector, SourceOperator):
    """Emits the events of an auction house: of every 50, one person, three auctions and 46 bids.

    Columns: `person`, `auction` and `bid`, structs of which exactly one is set, and `_timestamp`. Event n is
    a function of `seed` and n alone; its event time follows from the rate and the base time, which are part
    of the offset. After a restart, at any parallelism, no event is lost, repeated or different. Any number of
    tasks share an epoch. Event time is out of order within groups of 50 events. Events that were due during a
    stall or while stopped are emitted later; a changed rate applies from the change on.
    """

    table_schema: ClassVar[pa.Schema] = TABLE_SCHEMA
    """The columns without the event time."""

    deliveries = (
        Delivery(
            "exactly once",
            "the number of the event is in the checkpoint, and any event can be generated again",
        ),
    )

    class Options(DeclaredOptions):
        """The options of the nexmark source."""

        event_rate: float = Field(
            gt=0, allow_inf_nan=False, description="Events per second of event time, over all subtasks."
        )
        runtime: Duration | None = Field(
            None,
            description="Event time to cover, a duration or seconds: event_rate × runtime events in all.",
        )
        message_count: int | None = Field(
            None, ge=0, description="Events in total, over all subtasks; without it and runtime, no end."
        )
        base_time: Annotated[int, BeforeValidator(parse_instant)] | None = Field(
            None,
            description=(
                "Event time of the first event, ISO 8601 string or nanoseconds since 1970; by default the "
                "time of the first start."
            ),
        )
        seed: int = Field(0, description="Another seed gives other people, auctions and bids.")
        paced: bool = Field(
            True,
            description=(
                "Whether events appear at event_rate on the wall clock; if false, as fast as they can be "
                "read, which needs runtime or message_count."
            ),
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.runtime is not None and nanoseconds(self.runtime) < 0:
                raise ValueError("runtime must not be negative")
            if not self.paced and self.runtime is None and self.message_count is None:
                raise ValueError("without pace there has to be an end: give message_count or runtime")
            return self

        @property
        def period(self) -> Fraction:
            """Return the exact nanoseconds between two events."""
            return (10**9 / Fraction(str(self.event_rate))).limit_denominator(_FINEST)

        @property
        def total(self) -> int | None:
            """Return the total number of events; None if it is unbounded."""
            bounds = [] if self.message_count is None else [self.message_count]
            if self.runtime is not None:
                bounds.append(int(Fraction(str(self.event_rate)) * nanoseconds(self.runtime) / 10**9))
            return min(bounds, default=None)

    options: Options
    _due: float | None = None
    """The wall clock at which a run with `available_now` began."""

    def validate(self) -> None:
        """Raise an error if the last event time is after the year 2262."""
        if self.options.total is not None:
            position = self.initial_offset(time=0)[LANE]
            _check_instants(position, self.options.total)

    def initial_offset(self, *, time: float) -> Offset:
        """Return event 0 and the start of event time, which is fixed here."""
        now = wall_clock(time)
        start = self.options.base_time if self.options.base_time is not None else now
        return {LANE: {"event": 0, "base": 0, "base_time": start, "begun": now, **self._pace}}

    @property
    def _pace(self) -> dict[str, Any]:
        return {"period": str(self.options.period), "paced": self.options.paced}

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Generate what is due now."""
        self._due = time
        return start

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the position after the events that are due by `limit.time`, at most `limit.rows`."""
        position = dict(start[LANE])
        event = position["event"]
        now = self._now(limit.time)
        if any(position[name] != value for name, value in self._pace.items()):
            # The pace was changed between two runs: event time goes on from here at the new pace.
            position |= {"base": event, "base_time": _instant(position, event), "begun": now, **self._pace}
        end = event + limit.rows
        if (due := self._due_by(now, position)) is not None:
            end = min(end, due)
        if end <= event:
            return start
        return {LANE: {**position, "event": end}}

    def _now(self, time: float) -> int:
        return wall_clock(time if self._due is None else min(time, self._due))

    def _due_by(self, now: int, position: Mapping[str, Any]) -> int | None:
        """Return the event that is due; None if there is no pace and no end."""
        due = self.options.total
        if self.options.paced:
            elapsed = now - position["begun"]
            paced = position["base"] + (int(elapsed // self.options.period) + 1 if elapsed >= 0 else 0)
            due = paced if due is None else min(due, paced)
        return due

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many events are due and not generated."""
        position = offset[LANE]
        due = self._due_by(self._now(time), position)
        return {} if due is None else {LANE: max(0, due - position["event"])}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return even, contiguous splits of the events."""
        first, last = start[LANE]["event"], end[LANE]["event"]
        common = {**end[LANE], "final": self.is_finished(end)}
        return [
            Split(LANE, {**common, "event": low, "end": high})
            for low, high in even_ranges(first, last, min(parallelism, last - first))
        ]

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Generate the events of one split, at most 16,384 in a batch."""
        detail = ctx.split.detail
        _check_instants(detail, detail["end"])
        for begin in range(detail["event"], detail["end"], BATCH_ROWS):
            end = min(begin + BATCH_ROWS, detail["end"])
            collector.collect(_make_events(detail, begin, end, seed=self.options.seed))
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def is_finished(self, offset: Offset) -> bool:
        """Whether all events have been generated."""
        total = self.options.total
        return total is not None and bool(offset[LANE]["event"] >= total)

    def count(self, start: Offset, end: Offset) -> int:
        """Return the exact number of rows in a range."""
        return int(end[LANE]["event"] - start[LANE]["event"])


class _Dice:
    """Random numbers for some events: each a function of the seed, the event and the column it is for."""

    def __init__(self, seed: int, events: Numbers) -> None:
        self._seed = seed
        self._steps = events.astype(np.uint64) * np.uint64(_GAMMA)

    def _throw(self, column: str) -> NDArray[np.uint64]:
        return _mix(self._steps + np.uint64(_column_key(self._seed, column)))

    def below(self, column: str, bound: int | Numbers) -> Numbers:
        """Return integers from 0 up to, not including, `bound`."""
        return (self._throw(column) % np.asarray(bound).astype(np.uint64)).astype(np.int64)

    def chance(self, column: str, ratio: int) -> NDArray[np.bool_]:
        """Return True in all but one of `ratio` cases."""
        return self.below(column, ratio) > 0

    def price(self, column: str) -> Numbers:
        """Return prices from 100 to 100,000,000, uniform in their logarithm."""
        exponent = (self._throw(column) >> np.uint64(11)) * (6 / 2**53)
        prices: Numbers = (np.power(10.0, exponent) * 100).astype(np.int64)
        return prices


_GAMMA = 0x9E3779B97F4A7C15


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64: neighbouring numbers become unrelated ones."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


@functools.lru_cache(maxsize=256)
def _column_key(seed: int, column: str) -> int:
    """Return the key of the random numbers of one column."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {column}".encode(), digest_size=8).digest())


@dataclass(frozen=True)
class _Events:
    """Events of one kind: the group of 50, the index in the group, and the event time of each."""

    dice: _Dice
    groups: Numbers
    places: Numbers
    times: Numbers
    horizon: int
    """Nanoseconds that an auction is open on average."""

    @property
    def last_auctions(self) -> Numbers:
        """Return the newest auction as of each event, counted from 0."""
        return self.groups * AUCTIONS + np.minimum(self.places, AUCTIONS) - 1

    def people(self, column: str) -> Numbers:
        """Return ids of people: three in four are the hot one, the others any active one."""
        last = self.groups
        active = np.minimum(last, ACTIVE_PEOPLE)
        anyone = last - active + self.dice.below(column, active + 1 + LEAD)
        hot = last // HOT_EVERY * HOT_EVERY
        return np.where(self.dice.chance(f"hot {column}", 4), hot, anyone) + FIRST_ID

    def auctions(self, column: str) -> Numbers:
        """Return ids of auctions: one in two is the hot one, the others any in flight."""
        last = self.last_auctions
        oldest = np.maximum(last - IN_FLIGHT, 0)
        any_open = oldest + self.dice.below(column, last - oldest + 1 + LEAD)
        hot = last // HOT_EVERY * HOT_EVERY
        return np.where(self.dice.chance(f"hot {column}", 2), hot, any_open) + FIRST_ID

    def texts(self, column: str, vocabulary: pa.StringArray) -> pa.StringArray:
        """Return strings of a vocabulary, uniformly distributed."""
        return vocabulary.take(pa.array(self.dice.below(column, len(vocabulary))))


def _make_events(position: Mapping[str, Any], begin: int, end: int, *, seed: int) -> pa.RecordBatch:
    """Return the events from `begin` up to `end`, in order of appearance."""
    numbers = np.arange(begin, end, dtype=np.int64)
    groups, places = numbers // GROUP, numbers * STRIDE % GROUP
    first = begin // GROUP * GROUP
    in_order = _instants(position, first, -(-end // GROUP) * GROUP)
    times = in_order[groups * GROUP + places - first]
    horizon = int(HORIZON * Fraction(position["period"]))
    kinds = (
        (PERSON, places == 0, _make_people),
        (AUCTION, (places > 0) & (places <= AUCTIONS), _make_auctions),
        (BID, places > AUCTIONS, _make_bids),
    )
    columns = []
    for kind, chosen, make in kinds:
        dice = _Dice(seed, numbers[chosen])
        fields = make(_Events(dice, groups[chosen], places[chosen], times[chosen], horizon))
        columns.append(_spread(kind, fields, chosen))
    return pa.RecordBatch.from_arrays([*columns, pa.array(times).view(TIMESTAMP_TYPE)], schema=SCHEMA)


Fields: TypeAlias = dict[str, "Numbers | pa.StringArray"]


def _make_people(events: _Events) -> Fields:
    digits = [events.texts(f"card {i}", _digits()) for i in range(4)]
    mailbox, host = events.texts("mailbox", _words(3, 6)), events.texts("host", _words(3, 4))
    return {
        "id": events.groups + FIRST_ID,
        "name": events.texts("name", _names()),
        "email_address": pc.binary_join_element_wise(mailbox, "@", host, ".com", ""),
        "credit_card": pc.binary_join_element_wise(*digits, " "),
        "city": events.texts("city", _CITIES),
        "state": events.texts("state", _STATES),
        "datetime": events.times,
        "extra": events.texts("extra", _words(138, 138)),
    }


def _make_auctions(events: _Events) -> Fields:
    initial_bid = events.dice.price("initial_bid")
    return {
        "id": events.last_auctions + FIRST_ID,
        "description": events.texts("description", _words(3, 99)),
        "item_name": events.texts("item_name", _words(3, 19)),
        "initial_bid": initial_bid,
        "reserve": initial_bid + events.dice.price("reserve"),
        "datetime": events.times,
        "expires": events.times + 1 + events.dice.below("expires", 2 * events.horizon + 1),
        "seller": events.people("seller"),
        "category": events.dice.below("category", CATEGORIES) + FIRST_CATEGORY,
        "extra": events.texts("extra", _words(390, 390)),
    }


def _make_bids(events: _Events) -> Fields:
    channels, urls = _channels()
    hot = CHANNELS + events.dice.below("hot channel", len(_HOT_CHANNELS))
    cold = events.dice.below("channel", CHANNELS)
    channel = pa.array(np.where(events.dice.chance("channel is hot", 2), hot, cold))
    return {
        "auction": events.auctions("auction"),
        "bidder": events.people("bidder"),
        "price": events.dice.price("price"),
        "channel": channels.take(channel),
        "url": urls.take(channel),
        "datetime": events.times,
        "extra": events.texts("extra", _words(168, 168)),
    }


def _spread(kind: pa.StructType, fields: Fields, chosen: NDArray[np.bool_]) -> pa.StructArray:
    """Return the structs of one kind at the `chosen` rows, null elsewhere; strings are not copied."""
    before = np.concatenate([[0], np.cumsum(chosen)])

    def at_rows(values: Numbers | pa.StringArray, kind: pa.DataType) -> pa.Array:
        if isinstance(values, pa.StringArray):
            _, offsets, data = values.buffers()
            spread = np.frombuffer(offsets, dtype=np.int32, count=len(values) + 1)[before]
            return pa.Array.from_buffers(kind, len(chosen), [None, pa.py_buffer(spread), data])
        everywhere = np.zeros(len(chosen), dtype=np.int64)
        everywhere[chosen] = values
        return pa.array(everywhere).view(kind)

    arrays = [at_rows(fields[field.name], field.type) for field in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pa.array(~chosen))


_ALPHABET = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
_FIRST_NAMES = ("Ada", "Boris", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira")
_LAST_NAMES = ("Abel", "Brandt", "Castro", "Dahl", "Eriksen", "Fischer", "Garcia", "Hansen", "Ito")
_CITIES = pa.array(
    ["Bend", "Boise", "Cheyenne", "Los Angeles", "Phoenix", "Portland", "San Francisco", "Seattle", "Tucson"]
)
_STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


@functools.cache
def _words(shortest: int, longest: int, *, count: int = WORDS, name: str = "words") -> pa.StringArray:
    """Return a vocabulary of random strings, the same in every process."""
    lengths = _Dice(0, np.arange(count)).below(f"{name} length", longest - shortest + 1) + shortest
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    letters = _ALPHABET[_Dice(0, np.arange(offsets[-1])).below(name, len(_ALPHABET))]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))


@functools.cache
def _names() -> pa.StringArray:
    return pa.array([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])


@functools.cache
def _digits() -> pa.StringArray:
    return pa.array([f"{number:04}" for number in range(10_000)])


@functools.cache
def _channels() -> tuple[pa.StringArray, pa.StringArray]:
    """Return the channels and their URLs: 10,000 numbered ones, then the hot ones."""
    count = CHANNELS + len(_HOT_CHANNELS)
    folders = [_words(3, 4, count=count, name=f"folder {i}").to_pylist() for i in range(3)]
    tagged = _Dice(0, np.arange(count)).chance("tagged", 10)
    names, urls = [], []
    for number, path in enumerate(zip(*folders, strict=True)):
        hot = number >= CHANNELS
        names.append(_HOT_CHANNELS[number - CHANNELS] if hot else f"channel-{number}")
        tag = f"&channel_id={number}" if tagged[number] and not hot else ""
        urls.append(f"https://www.nexmark.com/{'/'.join(path)}/item.htm?query=1{tag}")
    return pa.array(names), pa.array(urls)


def _instant(position: Mapping[str, Any], event: int) -> int:
    """Return the event time of a number, in order."""
    period = Fraction(position["period"])
    return int(position["base_time"] + (event - position["base"]) * period.numerator // period.denominator)


def _instants(position: Mapping[str, Any], begin: int, end: int) -> Numbers:
    """Return the exact event times of the numbers from `begin` up to `end`, computed in integers."""
    period = Fraction(position["period"])
    quotient, remainder = divmod(period.numerator, period.denominator)
    first, rest = divmod((begin - position["base"]) * period.numerator, period.denominator)
    steps: Numbers = np.arange(end - begin, dtype=np.int64)
    times: Numbers = steps * quotient + (steps * remainder + rest) // period.denominator
    return times + np.int64(first + position["base_time"])


def _check_instants(position: Mapping[str, Any], end: int) -> None:
    """Refuse events before number `end` of which an auction may expire past the end of time."""
    last = _instant(position, end + GROUP + 2 * HORIZON)
    if not -_LAST_INSTANT <= last <= _LAST_INSTANT:
        raise ConfigurationError(
            "nexmark: event time leaves the years 1677 to 2262",
            hint="choose a greater `event_rate`, fewer events or another `base_time`",
        )
