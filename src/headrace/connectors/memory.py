"""The `memory` source and sink: rows of the program itself, for tests and small jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import pyarrow as pa
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ConfigurationError
from headrace.base.options import Duration
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.ranges import even_ranges
from headrace.connectors.base import (
    TIMESTAMP_TYPE,
    Connector,
    Delivery,
    RowsSink,
    TimeUnit,
    check_column,
    read_event_time,
    wall_clock,
)
from headrace.model.operator import (
    Collector,
    Finish,
    Limit,
    Offset,
    OperatorContext,
    SourceContext,
    SourceOperator,
    Split,
)

BATCH_ROWS = 65_536


def _read_rows(value: Any) -> Any:
    """Return rows in any of the accepted forms as one table."""
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = list(value)
        try:
            if items and all(isinstance(item, pa.RecordBatch) for item in items):
                return pa.Table.from_batches(items)
            if all(isinstance(item, Mapping) for item in items):
                names = list(dict.fromkeys(name for item in items for name in item))
                return pa.table({name: _column(name, items) for name in names})
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(f"the rows do not fit one schema: {error}") from None
    raise ValueError("give a list of dicts, a pyarrow.Table or a list of pyarrow.RecordBatch")


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    try:
        return pa.array([row.get(name) for row in rows])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"the rows do not fit one schema: column `{name}`: {error}") from None


def _describe_rows(table: pa.Table) -> str:
    return f"{table.num_rows} rows of {', '.join(table.schema.names) or 'nothing'}"


def _read_lanes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): rows for name, rows in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return {str(index): rows for index, rows in enumerate(value)}
    return value


Rows = Annotated[
    pa.Table,
    BeforeValidator(_read_rows),
    PlainSerializer(_describe_rows, return_type=str, when_used="json"),
]


class MemorySource(Connector, SourceOperator):
    """Emits the given rows, in order, once each; then it ends.

    `MemorySource([{"a": 1, "_timestamp": …}, …])`. Every row has its own position, so an epoch may end after
    any row, and a pipeline resumes with the next one if the program passes the same rows again. Each lane is
    a separate stream with its own order; the tasks of an epoch share its rows. Event time is the column
    `_timestamp`, or `timestamp_column`, or the time when the epoch was planned.

    Args:
        rows: the rows of one lane, or an `Options` object.
        values: the options by their names.

    Raises:
        ConfigurationError: an option is wrong, or the rows do not fit one schema.

    >>> import headrace as hr
    >>> hr.MemorySource([{"shop": "mill", "amount": 3}, {"shop": "weir", "amount": 5}])
    MemorySource(rows='2 rows of shop, amount')
    """

    deliveries = (
        Delivery("exactly once", "the rows are part of the pipeline, and the position is in the checkpoint"),
    )

    class Options(DeclaredOptions):
        """The options of the memory source: `rows` or `lanes`."""

        model_config = ConfigDict(arbitrary_types_allowed=True)

        rows: Rows | None = Field(
            None, description="The rows of one lane: dicts, a pyarrow Table or record batches."
        )
        lanes: Annotated[dict[str, Rows], BeforeValidator(_read_lanes)] | None = Field(
            None, description="Several independent lanes: a list of `rows`, or lane name → `rows`."
        )
        timestamp_column: str | None = Field(
            None, description="The column that holds the event time; by default `_timestamp`."
        )
        timestamp_unit: TimeUnit = Field(
            "ns", description="The unit of event times that are numbers: s, ms, us or ns."
        )
        idle_timeout: Duration | None = Field(
            None, description="After this long without rows a lane no longer holds the watermark back."
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if (self.rows is None) == (self.lanes is None):
                raise ValueError("give either rows or lanes")
            return self

    options: Options

    def __init__(self, rows: Any = None, /, **values: Any) -> None:
        if rows is None or isinstance(rows, DeclaredOptions):
            super().__init__(rows, **values)
        else:
            super().__init__(rows=rows, **values)
        self.idle_timeout = self.options.idle_timeout
        lanes = {"0": self.options.rows} if self.options.lanes is None else self.options.lanes
        self._lanes = self._prepare({name: table for name, table in lanes.items() if table is not None})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    def _prepare(self, lanes: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Return the lanes with one schema, and the event time in `_timestamp` if there is any."""
        prepared = {name: self._stamp(table) for name, table in lanes.items()}
        if len(prepared) > 1:
            try:
                schema = pa.unify_schemas(
                    [table.schema for table in prepared.values()], promote_options="permissive"
                )
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise ConfigurationError(f"MemorySource: the lanes do not fit one schema: {error}") from None
            prepared = {name: _conform(table, schema) for name, table in prepared.items()}
        return prepared

    def _stamp(self, table: pa.Table) -> pa.Table:
        source = self.options.timestamp_column or TIMESTAMP
        if table.num_columns and self.options.timestamp_column is not None:
            check_column(source, table.schema.names, what="MemorySource, option `timestamp_column`")
        if source not in table.schema.names:
            return table
        times = read_event_time(table.column(source), source, unit=self.options.timestamp_unit)
        field = pa.field(TIMESTAMP, TIMESTAMP_TYPE)
        if TIMESTAMP in table.schema.names:
            return table.set_column(table.schema.get_field_index(TIMESTAMP), field, times)
        return table.append_column(field, times)

    def initial_offset(self, *, time: float) -> Offset:
        """Return the first row of every lane."""
        return {lane: {"row": 0, "time": wall_clock(time)} for lane in self._lanes}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the position after `limit.rows` more rows, shared evenly by the lanes with rows left."""
        left = {lane: self._lanes[lane].num_rows - start[lane]["row"] for lane in self._lanes}
        open_lanes = sorted((lane for lane in left if left[lane] > 0), key=lambda lane: start[lane]["row"])
        budget, end, now = limit.rows, dict(start), wall_clock(limit.time)
        # The shortest remainders first: what they leave over is shared by the others.
        by_need = sorted(open_lanes, key=lambda lane: left[lane])
        take: dict[str, int] = {}
        for served, lane in enumerate(by_need):
            take[lane] = min(left[lane], budget // (len(by_need) - served))
            budget -= take[lane]
        for lane in open_lanes[: max(budget, 0)]:
            take[lane] += take[lane] < left[lane]
        for lane, rows in take.items():
            if rows:
                position = start[lane]
                end[lane] = {"row": position["row"] + rows, "time": max(now, position["time"])}
        return end if end != start else start

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """The rows are all there."""
        return start

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many rows of each lane are left."""
        return {lane: rows.num_rows - offset[lane]["row"] for lane, rows in self._lanes.items()}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return contiguous splits of the new rows of each lane, about `parallelism` in all."""
        counts = {lane: end[lane]["row"] - start[lane]["row"] for lane in self._lanes}
        total, final, splits = sum(counts.values()), self.is_finished(end), []
        for lane, rows in counts.items():
            if not rows:
                continue
            shares = min(rows, max(1, round(parallelism * rows / total)))
            common = {"time": end[lane]["time"], "final": final}
            for low, high in even_ranges(start[lane]["row"], end[lane]["row"], shares):
                splits.append(Split(lane, {"row": low, "end": high, **common}))
        return splits

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Emit the rows of one split."""
        detail = ctx.split.detail
        rows = self._lanes[ctx.split.lane].slice(detail["row"], detail["end"] - detail["row"])
        if TIMESTAMP not in rows.schema.names:
            times = pa.repeat(pa.scalar(detail["time"], pa.int64()), rows.num_rows).view(TIMESTAMP_TYPE)
            rows = rows.append_column(pa.field(TIMESTAMP, TIMESTAMP_TYPE), times)
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            collector.collect(batch)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def is_finished(self, offset: Offset) -> bool:
        """Whether every lane is at its end."""
        return all(offset[lane]["row"] >= rows.num_rows for lane, rows in self._lanes.items())

    def count(self, start: Offset, end: Offset) -> int:
        """Return the exact number of rows in a range."""
        return sum(end[lane]["row"] - start[lane]["row"] for lane in self._lanes)


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


class MemorySink(RowsSink):
    """Collects the committed rows in the driver, where `collected(job_id, name)` returns them.

    Rows of an epoch appear when the epoch is committed, and once, however often the commit is retried. It
    runs at any parallelism; rows are in the order of epochs, then of subtasks. After a crash only the rows
    committed by the new process are available: they are in memory, not in the state.

    Args:
        name: the name of the collected rows, or an `Options` object.

    Raises:
        ConfigurationError: an option is wrong.

    >>> import headrace as hr, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> pipeline = hr.Pipeline()
    >>> pipeline.source("memory", rows=[{"amount": 3}]).sink(hr.MemorySink("rows"))
    Stream(memory_1: amount BIGINT)
    >>> run_in_process(pipeline, tempfile.mkdtemp()).rows["rows"].column("amount").to_pylist()
    [3]
    """

    accepts_updates = True

    deliveries = (
        Delivery("exactly once", "an epoch is added by its commit once; rows last as long as the process"),
    )

    class Options(DeclaredOptions):
        """The options of the memory sink."""

        name: str = Field("memory", min_length=1, description="The name of the collected rows.")

    options: Options

    def __init__(self, name: str | DeclaredOptions | None = None, /, **values: Any) -> None:
        if isinstance(name, str):
            super().__init__(name=name, **values)
        else:
            super().__init__(name, **values)

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Store the rows of the epoch in this process, in place of an earlier commit of it."""
        batches, _ = self.staged_rows(data, ctx)
        ctx.check_generation()
        store = _COLLECTED.setdefault(ctx.task_info.job_id, {}).setdefault(self.options.name, {})
        store[epoch, ctx.task_info.operator_id] = batches


_COLLECTED: dict[str, dict[str, dict[tuple[int, str], list[pa.RecordBatch]]]] = {}


def collected(job_id: str, name: str) -> pa.Table:
    """Return the rows that the memory sink `name` of a job committed in this process; empty if none."""
    return _table(_COLLECTED.get(job_id, {}).get(name, {}))


def take_collected(job_id: str) -> dict[str, pa.Table]:
    """Return and remove the rows of every memory sink of a job, by the sink's name."""
    return {name: _table(epochs) for name, epochs in _COLLECTED.pop(job_id, {}).items()}


def _table(epochs: Mapping[tuple[int, str], Sequence[pa.RecordBatch]]) -> pa.Table:
    tables = [pa.Table.from_batches([batch]) for _, batches in sorted(epochs.items()) for batch in batches]
    if not tables:
        return pa.table({})
    return pa.concat_tables(tables, promote_options="permissive")
