"""Calls an asynchronous user-defined function, with many calls in flight."""

from __future__ import annotations

import itertools
import time as clock
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import format_duration
from headrace.base.errors import ExternalError, HeadraceError, PlanError, counted, suggest
from headrace.base.watermarks import Watermark
from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.call_errors import call_error, format_arguments, to_arrow, user_lines
from headrace.model.fragments import plain_schema, plain_type
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.pending_calls import PendingCalls, PendingRow
from headrace.operators.table_function import argument_columns
from headrace.state.config import TableConfig, timestamp_table_config

PENDING = "pending"
_EVENT = f"{TIMESTAMP}:event"
_ATTEMPTS = f"{TIMESTAMP}:attempts"
_DONE = f"{TIMESTAMP}:done"
_INSTANT = pa.timestamp("ns")


class AsyncCall(ArrowOperator):
    """Adds the results of an asynchronous function to each row.

    `calls` maps the column of a result to the columns that the function is called with; those in `drop` are
    not forwarded. `schema` is that of the input. Rows are emitted as their calls complete, or in their order
    if the function is `ordered`. At most `max_in_flight` rows of a subtask are pending; when that many are,
    the input waits.

    At its end an epoch waits for its calls, but not longer than `timeout`. Rows whose calls are to be retried
    then are retried in the next epoch. These pending rows are part of the checkpoint, with the number of
    their attempts, and hold the watermark back; so each row is emitted exactly once. Calls may be made more
    than once: after a failure, when an epoch is repeated, and after a resume. At the end of the input all
    calls are awaited. On resume, at any parallelism, the pending rows are called first.
    """

    outputs = ()

    def __init__(
        self,
        function: AsyncFunction,
        calls: Mapping[str, Sequence[str]],
        *,
        schema: pa.Schema,
        drop: Sequence[str] = (),
    ) -> None:
        self.function = function
        self.calls = {output: tuple(arguments) for output, arguments in calls.items()}
        self.schema = plain_schema(schema)
        self.drop = tuple(drop)
        self._check()
        options = function.options
        self.tick_interval = max(options.timeout, timedelta(seconds=1)) if options.retries else None
        self._returns = plain_type(function.returns)
        self._waiting: dict[PendingRow, None] = {}
        """Rows that were not emitted yet, in the order of arrival."""
        self._ready: list[PendingRow] = []
        self._running: PendingCalls | None = None
        self._settled = False
        self._stamps = itertools.count()

    def _check(self) -> None:
        for output, arguments in self.calls.items():
            if output in self.schema.names:
                raise PlanError(f"there is a column `{output}` already")
            if len(arguments) != len(self.function.arguments):
                count = counted(len(self.function.arguments), "argument")
                raise PlanError(f"`{self.function.name}` takes {count}, not {len(arguments)}")
            for name in arguments:
                if name not in self.schema.names:
                    raise PlanError(f"there is no column `{name}`", hint=suggest(name, self.schema.names))

    @property
    def name(self) -> str:
        return "async_call"

    def tables(self) -> Sequence[TableConfig]:
        columns = [column.with_name(_EVENT) if column.name == TIMESTAMP else column for column in self.schema]
        results = [pa.field(output, self._returns) for output in self.calls]
        own = [(TIMESTAMP, _INSTANT), (_ATTEMPTS, pa.int64()), (_DONE, pa.bool_())]
        schema = pa.schema([*columns, *results, *own])
        config = timestamp_table_config(
            PENDING, "the rows whose calls are to be made again", "1s", schema=schema
        )
        return [replace(config, retention=None)]  # rows stay until their calls complete

    # ------------------------------------------------------------------------------------- rows come

    def on_start(self, ctx: OperatorContext) -> None:
        self._running = PendingCalls(self.function)
        self._stamps = itertools.count(int(ctx.time * 1e9))
        table = ctx.time_table(PENDING)
        for batch in table.all().combine_chunks().to_batches():
            self._admit(self._restored(batch))
        if self._waiting:
            table.delete_time_range(None, None)

    def _restored(self, saved: pa.RecordBatch) -> list[PendingRow]:
        names = [_EVENT if name == TIMESTAMP else name for name in self.schema.names]
        batch = saved.select(names).rename_columns(self.schema.names)
        stamps = saved.column(TIMESTAMP).cast(pa.int64()).to_pylist()
        rows = self._rows_of(batch, stamps)
        results = zip(*[saved.column(output).to_pylist() for output in self.calls], strict=True)
        for row, attempts, done, row_results in zip(
            rows, saved.column(_ATTEMPTS).to_pylist(), saved.column(_DONE).to_pylist(), results, strict=True
        ):
            row.attempts, row.done = attempts, done
            row.results = list(row_results)
        return rows

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        rows = self._rows_of(batch, list(itertools.islice(self._stamps, batch.num_rows)))
        most, begun = self.function.options.max_in_flight, 0
        while begun < len(rows):
            room = most - len(self._waiting)
            self._admit(rows[begun : begun + room])
            begun += room
            while begun < len(rows) and len(self._waiting) >= most:
                self._take(ctx)
                self._take_ended(ctx)
        self._take_ended(ctx)
        self._leave(collector)

    @property
    def _calls(self) -> PendingCalls:
        assert self._running is not None, "calls are made between on_start and handle_checkpoint"
        return self._running

    def _rows_of(self, batch: pa.RecordBatch, stamps: Sequence[int]) -> list[PendingRow]:
        function = self.function
        arguments: list[list[tuple[Any, ...] | None]] = []
        for names in self.calls.values():
            columns = argument_columns(batch, names, function.arguments)
            complete = function.complete(columns)
            called = itertools.repeat(True) if complete is None else complete.to_pylist()
            values = zip(*function.values(columns), strict=True)
            arguments.append(
                [row if is_called else None for row, is_called in zip(values, called, strict=False)]
            )
        return [
            PendingRow(batch, index, stamp, list(row_arguments))
            for index, (stamp, row_arguments) in enumerate(
                zip(stamps, zip(*arguments, strict=True), strict=True)
            )
        ]

    def _admit(self, rows: Iterable[PendingRow]) -> None:
        """Add rows to the pending ones, and start their calls."""
        started = []
        for row in rows:
            self._waiting[row] = None
            if all(call is None for call in row.arguments):
                row.done, row.results = True, [None] * len(row.arguments)
            if row.done:
                self._finish(row)
            else:
                started.append(row)
        self._calls.start(started)

    def _finish(self, row: PendingRow) -> None:
        if not self.function.options.ordered:
            del self._waiting[row]
            self._ready.append(row)
            return
        while self._waiting and (first := next(iter(self._waiting))).done:
            del self._waiting[first]
            self._ready.append(first)

    def _take(self, ctx: OperatorContext, timeout: float | None = None) -> bool:
        """Take a row whose calls have completed; whether there was one within `timeout` seconds."""
        row = self._calls.ended(timeout)
        if row is not None:
            self._took(row, ctx)
        return row is not None

    def _take_ended(self, ctx: OperatorContext) -> None:
        """Take all rows whose calls have completed, without waiting."""
        while self._calls.has_ended():
            self._take(ctx)

    def _took(self, row: PendingRow, ctx: OperatorContext) -> None:
        row.done = True
        ctx.metrics.add("calls", sum(call is not None for call in row.arguments))
        if row.failure is not None:
            error = self._failed(row)
            if self.function.options.on_error == "fail":
                self._calls.cancel()
                raise error
            ctx.metrics.add("failed_calls")
            ctx.report_error(error.message)
        self._finish(row)

    def _failed(self, row: PendingRow) -> HeadraceError:
        assert row.failure is not None
        index, error, too_long = row.failure
        function = self.function
        inputs = f"the row {format_arguments(function.parameters, row.arguments[index] or ())}"
        times = f", called {row.attempts} times" if row.attempts > 1 else ""
        if too_long:
            limit = format_duration(function.options.timeout)
            return ExternalError(f"udf `{function.name}` did not answer within {limit} for {inputs}{times}")
        if isinstance(error, HeadraceError):
            return error
        if isinstance(error, OSError):
            external_error = ExternalError(
                f"udf `{function.name}` raised {type(error).__name__}: {error} for {inputs}{times}"
            )
            external_error.traceback_text = user_lines(error, function.sources)
            return external_error
        return call_error(function.name, error, f"{inputs}{times}", function.sources)

    # ------------------------------------------------------------------------------------- rows leave

    def _leave(self, collector: Collector) -> None:
        """Emit the rows that are ready."""
        ready, self._ready = self._ready, []
        for rows in _by_batch(ready, ordered=self.function.options.ordered):
            batch = rows[0].batch.drop_columns(list(self.drop))
            forwarded = batch.take(pa.array([row.index for row in rows]))
            names = [*forwarded.schema.names, *self.calls]
            collector.collect(pa.RecordBatch.from_arrays([*forwarded.columns, *self._results(rows)], names))

    def _results(self, rows: Sequence[PendingRow]) -> list[pa.Array]:
        function = self.function

        def inputs_at(at: int, index: int) -> str:
            return f"the row {format_arguments(function.parameters, rows[at].arguments[index] or ())}"

        return [
            to_arrow(
                function.name,
                [row.results[index] if row.results else None for row in rows],
                self._returns,
                lambda at, index=index: inputs_at(at, index),  # type: ignore[misc]
                function.dump,
            )
            for index in range(len(self.calls))
        ]

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        self._settle(ctx, collector, final=watermark.is_end)
        times = [row.batch.column(TIMESTAMP)[row.index].cast(pa.int64()).as_py() for row in self._waiting]
        event_times = [time for time in times if time is not None]
        if watermark.time is None or not event_times:
            return None if watermark.time is None and self._waiting else watermark
        return Watermark(min(watermark.time, *event_times))

    def _settle(self, ctx: OperatorContext, collector: Collector, *, final: bool) -> None:
        """Wait for the calls of this epoch: for all if `final`, otherwise at most `timeout`."""
        deadline = clock.monotonic() + self.function.options.timeout.total_seconds()
        while self._calls.outstanding:
            left = None if final else deadline - clock.monotonic()
            if (left is not None and left <= 0) or not self._take(ctx, left):
                for row in self._calls.cancel():
                    self._took(row, ctx)
                break
        self._leave(collector)
        self._settled = True

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        if not self._settled:
            self._settle(ctx, collector, final=False)
        if self._calls.retried:
            ctx.metrics.add("retried_calls", self._calls.retried)
        if self._waiting:
            ctx.metrics.add("pending_rows", len(self._waiting))
            self._save(list(self._waiting), ctx)

    def _save(self, rows: Sequence[PendingRow], ctx: OperatorContext) -> None:
        """Save the pending rows."""
        table = ctx.time_table(PENDING)
        for some in _by_batch(rows, ordered=True):
            pending = some[0].batch.take(pa.array([row.index for row in some]))
            names = [_EVENT if name == TIMESTAMP else name for name in pending.schema.names]
            own = [
                pa.array([row.stamp for row in some]).cast(_INSTANT),
                pa.array([row.attempts for row in some], pa.int64()),
                pa.array([row.done for row in some]),
            ]
            columns = [*pending.columns, *self._results(some), *own]
            names = [*names, *self.calls, TIMESTAMP, _ATTEMPTS, _DONE]
            table.insert(pa.RecordBatch.from_arrays(columns, names))

    def display(self) -> str:
        order = "in order" if self.function.options.ordered else "in any order"
        return f"calls of {self.function.name}, {order}"

    def details(self) -> Mapping[str, str]:
        options = self.function.options
        return {
            "timeout": format_duration(options.timeout),
            "max_in_flight": str(options.max_in_flight),
            "retries": str(options.retries),
            "on_error": options.on_error,
        }


def _by_batch(rows: Sequence[PendingRow], *, ordered: bool) -> list[list[PendingRow]]:
    """Groups rows by their input batch; `ordered` rows stay in their order."""
    if not ordered:
        rows = sorted(rows, key=lambda row: row.stamp)
    return [list(group) for _, group in itertools.groupby(rows, key=lambda row: id(row.batch))]
