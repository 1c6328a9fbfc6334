"""Filters by the clock: rows enter and leave as time passes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import PlanError
from headrace.base.watermarks import Watermark
from headrace.base.windows import Instants
from headrace.model.fragments import as_batches, plain_schema
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.changes import check_comparable, collect_rows, difference, now, signed
from headrace.operators.event_time import timestamps
from headrace.state.config import TableConfig
from headrace.state.rows import single

FROM: Final = f"{TIMESTAMP}:from"
UNTIL: Final = f"{TIMESTAMP}:until"
"""The columns with the first instant at which a row passes, and the first at which it no longer does."""
_EVENT_TIME: Final = "_event_time"
_PASSES: Final = "_passes"
_NEVER: Final = 2**63 - 1


class TemporalFilter(ArrowOperator):
    """Lets each row pass from one instant of the clock until another.

    The clock is the time of the epoch: the same for every subtask and every replay. The input has the columns
    `schema` and, `timestamp("ns")`, `FROM` and `UNTIL`: the first instant at which a row passes and the first
    at which it no longer does; null for none. A row that came too early waits in state; one that leaves is
    retracted. Time that passes without rows is noticed every `tick`.

    If rows are only added and none leaves (`leaves` is false), the result is only added to as well, and the
    watermark waits for the rows that wait. Otherwise it has `_retract`. An `updating` input has it too; its
    rows are shuffled by `keys`, so that a retraction meets its row.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        keys: Sequence[str],
        updating: bool,
        leaves: bool,
        tick: timedelta = timedelta(seconds=1),
    ) -> None:
        self.schema = plain_schema(schema)
        self.keys = tuple(keys)
        self.updating = updating
        self.leaves = leaves
        self.tick_interval = tick
        if TIMESTAMP not in schema.names or not self.keys:
            raise PlanError(
                f"a filter by the clock needs `{TIMESTAMP}` and the columns its rows are shuffled by"
            )
        if self._retracts:
            check_comparable(self.schema, "a result that changes as time passes")
        self._batches: list[pa.RecordBatch] = []

    @property
    def name(self) -> str:
        return "temporal_filter"

    @property
    def _retracts(self) -> bool:
        return self.updating or self.leaves

    @property
    def output(self) -> pa.Schema:
        """The columns of the result."""
        return self.schema.append(pa.field(RETRACT, pa.bool_())) if self._retracts else self.schema

    @property
    def _stored(self) -> pa.Schema:
        time = self.schema.field(TIMESTAMP).type
        columns = [column for column in self.schema if column.name != TIMESTAMP]
        own = [(_EVENT_TIME, time), (UNTIL, time), (_PASSES, pa.bool_()), (TIMESTAMP, time)]
        return pa.schema([*columns, *own])

    def tables(self) -> Sequence[TableConfig]:
        return [
            TableConfig(
                "rows",
                "time",
                "rows by the instant at which they enter or leave",
                schema=self._stored,
                key=self.keys,
            )
        ]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        self._batches.append(batch)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        self._update(ctx, collector)
        if self._retracts or watermark.time is None or watermark.is_end:
            return watermark
        waiting = ctx.time_table("rows").all()
        if not waiting.num_rows:
            return watermark
        return Watermark(min(watermark.time, int(_numbers(waiting, _EVENT_TIME).min())))

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        self._update(ctx, collector)

    def _update(self, ctx: OperatorContext, collector: Collector) -> None:
        """Let rows enter and leave that are due, then those that have come."""
        added, removed = self._due(ctx)
        if self._batches:
            came, gone = self._arrived(ctx)
            added, removed = pa.concat_tables([added, came]), pa.concat_tables([removed, gone])
            self._batches = []
        if not self._retracts:
            collect_rows(added, collector)
        elif added.num_rows and removed.num_rows:
            collect_rows(difference(removed, added).select(self.output.names), collector)
        else:
            collect_rows(signed(removed, retract=True), collector)
            collect_rows(signed(added, retract=False), collector)

    def _due(self, ctx: OperatorContext) -> tuple[pa.Table, pa.Table]:
        """The stored rows that enter and that leave at the time of this epoch, or before."""
        table, time = ctx.time_table("rows"), now(ctx)
        rows = table.range(None, time + 1)
        if not rows.num_rows:
            return self.schema.empty_table(), self.schema.empty_table()
        table.delete_time_range(None, time + 1)
        passes = rows.column(_PASSES).to_numpy()
        entering = rows.filter(pa.array(~passes & (_numbers(rows, UNTIL) > time)))
        self._wait(entering, _numbers(entering, UNTIL), ctx, passes=True)
        return self._public(entering), self._public(rows.filter(pa.array(passes)))

    def _arrived(self, ctx: OperatorContext) -> tuple[pa.Table, pa.Table]:
        """The rows of this epoch that pass now, and the retractions of rows that passed until now."""
        time = now(ctx)
        fields = [*self.schema, *((name, self.schema.field(TIMESTAMP).type) for name in (FROM, UNTIL))]
        schema = pa.schema([*fields, *([(RETRACT, pa.bool_())] if self.updating else [])])
        rows = pa.Table.from_batches(as_batches(self._batches, schema))
        first, last = _numbers(rows, FROM, -_NEVER), _numbers(rows, UNTIL)
        retracts = np.zeros(rows.num_rows, dtype=np.bool_)
        if self.updating:
            retracts = rows.column(RETRACT).fill_null(False).to_numpy()
        stored = self._as_stored(rows)
        waits, passes = (first > time) & (last > first), (first <= time) & (last > time)
        leaves = passes & (last < _NEVER)
        for mask, instants, is_in in ((waits, first, False), (leaves, last, True)):
            for retract in (False, True):
                at = np.flatnonzero(mask & (retracts == retract))
                self._wait(stored.take(pa.array(at)), instants[at], ctx, passes=is_in, remove=retract)
        return (
            self._public(stored.filter(pa.array(passes & ~retracts))),
            self._public(stored.filter(pa.array(passes & retracts))),
        )

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        """Rows without the instant at which something happens to them."""
        names = [column.name for column in self.schema if column.name != TIMESTAMP]
        columns = [*(rows.column(name) for name in names), rows.column(TIMESTAMP)]
        columns.append(timestamps(_numbers(rows, UNTIL)))
        return pa.Table.from_arrays(columns, names=[*names, _EVENT_TIME, UNTIL])

    def _wait(
        self, rows: pa.Table, instants: Instants, ctx: OperatorContext, *, passes: bool, remove: bool = False
    ) -> None:
        """Store rows until an instant, or remove such rows, unless that instant never comes."""
        ends = instants < _NEVER
        rows, instants = rows.filter(pa.array(ends)), instants[ends]
        if not rows.num_rows:
            return
        names = [*(n for n in self.schema.names if n != TIMESTAMP), _EVENT_TIME, UNTIL]
        rows = rows.select(names).append_column(_PASSES, pa.array(np.full(rows.num_rows, passes)))
        if self.updating:
            # A retraction may have another event time than its row: what identifies a row has none.
            time_index = rows.schema.get_field_index(_EVENT_TIME)
            rows = rows.set_column(time_index, _EVENT_TIME, timestamps(instants))
        rows = rows.append_column(TIMESTAMP, timestamps(instants)).cast(self._stored)
        table = ctx.time_table("rows")
        (table.delete_value if remove else table.insert)(rows)

    def _public(self, rows: pa.Table) -> pa.Table:
        names = [_EVENT_TIME if name == TIMESTAMP else name for name in self.schema.names]
        return rows.select(names).rename_columns(self.schema.names).cast(self.schema)

    def display(self) -> str:
        return "filter by the clock"

    def state_signature(self) -> str:
        return f"updating {self.updating}, leaves {self.leaves}"


def _numbers(rows: pa.Table, column: str, missing: int = _NEVER) -> Instants:
    """Instants as numbers; those that are null are `missing`."""
    values: Instants = (
        single(rows.column(column)).cast(pa.int64()).fill_null(missing).to_numpy(zero_copy_only=False)
    )
    return values
