"""The `impulse` source: generate numbers at a rate, for demonstrations, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import nanoseconds, parse_duration
from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.base.options import Duration
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.ranges import even_ranges
from headrace.connectors.base import TIMESTAMP_TYPE, Connector, Delivery, parse_instant, wall_clock
from headrace.formats.base import plain_field
from headrace.formats.options import Columns
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split

SCHEMA = pa.schema(
    [
        pa.field("counter", pa.int64(), nullable=False),
        pa.field("subtask_index", pa.int64(), nullable=False),
        pa.field(TIMESTAMP, TIMESTAMP_TYPE),
    ]
)
LANE = "impulse"
BATCH_ROWS = 65_536
_FINEST = 10**12
_LAST_INSTANT = 2**63 - 1


def _read_interval(value: Any) -> Any:
    if isinstance(value, str) and not value.strip().isdigit():
        try:
            value = parse_duration(value)
        except HeadraceError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
    if isinstance(value, timedelta):
        if value < timedelta(microseconds=1):
            raise ValueError("write an interval below a microsecond as a number of nanoseconds")
        return nanoseconds(value)
    return value


class ImpulseSource(Connector, SourceOperator):
    """Emits the numbers 0, 1, 2, … once each, at a rate or as fast as the machine can.

    Columns: `counter` (one count over the whole source), `subtask_index` (the split of the epoch that
    generated the row, 0 up to the parallelism) and `_timestamp`. The counter, the start and the rate are part
    of the offset: after a restart, at any parallelism, no number is lost or repeated. Any number of tasks
    share an epoch. With a rate, events that were due during a stall or while stopped are emitted later, so
    the rate holds over the whole life of the pipeline; a changed rate or interval applies from the change on.

    Args:
        options: an `Options` object, or each option by its name.

    Raises:
        ConfigurationError: an option is wrong.

    >>> import headrace as hr
    >>> hr.ImpulseSource(event_rate=10, delay="1s")
    Traceback (most recent call last):
    headrace.base.errors.ConfigurationError: ImpulseSource: give either event_rate or delay, not both
    >>> source = hr.ImpulseSource(message_count=3, event_time_interval="1s", start_time=0)
    >>> source
    ImpulseSource(event_time_interval=1000000000, message_count=3, start_time=0)
    >>> hr.Pipeline().source(source)
    Stream(ImpulseSource_1: counter BIGINT, subtask_index BIGINT)
    """

    table_schema: ClassVar[pa.Schema] = pa.schema({"counter": pa.int64(), "subtask_index": pa.int64()})
    """The columns of a table that declares none."""

    deliveries = (
        Delivery("exactly once", "the counter is in the checkpoint, and any row can be generated again"),
    )

    class Options(DeclaredOptions):
        """The options of the impulse source."""

        model_config = ConfigDict(arbitrary_types_allowed=True)

        event_rate: float | None = Field(
            None,
            gt=0,
            allow_inf_nan=False,
            description="Events per second over all subtasks; without it, no pause.",
        )
        delay: Duration | None = Field(
            None, description="Time between two events of the whole source, instead of event_rate."
        )
        event_time_interval: Annotated[int, BeforeValidator(_read_interval)] | None = Field(
            None,
            ge=1,
            description=(
                "Event time between two events, a duration such as `10ms` or a number of nanoseconds: "
                "_timestamp = start + interval × counter. Without it, event time follows the wall clock."
            ),
        )
        message_count: int | None = Field(
            None,
            ge=0,
            description=(
                "Events in total, over all subtasks (some engines count per subtask); without it, no end."
            ),
        )
        start_time: Annotated[int, BeforeValidator(parse_instant)] | None = Field(
            None,
            description=(
                "Event time of the first event, ISO 8601 string or nanoseconds since 1970; by default now."
            ),
        )
        align: Duration | None = Field(
            None, description="Truncate the start to a multiple of this duration, such as `1m`."
        )
        idle_timeout: Duration | None = Field(
            None, description="After this long without events the source no longer holds the watermark back."
        )
        columns: Columns | None = Field(
            None,
            alias="schema",
            description="The columns to emit, of counter and subtask_index, and their integer types.",
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.event_rate is not None and self.delay is not None:
                raise ValueError("give either event_rate or delay, not both")
            for name in ("delay", "align"):
                value = getattr(self, name)
                if value is not None and value <= timedelta(0):
                    raise ValueError(f"{name} must be greater than zero")
            names = [] if self.columns is None else self.columns.names
            is_valid = len(set(names)) == len(names) and set(names) <= {"counter", "subtask_index"}
            if not is_valid or not all(map(pa.types.is_integer, self.columns.types if self.columns else [])):
                raise ValueError(
                    "invalid schema for impulse source: it must be `counter BIGINT NOT NULL, "
                    f"subtask_index BIGINT NOT NULL`, got {_describe(self.columns)}"
                )
            return self

    options: Options
    _due: float | None = None
    """The wall clock at which a run with `available_now` began."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.idle_timeout = self.options.idle_timeout

    @property
    def _period(self) -> Fraction | None:
        """Return the exact nanoseconds of wall clock between two events."""
        if self.options.delay is not None:
            return Fraction(nanoseconds(self.options.delay))
        if self.options.event_rate is not None:
            period = 10**9 / Fraction(str(self.options.event_rate))
            return period.limit_denominator(_FINEST)
        return None

    def validate(self) -> None:
        """Raise an error if the last event time is after the year 2262."""
        count, interval = self.options.message_count, self.options.event_time_interval
        if count is not None and interval is not None:
            _check_instant((self.options.start_time or 0) + count * interval)

    def initial_offset(self, *, time: float) -> Offset:
        """Return the counter 0 and the start of event time, which is fixed here."""
        now = wall_clock(time)
        start = self.options.start_time if self.options.start_time is not None else now
        if self.options.align is not None:
            start -= start % nanoseconds(self.options.align)
        return {
            LANE: {
                "counter": 0,
                "base": 0,
                "start_time": start,
                "begun": now,
                "time": start,
                "period": _text(self._period),
                "interval": self.options.event_time_interval,
            }
        }

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Generate what is due now; without a pace there must be a `message_count`."""
        if self._period is None and self.options.message_count is None:
            raise ConfigurationError(
                "impulse generates numbers without end: there is no end of what is there now",
                hint="set `message_count`, or a pace with `event_rate`",
            )
        self._due = time
        return start

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the counter after the numbers that are due by `limit.time`, at most `limit.rows`."""
        position = dict(start[LANE])
        counter = position["counter"]
        now = self._now(limit.time)
        if (position["period"], position["interval"]) != (
            _text(self._period),
            self.options.event_time_interval,
        ):
            # The pace was changed between two runs: event time goes on from here at the new pace.
            position["start_time"] = _instant(position, counter)
            position |= {"base": counter, "begun": now, "time": position["start_time"]}
            position |= {"period": _text(self._period), "interval": self.options.event_time_interval}
        end = counter + limit.rows
        if (due := self._due_by(now, position)) is not None:
            end = min(end, due)
        if end <= counter:
            return start
        position["counter"] = end
        position["time"] = max(position["time"], position["start_time"] + now - position["begun"])
        return {LANE: position}

    def _now(self, time: float) -> int:
        return wall_clock(time if self._due is None else min(time, self._due))

    def _due_by(self, now: int, position: Mapping[str, Any]) -> int | None:
        """Return the counter that is due; None if there is no pace and no end."""
        due = self.options.message_count
        if (period := self._period) is not None:
            elapsed = now - position["begun"]
            paced = position["base"] + (int(elapsed // period) + 1 if elapsed >= 0 else 0)
            due = paced if due is None else min(due, paced)
        return due

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many numbers are due and not generated."""
        position = offset[LANE]
        due = self._due_by(self._now(time), position)
        return {} if due is None else {LANE: max(0, due - position["counter"])}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return even, contiguous splits of the numbers; split i has `subtask_index` i."""
        first, last = start[LANE]["counter"], end[LANE]["counter"]
        common = {**end[LANE], "final": self.is_finished(end)}
        return [
            Split(LANE, {**common, "counter": low, "end": high, "index": index})
            for index, (low, high) in enumerate(even_ranges(first, last, min(parallelism, last - first)))
        ]

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Generate the numbers of one split, at most 65,536 in a batch."""
        detail = ctx.split.detail
        _check_instant(_instant(detail, detail["end"]))
        first, last = detail["counter"], detail["end"]
        index = pa.array(np.full(min(BATCH_ROWS, last - first), detail["index"], dtype=np.int64))
        for begin in range(first, last, BATCH_ROWS):
            rows = min(BATCH_ROWS, last - begin)
            counter = np.arange(begin, begin + rows, dtype=np.int64)
            times = pa.array(_instants(detail, begin, rows)).view(TIMESTAMP_TYPE)
            columns = [pa.array(counter), index.slice(0, rows), times]
            collector.collect(self._declared(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)))
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.options.columns is None:
            return batch
        schema = pa.schema([*map(plain_field, self.options.columns), batch.schema.field(TIMESTAMP)])
        try:
            return batch.select(schema.names).cast(schema)
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"impulse: the counter has outgrown its column: {error}", hint="declare it as BIGINT"
            ) from None

    def is_finished(self, offset: Offset) -> bool:
        """Whether `message_count` events have been generated."""
        count = self.options.message_count
        return count is not None and bool(offset[LANE]["counter"] >= count)

    def count(self, start: Offset, end: Offset) -> int:
        """Return the exact number of rows in a range."""
        return int(end[LANE]["counter"] - start[LANE]["counter"])


def _describe(schema: pa.Schema | None) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema or ()) or "no columns"


def _text(period: Fraction | None) -> str | None:
    return None if period is None else str(period)


def _step(position: Mapping[str, Any]) -> Fraction | None:
    """Return the event time between two events in nanoseconds; None if it is the planning time."""
    if position["interval"] is not None:
        return Fraction(position["interval"])
    return None if position["period"] is None else Fraction(position["period"])


def _instant(position: Mapping[str, Any], counter: int) -> int:
    step = _step(position)
    if step is None:
        return int(position["time"])
    return int(position["start_time"] + (counter - position["base"]) * step.numerator // step.denominator)


def _instants(position: Mapping[str, Any], begin: int, rows: int) -> NDArray[np.int64]:
    """Return the exact event times of `rows` numbers from `begin`, computed in integers."""
    step = _step(position)
    if step is None:
        return np.full(rows, position["time"], dtype=np.int64)
    quotient, remainder = divmod(step.numerator, step.denominator)
    behind = (begin - position["base"]) * step.numerator
    first, rest = divmod(behind, step.denominator)
    first += position["start_time"]
    steps: NDArray[np.int64] = np.arange(rows, dtype=np.int64)
    times: NDArray[np.int64] = steps * quotient + first
    if remainder:
        times += (steps * remainder + rest) // step.denominator
    return times


def _check_instant(instant: int) -> None:
    if not -_LAST_INSTANT <= instant <= _LAST_INSTANT:
        raise ConfigurationError(
            "impulse: event time leaves the years 1677 to 2262",
            hint="choose a smaller `event_time_interval`, a smaller `message_count` or another `start_time`",
        )
