"""State tables as operators use them.

A table belongs to one subtask of one operator. Reads see the changes of the current epoch at once; they are
saved by the epoch's checkpoint, and lost without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import PlanError, suggest
from headrace.base.keys import ROUTE_BITS, Hashes, hash_columns, is_exact
from headrace.state.base import StateTable
from headrace.state.config import TableConfig
from headrace.state.global_table import GlobalTable
from headrace.state.messages import RecordBatchData, TableData
from headrace.state.rows import equal_rows, group_rows, is_among, once_each, single
from headrace.state.runs import (
    DELETE_KEY,
    DELETE_TIME_KEY,
    DELETE_VALUE,
    INSERT,
    MAX_TIME,
    MIN_TIME,
    Pick,
    Run,
    everything,
    in_memory,
    live_rows,
    merge,
    picks,
    sort_by_key,
)

Batch: TypeAlias = "pa.RecordBatch | pa.Table"
Found = npt.NDArray[np.bool_]


class _BatchTable(StateTable):
    """What keyed and time tables share: rows with a declared schema, in runs."""

    def __init__(self, config: TableConfig, **where: Any) -> None:
        super().__init__(config, **where)
        self._fresh: list[Run] = []

    @property
    def _runs(self) -> list[Run]:
        return [*self.saved, *self._fresh]

    @property
    def approximate_rows(self) -> int:
        """Return the approximate number of rows, without reading any."""
        return max(0, sum(run.rows - 2 * run.tombstones for run in self._runs))

    def changes(self) -> Iterator[TableData]:
        """Return the rows and tombstones of this epoch, as one sorted run."""
        if not self._fresh:
            return
        for batch in self._changed():
            yield TableData(self.name, RecordBatchData(batch))

    def _changed(self) -> Iterator[pa.RecordBatch]:
        oldest, newest = not self.saved, self._fresh[-1]
        merged = len(self._fresh) == 1 and not newest.deleted and self.cutoff == MIN_TIME
        if merged and not (oldest and newest.tombstones):
            return (segment.batch for segment in newest.load())
        return merge(self._fresh, self.layout, oldest=oldest, cutoff=self.cutoff)

    def _select(self, batch: Batch, names: Sequence[str], *, exact: bool) -> dict[str, pa.Array]:
        """Return the columns `names` of a batch, in the declared types."""
        for name in names:
            if name not in batch.schema.names:
                raise PlanError(
                    f"a batch for table `{self.name}` has no column `{name}`",
                    hint=suggest(name, batch.schema.names, listing="it has the columns"),
                )
            actual, declared = batch.schema.field(name).type, self.layout.columns.field(name).type
            if actual != declared:
                raise PlanError(
                    f"column `{name}` of a batch for table `{self.name}` is {actual};"
                    f" it is declared as {declared}",
                    hint=f"cast the column to {declared}",
                )
        if exact and len(batch.schema.names) != len(names):
            extra = [name for name in batch.schema.names if name not in names]
            raise PlanError(
                f"a batch for table `{self.name}` has the column `{(extra or batch.schema.names)[0]}`,"
                " which is not declared or comes twice",
                hint=f"the columns are {', '.join(names)}",
            )
        return {name: _plain_array(batch.column(name)) for name in names}

    def _hashes(self, columns: dict[str, pa.Array], rows: int) -> Hashes:
        if not self.layout.key:  # a hash inside this subtask's range, so that the rows stay with it
            return np.full(rows, self.low, dtype=np.uint64)
        return self._owned(self.layout.hash_key(columns))

    def _owned(self, hashes: Hashes) -> Hashes:
        """Return the hashes; raises an error if one belongs to another subtask."""
        if len(hashes) and (int(hashes.min()) < self.low or int(hashes.max()) > self.high):
            raise PlanError(
                f"a row for table `{self.name}` has a key that belongs to another subtask",
                hint="the stream must be shuffled by"
                f" {', '.join(self.layout.route or self.layout.key)}, the key of the table",
            )
        return hashes

    def _change(self, columns: dict[str, pa.Array], hashes: Hashes, operation: int) -> None:
        """Add a run in memory; columns that are not given are null."""
        count = len(hashes)
        if not count:
            return
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type)
            for field in list(self.layout.stored)[: len(self.layout.columns)]
        ]
        arrays += [pa.array(hashes), pa.array(np.full(count, operation, dtype=np.int8))]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.layout.stored)
        if self.layout.by_time or self.layout.replaces:
            self._fresh.append(self._merged([self._in_memory([batch])]))
        else:
            self._fresh.append(self._in_memory(sort_by_key(batch, hashes), settled=True))
        # As with files: runs of like size are merged, so that there are few and a row is moved seldom.
        while len(self._fresh) > 1 and self._fresh[-2].rows <= 2 * self._fresh[-1].rows:
            self._fresh[-2:] = [self._merged(self._fresh[-2:])]

    def _merged(self, runs: Sequence[Run]) -> Run:
        merged = merge(runs, self.layout, oldest=False, cutoff=self.cutoff)
        return self._in_memory(list(merged), settled=all(run.settled for run in runs))

    def _in_memory(self, batches: Sequence[pa.RecordBatch], *, settled: bool = False) -> Run:
        return in_memory(batches, self.layout, low=self.low, high=self.high, settled=settled)

    def _live(self, pick: Pick) -> pa.Table:
        rows = live_rows(self._runs, self.layout, pick, cutoff=self.cutoff)
        return self.layout.public(rows.table)


def _plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


class KeyedTable(_BatchTable):
    """One row per key, for any number of keys. The cost of a read depends on the keys, not on the table.

    An operator declares it with `keyed_table_config`, and gets it from `ctx.keyed_table`.

    >>> import headrace as hr, pyarrow as pa
    >>> schema = pa.schema([("shop", pa.string()), ("item", pa.string()), ("total", pa.int64())])
    >>> config = hr.keyed_table_config("totals", "sales", schema, key=["shop", "item"], route=["shop"])
    >>> totals = hr.KeyedTable(config, files=(), run_files=None, low=0, high=2**64 - 1)  # by the engine
    >>> totals.put(pa.record_batch({"shop": ["mill", "mill"], "item": ["oats", "rye"], "total": [3, 4]}))
    >>> rows, is_stored = totals.get(pa.record_batch({"shop": ["mill", "weir"], "item": ["rye", "rye"]}))
    >>> rows.column("total").to_pylist(), is_stored.tolist()
    ([4, None], [True, False])
    >>> sorted(totals.below(pa.record_batch({"shop": ["mill"]})).column("total").to_pylist())
    [3, 4]
    >>> totals.delete(pa.record_batch({"shop": ["mill"], "item": ["rye"]}))
    >>> [batch.column("item").to_pylist() for batch in totals.scan()]
    [['oats']]
    >>> totals
    KeyedTable('totals')
    """

    def get(self, keys: Batch) -> tuple[pa.RecordBatch, Found]:
        """Return the stored row of each key, and which keys have one.

        Args:
            keys: rows with at least the key columns, in the declared types.

        Returns:
            A row for each key, in their order, and a mask. Where nothing is stored the row is null and the
            mask False.

        Raises:
            PlanError: a key column is missing or of another type, or a key belongs to another subtask.
        """
        columns = self._select(keys, self.layout.key, exact=False)
        hashes = self._hashes(columns, keys.num_rows)
        key_columns = [single(columns[name]) for name in self.layout.key]
        source = np.full(keys.num_rows, -1, dtype=np.int64)
        absent = np.zeros(keys.num_rows, dtype=np.bool_)
        open_requests = np.argsort(hashes, kind="stable")
        parts: list[pa.RecordBatch] = []
        count = 0
        for run in reversed(self._runs):
            ordered = hashes[open_requests]
            first = np.searchsorted(ordered, np.uint64(run.low), side="left")
            last = np.searchsorted(ordered, np.uint64(run.high), side="right")
            inside, ordered = open_requests[first:last], ordered[first:last]
            for segment in run.load():
                matched, positions = segment.matches(ordered)
                if not len(matched):
                    continue
                requests = inside[matched]
                rows = segment.batch.take(pa.array(positions))
                same = equal_rows(
                    [single(rows.column(name)) for name in self.layout.key],
                    [column.take(pa.array(requests)) for column in key_columns],
                )
                live = same & (segment.operations[positions] == INSERT)
                source[requests[live]] = count + np.flatnonzero(live)
                absent[requests[same & ~live]] = True
                parts.append(rows)
                count += rows.num_rows
            open_requests = open_requests[(source[open_requests] < 0) & ~absent[open_requests]]
            if not len(open_requests):
                break
        is_stored: Found = source >= 0
        stored = pa.Table.from_batches(parts, self.layout.stored).combine_chunks()
        rows = self.layout.public(stored.take(pa.array(source, mask=~is_stored)))
        return _combine(rows), is_stored

    def below(self, routes: Batch) -> pa.Table:
        """Return every row whose `route` columns are among these; needs a table with a route.

        Args:
            routes: rows with at least the route columns, in the declared types.

        Returns:
            The rows with all declared columns.

        Raises:
            PlanError: the table has no route, a column is missing, or a key belongs to another subtask.
        """
        names = self.layout.route
        if not names:
            raise PlanError(
                f"table `{self.layout.table}` has no route to read below",
                hint="declare it with keyed_table_config(…, route=[...])",
            )
        columns = self._select(routes, names, exact=False)
        hashes = self._owned(self.layout.hash_route(columns))
        route_hashes = once_each(hashes & ROUTE_BITS)
        rows = live_rows(
            self._runs, self.layout, lambda segment: segment.below(route_hashes), cutoff=self.cutoff
        )
        among = is_among(
            self.layout.hash_route(rows.table),
            rows.columns(names),
            hashes,
            [single(columns[name]) for name in names],
        )
        return self.layout.public(rows.table if among.all() else rows.table.filter(pa.array(among)))

    def put(self, batch: Batch) -> None:
        """Set the row of each key; of several rows with the same key the last is stored.

        Args:
            batch: rows with the declared columns, in the declared types.

        Raises:
            PlanError: the columns differ, or a key belongs to another subtask.
        """
        columns = self._select(batch, self.layout.columns.names, exact=True)
        self._change(columns, self._hashes(columns, batch.num_rows), INSERT)

    def delete(self, keys: Batch) -> None:
        """Remove the rows of these keys, if they exist.

        Args:
            keys: rows with at least the key columns, in the declared types.

        Raises:
            PlanError: a key column is missing or of another type, or a key belongs to another subtask.
        """
        columns = self._select(keys, self.layout.key, exact=False)
        self._change(columns, self._hashes(columns, keys.num_rows), DELETE_KEY)

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield every live row of this subtask in batches, as of the start of the scan.

        Returns:
            Batches with the declared columns.
        """
        runs, cutoff = self._runs, self.cutoff
        for pick in picks(runs, self.layout):
            rows = live_rows(runs, self.layout, pick, cutoff=cutoff)
            if rows.table.num_rows:
                yield _combine(self.layout.public(rows.table))


def _combine(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return pa.concat_batches(batches)


class TimeTable(_BatchTable):
    """Rows with a `_timestamp`: a multiset, or (generational) the newest row of each key.

    Rows are returned in the table's order: by time, or by key hash where `order_by` is "key". Rows older than
    the retention are not visible. Instants are integers: nanoseconds since 1970. An operator declares it with
    `timestamp_table_config`, and gets it from `ctx.time_table`.

    >>> import headrace as hr, pyarrow as pa
    >>> schema = pa.schema([("_timestamp", pa.timestamp("ns")), ("user", pa.string())])
    >>> config = hr.timestamp_table_config("clicks", "clicks of a minute", "1m", schema=schema, key=["user"])
    >>> clicks = hr.TimeTable(config, files=(), run_files=None, low=0, high=2**64 - 1)  # by the engine
    >>> rows = {"_timestamp": [1, 2, 3, 4, 5], "user": ["ann", "bob", "ann", "cid", "dan"]}
    >>> clicks.insert(pa.record_batch(rows, schema=schema))
    >>> clicks.range(2, 4).column("user").to_pylist()
    ['bob', 'ann']
    >>> clicks.get(pa.record_batch({"user": ["ann"]})).num_rows, clicks.min_time()
    (2, 1)
    >>> clicks.expire(2)
    >>> clicks.delete_time_range(3, 4)
    >>> clicks.delete_key(pa.record_batch({"user": ["bob"]}))
    >>> clicks.delete_value(pa.record_batch({"_timestamp": [4], "user": ["cid"]}, schema=schema))
    >>> clicks.all().column("user").to_pylist()
    ['dan']
    >>> clicks.delete_time_key(5, pa.record_batch({"user": ["dan"]}))
    >>> clicks.all().num_rows
    0
    >>> clicks
    TimeTable('clicks')
    """

    def insert(self, batch: Batch) -> None:
        """Add rows; those older than the retention are counted as late and dropped.

        Args:
            batch: rows with the declared columns, in the declared types.

        Raises:
            PlanError: the columns differ, a row has no `_timestamp`, or a key belongs to another subtask.
        """
        columns = self._timed(batch)
        if self.cutoff > MIN_TIME:
            times = columns[TIMESTAMP].cast(pa.int64()).to_numpy(zero_copy_only=False)
            self.late_rows += int((times < self.cutoff).sum())
        self._change(columns, self._hashes(columns, batch.num_rows), INSERT)

    def _timed(self, batch: Batch) -> dict[str, pa.Array]:
        columns = self._select(batch, self.layout.columns.names, exact=True)
        if columns[TIMESTAMP].null_count:
            raise PlanError(
                f"a row for table `{self.name}` has no `{TIMESTAMP}`",
                hint="every row of a time table needs one",
            )
        return columns

    def range(self, start: int | None, end: int | None) -> pa.Table:
        """Return the rows with `start` ≤ `_timestamp` < `end`.

        Args:
            start: the first instant; None for no limit.
            end: the end of the range, exclusive; None for no limit.

        Returns:
            The rows with the declared columns, in the table's order.
        """
        first = MIN_TIME if start is None else max(start, MIN_TIME)
        last = None if end is None or end > MAX_TIME else max(end, MIN_TIME)
        if not self.layout.replaces:
            return self._live(lambda segment: segment.between(first, last))
        # A row outside the range may have replaced one inside, so every key has to be looked at.
        rows = live_rows(self._runs, self.layout, everything, cutoff=self.cutoff)
        if rows.times is None:
            raise AssertionError
        inside = rows.times >= first
        if last is not None:
            inside &= rows.times < last
        return self.layout.public(rows.table.filter(pa.array(inside)))

    def all(self) -> pa.Table:
        """Return every row.

        Returns:
            The rows with the declared columns, in the table's order.
        """
        return self._live(everything)

    def get(self, keys: Batch) -> pa.Table:
        """Return every row whose key is among `keys`.

        Args:
            keys: rows with at least the key columns, in the declared types.

        Returns:
            The rows with the declared columns, in the table's order.

        Raises:
            PlanError: a key column is missing or of another type, or a key belongs to another subtask.
        """
        if not self.layout.key:
            return self.all() if keys.num_rows else self.all().slice(0, 0)
        columns = self._select(keys, self.layout.key, exact=False)
        hashes = self._hashes(columns, keys.num_rows)
        distinct = once_each(hashes)
        rows = live_rows(
            self._runs, self.layout, lambda segment: segment.with_hashes(distinct), cutoff=self.cutoff
        )
        stored, requested = rows.columns(self.layout.key), [single(columns[name]) for name in self.layout.key]
        if is_exact(stored) and is_exact(requested):
            return self.layout.public(rows.table)
        among = is_among(rows.hashes, stored, hashes, requested)
        table = rows.table if among.all() else rows.table.filter(pa.array(among))
        return self.layout.public(table)

    def min_time(self) -> int | None:
        """Return the time of the oldest row; cheap where `order_by` is "time".

        Returns:
            The instant, or None if there are no rows.
        """
        cursor: int | None = self.cutoff
        count = 1024
        while cursor is not None:
            end = self._after(cursor, count) if self.layout.by_time else None
            rows = self.range(cursor, end)
            if rows.num_rows:
                return int(rows.column(TIMESTAMP).cast(pa.int64()).to_numpy().min())
            cursor, count = end, count * 4
        return None

    def _after(self, cursor: int, count: int) -> int | None:
        """Return an instant with at most about `count` rows of each run between `cursor` and it."""
        bounds = []
        for run in self._runs:
            for segment in run.load():
                times = segment.sorted_values()
                position = int(np.searchsorted(times, np.int64(cursor))) + count
                if position < len(times):
                    bounds.append(int(times[position]) + 1)
        return min(bounds, default=None)

    def expire(self, before: int) -> None:
        """Remove every row older than `before`.

        Args:
            before: the earliest instant that is kept.
        """
        self.delete_time_range(None, before)

    def delete_time_range(self, start: int | None, end: int | None) -> None:
        """Remove the rows with `start` ≤ `_timestamp` < `end`.

        Args:
            start: the first instant; None for no limit.
            end: the earliest instant that is kept; None for no limit.
        """
        first = MIN_TIME if start is None else max(start, MIN_TIME)
        last = MAX_TIME + 1 if end is None else min(end, MAX_TIME + 1)
        for run in self._runs:
            run.delete_range(first, last)

    def delete_time_key(self, timestamp: int, keys: Batch) -> None:
        """Remove the rows of these keys at one instant.

        Args:
            timestamp: the instant.
            keys: rows with at least the key columns, in the declared types.

        Raises:
            PlanError: a key column is missing or of another type, or a key belongs to another subtask.
        """
        if not self.layout.key:
            if keys.num_rows:
                self.delete_time_range(timestamp, timestamp + 1)
            return
        if self.layout.replaces:
            rows = self.get(keys)
            times = rows.column(TIMESTAMP).cast(pa.int64()).to_numpy()
            self.delete_key(rows.filter(pa.array(times == timestamp)))
            return
        columns = self._select(keys, self.layout.key, exact=False)
        kind = self.layout.columns.field(TIMESTAMP).type
        instant = pa.array(np.full(keys.num_rows, timestamp, dtype=np.int64)).cast(kind)
        hashes = self._hashes(columns, keys.num_rows)
        self._change({TIMESTAMP: instant, **columns}, hashes, DELETE_TIME_KEY)

    def delete_key(self, keys: Batch) -> None:
        """Remove every row of these keys.

        Args:
            keys: rows with at least the key columns, in the declared types.

        Raises:
            PlanError: a key column is missing or of another type, or a key belongs to another subtask.
        """
        if not self.layout.key:
            if keys.num_rows:
                self.delete_time_range(None, None)
            return
        columns = self._select(keys, self.layout.key, exact=False)
        self._change(columns, self._hashes(columns, keys.num_rows), DELETE_KEY)

    def delete_value(self, rows: Batch) -> None:
        """Remove one row equal to each of `rows`, if it exists.

        Args:
            rows: rows with the declared columns, in the declared types.

        Raises:
            PlanError: the columns differ, a row has no `_timestamp`, or a key belongs to another subtask.
        """
        columns = self._timed(rows)
        hashes = self._hashes(columns, rows.num_rows)
        if not rows.num_rows:
            return
        if self.layout.replaces or not self.layout.key:
            self._delete_stored(columns, once_each(hashes))
        else:
            self._change(columns, hashes, DELETE_VALUE)

    def _delete_stored(self, columns: dict[str, pa.Array], hashes: Hashes) -> None:
        """Look up the rows to delete, where a tombstone alone is not enough.

        In a generational table it must not delete a newer row of the key. Without a key, the row's hash
        is that of the subtask which wrote it, and its tombstone must follow it at every rescale.
        """
        if self.layout.key:
            pick: Pick = lambda segment: segment.with_hashes(hashes)  # noqa: E731
        else:
            times = np.unique(columns[TIMESTAMP].cast(pa.int64()).to_numpy())
            pick = lambda segment: segment.at_times(times)  # noqa: E731
        rows = live_rows(self._runs, self.layout, pick, cutoff=self.cutoff)
        names = self.layout.columns.names
        live = rows.columns(names)
        joined = [
            pa.concat_arrays([column, single(columns[name])])
            for name, column in zip(names, live, strict=True)
        ]
        order, groups = group_rows(hash_columns(joined), joined)
        is_row = order < len(rows.hashes)
        requested = np.bincount(groups[~is_row], minlength=int(groups[-1]) + 1)
        # The newest of equal rows go first: count the rows of each group from its end.
        counted = np.cumsum(is_row)
        in_group = counted[np.append(np.flatnonzero(groups[1:] != groups[:-1]), len(groups) - 1)]
        from_end = in_group[groups] - counted
        doomed = order[is_row & (from_end < requested[groups])]
        deleted = {name: column.take(pa.array(doomed)) for name, column in zip(names, live, strict=True)}
        operation = DELETE_KEY if self.layout.replaces else DELETE_VALUE
        self._change(deleted, rows.hashes[doomed], operation)


TABLES: Final[dict[str, Callable[..., StateTable]]] = {
    "global": GlobalTable,
    "keyed": KeyedTable,
    "time": TimeTable,
}

__all__ = ["TABLES", "GlobalTable", "KeyedTable", "StateTable", "TimeTable"]
