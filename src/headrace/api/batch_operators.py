"""The operators behind methods of a stream that take a Python function or a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import OperatorError, suggest
from headrace.model.fragments import plain_schema
from headrace.model.operator import ArrowOperator, Collector, OperatorContext

Batches: TypeAlias = pa.RecordBatch | pa.Table


def function_name(function: object, otherwise: str) -> str:
    """What a function is called, for ids and messages."""
    name = getattr(function, "__name__", otherwise)
    return otherwise if name == "<lambda>" else str(name)


def conform(
    batch: pa.RecordBatch, columns: pa.Schema, rows: str, ctx: OperatorContext, *, updating: bool
) -> pa.RecordBatch:
    """The declared columns of a batch in their types, with its event time and, of updates, `_retract`."""
    if RETRACT in batch.schema.names and not updating:
        raise _refused(
            f"{rows} have a column `{RETRACT}`, which the `schema` does not declare",
            f"if rows are taken back, declare it: `schema={{…, '{RETRACT}': 'BOOLEAN'}}`",
            ctx,
        )
    hidden = [TIMESTAMP, *([RETRACT] if updating else [])]
    for name in [*columns.names, *hidden]:
        if name not in batch.schema.names:
            raise _missing(name, batch.schema.names, rows, ctx)
    arrays = [_cast(batch.column(field.name), field, rows, ctx) for field in columns]
    schema = pa.schema([*columns, *(batch.schema.field(name) for name in hidden)])
    return pa.record_batch([*arrays, *(batch.column(name) for name in hidden)], schema=schema)


def _missing(name: str, present: Iterable[str], rows: str, ctx: OperatorContext) -> OperatorError:
    if name == RETRACT:
        message = f"{rows} have no column `{RETRACT}`, and the stream is updating"
        hint: str | None = f"return `{RETRACT}` with the rows: true where a row is taken back"
    elif name == TIMESTAMP:
        message = f"{rows} have no column `{TIMESTAMP}`"
        hint = "return the event times with the rows"
    else:
        message = f"{rows} have no column `{name}`, which its `schema` declares"
        visible = [column for column in present if column not in (TIMESTAMP, RETRACT)]
        hint = suggest(name, visible, listing="their columns are")
    return _refused(message, hint, ctx)


def _cast(values: pa.Array, field: pa.Field, rows: str, ctx: OperatorContext) -> pa.Array:
    if values.type.equals(field.type):
        return values
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _refused(
            f"{rows} do not fit its `schema`: "
            f"column `{field.name}` is {values.type}, not {field.type}: {error}",
            "convert the column, or change its type in the schema",
            ctx,
        ) from None


def _refused(message: str, hint: str | None, ctx: OperatorContext) -> OperatorError:
    task = ctx.task_info
    return OperatorError(
        message,
        operator_id=task.operator_id,
        subtask=task.subtask,
        epoch=task.epoch,
        traceback_text="",
        hint=hint,
    )


@dataclass(frozen=True)
class DeclaredRows:
    """What the function of a `map` or `flat_map` must return, as far as it is known."""

    columns: pa.Schema | None = None
    updating: bool = False
    """Whether its rows may be taken back, so that they must have `_retract`."""

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the batches, with event time and, of updates, `_retract`."""
        return None if self.columns is None else _with_hidden(self.columns, updating=self.updating)

    def collect(self, rows: Batches, ctx: OperatorContext, collector: Collector) -> None:
        """Collect a batch, or the batches of a table, after a check of their columns."""
        batches = rows.combine_chunks().to_batches() if isinstance(rows, pa.Table) else [rows]
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if self.columns is not None:
                collector.collect(conform(batch, self.columns, _rows_of(ctx), ctx, updating=self.updating))
            elif self.updating and RETRACT not in batch.schema.names:
                raise _missing(RETRACT, batch.schema.names, _rows_of(ctx), ctx)
            else:
                collector.collect(batch)


def _with_hidden(columns: pa.Schema, *, updating: bool) -> pa.Schema:
    hidden = [pa.field(TIMESTAMP, pa.timestamp("ns")), *([pa.field(RETRACT, pa.bool_())] if updating else [])]
    return pa.schema([*columns, *hidden])


def _rows_of(ctx: OperatorContext) -> str:
    return f"the rows of `{ctx.task_info.operator_id}`"


ANY_ROWS = DeclaredRows()


class FunctionOperator(ArrowOperator):
    """The base of the operators that apply a function of the user to rows or batches."""

    outputs = ()
    method: ClassVar[str]
    """The method of a stream that makes it, which names it if the function has no name."""

    def __init__(self, function: Callable[[Any], Any], declared: DeclaredRows = ANY_ROWS) -> None:
        self.function = function
        self.declared = declared

    @property
    def name(self) -> str:
        return function_name(self.function, self.method)

    @property
    def output(self) -> pa.Schema | None:
        """The columns of its rows, if they are declared."""
        return self.declared.schema


class MapBatches(FunctionOperator):
    """Applies a function to every batch: `stream.map(function)`."""

    method = "map"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Collect what the function returns for the batch."""
        rows = self.function(batch)
        if not isinstance(rows, pa.RecordBatch | pa.Table):
            raise TypeError(f"{self.name}() must return a pyarrow.RecordBatch, got {type(rows).__name__}")
        self.declared.collect(rows, ctx, collector)


class FlatMapBatches(FunctionOperator):
    """Applies a function to every batch, which returns several: `stream.flat_map(function, per="batch")`."""

    method = "flat_map"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Collect each batch that the function returns."""
        returned = self.function(batch)
        if isinstance(returned, pa.RecordBatch | pa.Table) or not isinstance(returned, Iterable):
            raise TypeError(
                f"{self.name}() must return an iterable of batches, got {type(returned).__name__}"
            )
        for rows in returned:
            if not isinstance(rows, pa.RecordBatch | pa.Table):
                raise TypeError(f"{self.name}() must return record batches, got {type(rows).__name__}")
            self.declared.collect(rows, ctx, collector)


class FlatMapRows(FunctionOperator):
    """Applies a function to every row, which returns several: `stream.flat_map(function)`.

    A returned row has the event time of the row it was made from, unless it has a `_timestamp` of its own.
    """

    method = "flat_map"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Collect the rows that the function returns for the rows of the batch, in their order."""
        returned: list[Mapping[str, Any]] = []
        origins: list[int] = []
        for index, row in enumerate(batch.to_pylist()):
            rows = self.function(row)
            if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
                raise TypeError(f"{self.name}() must return an iterable of rows, got {type(rows).__name__}")
            for item in rows:
                if not isinstance(item, Mapping):
                    raise TypeError(f"{self.name}() must return rows as dicts, got {type(item).__name__}")
                returned.append(item)
                origins.append(index)
        if returned:
            times = batch.column(TIMESTAMP).take(pa.array(origins))
            self.declared.collect(self._batch(returned, times, ctx), ctx, collector)

    def _batch(self, rows: list[Mapping[str, Any]], times: pa.Array, ctx: OperatorContext) -> pa.RecordBatch:
        columns = self.declared.columns
        names = list(dict.fromkeys(name for row in rows for name in row))
        types = {} if columns is None else {field.name: field.type for field in columns}
        for row in rows:
            for name in types:
                if name not in row:
                    raise _missing(name, row, _rows_of(ctx), ctx)
        own = [row.get(TIMESTAMP) for row in rows]
        arrays = {
            name: _array(name, [row.get(name) for row in rows], types.get(name), ctx)
            for name in names
            if name != TIMESTAMP and (columns is None or name in types or name == RETRACT)
        }
        if any(time is not None for time in own):
            inherited = times.to_pylist()
            chosen = [time if time is not None else inherited[at] for at, time in enumerate(own)]
            times = pa.array(chosen, pa.timestamp("ns"))
        return pa.record_batch({**arrays, TIMESTAMP: times})


def _array(name: str, values: list[Any], kind: pa.DataType | None, ctx: OperatorContext) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        expected = "do not have one type" if kind is None else f"do not fit the {kind} of its `schema`"
        raise _refused(
            f"{_rows_of(ctx)} have values in column `{name}` that {expected}: {error}",
            "convert the values before they are returned",
            ctx,
        ) from None


class ConformColumns(ArrowOperator):
    """Checks and casts rows to the columns that `schema=` declares for a stream."""

    outputs = ()

    def __init__(self, columns: pa.Schema, what: str, *, updating: bool = False) -> None:
        self.columns = plain_schema(columns)
        self.what = what
        self.updating = updating

    @property
    def name(self) -> str:
        return "columns"

    @property
    def output(self) -> pa.Schema:
        """The columns of its rows."""
        return _with_hidden(self.columns, updating=self.updating)

    @property
    def stateless(self) -> bool:
        return True

    def display(self) -> str:
        """The columns."""
        return f"columns({', '.join(f'{field.name}: {field.type}' for field in self.columns)})"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Choose and cast the columns."""
        collector.collect(
            conform(batch, self.columns, f"the rows of {self.what}", ctx, updating=self.updating)
        )


class ForwardBatches(ArrowOperator):
    """Forwards batches unchanged: the operator between `key_by` and a query that follows it."""

    outputs = ()

    @property
    def name(self) -> str:
        return "forward"

    @property
    def stateless(self) -> bool:
        return True

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Forward the batch."""
        collector.collect(batch)
