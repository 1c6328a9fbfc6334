"""GROUP BY without windows: results that are updated as rows are appended and retracted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import PlanError
from headrace.model.fragments import Fragment, as_batches, plain_schema, quote
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.aggregation import Aggregation
from headrace.operators.buffered import BufferedOperator
from headrace.operators.changes import (
    ONLY_KEY,
    UNMATCHED,
    StoredRows,
    check_comparable,
    collect_rows,
    cutoff,
    describe_ttl,
    expiry_detail,
    expiry_tick,
    now,
    number_rows,
    signed,
)
from headrace.operators.distinct_values import OCCURRENCES, DistinctValues
from headrace.state.config import TableConfig, keyed_table_config
from headrace.state.rows import Mask, Positions, equal_rows, single

ROWS: Final = "_rows"
"""How many rows a group has: its appends minus its retractions."""
_APPENDS: Final = "_appends"
_UPDATED: Final = "_updated"
_GROUP: Final = "_group"
_DISTINCT: Final = f"{TIMESTAMP}:distinct"
"""The index of the distinct count that a row is a value of; null for rows of parts."""
_INSTANT: Final = pa.timestamp("ns")
_ONLY_GROUP: Final = pa.table({ONLY_KEY: pa.array([0], pa.int8())})
_LATEST: Final = f"max({quote(TIMESTAMP)}) AS {quote(TIMESTAMP)}"


def partial_fragment(aggregation: Aggregation) -> Fragment:
    """From rows to the parts of each group, with its number of rows and of appends."""
    keys = [quote(key) for key in aggregation.keys]
    appends, rows = "count(*)", "count(*)"
    if RETRACT in aggregation.schema.names:
        appends = f"count(*) FILTER (WHERE NOT {quote(RETRACT)})"
        rows = f"{appends} - count(*) FILTER (WHERE {quote(RETRACT)})"
    counts = [f"{rows} AS {quote(ROWS)}", f"{appends} AS {quote(_APPENDS)}"]
    sql = f"SELECT {', '.join([*keys, *aggregation.partial, *counts, _LATEST])} FROM input"
    if keys:
        sql += f" GROUP BY {', '.join(keys)}"
    return Fragment(sql, {"input": aggregation.schema}, aggregation.functions)


def key_schema(aggregation: Aggregation) -> pa.Schema:
    """The columns that identify a group."""
    rows = plain_schema(aggregation.schema)
    return pa.schema([rows.field(key) for key in aggregation.keys] or [(ONLY_KEY, pa.int8())])


def distinct_values(aggregation: Aggregation) -> list[DistinctValues]:
    """The stored values of each distinct count."""
    keys = key_schema(aggregation)
    return [DistinctValues(aggregation, index, keys=keys) for index in range(len(aggregation.distinct))]


def partial_schema(parts: Fragment, values: Sequence[DistinctValues]) -> pa.Schema:
    """The columns of parts and, where distinct values are counted, of these values."""
    if not values:
        return parts.output
    own = [pa.field(OCCURRENCES, pa.int64()), pa.field(_DISTINCT, pa.int8())]
    return pa.schema([*parts.output, *(distinct.field for distinct in values), *own])


def merge_fragment(aggregation: Aggregation, parts: pa.Schema) -> Fragment:
    """From the parts of numbered groups to the merged parts and the results of each."""
    merged = ", ".join([quote(_GROUP), _LATEST, *aggregation.merge])
    items = ", ".join([quote(name) for name in (_GROUP, TIMESTAMP, *parts.names)] + [*aggregation.final])
    return Fragment(
        f"SELECT {items} FROM (SELECT {merged} FROM input GROUP BY {quote(_GROUP)})",
        {"input": pa.schema([*parts, (_GROUP, pa.int64()), (TIMESTAMP, _INSTANT)])},
        aggregation.functions,
    )


def complete_fragment(aggregation: Aggregation, rows: pa.Schema) -> Fragment:
    """From the rows of numbered groups to the results of each."""
    items = ", ".join([quote(_GROUP), _LATEST, *aggregation.complete])
    return Fragment(
        f"SELECT {items} FROM input GROUP BY {quote(_GROUP)}",
        {"input": rows.append(pa.field(_GROUP, pa.int64()))},
        aggregation.functions,
    )


class PartialUpdatingAggregate(BufferedOperator):
    """Aggregates the rows of each group of a task to one row of parts, before the shuffle.

    For distinct counts it also emits one row for each distinct value. It needs an aggregation that can be
    computed in parts.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__()
        self.aggregation = aggregation
        self._fragment = partial_fragment(aggregation)
        self._values = distinct_values(aggregation)

    @property
    def output(self) -> pa.Schema:
        """The columns of the parts."""
        return partial_schema(self._fragment, self._values)

    def reduce(self, batches: Sequence[pa.RecordBatch], collector: Collector) -> None:
        """Emit the parts of each group, and the values of distinct counts."""
        rows = as_batches(batches, self._fragment.inputs["input"])
        collect_rows(self._completed(self._fragment.run(input=rows), None), collector)
        for index, values in enumerate(self._values):
            collect_rows(self._completed(values.fragment.run(input=rows), index), collector)

    def _completed(self, rows: pa.Table, index: int | None) -> pa.Table:
        """Rows with all columns of the output."""
        if not self._values:
            return rows
        rows = rows.append_column(_DISTINCT, pa.array([index], pa.int8()).take(_zeros(rows.num_rows)))
        return pa.table(
            [
                rows.column(column.name)
                if column.name in rows.schema.names
                else pa.nulls(rows.num_rows, column.type)
                for column in self.output
            ],
            schema=self.output,
        )

    def display(self) -> str:
        return f"partial aggregate by {', '.join(self.aggregation.keys) or 'nothing'}"


@dataclass(frozen=True)
class _Touched:
    """The groups with new rows in an epoch, numbered by their position in `keys`."""

    rows: pa.Table
    """The new rows, or parts."""
    group_of: Positions
    """The group of each of these rows."""
    values: Sequence[tuple[pa.Table, Positions]]
    """For each distinct count, its new values and their groups."""
    keys: pa.Table
    stored: pa.Table
    """The stored state of each group; null where there is none."""
    exists: Mask
    alive: Mask
    """Which groups are stored and have not expired."""


class UpdatingAggregate(ArrowOperator):
    """Keeps the aggregates of every group, and updates a group's result when it changes.

    Its input is shuffled by the keys: parts from `PartialUpdatingAggregate` if the aggregation can be
    computed in parts, otherwise the rows themselves, which are then all stored. Once per epoch it emits, for
    each group whose result has changed, the old result as a retraction and the new one. A group without rows
    has no result; without keys there is one group, which has its result, such as a `count` of 0, even then.
    `_timestamp` is the latest event time of the group; a change of it alone does not count.
    Order-sensitive aggregates see rows in the order of arrival.

    With a `ttl`, a group expires when nothing was appended to it for longer, by the wall clock: its result is
    retracted and its state removed. Idle groups are scanned every tenth of `ttl` (1 s to 10 minutes), so
    their retractions may be that late. Rows that arrive for an expired group before that start it anew:
    appends do not see the old rows, and retractions of old rows are ignored. Parts do not identify the
    retracted row, so there a retraction of an old row counts against the new rows: choose `ttl` longer than
    the lifetime of rows. A group with no more appends than retractions is removed.

    On resume, at any parallelism, every group continues from the result it last emitted.
    """

    def __init__(self, aggregation: Aggregation, *, ttl: timedelta | None) -> None:
        self.aggregation = aggregation
        self.ttl = ttl
        self.tick_interval = expiry_tick(ttl)
        self.max_parallelism = None if aggregation.keys else 1
        self._updating = RETRACT in aggregation.schema.names
        rows = plain_schema(aggregation.schema)
        self._keys = key_schema(aggregation)
        check_comparable(self._keys, "the keys of an aggregation")
        self._values = distinct_values(aggregation)
        self._stored_rows = StoredRows("rows", rows, key=aggregation.keys)
        if aggregation.in_parts:
            partial = partial_fragment(aggregation)
            own = (*aggregation.keys, ROWS, _APPENDS, TIMESTAMP)
            parts = [column for column in partial.output if column.name not in own]
            self._input = partial_schema(partial, self._values)
            self._parts = pa.schema([*parts, *((distinct.part, pa.int64()) for distinct in self._values)])
            self._fragment = merge_fragment(aggregation, self._parts)
        else:
            self._input = rows
            self._parts = pa.schema([])
            self._fragment = complete_fragment(aggregation, self._stored_rows.columns)
            if self._updating:
                check_comparable(rows, "an aggregated stream")
        own = (_GROUP, TIMESTAMP, *self._parts.names)
        self._results = pa.schema([column for column in self._fragment.output if column.name not in own])
        check_comparable(self._results, "the result of an aggregation")
        self._check_names()
        self._batches: list[pa.RecordBatch] = []
        self._due = False

    def _check_names(self) -> None:
        own = (ROWS, TIMESTAMP, _UPDATED, RETRACT)
        names = Counter([*self._keys.names, *self._parts.names, *self._results.names, *own])
        for name, times in names.items():
            if times > 1:
                raise PlanError(
                    f"`{name}` names more than one column of an aggregation",
                    hint="keys, parts and results need names of their own",
                )

    @property
    def output(self) -> pa.Schema:
        """The columns of the results."""
        keys = self._keys if self.aggregation.keys else []
        return pa.schema([*keys, *self._results, (TIMESTAMP, _INSTANT), (RETRACT, pa.bool_())])

    def tables(self) -> Sequence[TableConfig]:
        own = [(ROWS, pa.int64()), (TIMESTAMP, _INSTANT), (_UPDATED, _INSTANT)]
        schema = pa.schema([*self._keys, *self._parts, *self._results, *own])
        groups = keyed_table_config("groups", "each group and its last result", schema, key=self._keys.names)
        if self.aggregation.in_parts:
            return [groups, *(distinct.config() for distinct in self._values)]
        return [groups, self._stored_rows.config("the rows of each group")]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        self._batches.append(batch)

    def handle_tick(self, n: int, ctx: OperatorContext, collector: Collector) -> None:
        self._due = True

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        if self._batches or self._lacks_result(ctx):
            self._update(ctx, collector)
        if self._due:
            self._expire(ctx, collector)
            if self._lacks_result(ctx):
                self._batches = []
                self._update(ctx, collector)

    def _lacks_result(self, ctx: OperatorContext) -> bool:
        """Whether it has one group, which needs no rows, and has not emitted its result yet."""
        return not self.aggregation.keys and not ctx.keyed_table("groups").get(_ONLY_GROUP)[1].all()

    def _update(self, ctx: OperatorContext, collector: Collector) -> None:
        """Update the groups that have new rows."""
        touched = self._touched(ctx)
        groups = (self._merged if self.aggregation.in_parts else self._recomputed)(touched, ctx)
        if not self.aggregation.keys and not groups.num_rows:
            groups = self._without_rows()
        at = groups.column(_GROUP).to_numpy()
        columns = [
            *touched.keys.take(pa.array(at)).columns,
            *groups.select([*self._parts.names, *self._results.names, ROWS, TIMESTAMP]).columns,
            pa.chunked_array([self._updated(touched, ctx)[at]]),
        ]
        schema = ctx.keyed_table("groups").layout.columns
        groups = pa.Table.from_arrays(columns, names=schema.names).cast(schema)
        self._store(touched, groups, at, ctx)
        self._emit(touched, groups, at, collector)

    def _without_rows(self) -> pa.Table:
        """The only group of an aggregate without keys, where there are no rows: its count is 0."""
        rows = self._stored_rows.columns
        sql = f"SELECT {', '.join(self.aggregation.complete)} FROM input"
        results = Fragment(sql, {"input": rows}, self.aggregation.functions).run(input=rows.empty_table())
        columns = {column.name: pa.nulls(1, column.type) for column in [*self._parts, *self._results]}
        columns |= {name: results.column(name) for name in self._results.names}
        columns |= {_GROUP: pa.array([0]), ROWS: pa.array([0]), TIMESTAMP: pa.nulls(1, _INSTANT)}
        return pa.table(columns)

    def _touched(self, ctx: OperatorContext) -> _Touched:
        batches = self._batches or [pa.RecordBatch.from_pylist([], schema=self._input)]
        rows = pa.Table.from_batches(as_batches(batches, self._input)).combine_chunks()
        if not self.aggregation.keys:
            rows = rows.append_column(ONLY_KEY, _zeros(rows.num_rows))
        group_of, firsts = number_rows([rows.column(key) for key in self._keys.names], rows.num_rows)
        keys = rows.select(self._keys.names).take(pa.array(firsts)) if self.aggregation.keys else _ONLY_GROUP
        stored, exists = ctx.keyed_table("groups").get(keys)
        alive = exists & (_instants(stored.column(_UPDATED)) >= cutoff(ctx, self.ttl))
        values: list[tuple[pa.Table, Positions]] = []
        if self._values:
            kinds = rows.column(_DISTINCT).fill_null(-1).to_numpy()
            for index in range(len(self._values)):
                at = np.flatnonzero(kinds == index)
                values.append((rows.take(pa.array(at)), group_of[at]))
            at = np.flatnonzero(kinds < 0)
            rows, group_of = rows.take(pa.array(at)), group_of[at]
        return _Touched(rows, group_of, values, keys, pa.Table.from_batches([stored]), exists, alive)

    def _merged(self, touched: _Touched, ctx: OperatorContext) -> pa.Table:
        """The groups that have rows, from their stored parts and the new ones."""
        rows, group_of, alive = touched.rows, touched.group_of, touched.alive
        counts = np.where(alive, touched.stored.column(ROWS).fill_null(0).to_numpy(), 0)
        has_parts = counts > 0
        np.add.at(counts, group_of, rows.column(ROWS).to_numpy())
        if (counts < 0).any():
            ctx.metrics.add(UNMATCHED, -counts[counts < 0].sum())
        names = [*self._parts.names, TIMESTAMP]
        stored = touched.stored.select(names).append_column(_GROUP, pa.array(np.arange(len(counts))))
        rows = self._with_distinct(touched, counts > 0, ctx)
        came = rows.select(names).append_column(_GROUP, pa.array(group_of))
        parts = [
            stored.filter(pa.array(alive & (counts > 0) & has_parts)),
            came.filter(pa.array(counts[group_of] > 0)),
        ]
        return self._counted(self._fragment.run(input=pa.concat_tables(parts)), counts)

    def _with_distinct(self, touched: _Touched, alive: Mask, ctx: OperatorContext) -> pa.Table:
        """The new parts, with those of distinct counts; `alive` says which groups have rows."""
        rows = touched.rows
        firsts = np.zeros(touched.keys.num_rows, dtype=np.int64)
        firsts[touched.group_of[::-1]] = np.arange(rows.num_rows)[::-1]
        for distinct, (values, group_of) in zip(self._values, touched.values, strict=True):
            distinct.delete(touched.keys.filter(pa.array(~touched.alive & touched.exists)), ctx)
            part = np.zeros(rows.num_rows, dtype=np.int64)
            grown = distinct.update(touched.keys, group_of, values, ctx)
            if rows.num_rows:  # the only group of an aggregate without keys needs none
                part[firsts] = grown
            distinct.delete(touched.keys.filter(pa.array(~alive)), ctx)
            rows = rows.append_column(distinct.part, pa.array(part))
        return rows

    def _recomputed(self, touched: _Touched, ctx: OperatorContext) -> pa.Table:
        """The groups that have rows, from all their rows."""
        stored = self._stored_rows
        stored.delete(touched.keys.filter(pa.array(~touched.alive & touched.exists)), ctx)
        appended, retractions = stored.arrived(self._batches, ctx, updating=self._updating)
        revision = stored.revision(stored.read(touched.keys, ctx), appended)
        unmatched = revision.retract(retractions)
        if unmatched:
            ctx.metrics.add(UNMATCHED, unmatched)
        stored.write(revision, ctx)
        rows = revision.after
        group_of = _positions(rows, touched.keys)
        counts = np.bincount(group_of, minlength=touched.keys.num_rows)
        return self._counted(self._fragment.run(input=rows.append_column(_GROUP, pa.array(group_of))), counts)

    @staticmethod
    def _counted(groups: pa.Table, counts: Positions) -> pa.Table:
        return groups.append_column(ROWS, pa.array(counts[groups.column(_GROUP).to_numpy()]))

    def _updated(self, touched: _Touched, ctx: OperatorContext) -> Positions:
        """When something was last appended to each group."""
        rows = touched.rows
        appends = np.ones(rows.num_rows, dtype=np.bool_)
        if self.aggregation.in_parts:
            appends = rows.column(_APPENDS).to_numpy() > 0
        elif self._updating:
            appends = ~rows.column(RETRACT).fill_null(False).to_numpy()
        updated = _instants(touched.stored.column(_UPDATED)).copy()
        updated[touched.group_of[appends]] = now(ctx)
        return updated

    @staticmethod
    def _store(touched: _Touched, groups: pa.Table, at: Positions, ctx: OperatorContext) -> None:
        table = ctx.keyed_table("groups")
        table.put(groups)
        empty = touched.exists.copy()
        empty[at] = False
        table.delete(touched.keys.filter(pa.array(empty)))

    def _emit(self, touched: _Touched, groups: pa.Table, at: Positions, collector: Collector) -> None:
        """Retract the old results of groups that changed, then append the new ones."""
        same = touched.exists[at]
        before = touched.stored.take(pa.array(at))
        if self._results.names:
            same = same & equal_rows(
                [single(before.column(name)) for name in self._results.names],
                [single(groups.column(name)) for name in self._results.names],
            )
        replaced = touched.exists.copy()
        replaced[at[same]] = False
        collect_rows(self._result(touched.stored.filter(pa.array(replaced)), retract=True), collector)
        collect_rows(self._result(groups.filter(pa.array(~same)), retract=False), collector)

    def _result(self, groups: pa.Table, *, retract: bool) -> pa.Table:
        return signed(groups, retract=retract).select(self.output.names)

    def _expire(self, ctx: OperatorContext, collector: Collector) -> None:
        """Remove the groups that have expired, and retract their results."""
        table, before = ctx.keyed_table("groups"), cutoff(ctx, self.ttl)
        for batch in table.scan():
            expired = _instants(batch.column(_UPDATED)) < before
            has_rows = batch.column(ROWS).fill_null(0).to_numpy(zero_copy_only=False) > 0
            groups = pa.Table.from_batches([batch.filter(pa.array(expired & has_rows))])
            if groups.num_rows:
                table.delete(groups)
                for values in self._values:
                    values.delete(groups, ctx)
                if not self.aggregation.in_parts:
                    self._stored_rows.delete(groups, ctx)
                ctx.metrics.add("expired_groups", groups.num_rows)
                collect_rows(self._result(groups, retract=True), collector)

    def display(self) -> str:
        keys = ", ".join(self.aggregation.keys) or "nothing"
        return f"updating aggregate by {keys}, {describe_ttl(self.ttl, 'retracted')}"

    def details(self) -> Mapping[str, str]:
        return {"computes": self.aggregation.describe(), **expiry_detail(self.ttl, "retracted")}

    def state_signature(self) -> str:
        return self.aggregation.describe()


def _zeros(count: int) -> pa.Array:
    return pa.array(np.zeros(count, dtype=np.int8))


def _instants(column: pa.Array | pa.ChunkedArray) -> Positions:
    """Instants as numbers; 0 for null."""
    numbers: Positions = single(column).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _positions(rows: pa.Table, keys: pa.Table) -> Positions:
    """For each row the position of its key among `keys`, which are distinct."""
    columns = [
        pa.concat_arrays([single(keys.column(name)), single(rows.column(name))]) for name in keys.schema.names
    ]
    numbers, firsts = number_rows(columns, keys.num_rows + rows.num_rows)
    return firsts[numbers[keys.num_rows :]]
