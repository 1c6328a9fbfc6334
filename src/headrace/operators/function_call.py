"""Adds the result of a user-defined function to each row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.base.errors import PlanError, counted
from headrace.functions.native import NativeFunction
from headrace.functions.scalar import ScalarFunction
from headrace.model.fragments import plain_type
from headrace.model.operator import ArrowOperator, Collector, OperatorContext
from headrace.operators.table_function import argument_columns


class FunctionCall(ArrowOperator):
    """Calls a function with the columns `arguments` of each row; its result is the column `output`."""

    outputs = ()

    def __init__(
        self, function: ScalarFunction | NativeFunction, arguments: Sequence[str], *, output: str
    ) -> None:
        if len(arguments) != len(function.arguments):
            raise PlanError(f"`{function.name}` takes {counted(len(function.arguments), 'argument')}")
        self.function = function
        self.arguments = tuple(arguments)
        self.output = output

    @property
    def name(self) -> str:
        return "function_call"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        results = self.function.call(argument_columns(batch, self.arguments, self.function.arguments))
        results = results.cast(plain_type(results.type))
        field = pa.field(self.output, results.type)
        at = batch.schema.get_field_index(self.output)
        batch = batch.append_column(field, results) if at < 0 else batch.set_column(at, field, results)
        collector.collect(batch)

    def display(self) -> str:
        return f"{self.output} = {self.function.name}({', '.join(self.arguments)})"
