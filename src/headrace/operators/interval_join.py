"""Outer joins of rows near each other in event time: a row without partner is emitted when none can come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import format_duration
from headrace.base.errors import PlanError
from headrace.base.watermarks import Watermark
from headrace.base.windows import clamp
from headrace.model.fragments import Fragment, as_batches
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.changes import check_comparable, collect_rows
from headrace.operators.event_time import without_late_rows
from headrace.state.config import TableConfig
from headrace.state.rows import Mask

POSITIONS: Final = (f"{TIMESTAMP}:left", f"{TIMESTAMP}:right")
"""The columns of the fragment's inputs, and of its result, that tell which rows a pair is made of."""
OuterKind = Literal["left", "right", "full"]
_SIDES: Final = ("left", "right")


class IntervalJoin(ArrowOperator):
    """An outer join of two append-only inputs whose condition limits how far apart in event time rows are.

    The inputs are the fragment's `input0` and `input1`, shuffled by the columns `keys[0]` and `keys[1]`. The
    fragment is the inner join of two sets of rows; it carries the columns `POSITIONS` of its inputs, which
    the operator fills in. `time_bounds` are the least and the greatest that a left row is later than a right
    row in any pair, in nanoseconds.

    Pairs are emitted in the epoch in which their second row arrives. A row of an outer side that has no
    partner is emitted with nulls, once, when the watermark says that none can come. State is dropped by the
    watermark. The watermark that is forwarded stays behind by as much as such rows do. Rows behind the
    watermark of the previous epoch are late: counted as `late_rows` and dropped.
    """

    def __init__(
        self,
        fragment: Fragment,
        keys: tuple[Sequence[str], Sequence[str]],
        *,
        kind: OuterKind,
        time_bounds: tuple[int, int],
    ) -> None:
        self.fragment = fragment
        self.keys = (tuple(keys[0]), tuple(keys[1]))
        self.kind = kind
        self.time_bounds = time_bounds
        names = set(POSITIONS)
        self._columns = [
            pa.schema([column for column in fragment.inputs[f"input{index}"] if column.name not in names])
            for index in (0, 1)
        ]
        self._outer = (kind in ("left", "full"), kind in ("right", "full"))
        self._check()
        self._batches: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        self._watermark: int | None = None

    def _check(self) -> None:
        kinds = [
            [schema.field(key).type for key in keys]
            for schema, keys in zip(self._columns, self.keys, strict=True)
        ]
        if kinds[0] != kinds[1] or not kinds[0]:
            raise PlanError(
                f"the keys {self.keys[0]} and {self.keys[1]} cannot be compared: {kinds[0]} and {kinds[1]}",
                hint="give both sides keys of one type, if only a constant",
            )
        for schema, side, is_outer in zip(self._columns, _SIDES, self._outer, strict=True):
            if is_outer:
                check_comparable(schema, f"the {side} side")

    @property
    def name(self) -> str:
        return "interval_join"

    @property
    def output(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([column for column in self.fragment.output if column.name not in POSITIONS])

    def tables(self) -> Sequence[TableConfig]:
        tables = []
        for schema, key, side, is_outer in zip(self._columns, self.keys, _SIDES, self._outer, strict=True):
            tables.append(
                TableConfig(
                    name=side,
                    kind="time",
                    description=f"{side} rows that may find a partner",
                    schema=schema,
                    key=key,
                    order_by="key",
                )
            )
            if is_outer:
                tables.append(
                    TableConfig(
                        name=f"{side}_alone",
                        kind="time",
                        description=f"{side} rows that have found none",
                        schema=schema,
                        key=key,
                    )
                )
        return tables

    def on_start(self, ctx: OperatorContext) -> None:
        self._watermark = ctx.last_present_watermark

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        raise PlanError("a join has two inputs", hint="stream.apply(join, other)")

    def process_batch_index(
        self, index: int, total: int, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector
    ) -> None:
        if self._watermark is not None:
            batch = without_late_rows(batch, self._watermark, ctx)
        if batch.num_rows:
            self._batches[index].append(batch)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        self._join(ctx, collector)
        if watermark.time is None:
            return watermark
        earliest, latest = self.time_bounds
        # Right rows that come from now on match left rows from `watermark + earliest` on, and vice versa.
        for index, distance in ((0, earliest), (1, -latest)):
            self._drop(index, None if watermark.is_end else clamp(watermark.time + distance), ctx, collector)
        if watermark.is_end:
            return watermark
        held = [
            distance for distance, is_outer in zip((earliest, -latest), self._outer, strict=True) if is_outer
        ]
        return Watermark(clamp(watermark.time + min(0, *held)))

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        self._join(ctx, collector)  # there may be no watermark yet

    def _drop(self, index: int, end: int | None, ctx: OperatorContext, collector: Collector) -> None:
        """Remove the rows of one side before an instant; those that are alone are emitted."""
        if self._outer[index]:
            alone = ctx.time_table(f"{_SIDES[index]}_alone")
            rows = alone.range(None, end)
            if rows.num_rows:
                collect_rows(self._padded(rows), collector)
                alone.delete_time_range(None, end)
        ctx.time_table(_SIDES[index]).delete_time_range(None, end)

    def _padded(self, rows: pa.Table) -> pa.Table:
        """Rows of one side with nulls for the other."""
        columns = [
            rows.column(column.name)
            if column.name in rows.schema.names
            else pa.nulls(rows.num_rows, column.type)
            for column in self.output
        ]
        return pa.Table.from_arrays(columns, schema=self.output)

    def _join(self, ctx: OperatorContext, collector: Collector) -> None:
        if not any(self._batches):
            return
        left, right = (self._arrived(index, collector) for index in (0, 1))
        # New left rows are joined with the old right side, new right rows with the new left side.
        old_right = self._stored(1, left.select(self.keys[0]), ctx)
        pairs, met_left, met_old_right = self._pairs(left, old_right)
        self._part_of_pairs(1, old_right, met_old_right, ctx)
        self._insert(0, left, met_left, ctx)
        collect_rows(pairs, collector)
        new_left = self._stored(0, right.select(self.keys[1]), ctx)
        pairs, met_new_left, met_right = self._pairs(new_left, right)
        self._part_of_pairs(0, new_left, met_new_left, ctx)
        self._insert(1, right, met_right, ctx)
        collect_rows(pairs, collector)
        self._batches = ([], [])

    def _arrived(self, index: int, collector: Collector) -> pa.Table:
        """The new rows of one side; those without a key match nothing, and are emitted now or never."""
        rows = pa.Table.from_batches(as_batches(self._batches[index], self._columns[index]))
        valid = np.ones(rows.num_rows, dtype=np.bool_)
        for key in self.keys[index]:
            if rows.column(key).null_count:
                valid &= rows.column(key).is_valid().to_numpy()
        if valid.all():
            return rows
        if self._outer[index]:
            collect_rows(self._padded(rows.filter(pa.array(~valid))), collector)
        return rows.filter(pa.array(valid))

    def _stored(self, index: int, keys: pa.Table, ctx: OperatorContext) -> pa.Table:
        """The stored rows of one side with the keys of rows of the other."""
        if not keys.num_rows:
            return self._columns[index].empty_table()
        return ctx.time_table(_SIDES[index]).get(keys.rename_columns(self.keys[index]))

    def _pairs(self, left: pa.Table, right: pa.Table) -> tuple[pa.Table, Mask, Mask]:
        """(the pairs, which left rows are in one, which right rows are)."""
        met = [np.zeros(rows.num_rows, dtype=np.bool_) for rows in (left, right)]
        if not (left.num_rows and right.num_rows):
            return self.output.empty_table(), met[0], met[1]
        numbered = [
            rows.append_column(name, pa.array(np.arange(rows.num_rows)))
            for rows, name in zip((left, right), POSITIONS, strict=True)
        ]
        pairs = self.fragment.run(input0=numbered[0], input1=numbered[1])
        for mask, name in zip(met, POSITIONS, strict=True):
            mask[pairs.column(name).to_numpy()] = True
        return pairs.select(self.output.names), met[0], met[1]

    def _insert(self, index: int, rows: pa.Table, met: Mask, ctx: OperatorContext) -> None:
        if rows.num_rows:
            ctx.time_table(_SIDES[index]).insert(rows)
        if self._outer[index] and not met.all():
            ctx.time_table(f"{_SIDES[index]}_alone").insert(rows.filter(pa.array(~met)))

    def _part_of_pairs(self, index: int, rows: pa.Table, met: Mask, ctx: OperatorContext) -> None:
        """Record that stored rows have a partner; equal rows always have the same partners."""
        if self._outer[index] and met.any():
            ctx.time_table(f"{_SIDES[index]}_alone").delete_value(rows.filter(pa.array(met)))

    def display(self) -> str:
        on = ", ".join(f"{left} = {right}" for left, right in zip(*self.keys, strict=True))
        earliest, latest = (format_duration(timedelta(microseconds=t / 1000)) for t in self.time_bounds)
        return f"{self.kind} interval join on {on}, {earliest} to {latest} apart"

    def details(self) -> Mapping[str, str]:
        return {"sql": self.fragment.sql}

    def state_signature(self) -> str:
        return f"{self.kind} {self.time_bounds}: {self.fragment.sql}"
