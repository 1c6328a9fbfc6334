"""Aggregates rows by key and session: rows with less than a gap between one and the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.keys import hash_key
from headrace.base.watermarks import Watermark
from headrace.base.windows import Instants, Session, clamp
from headrace.model.fragments import Fragment, as_batches, conform, plain_schema
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.aggregation import Aggregation
from headrace.operators.event_time import (
    TIMESTAMP_TYPE,
    LateRows,
    check_late_column,
    in_range,
    instants,
    timestamps,
)
from headrace.operators.grouping import ADD_ROWS, COUNT_ROWS, ROWS, grouped, results_of_parts, results_of_rows
from headrace.operators.window_aggregate import describe, window_array, window_type
from headrace.state.config import TableConfig, timestamp_table_config
from headrace.state.rows import Mask, Positions, group_rows, single

START = "_start"
SESSION = "_session"
_NUMBER = pa.field(SESSION, pa.int64())

GATHERED_ROWS = 1_000_000
GATHERED_BYTES = 64 << 20
FOREVER = timedelta(days=2 * 106_752)
"""Longer than all of event time."""


@dataclass(frozen=True)
class _Sessions:
    """The sessions of spans of time, numbered by key and time."""

    of: Positions
    """The session of each span."""
    member: Positions
    """One span of each session, to take its key from."""
    starts: Instants
    ends: Instants
    """The first and the last event of each session."""

    @classmethod
    def find(
        cls, rows: pa.Table, keys: Sequence[str], *, starts: Instants, ends: Instants, gap: int
    ) -> _Sessions:
        """The sessions of rows that are spans of time; spans less than `gap` apart are merged."""
        count = len(starts)
        by_start = np.argsort(starts, kind="stable")
        groups = np.zeros(count, dtype=np.int64)
        order = by_start
        if keys:
            columns = [single(rows.column(name)).take(pa.array(by_start)) for name in keys]
            within, groups = group_rows(hash_key(rows, keys)[by_start], columns)
            order = by_start[within]
        starts, ends = starts[order], ends[order]
        # The latest end so far in each group, as one running maximum: over the ranks among all ends, offset
        # by group so that groups do not mix.
        by_end = np.argsort(ends, kind="stable")
        rank = np.empty(count, dtype=np.int64)
        rank[by_end] = np.arange(count)
        latest = ends[by_end[np.maximum.accumulate(groups * count + rank) - groups * count]]
        new = np.ones(count, dtype=np.bool_)
        new[1:] = (groups[1:] != groups[:-1]) | (starts[1:] >= _after(latest[:-1], gap))
        numbers = np.cumsum(new) - 1
        of = np.empty(count, dtype=np.int64)
        of[order] = numbers
        firsts = np.flatnonzero(new)
        lasts = np.append(firsts[1:], count)[: len(firsts)] - 1
        return cls(of=of, member=order[firsts], starts=starts[firsts], ends=latest[lasts])

    def __len__(self) -> int:
        return len(self.member)

    def any_of(self, spans: Mask) -> Mask:
        """Which sessions contain one of these spans."""
        matches = np.zeros(len(self), dtype=np.bool_)
        matches[self.of[spans]] = True
        return matches


def _after(times: Instants, gap: int) -> Instants:
    """The instants a gap later, or the last one of all."""
    later: Instants = np.minimum(times, 2**63 - 1 - gap) + gap
    return later


class _Spans:
    """Aggregates rows to spans: runs of rows of a key that are less than the gap apart.

    A span has the keys, the parts if there are any, `_rows`, the first event as `_start` and the last one as
    `_timestamp`. Rows are aggregated to spans before the shuffle, and a session is stored as one span.
    """

    def __init__(self, aggregation: Aggregation, gap: int, *, in_parts: bool) -> None:
        self.gap = Session(gap).gap
        self._keys = aggregation.keys
        rows = plain_schema(aggregation.schema)
        parts: list[pa.Field] = []
        if in_parts:
            items = [*aggregation.partial, COUNT_ROWS]
            self._partial = grouped(aggregation, items, by=[SESSION], schema=rows.append(_NUMBER))
            parts = list(self._partial.output)[1:]
        bounds = [pa.field(START, TIMESTAMP_TYPE), pa.field(TIMESTAMP, TIMESTAMP_TYPE)]
        self.schema = pa.schema([*(rows.field(name) for name in self._keys), *parts, *bounds])
        self._parts = [part.name for part in parts]
        if in_parts:
            items = [*aggregation.merge, ADD_ROWS]
            self._merge = grouped(aggregation, items, by=[SESSION], schema=self.schema.append(_NUMBER))

    def find(self, rows: pa.Table) -> _Sessions:
        """The sessions of spans, or of rows."""
        ends = instants(rows)
        starts = instants(rows, START) if START in rows.schema.names else ends
        return _Sessions.find(rows, self._keys, starts=starts, ends=ends, gap=self.gap)

    def of_rows(self, rows: pa.Table) -> pa.Table:
        """Rows as one span for each session among them."""
        sessions = self.find(rows)
        return self._spans(rows, sessions, by_session(self._partial, rows, sessions.of))

    def merged(self, spans: pa.Table, sessions: _Sessions) -> pa.Table:
        """One span for each session."""
        parts = by_session(self._merge, spans, sessions.of) if self._parts else None
        return self._spans(spans, sessions, parts)

    def _spans(self, rows: pa.Table, sessions: _Sessions, parts: pa.Table | None) -> pa.Table:
        member = pa.array(sessions.member)
        columns = [rows.column(name).take(member) for name in self._keys]
        columns += [] if parts is None else [parts.column(name) for name in self._parts]
        columns += [timestamps(sessions.starts), timestamps(sessions.ends)]
        spans = pa.Table.from_arrays(columns, names=self.schema.names)
        return pa.Table.from_batches(as_batches(spans, self.schema))


def by_session(fragment: Fragment, rows: pa.Table, sessions: Positions) -> pa.Table:
    """The result of a fragment for every session that a row has, in the order of their numbers."""
    results = fragment.run(input=rows.append_column(_NUMBER, pa.array(sessions)))
    order = np.argsort(results.column(SESSION).to_numpy(), kind="stable")
    return results.take(pa.array(order))


class PartialSession(ArrowOperator):
    """Aggregates the rows of one task by key and session, so that few rows have to be shuffled.

    The columns of `output` are the keys, the parts, `_rows` (the number of input rows), the first event as
    `_start` and the last one as `_timestamp`. It has no state.
    """

    def __init__(self, aggregation: Aggregation, gap: int) -> None:
        self.aggregation = aggregation
        self.gap = gap
        self._spans = _Spans(aggregation, gap, in_parts=True)
        self._schema = plain_schema(aggregation.schema)
        self._rows: list[pa.RecordBatch] = []
        self._made: list[pa.Table] = []
        self._gathered = 0
        self._bytes = 0

    @property
    def name(self) -> str:
        return "partial_session"

    @property
    def output(self) -> pa.Schema:
        """The schema of what it emits."""
        return self._spans.schema

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        batch = in_range(batch, Session(self.gap), ctx)
        self._rows.append(conform(batch, self._schema))
        self._gathered += batch.num_rows
        self._bytes += batch.nbytes
        if self._gathered >= GATHERED_ROWS or self._bytes >= GATHERED_BYTES:
            self._reduce()
            if sum(spans.num_rows for spans in self._made) >= GATHERED_ROWS:
                self._emit(collector)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        self._reduce()
        self._emit(collector)

    def _reduce(self) -> None:
        if self._gathered:
            self._made.append(self._spans.of_rows(pa.Table.from_batches(self._rows)))
            self._rows, self._gathered, self._bytes = [], 0, 0

    def _emit(self, collector: Collector) -> None:
        if len(self._made) > 1:
            spans = pa.concat_tables(self._made)
            self._made = [self._spans.merged(spans, self._spans.find(spans))]
        for spans in self._made:
            for batch in spans.to_batches():
                collector.collect(batch)
        self._made = []

    def display(self) -> str:
        return f"partial {describe(Session(self.gap), self.aggregation.keys)}"


class SessionAggregate(ArrowOperator):
    """Aggregates rows by key and session; emits a session once, when no row can join it any more.

    A row joins a session if it is less than `gap` before its first row or after its last one, so it may merge
    two sessions. A session ends `gap` after its last row. It is emitted when the watermark has reached its
    end: the keys, the results, {first row, end} as `window_column` if that has a name, and as `_timestamp`
    the last instant before the end.

    Its input is what `PartialSession` emits if the aggregation can be computed in parts, and otherwise, or
    with a `late_column`, rows of the aggregation's schema; either way shuffled by the keys.

    Rows are late when their session, with all rows of the key by the end of the epoch, had ended at the
    watermark of the previous epoch. So a row behind the watermark still counts if it joins an open session.
    Late rows are counted as `late_rows`, and with a `late_column` emitted as by `WindowAggregate`.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        gap: int,
        *,
        window_column: str | None = None,
        late_column: str | None = None,
    ) -> None:
        check_late_column(late_column, aggregation.schema)
        self.aggregation = aggregation
        self.gap = gap
        self.window_column = window_column
        self.late_column = late_column
        self._in_parts = aggregation.in_parts and late_column is None
        self._spans = _Spans(aggregation, gap, in_parts=self._in_parts)
        self._input = self._spans.schema if self._in_parts else plain_schema(aggregation.schema)
        self._stored = pa.schema([column for column in self._input if column.name != late_column])
        make = results_of_parts if self._in_parts else results_of_rows
        self._results = make(aggregation, by=[SESSION], schema=self._stored.append(_NUMBER))
        self.output = self._output()
        """The schema of what it emits."""
        self._late = LateRows(self.output, late_column)
        self._gathered: list[pa.RecordBatch] = []
        self._watermark: int | None = None

    def _output(self) -> pa.Schema:
        fields = [self._stored.field(name) for name in self.aggregation.keys]
        fields += list(self._results.output)[1:]
        if self.window_column is not None:
            fields.append(pa.field(self.window_column, window_type()))
        if self.late_column is not None:
            fields.append(self._input.field(self.late_column))
        return pa.schema([*fields, pa.field(TIMESTAMP, TIMESTAMP_TYPE)])

    @property
    def name(self) -> str:
        return "session_aggregate"

    def tables(self) -> Sequence[TableConfig]:
        keys = self.aggregation.keys
        # Rows are deleted when their session closes. The last row of an open session is younger than the gap,
        # its first may be of any age.
        gap = timedelta(microseconds=self.gap // 1000 + 1)
        timers = pa.schema([self._spans.schema.field(name) for name in (*keys, TIMESTAMP)])
        tables = [
            timestamp_table_config(
                "sessions", "open sessions", gap, schema=self._spans.schema, key=keys, order_by="key"
            ),
            timestamp_table_config("ends", "when sessions may end", gap, schema=timers, key=keys),
        ]
        if not self._in_parts:
            tables.append(
                timestamp_table_config(
                    "rows",
                    "rows of open sessions",
                    FOREVER,
                    schema=self._stored,
                    key=keys,
                    order_by="key",
                )
            )
        return tables

    def on_start(self, ctx: OperatorContext) -> None:
        self._watermark = ctx.last_present_watermark

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        if not self._in_parts:
            batch = in_range(batch, Session(self.gap), ctx)
        # Which rows are late is known only when all rows of the epoch are here.
        self._gathered.append(conform(batch, self._input))

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        self._settle(watermark, ctx, collector)
        return watermark

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        if self._gathered:  # there was no watermark
            self._settle(None, ctx, collector)

    def _settle(self, watermark: Watermark | None, ctx: OperatorContext, collector: Collector) -> None:
        """Merge new rows with the open sessions of their keys, and emit the sessions that have ended."""
        new = pa.Table.from_batches(self._gathered, self._input)
        self._gathered = []
        due = self._due(watermark, ctx)
        names = [*self.aggregation.keys, TIMESTAMP]
        touched = pa.concat_tables([new.select(names), due.select(names)])
        if not touched.num_rows:
            return
        table = ctx.time_table("sessions")
        stored = table.get(touched)
        spans = pa.concat_tables([self._as_spans(new), stored])
        sessions = self._spans.find(spans)
        late = self._ended(sessions, self._watermark)
        self._take_new(new, late[sessions.of[: new.num_rows]], ctx, collector)
        merged = self._spans.merged(spans, sessions)
        closed = self._ended(sessions, None if watermark is None else watermark.time) & ~late
        is_open = ~closed & ~late
        table.delete_key(stored)
        table.insert(merged.filter(pa.array(is_open)))
        is_new = np.arange(spans.num_rows) < new.num_rows
        self._set_ends(merged.filter(pa.array(is_open & sessions.any_of(is_new))), ctx)
        if closed.any():
            for batch in self._emitted(merged.filter(pa.array(closed)), watermark, ctx):
                collector.collect(batch)

    def _due(self, watermark: Watermark | None, ctx: OperatorContext) -> pa.Table:
        """The keys of sessions that may have ended by `watermark`."""
        ends = ctx.time_table("ends")
        if watermark is None or watermark.time is None:
            return ends.range(0, 0)
        until = None if watermark.is_end else watermark.time + 1
        due = ends.range(None, until)
        if due.num_rows:
            ends.delete_time_range(None, until)
        return due

    def _set_ends(self, spans: pa.Table, ctx: OperatorContext) -> None:
        """Store when these sessions may end."""
        columns = [spans.column(name) for name in self.aggregation.keys]
        columns.append(timestamps(_after(instants(spans), self.gap)))
        ctx.time_table("ends").insert(pa.table(columns, names=[*self.aggregation.keys, TIMESTAMP]))

    def _ended(self, sessions: _Sessions, time: int | None) -> Mask:
        """Which sessions have ended at `time`."""
        if time is None:
            return np.zeros(len(sessions), dtype=np.bool_)
        if Watermark(time).is_end:
            return np.ones(len(sessions), dtype=np.bool_)
        ended: Mask = sessions.ends <= clamp(time - self.gap)
        return ended

    def _as_spans(self, new: pa.Table) -> pa.Table:
        if self._in_parts:
            return new
        stamps = new.column(TIMESTAMP)
        columns = [*(new.column(name) for name in self.aggregation.keys), stamps, stamps]
        return pa.Table.from_arrays(columns, schema=self._spans.schema)

    def _take_new(self, new: pa.Table, late: Mask, ctx: OperatorContext, collector: Collector) -> None:
        """Count or emit late rows, and store the others unless they are parts."""
        if late.any():
            late_rows = new.filter(pa.array(late))
            if self._in_parts:
                ctx.metrics.add("late_rows", late_rows.column(ROWS).to_numpy().sum())
            else:
                for batch in late_rows.to_batches():
                    self._late.take(batch, ctx, collector)
        if not self._in_parts:
            ctx.time_table("rows").insert(new.filter(pa.array(~late)).select(self._stored.names))

    def _emitted(
        self, closed: pa.Table, watermark: Watermark | None, ctx: OperatorContext
    ) -> list[pa.RecordBatch]:
        """The results of these sessions."""
        if self._in_parts:
            results = by_session(self._results, closed, np.arange(closed.num_rows))
        else:
            closed, results = self._take_rows(closed, watermark, ctx)
        starts, ends = instants(closed, START), _after(instants(closed), self.gap)
        values: dict[str, pa.Array | pa.ChunkedArray] = {TIMESTAMP: timestamps(ends - 1)}
        values |= {name: closed.column(name) for name in self.aggregation.keys}
        if self.window_column is not None:
            values[self.window_column] = window_array(starts, ends)
        if self.late_column is not None:
            values[self.late_column] = pa.nulls(len(starts), self.output.field(self.late_column).type)
        columns = [values[name] if name in values else results.column(name) for name in self.output.names]
        order = np.lexsort((hash_key(closed, self.aggregation.keys), ends))
        table = pa.Table.from_arrays(columns, schema=self.output).take(pa.array(order))
        batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        return batches

    def _take_rows(
        self, closed: pa.Table, watermark: Watermark | None, ctx: OperatorContext
    ) -> tuple[pa.Table, pa.Table]:
        """Remove the rows of closed sessions from the table: (the sessions, their results)."""
        table = ctx.time_table("rows")
        rows = table.get(closed)
        rows = rows.take(pa.array(np.argsort(instants(rows), kind="stable")))
        sessions = self._spans.find(rows)
        ended = self._ended(sessions, None if watermark is None else watermark.time)
        closes = ended[sessions.of]
        table.delete_key(closed)
        table.insert(rows.filter(pa.array(~closes)))
        results = by_session(self._results, rows.filter(pa.array(closes)), sessions.of[closes])
        return self._spans.merged(rows, sessions).filter(pa.array(ended)), results

    def display(self) -> str:
        return describe(Session(self.gap), self.aggregation.keys)

    def details(self) -> Mapping[str, str]:
        return {"computes": self.aggregation.describe()}

    def state_signature(self) -> str:
        return f"{self.display()}: {self.aggregation.describe()}"
