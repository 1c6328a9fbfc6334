"""Functions of the user that give rows for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from datafusion import SessionContext

from headrace.functions.annotations import Convert
from headrace.functions.defined import Defined
from headrace.functions.raised import described, raised, to_arrow

AT_ONCE = 8192
"""How many rows are given on together: a call may give any number."""


@dataclass(frozen=True)
class TableFunction(Defined):
    """A generator of the user; `returns` is a STRUCT with the columns of its rows."""

    single: bool = False
    """Whether it gives plain values: rows of one column."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows that it gives."""
        return pa.schema([self.returns.field(i) for i in range(self.returns.num_fields)])

    def install(self, ctx: SessionContext) -> None:
        """Nothing: DataFusion never calls it."""

    def call(
        self, columns: Sequence[pa.Array], *, outer: bool = False
    ) -> Iterator[tuple[pa.Array, pa.StructArray]]:
        """(the positions of the rows it was called for, the rows it gave), in the order of the rows.

        With `outer` a row that it gives nothing for has one row of NULLs.
        """
        complete = self.complete(columns)
        called = np.arange(len(columns[0])) if complete is None else np.flatnonzero(complete)
        given = columns if complete is None else [column.filter(complete) for column in columns]
        arguments = zip(*self.values(given), strict=True)
        made: list[Any] = []
        positions: list[int] = []
        following = 0
        for position, row in zip(called.tolist(), arguments, strict=True):
            if outer:
                missed = range(following, position)
                positions.extend(missed)
                made.extend([None] * len(missed))
                following = position + 1
            before = len(made)
            for one in self._rows(row):
                made.append(one)
                positions.append(position)
                if len(made) >= AT_ONCE:
                    yield self._batch(made, positions, columns)
                    made, positions, before = [], [], -1
            if outer and before == len(made):
                made.append(None)
                positions.append(position)
        if outer:
            rest = range(following, len(columns[0]))
            positions.extend(rest)
            made.extend([None] * len(rest))
        if made:
            yield self._batch(made, positions, columns)

    def _rows(self, row: Sequence[Any]) -> Iterator[Any]:
        try:
            given = self.function(*row)
            if given is None:
                return
            yield from given
        except (Exception, SystemExit) as error:
            place = f"the row {described(self.parameters, row)}"
            raise raised(self.name, error, place, self.sources) from error

    def _batch(
        self, made: list[Any], positions: list[int], columns: Sequence[pa.Array]
    ) -> tuple[pa.Array, pa.StructArray]:
        def place(at: int) -> str:
            return f"the row {described(self.parameters, self.row(columns, positions[at]))}"

        names = self.columns.names
        if self.single:
            values = to_arrow(self.name, made, self.returns.field(0).type, place, self.dump)
            return pa.array(positions, pa.int64()), pa.StructArray.from_arrays([values], names)
        rows = to_arrow(self.name, made, self.returns, place, self.dump)
        return pa.array(positions, pa.int64()), rows


def row_dump(names: Sequence[str], dumps: Sequence[Convert | None]) -> Convert:
    """Makes rows with named columns of tuples, or of what has columns by name already."""

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
            name: one if convert is None else convert(one)
            for name, one, convert in zip(names, row, dumps, strict=True)
        }

    return dump
