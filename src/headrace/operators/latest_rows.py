"""Turns the current rows of keys into changes: an upsert takes back the row that was there before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.fragments import plain_schema
from headrace.model.operator import ArrowOperator, Collector, OperatorContext
from headrace.operators.changes import check_comparable, collect_rows, number_rows, signed
from headrace.state.config import TableConfig, keyed_table_config
from headrace.state.rows import equal_rows, single

_EVENT_TIME = "_event_time"
_TABLE = "rows"


class LatestRows(ArrowOperator):
    """Stores the latest row of each key, and emits what changes: the old row retracted, the new one added.

    The input is shuffled by `key`. A row with `_retract` deletes that of its key, whatever its other columns
    hold; of rows of one key in a batch the last counts. A row that is as it was, but for its event time,
    changes nothing. The rows of a table are kept for ever: that is what the table is.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self.key = tuple(key)
        self._columns = plain_schema(pa.schema([column for column in schema if column.name != RETRACT]))
        check_comparable(self._columns, "the table")
        self._values = [name for name in self._columns.names if name not in {*self.key, TIMESTAMP}]

    @property
    def output(self) -> pa.Schema:
        """The columns of the table, and whether they are retracted."""
        return self._columns.append(pa.field(RETRACT, pa.bool_()))

    def display(self) -> str:
        return f"latest rows by {', '.join(self.key)}"

    def tables(self) -> Sequence[TableConfig]:
        # In state `_timestamp` would be the time by which rows expire.
        schema = pa.schema(
            [
                column.with_name(_EVENT_TIME) if column.name == TIMESTAMP else column
                for column in self._columns
            ]
        )
        return [keyed_table_config(_TABLE, "the latest row of each key", schema, key=self.key)]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        if not batch.num_rows:
            return
        came = pa.Table.from_batches([batch])
        numbers, _ = number_rows([came.column(name) for name in self.key], came.num_rows)
        last = np.zeros(numbers.max() + 1, dtype=np.int64)
        last[numbers] = np.arange(came.num_rows)
        latest = came.take(pa.array(np.sort(last)))
        deletes = latest.column(RETRACT).fill_null(False).to_numpy(zero_copy_only=False)
        new = latest.select(self._columns.names).cast(self._columns)
        table = ctx.keyed_table(_TABLE)
        stored, exists = table.get(new.select(self.key))
        names = [_EVENT_TIME if name == TIMESTAMP else name for name in self._columns.names]
        old = pa.table([stored.column(name) for name in names], schema=self._columns)
        same = exists & ~deletes & self._equal(old, new)
        retracted, added = exists & ~same, ~deletes & ~same
        changes = [
            signed(old.filter(pa.array(retracted)), retract=True),
            signed(new.filter(pa.array(added)), retract=False),
        ]
        collect_rows(pa.concat_tables(changes), collector)
        table.put(new.filter(pa.array(added)).rename_columns(names))
        table.delete(new.filter(pa.array(exists & deletes)).select(self.key))

    def _equal(self, old: pa.Table, new: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if not self._values:
            return np.ones(new.num_rows, dtype=np.bool_)
        sides = [[single(rows.column(name)) for name in self._values] for rows in (old, new)]
        return equal_rows(*sides)
