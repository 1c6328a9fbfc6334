"""Joins each row with the rows that a user-defined table function returns for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.base.errors import ExpressionError, PlanError, counted, suggest
from headrace.functions.table import TableFunction
from headrace.model.fragments import plain_type
from headrace.model.operator import ArrowOperator, Collector, OperatorContext


class TableFunctionCall(ArrowOperator):
    """Calls a table function with the columns `arguments` of each row.

    `columns` maps the columns of the function that are added to a row to their names in the result; the
    columns in `drop` are not forwarded. A row without results is left out, or, with `outer`, has nulls. Rows
    keep their order, and are emitted in batches: a call may return any number of rows.
    """

    outputs = ()

    def __init__(
        self,
        function: TableFunction,
        arguments: Sequence[str],
        *,
        columns: Mapping[str, str],
        outer: bool = False,
        drop: Sequence[str] = (),
    ) -> None:
        if len(arguments) != len(function.arguments):
            raise PlanError(f"`{function.name}` takes {counted(len(function.arguments), 'argument')}")
        for name in columns:
            if name not in function.columns.names:
                hint = suggest(name, function.columns.names, listing="its columns are")
                raise PlanError(f"`{function.name}` gives no column `{name}`", hint=hint)
        self.function = function
        self.arguments = tuple(arguments)
        self.columns = dict(columns)
        self.outer = outer
        self.drop = tuple(drop)

    @property
    def name(self) -> str:
        return "table_function"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        arguments = argument_columns(batch, self.arguments, self.function.arguments)
        forwarded = batch.drop_columns(list(self.drop))
        for positions, rows in self.function.call(arguments, outer=self.outer):
            repeated = forwarded.take(positions)
            by_name = dict(zip(self.function.columns.names, rows.flatten(), strict=True))
            results = [by_name[name].cast(plain_type(by_name[name].type)) for name in self.columns]
            names = [*repeated.schema.names, *self.columns.values()]
            collector.collect(pa.RecordBatch.from_arrays([*repeated.columns, *results], names))

    def display(self) -> str:
        return f"rows of {self.function.name}"


def argument_columns(
    batch: pa.RecordBatch, names: Sequence[str], types: Sequence[pa.DataType]
) -> list[pa.Array]:
    """The columns that a function is called with, of the types that it declares."""
    columns = []
    for name, kind in zip(names, types, strict=True):
        if name not in batch.schema.names:
            hint = suggest(name, batch.schema.names, listing="the columns are")
            raise PlanError(f"there is no column `{name}` to call the function with", hint=hint)
        column = batch.column(name)
        columns.append(column if column.type == kind else _cast(column, name, kind))
    return columns


def _cast(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ExpressionError(
            f"column `{name}` cannot become the {kind} that the function takes: {error}",
            hint="pass another column, or convert this one before the call",
        ) from None
