"""The operators behind methods of a stream that take a Python function or a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import ConfigurationError, suggest
from headrace.model.fragments import plain_schema
from headrace.model.operator import ArrowOperator, Collector, OperatorContext

Batches: TypeAlias = pa.RecordBatch | pa.Table


def function_name(function: object, otherwise: str) -> str:
    """What a function is called, for ids and messages."""
    name = getattr(function, "__name__", otherwise)
    return otherwise if name == "<lambda>" else str(name)


def collect(rows: Batches, collector: Collector) -> None:
    """Collect a batch, or the batches of a table."""
    if isinstance(rows, pa.Table):
        for batch in rows.combine_chunks().to_batches():
            collector.collect(batch)
    else:
        collector.collect(rows)


class MapBatches(ArrowOperator):
    """Applies a function to every batch: `stream.map(function)`."""

    def __init__(self, function: Callable[[pa.RecordBatch], Batches]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        return function_name(self.function, "map")

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Collect what the function returns for the batch."""
        rows = self.function(batch)
        if not isinstance(rows, pa.RecordBatch | pa.Table):
            raise TypeError(f"{self.name}() must return a pyarrow.RecordBatch, got {type(rows).__name__}")
        collect(rows, collector)


class FlatMapBatches(ArrowOperator):
    """Applies a function to every batch, which returns several: `stream.flat_map(function, per="batch")`."""

    def __init__(self, function: Callable[[pa.RecordBatch], Iterable[Batches]]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        return function_name(self.function, "flat_map")

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
            collect(rows, collector)


class FlatMapRows(ArrowOperator):
    """Applies a function to every row, which returns several: `stream.flat_map(function)`.

    A returned row has the event time of the row it was made from, unless it has a `_timestamp` of its own.
    """

    def __init__(
        self,
        function: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]],
        columns: pa.Schema | None = None,
    ) -> None:
        self.function = function
        self.columns = columns

    @property
    def name(self) -> str:
        return function_name(self.function, "flat_map")

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
            collector.collect(self._batch(returned, batch.column(TIMESTAMP).take(pa.array(origins))))

    def _batch(self, rows: list[Mapping[str, Any]], times: pa.Array) -> pa.RecordBatch:
        names = list(dict.fromkeys(name for row in rows for name in row))
        types = {} if self.columns is None else {field.name: field.type for field in self.columns}
        own = [row.get(TIMESTAMP) for row in rows]
        arrays = {
            name: pa.array([row.get(name) for row in rows], types.get(name))
            for name in names
            if name != TIMESTAMP
        }
        if any(time is not None for time in own):
            inherited = times.to_pylist()
            chosen = [time if time is not None else inherited[at] for at, time in enumerate(own)]
            times = pa.array(chosen, pa.timestamp("ns"))
        return pa.record_batch({**arrays, TIMESTAMP: times})


class ConformColumns(ArrowOperator):
    """Checks and casts rows to the columns that `schema=` declares for a stream."""

    def __init__(self, columns: pa.Schema, what: str, *, updating: bool = False) -> None:
        self.columns = plain_schema(columns)
        self.what = what
        self.updating = updating

    @property
    def name(self) -> str:
        return "columns"

    @property
    def stateless(self) -> bool:
        return True

    def display(self) -> str:
        """The columns."""
        return f"columns({', '.join(f'{field.name}: {field.type}' for field in self.columns)})"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Choose and cast the columns."""
        hidden = [TIMESTAMP, *([RETRACT] if self.updating else [])]
        for name in [*self.columns.names, *hidden]:
            if name not in batch.schema.names:
                present = [column for column in batch.schema.names if column != TIMESTAMP]
                raise ConfigurationError(
                    f"the rows of {self.what} have no column `{name}`, which its `schema` declares",
                    hint=suggest(name, present, listing="their columns are"),
                )
        schema = pa.schema([*self.columns, *(batch.schema.field(name) for name in hidden)])
        try:
            collector.collect(batch.select(schema.names).cast(schema))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigurationError(
                f"the rows of {self.what} do not fit its `schema`: {error}",
                hint=f"their columns are {batch.schema.to_string().replace(chr(10), ', ')}",
            ) from None


class ForwardBatches(ArrowOperator):
    """Forwards batches: what stands behind `key_by` where a query follows."""

    @property
    def name(self) -> str:
        return "forward"

    @property
    def stateless(self) -> bool:
        return True

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Forward the batch."""
        collector.collect(batch)
