"""Top-N without event-time windows over append-only input: the first rows of each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.keys import hash_key
from headrace.model.fragments import Fragment, Function, as_batches, plain_schema, quote
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.buffered import BufferedOperator
from headrace.operators.changes import (
    ONLY_KEY,
    check_comparable,
    collect_rows,
    cutoff,
    describe_ttl,
    difference,
    expiry_detail,
    expiry_tick,
    now,
    ranks,
)
from headrace.state.config import TableConfig, keyed_table_config
from headrace.state.rows import Mask, Positions, equal_rows, single

_ROW: Final = f"{TIMESTAMP}:row"
_TIE: Final = f"{TIMESTAMP}:tie"
_SLOT: Final = f"{TIMESTAMP}:place"
_ARRIVAL: Final = f"{TIMESTAMP}:arrival"
_INSTANT: Final = pa.timestamp("ns")


@dataclass(frozen=True)
class Ranking:
    """The first `count` rows of each partition of rows with the columns `schema`.

    `order` is the ORDER BY inside a partition. It is total: only equal rows tie, so that the result does not
    depend on the order of arrival.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    order: str
    count: int
    functions: tuple[Function, ...] = ()
    fragment: Fragment = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", plain_schema(self.schema))
        # The sort returns row numbers, so that columns which the order does not need are copied once.
        order, rows = [*map(quote, self.keys), self.order], self.schema.append(pa.field(_ROW, pa.int64()))
        if self._unordered:
            order, rows = [*order, quote(_TIE)], rows.append(pa.field(_TIE, pa.uint64()))
        sql = f"SELECT {quote(_ROW)} FROM input0 ORDER BY {', '.join(order)}"
        object.__setattr__(self, "fragment", Fragment(sql, {"input0": rows}, self.functions))

    def describe(self) -> str:
        """The count, keys and order, for state signatures."""
        return f"first {self.count} by {', '.join(self.keys) or 'nothing'} in the order {self.order}"

    def arrange(self, rows: pa.Table) -> tuple[Positions, Positions, Positions]:
        """Sort rows by partition and order: (rows, where partitions begin, the partition of each)."""
        numbered = rows.select(self.schema.names).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        if self._unordered:
            # Rows that differ only in columns without an order are ordered by the hashes of these.
            numbered = numbered.append_column(_TIE, pa.array(hash_key(rows, self._unordered)))
        order: Positions = self.fragment.run(input0=numbered).column(_ROW).to_numpy()
        new = np.zeros(len(order), dtype=np.bool_)
        new[:1] = True
        if self.keys and len(order) > 1:
            keys = [single(rows.column(key)).take(pa.array(order)) for key in self.keys]
            new[1:] = ~equal_rows([key[1:] for key in keys], [key[:-1] for key in keys])
        return order, np.flatnonzero(new), np.cumsum(new) - 1

    @property
    def _unordered(self) -> list[str]:
        return [
            column.name
            for column in self.schema
            if pa.types.is_struct(column.type) or pa.types.is_list(column.type)
        ]


class PartialTopN(BufferedOperator):
    """Drops rows that are not among the first of their partition in a task, before the shuffle."""

    def __init__(self, ranking: Ranking) -> None:
        super().__init__()
        self.ranking = ranking

    def reduce(self, batches: Sequence[pa.RecordBatch], collector: Collector) -> None:
        """Emit the first rows of each partition."""
        rows = pa.Table.from_batches(as_batches(batches, self.ranking.schema)).combine_chunks()
        order, starts, partitions = self.ranking.arrange(rows)
        first = np.arange(len(order)) - starts[partitions] < self.ranking.count
        collect_rows(rows.take(pa.array(order[first])), collector)

    def display(self) -> str:
        return f"partial top {self.ranking.count} by {', '.join(self.ranking.keys) or 'nothing'}"


@dataclass(frozen=True)
class _Arranged:
    """Stored and new rows of the touched partitions, in order, and which are removed or added."""

    order: Positions
    starts: Positions
    partitions: Positions
    stored: Mask
    removed: Mask
    added: Mask
    old: Positions
    """The row number that a stored row had."""
    new: Positions
    """The row number of a row that stays."""


class TopN(ArrowOperator):
    """Keeps the first rows of each partition, and emits the changes of the result.

    Its input is append-only and shuffled by the keys of the ranking. The result has the columns `columns` of
    the rows, and their number in the partition as `number`. Once per epoch the changes are emitted: what is
    no longer in the result as retractions, then what is new; a change of `_timestamp` alone does not count.
    Without keys all rows are one partition in one subtask.

    Only the first rows are stored. A row expires `ttl` after its arrival, by the wall clock: it is removed
    and retracted, and rows that it had displaced do not come back. Idle partitions are scanned for expired
    rows every tenth of `ttl` (1 s to 10 minutes).
    """

    def __init__(
        self, ranking: Ranking, columns: Sequence[str], *, number: str, ttl: timedelta | None
    ) -> None:
        self.ranking = ranking
        self.columns = tuple(columns)
        self.number = number
        self.ttl = ttl
        self.tick_interval = expiry_tick(ttl)
        self.max_parallelism = None if ranking.keys else 1
        check_comparable(ranking.schema, "a Top-N")
        self._keys = ranking.keys or (ONLY_KEY,)
        self._batches: list[pa.RecordBatch] = []
        self._due = False

    @property
    def output(self) -> pa.Schema:
        """The columns of the result."""
        rows = self.ranking.schema.append(pa.field(self.number, pa.uint64()))
        return pa.schema([rows.field(name) for name in self.columns] + [pa.field(RETRACT, pa.bool_())])

    def tables(self) -> Sequence[TableConfig]:
        only = [] if self.ranking.keys else [pa.field(ONLY_KEY, pa.int8())]
        own = [pa.field(_SLOT, pa.int64()), pa.field(_ARRIVAL, _INSTANT)]
        schema = pa.schema([*self.ranking.schema, *only, *own])
        key = (*self._keys, _SLOT)
        return [keyed_table_config("first", "the first rows of each key", schema, key=key, route=self._keys)]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        self._batches.append(batch)

    def handle_tick(self, n: int, ctx: OperatorContext, collector: Collector) -> None:
        self._due = True

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        table = ctx.keyed_table("first")
        came = pa.Table.from_batches(as_batches(self._batches, self.ranking.schema))
        if not self.ranking.keys:
            came = came.append_column(ONLY_KEY, pa.array(np.zeros(came.num_rows, dtype=np.int8)))
        touched = came.select(self._keys)
        if self._due:
            touched = pa.concat_tables([touched, *self._expired(ctx)])
        if not touched.num_rows:
            return
        stored = table.below(touched)
        rows = pa.concat_tables([stored.select(came.schema.names), came]).combine_chunks()
        expired = np.flatnonzero(_instants(stored) < cutoff(ctx, self.ttl))
        arranged = self._arrange(rows, stored.num_rows, expired)
        self._store(rows, stored, arranged, ctx)
        self._emit(rows, arranged, collector)

    def _expired(self, ctx: OperatorContext) -> list[pa.Table]:
        """The keys of stored rows that have expired; a full scan."""
        before = cutoff(ctx, self.ttl)
        batches = (pa.Table.from_batches([batch]) for batch in ctx.keyed_table("first").scan())
        return [rows.filter(pa.array(_instants(rows) < before)).select(self._keys) for rows in batches]

    def _arrange(self, rows: pa.Table, count: int, expired: Positions) -> _Arranged:
        """Decide which rows are removed and added; the first `count` rows are stored ones."""
        order, starts, partitions = self.ranking.arrange(rows)
        present = np.ones(rows.num_rows, dtype=np.bool_)
        present[expired] = False
        stored, present = order < count, present[order]
        old, new = ranks(stored, starts, partitions), ranks(present, starts, partitions)
        stays = present & (new <= self.ranking.count)
        return _Arranged(
            order,
            starts,
            partitions,
            stored,
            removed=stored & ~stays,
            added=~stored & stays,
            old=old,
            new=new,
        )

    def _store(self, rows: pa.Table, stored: pa.Table, arranged: _Arranged, ctx: OperatorContext) -> None:
        """Write added rows into the slots of removed ones, or into new slots.

        A slot that is overwritten needs no tombstone.
        """
        order, partitions = arranged.order, arranged.partitions
        removed, added = np.flatnonzero(arranged.removed), np.flatnonzero(arranged.added)
        slots = np.full(len(order), -1, dtype=np.int64)
        slots[arranged.stored] = stored.column(_SLOT).to_numpy()[order[arranged.stored]]
        counts = [
            np.bincount(partitions[positions], minlength=len(arranged.starts))
            for positions in (removed, added)
        ]
        freed, needed = counts[0][partitions], counts[1][partitions]
        going = ranks(arranged.removed, arranged.starts, partitions)
        coming = ranks(arranged.added, arranged.starts, partitions)
        highest = np.maximum.reduceat(slots, arranged.starts)[partitions]
        # The nth row that is added to a partition takes the slot of the nth that is removed.
        before = (np.cumsum(counts[0]) - counts[0])[partitions]
        taking = added[coming[added] <= freed[added]]
        slots[taking] = slots[removed[before[taking] + coming[taking] - 1]]
        new = added[coming[added] > freed[added]]
        slots[new] = highest[new] + coming[new] - freed[new]
        table = ctx.keyed_table("first")
        if len(added):
            put = rows.take(pa.array(order[added])).append_column(_SLOT, pa.array(slots[added]))
            arrival = pa.array(np.full(len(added), now(ctx))).cast(_INSTANT)
            table.put(put.append_column(_ARRIVAL, arrival))
        left = removed[going[removed] > needed[removed]]
        if len(left):
            table.delete(stored.take(pa.array(order[left])))

    def _emit(self, rows: pa.Table, arranged: _Arranged, collector: Collector) -> None:
        """Retract what is no longer in the result, then append what is new."""
        retracted, added = arranged.removed, arranged.added
        if self.number in self.columns:
            moved = arranged.stored & ~retracted & (arranged.old != arranged.new)
            retracted, added = retracted | moved, added | moved
        old_rows = self._result(rows, arranged.order[retracted], arranged.old[retracted])
        new_rows = self._result(rows, arranged.order[added], arranged.new[added])
        collect_rows(difference(old_rows, new_rows), collector)

    def _result(self, rows: pa.Table, positions: Positions, numbers: Positions) -> pa.Table:
        names = [name for name in self.columns if name != self.number]
        result = rows.select(names).take(pa.array(positions))
        return result.append_column(self.number, pa.array(numbers, pa.uint64())).select(self.columns)

    def display(self) -> str:
        keys = ", ".join(self.ranking.keys) or "nothing"
        return f"top {self.ranking.count} by {keys}, {describe_ttl(self.ttl, 'retracted')}"

    def details(self) -> Mapping[str, str]:
        return {"order": self.ranking.order, **expiry_detail(self.ttl, "retracted")}

    def state_signature(self) -> str:
        return self.ranking.describe()


def _instants(rows: pa.Table) -> Positions:
    instants: Positions = single(rows.column(_ARRIVAL)).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return instants
