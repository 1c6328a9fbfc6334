"""Aggregates rows by key and window of event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import format_duration
from headrace.base.keys import hash_value
from headrace.base.watermarks import Watermark
from headrace.base.windows import (
    AlignedWindow,
    Cumulate,
    Hop,
    Instant,
    Instants,
    Session,
    Window,
    align,
    clamp,
)
from headrace.model.fragments import Rows, as_batches, conform, plain_schema
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
from headrace.state.config import TableConfig, timestamp_table_config

PANE = "_pane"
START = "_window_start"

GATHERED_ROWS = 262_144
GATHERED_BYTES = 64 << 20
PART_ROWS = 1_000_000
COPIED_ROWS = 4_000_000
"""How many rows, copied into each of their windows, are aggregated at a time."""
_FEW = 2**16
MANY_ROWS = 100_000
"""A table with fewer parts is not worth merging before its windows close."""


def window_type() -> pa.DataType:
    """The type of a window as a column."""
    return pa.struct([("start", TIMESTAMP_TYPE), ("end", TIMESTAMP_TYPE)])


def window_array(starts: Instants, ends: Instants) -> pa.Array:
    """Windows as a column."""
    return pa.StructArray.from_arrays([timestamps(starts), timestamps(ends)], fields=list(window_type()))


class _Parts:
    """Buffers rows and aggregates them to parts, one for each group and pane."""

    def __init__(self, aggregation: Aggregation, window: AlignedWindow) -> None:
        self._pane = window.pane
        self._schema = plain_schema(aggregation.schema)
        keys = aggregation.keys
        self._partial = grouped(
            aggregation,
            [*aggregation.partial, COUNT_ROWS],
            by=[*keys, PANE],
            schema=self._schema.append(pa.field(PANE, TIMESTAMP_TYPE)),
        )
        self.schema = self._partial.output.set(len(keys), pa.field(TIMESTAMP, TIMESTAMP_TYPE))
        items = [*aggregation.merge, ADD_ROWS]
        self._merge = grouped(aggregation, items, by=[*keys, TIMESTAMP], schema=self.schema)
        self._rows: list[pa.RecordBatch] = []
        self._parts: list[pa.RecordBatch] = []
        self._gathered = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the aggregation's schema."""
        self._rows.append(conform(batch, self._schema))
        self._gathered += batch.num_rows
        self._bytes += batch.nbytes
        if self._gathered >= GATHERED_ROWS or self._bytes >= GATHERED_BYTES:
            self._reduce()

    @property
    def full(self) -> bool:
        """Whether there are so many parts that they should be emitted."""
        return bool(sum(batch.num_rows for batch in self._parts) >= PART_ROWS)

    def take(self) -> list[pa.RecordBatch]:
        """The parts of all rows so far; clears the buffer."""
        self._reduce()
        parts, self._parts = self._parts, []
        return self.merged(parts) if len(parts) > 1 else parts

    def merged(self, parts: Rows) -> list[pa.RecordBatch]:
        """These parts merged, one for each group and pane."""
        return as_batches(self._merge.run(input=parts), self.schema)

    def _reduce(self) -> None:
        if not self._gathered:
            return
        rows = [
            batch.append_column(PANE, timestamps(align(instants(batch), self._pane))) for batch in self._rows
        ]
        parts = self._partial.run(input=rows)
        self._parts += as_batches(parts.rename_columns(self.schema.names), self.schema)
        self._rows, self._gathered, self._bytes = [], 0, 0


class PartialAggregate(ArrowOperator):
    """Aggregates the rows of one task by key and pane, so that few rows have to be shuffled.

    The columns of `output` are the keys, the parts, `_rows` (the number of input rows), and as `_timestamp`
    the start of the pane. It has no state.
    """

    def __init__(self, aggregation: Aggregation, window: AlignedWindow) -> None:
        self.aggregation = aggregation
        self.window = window
        self._parts = _Parts(aggregation, window)

    @property
    def name(self) -> str:
        return "partial_aggregate"

    @property
    def output(self) -> pa.Schema:
        """The schema of what it emits."""
        return self._parts.schema

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        self._parts.add(in_range(batch, self.window, ctx))
        if self._parts.full:
            self._emit(collector)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        self._emit(collector)

    def _emit(self, collector: Collector) -> None:
        for batch in self._parts.take():
            collector.collect(batch)

    def display(self) -> str:
        return f"partial {describe(self.window, self.aggregation.keys)}"


class WindowAggregate(ArrowOperator):
    """Aggregates rows by key and window; emits a window once, when the watermark has reached its end.

    Its input is what `PartialAggregate` emits if the aggregation can be computed in parts, and otherwise, or
    with a `late_column`, rows of the aggregation's schema; either way shuffled by the keys. It emits the
    keys, the results, the window as `window_column` {start, end} if that has a name, and as `_timestamp`
    the last instant of the window. A window without rows is not emitted.

    A row is late when every window it belongs to had ended at the watermark of the previous epoch. Late rows
    are counted as `late_rows`. With a `late_column`, which rows carry, they are also emitted: that column and
    `_timestamp` are set, all others are null; in the results it is null.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        window: AlignedWindow,
        *,
        window_column: str | None = None,
        late_column: str | None = None,
    ) -> None:
        check_late_column(late_column, aggregation.schema)
        self.aggregation = aggregation
        self.window = window
        self.window_column = window_column
        self.late_column = late_column
        self._parts = _Parts(aggregation, window) if aggregation.in_parts else None
        self._takes_parts = aggregation.in_parts and late_column is None
        self._input = self._parts.schema if self._takes_parts and self._parts else aggregation.schema
        self._input = plain_schema(self._input)
        self._stored = self._parts.schema if self._parts else self._without_late_column()
        started = self._stored.append(pa.field(START, pa.int64()))
        make = results_of_parts if self._parts else results_of_rows
        self._results = make(aggregation, by=[*aggregation.keys, START], schema=started)
        self.output = self._output()
        """The schema of what it emits."""
        self._late = LateRows(self.output, late_column)
        self._pending: list[pa.RecordBatch] = []
        self._inserted = 0
        self._watermark: int | None = None

    def _without_late_column(self) -> pa.Schema:
        return pa.schema([column for column in self._input if column.name != self.late_column])

    def _output(self) -> pa.Schema:
        fields = [column for column in self._results.output if column.name != START]
        if self.window_column is not None:
            fields.append(pa.field(self.window_column, window_type()))
        if self.late_column is not None:
            fields.append(self._input.field(self.late_column))
        return pa.schema([*fields, pa.field(TIMESTAMP, TIMESTAMP_TYPE)])

    @property
    def name(self) -> str:
        return "window_aggregate"

    def tables(self) -> Sequence[TableConfig]:
        # Every row is deleted with its last window. Rows of open windows are younger than the retention.
        width = timedelta(microseconds=self.window.width // 1000 + 1)
        return [
            timestamp_table_config(
                "windows", "rows of open windows", width, schema=self._stored, key=self.aggregation.route
            )
        ]

    def on_start(self, ctx: OperatorContext) -> None:
        self._watermark = ctx.last_present_watermark

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        if not self._takes_parts:
            batch = in_range(batch, self.window, ctx)
        batch = self._on_time(conform(batch, self._input), ctx, collector)
        if self._parts is not None and not self._takes_parts:
            self._parts.add(batch)
            self._pending += self._parts.take() if self._parts.full else []
        elif batch.num_rows:
            self._pending.append(batch.select(self._stored.names))
        if sum(batch.num_rows for batch in self._pending) >= GATHERED_ROWS:
            self._store(ctx)

    def _on_time(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> pa.RecordBatch:
        if self._watermark is None:
            return batch
        late = self.window.last_of(instants(batch)) < self.window.first_open(self._watermark)
        if not late.any():
            return batch
        late_rows = batch.filter(pa.array(late))
        if self._takes_parts:
            ctx.metrics.add("late_rows", late_rows.column(ROWS).to_numpy().sum())
        else:
            self._late.take(late_rows, ctx, collector)
        return batch.filter(pa.array(~late))

    def _store(self, ctx: OperatorContext) -> None:
        if self._parts is not None and not self._takes_parts:
            self._pending += self._parts.take()
        rows, self._pending = self._pending, []
        if not rows:
            return
        if self._parts is not None and len(rows) > 1:
            rows = self._parts.merged(rows)
        table = pa.Table.from_batches(rows, self._stored)
        ctx.time_table("windows").insert(table)
        self._inserted += table.num_rows

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        self._store(ctx)
        if watermark.time is not None:
            for batch in self._close(watermark, ctx):
                collector.collect(batch)
        return watermark

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        self._store(ctx)
        self._merge_open(ctx)

    def _close(self, watermark: Watermark, ctx: OperatorContext) -> Iterator[pa.RecordBatch]:
        """The results of the windows that end between the last watermark and this one; deletes their rows."""
        if watermark.time is None:
            return
        table, window = ctx.time_table("windows"), self.window
        end = None if watermark.is_end else window.last_closed(watermark.time) + window.width
        rows = table.range(None, end)
        if not rows.num_rows:
            return
        if self._parts is not None and window.overlaps:
            merged = pa.Table.from_batches(self._parts.merged(rows))
            rows = merged.take(pa.array(np.argsort(instants(merged), kind="stable")))
        times = instants(rows)
        first, last = int(window.first_of(times[:1])[0]), int(window.last_of(times[-1:])[0])
        if self._watermark is not None:
            first = max(first, window.first_open(self._watermark))
        if not watermark.is_end:
            last = min(last, window.last_closed(watermark.time))
        yield from self._windows(rows.combine_chunks(), times, first, last)
        table.delete_time_range(None, None if watermark.is_end else window.first_open(watermark.time))

    def _windows(self, rows: pa.Table, times: Instants, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """The results of the windows that start from `first` to `last`, of rows in order of time."""
        window = self.window
        low, high = np.searchsorted(times, [first, clamp(last + window.width)])
        if first > last or low == high:
            return
        rows, times = rows.slice(low, high - low), times[low:high]
        firsts = np.maximum(window.first_of(times), first)
        counts = np.maximum((np.minimum(window.last_of(times), last) - firsts) // window.slide + 1, 0)
        total = int(counts.sum())
        if total > COPIED_ROWS and first < last:
            middle = align(first + (last - first) // 2, window.slide)
            yield from self._windows(rows, times, first, middle)
            yield from self._windows(rows, times, middle + window.slide, last)
            return
        starts = firsts
        if (counts != 1).any():
            rows = rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
            before = np.cumsum(counts) - counts
            position = np.arange(total) - np.repeat(before, counts)
            starts = np.repeat(firsts, counts) + position * window.slide
        yield from self._finish(rows.append_column(START, pa.array(starts)))

    def _finish(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        results = self._results.run(input=rows)
        starts = instants(results, START)
        if (np.diff(starts) < 0).any():
            numbers = starts // self.window.slide
            least = int(numbers.min())
            if int(numbers.max()) - least < _FEW:
                numbers = (numbers - least).astype(np.uint16)  # NumPy sorts these in linear time
            order = np.argsort(numbers, kind="stable")
            results, starts = results.take(pa.array(order)), starts[order]
        ends = starts + self.window.width
        values: dict[str, pa.Array | pa.ChunkedArray] = {TIMESTAMP: timestamps(ends - 1)}
        if self.window_column is not None:
            values[self.window_column] = window_array(self.window.begins(starts), ends)
        if self.late_column is not None:
            values[self.late_column] = pa.nulls(len(starts), self.output.field(self.late_column).type)
        columns = [values[name] if name in values else results.column(name) for name in self.output.names]
        yield from pa.Table.from_arrays(columns, schema=self.output).combine_chunks().to_batches()

    def _merge_open(self, ctx: OperatorContext) -> None:
        """Now and then merge the stored parts of each group and pane, since a long window collects many.

        A merge costs as much as the table holds. Done at random, once for every doubling of the table, it
        costs no more than the inserts did. The random choice is a hash of the epoch: a replay does the same.
        """
        table = ctx.time_table("windows")
        row_count = table.approximate_rows
        if self._parts is None or not self._inserted or row_count < MANY_ROWS:
            return
        if hash_value(ctx.task_info.epoch, ctx.task_info.subtask) % max(row_count // self._inserted, 8) != 0:
            return
        rows = table.all()
        merged = self._parts.merged(rows)
        if 2 * sum(batch.num_rows for batch in merged) <= rows.num_rows:
            table.delete_time_range(None, None)
            table.insert(pa.Table.from_batches(merged))

    def display(self) -> str:
        return describe(self.window, self.aggregation.keys)

    def details(self) -> Mapping[str, str]:
        return {"computes": self.aggregation.describe()}

    def state_signature(self) -> str:
        return f"{self.display()}: {self.aggregation.describe()}"


def describe(window: Window, keys: Sequence[str]) -> str:
    """A window and its keys, for plans and state signatures."""
    by = f" by ({', '.join(keys)})" if keys else ""
    if isinstance(window, Instant):
        return f"instant{by}"
    if isinstance(window, Session):
        return f"session({_format(window.gap)}){by}"
    if isinstance(window, Hop | Cumulate):
        name = "hop" if isinstance(window, Hop) else "cumulate"
        return f"{name}({_format(window.slide)}, {_format(window.width)}){by}"
    return f"tumble({_format(window.width)}){by}"


def _format(duration: int) -> str:
    """A duration in nanoseconds as a string."""
    return format_duration(timedelta(microseconds=duration / 1000))
