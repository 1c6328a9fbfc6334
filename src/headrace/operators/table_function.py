"""Gives, for each row, the rows that a function of the user makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.base.errors import PlanError, suggest
from headrace.functions.table import TableFunction
from headrace.model.fragments import plain_type
from headrace.model.operator import ArrowOperator, Collector, OperatorContext


class TableFunctionCall(ArrowOperator):
    """Calls a table function with the columns `arguments` of each row.

    `columns` says what is added to the row: column of the function → its name in the result; the columns in
    `drop` are not forwarded. A row that the function gives no rows for is left out, or, with `outer`, has
    nulls. Rows keep their order, and leave in batches however many there are: a call may give any number.
    """

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
            raise PlanError(f"`{function.name}` takes {len(function.arguments)} arguments")
        for name in columns:
            if name not in function.columns.names:
                known = function.columns.names
                hint = suggest(name, known) or f"its columns are {', '.join(known)}"
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
        given = argument_columns(batch, self.arguments, self.function.arguments)
        kept = batch.drop_columns(list(self.drop))
        for positions, rows in self.function.call(given, outer=self.outer):
            taken = kept.take(positions)
            by_name = dict(zip(self.function.columns.names, rows.flatten(), strict=True))
            made = [by_name[name].cast(plain_type(by_name[name].type)) for name in self.columns]
            names = [*taken.schema.names, *self.columns.values()]
            collector.collect(pa.RecordBatch.from_arrays([*taken.columns, *made], names))

    def display(self) -> str:
        return f"rows of {self.function.name}"


def argument_columns(
    batch: pa.RecordBatch, names: Sequence[str], types: Sequence[pa.DataType]
) -> list[pa.Array]:
    """The columns that a function is called with, of the types that it declares."""
    columns = []
    for name, kind in zip(names, types, strict=True):
        if name not in batch.schema.names:
            known = batch.schema.names
            hint = suggest(name, known) or f"the columns are {', '.join(known)}"
            raise PlanError(f"there is no column `{name}` to call the function with", hint=hint)
        column = batch.column(name)
        columns.append(column if column.type == kind else column.cast(kind))
    return columns
