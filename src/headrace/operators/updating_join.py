"""Inner joins without windows: every row is joined with all rows of the other side, whenever they arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.columns import RETRACT
from headrace.base.durations import format_duration
from headrace.base.errors import PlanError
from headrace.model.fragments import Fragment
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.changes import (
    UNMATCHED,
    Revision,
    StoredRows,
    check_comparable,
    check_ttl,
    collect_rows,
    cutoff,
    describe_ttl,
    difference,
    expiry_detail,
    signed,
)
from headrace.operators.recorded_arrivals import ARRIVALS, RecordedArrivals
from headrace.state.config import TableConfig, global_table_config


class UpdatingJoin(ArrowOperator):
    """Joins two inputs on equal keys: emits the pairs that the rows of an epoch add and retract.

    The inputs are the fragment's `input0` and `input1`, shuffled by the columns `keys[0]` and `keys[1]`. The
    fragment joins two sets of rows. If either input is `updating`, both of the fragment's inputs and its
    result have `_retract`, where a pair is a retraction if exactly one of its rows is; the retractions of an
    epoch are emitted first. Append-only inputs give an append-only result. Rows with a null in their key
    match nothing and are not stored.

    With a `ttl`, a row expires so long after its arrival, by the wall clock. From then on it matches no new
    rows. Its pairs stay: they are not retracted, and a later retraction of the row is ignored and counted as
    `unmatched_retractions`.

    `time_bounds` are the least and the greatest that the event time of a left row is later than that of a
    right row in any pair of the fragment, in nanoseconds. With them, rows of append-only inputs are removed
    once the watermark says that no row on time can match them; a row that comes late finds what is left.
    """

    def __init__(
        self,
        fragment: Fragment,
        keys: tuple[Sequence[str], Sequence[str]],
        *,
        ttl: timedelta | None,
        updating: tuple[bool, bool],
        time_bounds: tuple[int, int] | None = None,
    ) -> None:
        self.time_bounds = time_bounds
        self.fragment = fragment
        self.keys = (tuple(keys[0]), tuple(keys[1]))
        self.ttl = ttl
        self.updating = updating
        self._check()
        self._left, self._right = (
            StoredRows(name, fragment.inputs[f"input{index}"], key=self.keys[index], numbered=False)
            for index, name in enumerate(("left", "right"))
        )
        self._batches: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])

    def _check(self) -> None:
        check_ttl(self.ttl)
        left, right = self.fragment.inputs["input0"], self.fragment.inputs["input1"]
        kinds = [
            [schema.field(key).type for key in keys]
            for schema, keys in zip((left, right), self.keys, strict=True)
        ]
        if kinds[0] != kinds[1] or not kinds[0]:
            raise PlanError(
                f"the keys {self.keys[0]} and {self.keys[1]} cannot be compared: {kinds[0]} and {kinds[1]}",
                hint="a join without windows needs at least one equality, with one type on both sides",
            )
        signs = [RETRACT in schema.names for schema in (left, right, self.fragment.output)]
        if signs != [any(self.updating)] * 3:
            raise PlanError(
                f"`{RETRACT}` must be in both inputs and the result of a join of updating streams,"
                " and in none of them otherwise"
            )
        if any(self.updating):
            if self.time_bounds is not None:
                raise PlanError("a join of updating streams keeps rows that a retraction may need")
            for schema, what in ((left, "the left side"), (right, "the right side")):
                check_comparable(schema, what)
            check_comparable(self.fragment.output, "the result")

    @property
    def output(self) -> pa.Schema:
        """The columns of the result."""
        return self.fragment.output

    def tables(self) -> Sequence[TableConfig]:
        tables = [side.config(f"the {side.name} rows") for side in (self._left, self._right)]
        if self.time_bounds is not None:
            tables.append(global_table_config(ARRIVALS, "the latest event time of rows, by their arrival"))
        return tables

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        raise PlanError("a join has two inputs", hint="stream.apply(join, other)")

    def process_batch_index(
        self,
        index: int,
        total: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: Collector,
    ) -> None:
        self._batches[index].append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        if self.ttl is not None:
            for side in (self._left, self._right):
                side.expire(cutoff(ctx, self.ttl), ctx)
        if any(self._batches):
            self._join(ctx, collector)
        if self.time_bounds is not None and ctx.last_present_watermark is not None:
            earliest, latest = self.time_bounds
            # Left rows that come from now on match right rows from `watermark - latest` on, and vice versa.
            self._remove_before(self._left, ctx.last_present_watermark + earliest, ctx)
            self._remove_before(self._right, ctx.last_present_watermark - latest, ctx)

    def _remove_before(self, side: StoredRows, time: int, ctx: OperatorContext) -> None:
        """Remove rows of epochs in which all rows were of an earlier event time."""
        for first, last in RecordedArrivals(ctx, side.name).take_before(time):
            side.remove_arrivals(first, last, ctx)

    def _join(self, ctx: OperatorContext, collector: Collector) -> None:
        left = self._revised(self._left, 0, ctx)
        right = self._revised(self._right, 1, ctx)
        # New left rows are joined with the old right side, new right rows with the new left side.
        came = self._changed(left)
        pairs = [self._pairs(came, self._partners(self._right, came.select(self._left.key), ctx))]
        self._left.write(left, ctx)
        came = self._changed(right)
        pairs.append(self._pairs(self._partners(self._left, came.select(self._right.key), ctx), came))
        self._right.write(right, ctx)
        collect_rows(self._settled(pa.concat_tables(pairs)), collector)
        if self.time_bounds is not None:
            for side, revision in ((self._left, left), (self._right, right)):
                RecordedArrivals(ctx, side.name).add(revision.added)

    def _revised(self, side: StoredRows, index: int, ctx: OperatorContext) -> Revision:
        """The new rows of one side, and the stored ones that its retractions may match."""
        appended, retractions = (
            _without_null_keys(rows, side.key)
            for rows in side.arrived(self._batches[index], ctx, updating=self.updating[index])
        )
        revision = side.revision(side.read(retractions, ctx), appended)
        unmatched = revision.retract(retractions)
        if unmatched:
            ctx.metrics.add(UNMATCHED, unmatched)
        return revision

    def _changed(self, revision: Revision) -> pa.Table:
        if not any(self.updating):
            return revision.added
        return pa.concat_tables(
            [signed(revision.removed, retract=True), signed(revision.added, retract=False)]
        )

    def _partners(self, side: StoredRows, keys: pa.Table, ctx: OperatorContext) -> pa.Table:
        """The stored rows of the other side's keys."""
        rows = side.read(keys.rename_columns(side.key), ctx)
        return signed(rows, retract=False) if any(self.updating) else rows

    def _pairs(self, left: pa.Table, right: pa.Table) -> pa.Table:
        if not (left.num_rows and right.num_rows):
            return self.fragment.output.empty_table()
        return self.fragment.run(input0=left, input1=right)

    def _settled(self, pairs: pa.Table) -> pa.Table:
        """The pairs without those that were added and retracted in this epoch, retractions first."""
        if not any(self.updating):
            return pairs
        retracts = pairs.column(RETRACT)
        old, new = (pairs.filter(mask).drop_columns([RETRACT]) for mask in (retracts, pc.invert(retracts)))
        return difference(old, new).select(self.output.names)

    def display(self) -> str:
        on = ", ".join(f"{left} = {right}" for left, right in zip(*self.keys, strict=True))
        within = ""
        if self.time_bounds is not None:
            earliest, latest = (format_duration(timedelta(microseconds=t / 1000)) for t in self.time_bounds)
            within = f", {earliest} to {latest} apart"
        return f"join on {on}{within}, {describe_ttl(self.ttl, 'forgotten')}"

    def details(self) -> Mapping[str, str]:
        return {"sql": self.fragment.sql, **expiry_detail(self.ttl, "forgotten")}

    def state_signature(self) -> str:
        return self.fragment.sql


def _without_null_keys(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    for key in keys:
        column = rows.column(key)
        if column.null_count:
            rows = rows.filter(column.is_valid())
    return rows
