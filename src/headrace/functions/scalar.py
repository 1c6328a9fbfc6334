"""User-defined scalar functions: one value for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.base.errors import ExpressionError
from headrace.functions.call_errors import call_error, format_arguments, to_arrow
from headrace.functions.user_function import ColumnFunction, spread


@dataclass(frozen=True)
class ScalarFunction(ColumnFunction):
    """A user-defined function over the values of a row."""

    vectorized: bool = False
    """Whether it takes and returns whole Arrow arrays."""

    def call(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The result for each row of some columns; raises an ExpressionError."""
        return self._call_arrays(columns) if self.vectorized else self._call_rows(columns)

    def _call_rows(self, columns: Sequence[pa.Array]) -> pa.Array:
        complete = self.complete(columns)
        if complete is not None:
            columns = [column.filter(complete) for column in columns]
        rows = zip(*self.values(columns), strict=True)
        results = []
        row: tuple[Any, ...] = ()
        try:
            for row in rows:
                results.append(self.function(*row))
        except (Exception, SystemExit) as error:
            inputs = f"the row {format_arguments(self.parameters, row)}"
            raise call_error(self.name, error, inputs, self.sources) from error
        array = to_arrow(
            self.name,
            results,
            self.returns,
            lambda at: f"the row {format_arguments(self.parameters, self.row(columns, at))}",
            self.dump,
        )
        return array if complete is None else spread(array, complete)

    def _call_arrays(self, columns: Sequence[pa.Array]) -> pa.Array:
        rows = len(columns[0])
        try:
            result = self.function(*columns)
        except (Exception, SystemExit) as error:
            raise call_error(self.name, error, f"a batch of {rows} rows", self.sources) from error
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array) or len(result) != rows:
            got = f"{len(result)} values" if isinstance(result, pa.Array) else type(result).__name__
            raise ExpressionError(
                f"udf `{self.name}` returned {got} for a batch of {rows} rows, not an array of {rows}"
            )
        try:
            return result.cast(self.returns)
        except pa.ArrowException as error:
            raise ExpressionError(
                f"udf `{self.name}` returned {result.type}, which is not {self.returns}: {error}"
            ) from error
