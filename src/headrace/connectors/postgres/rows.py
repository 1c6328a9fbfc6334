"""Convert rows in the text form of PostgreSQL to the declared columns, and report rows that do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import BadLineError
from headrace.connectors.postgres.slot import show_lsn
from headrace.connectors.postgres.text import UnreadableError, read_texts, unreadable

BAD = "headrace.bad"
"""The column of copied rows with the errors of those that cannot be read."""


class RowReader:
    """Reads rows of one table; a row with a value that does not fit its column is a bad record."""

    def __init__(self, columns: pa.Schema, *, table: str, where: str) -> None:
        self._columns, self._table, self._where = columns, table, where

    def read(
        self, texts: Sequence[pa.Array], positions: Sequence[int] = ()
    ) -> tuple[pa.Table, dict[int, BadLineError]]:
        """Return the rows, from an array of strings for each column, and the errors of bad rows.

        Bad rows are included, with nulls for the bad values. `positions` are the LSNs of the transactions of
        the rows.
        """
        arrays: list[pa.Array] = []
        reasons: dict[int, tuple[str, str]] = {}
        for column, field in zip(texts, self._columns, strict=True):
            try:
                array = read_texts(column, field)
            except UnreadableError:
                wrong = {error.index: str(error) for error in unreadable(column, field)}
                mask = np.zeros(len(column), np.bool_)
                mask[list(wrong)] = True
                array = read_texts(pc.if_else(pa.array(mask), None, column), field)
                reasons = {at: (field.name, why) for at, why in wrong.items()} | reasons
            if not field.nullable and column.null_count:
                for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                    reasons.setdefault(at, (field.name, "the value is missing, and the column is NOT NULL"))
            arrays.append(array)
        bad: dict[int, BadLineError] = {}
        for at, (column, why) in sorted(reasons.items()):
            position = f"the transaction at {show_lsn(positions[at])}" if positions else ""
            message = f"column `{column}` of table `{self._table}`: {why}" + (
                f", in {position}" if position else ""
            )
            row = {name: values[at].as_py() for name, values in zip(self._names, texts, strict=True)}
            bad[at] = self._bad(message, column, json.dumps(row, ensure_ascii=False), position)
        return pa.table(arrays, self._names), bad

    @property
    def _names(self) -> list[str]:
        names: list[str] = self._columns.names
        return names

    def _bad(self, message: str, column: str, content: str, position: str) -> BadLineError:
        return BadLineError(
            message,
            line=0,
            content=content,
            column=column,
            where=f"postgres at {self._where}",
            hint="declare the column with a type that holds what is there, or choose `bad_data`",
            position=position or "the rows that were there",
        )

    # ------------------------------------------------------------------------------------ copied rows

    def with_errors(self, rows: pa.Table, bad: Mapping[int, BadLineError]) -> pa.Table:
        """Return the rows with a column that holds the errors of the bad ones."""
        reasons = [
            None
            if (error := bad.get(at)) is None
            else json.dumps([error.message, error.column, error.content])
            for at in range(rows.num_rows)
        ]
        return rows.append_column(BAD, pa.array(reasons, pa.string()))

    def split_errors(self, rows: pa.Table) -> tuple[pa.Table, dict[int, BadLineError]]:
        """Return the rows and the errors that were passed to `with_errors`."""
        if BAD not in rows.schema.names:
            return rows, {}
        reasons = rows.column(BAD)
        bad = {
            at: self._bad(message, column, content, "")
            for at in np.flatnonzero(reasons.is_valid().to_numpy()).tolist()
            for message, column, content in [json.loads(reasons[at].as_py())]
        }
        return rows.drop_columns([BAD]), bad
