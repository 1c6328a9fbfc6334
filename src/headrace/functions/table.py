"""User-defined table functions: any number of rows for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from datafusion import SessionContext

from headrace.functions.annotations import Convert
from headrace.functions.call_errors import call_error, format_arguments, to_arrow
from headrace.functions.user_function import UserFunction

AT_ONCE = 8192
"""The size of a batch of results in rows: one call may return any number."""


@dataclass(frozen=True)
class TableFunction(UserFunction):
    """A generator of the user; `returns` is a STRUCT with the columns of its rows."""

    single: bool = False
    """Whether it returns plain values: rows of one column."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows that it returns."""
        return pa.schema([self.returns.field(i) for i in range(self.returns.num_fields)])

    def install(self, ctx: SessionContext) -> None:
        """Do nothing: DataFusion never calls it."""

    def call(
        self, columns: Sequence[pa.Array], *, outer: bool = False
    ) -> Iterator[tuple[pa.Array, pa.StructArray]]:
        """(the positions of the rows it was called for, the rows it returned), in the order of the rows.

        With `outer` a row without results has one row of NULLs.
        """
        complete = self.complete(columns)
        called = np.arange(len(columns[0])) if complete is None else np.flatnonzero(complete)
        called_columns = columns if complete is None else [column.filter(complete) for column in columns]
        arguments = zip(*self.values(called_columns), strict=True)
        rows: list[Any] = []
        positions: list[int] = []
        following = 0
        for position, row in zip(called.tolist(), arguments, strict=True):
            if outer:
                missed = range(following, position)
                positions.extend(missed)
                rows.extend([None] * len(missed))
                following = position + 1
            before = len(rows)
            for result in self._rows(row):
                rows.append(result)
                positions.append(position)
                if len(rows) >= AT_ONCE:
                    yield self._batch(rows, positions, columns)
                    rows, positions, before = [], [], -1
            if outer and before == len(rows):
                rows.append(None)
                positions.append(position)
        if outer:
            rest = range(following, len(columns[0]))
            positions.extend(rest)
            rows.extend([None] * len(rest))
        if rows:
            yield self._batch(rows, positions, columns)

    def _rows(self, row: Sequence[Any]) -> Iterator[Any]:
        try:
            results = self.function(*row)
            if results is None:
                return
            yield from results
        except (Exception, SystemExit) as error:
            inputs = f"the row {format_arguments(self.parameters, row)}"
            raise call_error(self.name, error, inputs, self.sources) from error

    def _batch(
        self, results: list[Any], positions: list[int], columns: Sequence[pa.Array]
    ) -> tuple[pa.Array, pa.StructArray]:
        def inputs_at(at: int) -> str:
            return f"the row {format_arguments(self.parameters, self.row(columns, positions[at]))}"

        names = self.columns.names
        if self.single:
            values = to_arrow(self.name, results, self.returns.field(0).type, inputs_at, self.dump)
            return pa.array(positions, pa.int64()), pa.StructArray.from_arrays([values], names)
        rows = to_arrow(self.name, results, self.returns, inputs_at, self.dump)
        return pa.array(positions, pa.int64()), rows


def row_dump(names: Sequence[str], dumps: Sequence[Convert | None]) -> Convert:
    """A conversion of tuples, or of dictionaries, to rows with these columns."""

    def dump(row: Any) -> Any:
        if row is None:
            return None
        if isinstance(row, dict):
            row = tuple(row[name] for name in names)
        elif not isinstance(row, tuple | list):
            raise TypeError(f"a row is a tuple of {len(names)} values: {', '.join(names)}")
        if len(row) != len(names):
            raise ValueError(f"{len(row)} values for {len(names)} columns: {', '.join(names)}")
        return {
            name: value if convert is None else convert(value)
            for name, value, convert in zip(names, row, dumps, strict=True)
        }

    return dump
