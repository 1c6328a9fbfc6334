"""The log-structured storage of state: sorted runs of changed rows, newest wins.

A run holds the changes of one epoch, or of several that were merged. It is sorted by key hash or by time, so
that a read is a binary search. Each row has an operation: an insert, or a tombstone that deletes rows of
*older* runs; inserts of the same run are never affected by its tombstones. The changes that tables hold in
memory during an epoch are runs as well, so that reading, saving and compacting are one mechanism.

There are two disciplines. Where rows *replace* (keyed, global and generational tables) the newest row of a
key is the key's state. Elsewhere a table is a multiset of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.base.columns import KEY_HASH, TIMESTAMP
from headrace.base.durations import nanoseconds
from headrace.base.errors import PlanError
from headrace.base.keys import ROUTE_BITS, Hashes, hash_below, hash_columns
from headrace.state.config import TableConfig
from headrace.state.metadata import StateFile
from headrace.state.rows import Mask, Positions, group_rows, hash_order, once_each, single

OPERATION: Final = "_operation"

INSERT: Final = 0
DELETE_KEY: Final = 1
DELETE_TIME_KEY: Final = 2
DELETE_VALUE: Final = 3

MIN_TIME: Final = -(2**63)
MAX_TIME: Final = 2**63 - 1
CHUNK: Final = 512 * 1024
"""The approximate number of rows that are processed at a time, and in one record batch of a run."""

Times = npt.NDArray[np.int64]
Ranges = tuple[tuple[int, int], ...]
Pick = Callable[["Segment"], Positions]


@dataclass(frozen=True)
class RunLayout:
    """The storage layout of the rows of one table."""

    table: str
    columns: pa.Schema
    key: tuple[str, ...]
    timed: bool
    by_time: bool
    replaces: bool
    retention: int | None
    version: int
    is_global: bool
    route: tuple[str, ...] = ()
    stored: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        fields = [pa.field(column.name, _plain(column.type)) for column in self.columns]
        fields += [pa.field(KEY_HASH, pa.uint64()), pa.field(OPERATION, pa.int8())]
        object.__setattr__(self, "stored", pa.schema(fields))

    @classmethod
    def of(cls, config: TableConfig) -> RunLayout:
        """Return the layout of a declared table."""
        is_global, timed = config.kind == "global", config.kind == "time"
        columns = config.schema
        if is_global:
            columns = pa.schema([("key", pa.binary()), ("value", pa.binary())])
        if columns is None:
            raise PlanError(f"table `{config.name}` needs a schema", hint="pass schema=pa.schema(...)")
        for name in (KEY_HASH, OPERATION):
            if name in columns.names:
                raise PlanError(
                    f"column `{name}` of table `{config.name}` is a name that state files use",
                    hint="rename the column",
                )
        if timed and not _is_nanoseconds(columns.field(TIMESTAMP).type):
            raise PlanError(
                f"column `{TIMESTAMP}` of table `{config.name}` is {columns.field(TIMESTAMP).type}",
                hint='it has to be pa.timestamp("ns")',
            )
        return cls(
            table=config.name,
            columns=columns.remove_metadata(),
            key=("key",) if is_global else config.key,
            timed=timed,
            by_time=timed and config.order_by == "time" and not config.generational,
            replaces=not timed or config.generational,
            retention=None if config.retention is None else nanoseconds(config.retention),
            version=config.version,
            is_global=is_global,
            route=config.route,
        )

    def hash_key(self, columns: Mapping[str, pa.Array] | pa.Table) -> Hashes:
        """Return the key hash of each row; rows of one route have adjacent hashes."""
        if self.route in ((), self.key):
            return hash_columns([columns[name] for name in self.key])
        rest = [columns[name] for name in self.key[len(self.route) :]]
        return hash_below(self.hash_route(columns), hash_columns(rest))

    def hash_route(self, columns: Mapping[str, pa.Array] | pa.Table) -> Hashes:
        """Return the hash of each row by the columns that decide its subtask."""
        return hash_columns([columns[name] for name in self.route or self.key])

    def cutoff(self, watermark: int | None) -> int:
        """Return the first instant within the retention."""
        if watermark is None or self.retention is None:
            return MIN_TIME
        return max(MIN_TIME, watermark - self.retention)

    def public(self, rows: pa.Table) -> pa.Table:
        """Return rows with the declared columns and types only."""
        rows = rows.select(self.columns.names)
        return rows if rows.schema.equals(self.columns) else rows.cast(self.columns)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Decode dictionary columns: the dictionaries of two batches may differ."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_nanoseconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")


def numbers(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """Return the values of a fixed-width column without a copy; the values at nulls are undefined."""
    if len(array) == 0:
        return np.empty(0, dtype=dtype)
    values: npt.NDArray[np.generic] = np.frombuffer(array.buffers()[1], dtype=dtype)
    return values[array.offset : array.offset + len(array)]


class Segment:
    """One sorted record batch of a run, with its sort columns as numpy views."""

    __slots__ = ("batch", "by_time", "hashes", "operations", "timeless", "times")

    def __init__(self, batch: pa.RecordBatch, layout: RunLayout) -> None:
        self.batch = batch
        self.by_time = layout.by_time
        self.hashes: Hashes = numbers(batch.column(KEY_HASH), np.uint64)  # type: ignore[assignment]
        self.operations: npt.NDArray[np.int8] = numbers(batch.column(OPERATION), np.int8)  # type: ignore[assignment]
        self.times: Times | None = None
        self.timeless = 0
        if layout.timed:
            self.times = numbers(batch.column(TIMESTAMP), np.int64)  # type: ignore[assignment]
        if layout.by_time:  # tombstones of whole keys come first
            self.timeless = int(np.count_nonzero(self.operations == DELETE_KEY))

    def __len__(self) -> int:
        return len(self.hashes)

    def sorted_values(self) -> npt.NDArray[np.generic]:
        """Return the column that the segment is sorted by."""
        if self.by_time and self.times is not None:
            return self.times[self.timeless :]
        return self.hashes

    def take(self, positions: Positions) -> pa.RecordBatch:
        """Return the rows at `positions`; a contiguous range is not copied."""
        if len(positions) == 0:
            return self.batch.slice(0, 0)
        first, count = int(positions[0]), len(positions)
        if int(positions[-1]) - first + 1 == count and (count == 1 or (np.diff(positions) == 1).all()):
            return self.batch.slice(first, count)
        return self.batch.take(pa.array(positions))

    def within(self, low: int, high: int) -> Positions:
        """Return the rows with a key hash from `low` to `high`, both included."""
        first, last = np.uint64(low), np.uint64(high)
        if self.by_time:
            return np.flatnonzero((self.hashes >= first) & (self.hashes <= last))
        return np.arange(
            np.searchsorted(self.hashes, first, side="left"),
            np.searchsorted(self.hashes, last, side="right"),
        )

    def with_hashes(self, hashes: Hashes) -> Positions:
        """Return the rows with one of these sorted hashes."""
        if self.by_time:
            return np.flatnonzero(np.isin(self.hashes, hashes))
        return self.matches(hashes)[1]

    def matches(self, hashes: Hashes) -> tuple[Positions, Positions]:
        """Return pairs (index in `hashes`, row) of equal hashes; `hashes` are sorted, and rows by key."""
        none = np.empty(0, dtype=np.int64)
        if len(self) == 0 or len(hashes) == 0:
            return none, none
        first = int(np.searchsorted(hashes, self.hashes[0], side="left"))
        last = int(np.searchsorted(hashes, self.hashes[-1], side="right"))
        near = hashes[first:last]
        left = np.searchsorted(self.hashes, near, side="left")
        hits = np.flatnonzero(self.hashes[left] == near)
        if len(hits) == 0:
            return none, none
        left = left[hits]
        counts = np.searchsorted(self.hashes, near[hits], side="right") - left
        requests = hits + first
        if counts.max() > 1:
            left, requests = _spans(left, counts), np.repeat(requests, counts)
        return requests, left

    def below(self, hashes: Hashes) -> Positions:
        """Return the rows whose hashes have these sorted prefixes; needs rows sorted by key."""
        left = np.searchsorted(self.hashes, hashes, side="left")
        return _spans(left, np.searchsorted(self.hashes, hashes | ~ROUTE_BITS, side="right") - left)

    def at_times(self, times: Times) -> Positions:
        """Return the rows at one of these instants."""
        if self.times is None:
            raise TypeError("a table without time has no instants")
        return np.flatnonzero(np.isin(self.times, times))

    def between(self, start: int, end: int | None) -> Positions:
        """Return the rows from `start` to before `end`, and the tombstones without a time."""
        if self.times is None:
            raise TypeError("a table without time has no ranges of time")
        if not self.by_time:
            inside = self.times >= start
            if end is not None:
                inside &= self.times < end
            return np.flatnonzero(inside | (self.operations == DELETE_KEY))
        times = self.times[self.timeless :]
        first = int(np.searchsorted(times, start)) + self.timeless
        last = len(self) if end is None else int(np.searchsorted(times, end)) + self.timeless
        span = np.arange(first, last)
        return np.concatenate([np.arange(self.timeless), span]) if self.timeless else span


def _spans(starts: Positions, counts: Positions) -> Positions:
    """Return the positions of spans, one span after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


@dataclass
class Run:
    """One run of a table: a file, or rows in memory, and the part of it that is valid."""

    load: Callable[[], Sequence[Segment]]
    rows: int
    low: int
    high: int
    deleted: Ranges = ()
    file: StateFile | None = None
    tombstones: int = 0
    settled: bool = False
    """Whether its rows are sorted and none hides another: a merge of it alone changes nothing."""

    @classmethod
    def of(cls, segments: Sequence[Segment], *, low: int, high: int, settled: bool = False) -> Run:
        """Return a run in memory."""
        return cls(
            load=lambda: segments,
            rows=sum(len(segment) for segment in segments),
            low=low,
            high=high,
            tombstones=sum(int(np.count_nonzero(segment.operations != INSERT)) for segment in segments),
            settled=settled,
        )

    def delete_range(self, start: int, end: int) -> None:
        """Delete the rows of a range of time from this run."""
        self.deleted = union(self.deleted, start, end)


def union(ranges: Ranges, start: int, end: int) -> Ranges:
    """Add a range to disjoint, sorted ranges."""
    if start >= end:
        return ranges
    apart = [item for item in ranges if item[1] < start or item[0] > end]
    touching = [item for item in ranges if not (item[1] < start or item[0] > end)]
    start = min([start, *(item[0] for item in touching)])
    end = max([end, *(item[1] for item in touching)])
    return tuple(sorted([*apart, (start, end)]))


@dataclass
class GatheredRows:
    """Rows gathered from several runs, oldest first, before tombstones are applied."""

    table: pa.Table
    hashes: Hashes
    operations: npt.NDArray[np.int8]
    ages: Positions
    """The run of each row; a greater number is a newer run."""
    times: Times | None
    hidden: Mask
    """Rows that have expired or are in a deleted range of time."""

    def columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Return some columns, as one array each."""
        return [single(self.table.column(name)) for name in names]

    def select(self, positions: Positions) -> pa.Table:
        """Return some of the rows, in the order of `positions`."""
        if len(positions) == self.table.num_rows and (np.diff(positions) > 0).all():
            return self.table
        return self.table.combine_chunks().take(pa.array(positions))


def gather(runs: Sequence[Run], layout: RunLayout, pick: Pick, *, cutoff: int) -> GatheredRows:
    """Gather the rows that `pick` selects from every run, within the valid part of each."""
    batches: list[pa.RecordBatch] = []
    hashes: list[Hashes] = [np.empty(0, np.uint64)]
    operations: list[npt.NDArray[np.int8]] = [np.empty(0, np.int8)]
    ages: list[Positions] = [np.empty(0, np.int64)]
    times: list[Times] = [np.empty(0, np.int64)]
    hidden: list[Mask] = [np.empty(0, np.bool_)]
    for age, run in enumerate(runs):
        low, high = np.uint64(run.low), np.uint64(run.high)
        for segment in run.load():
            positions = pick(segment)
            matched = segment.hashes[positions]
            inside = (matched >= low) & (matched <= high)
            if not inside.all():
                positions, matched = positions[inside], matched[inside]
            if len(positions) == 0:
                continue
            batches.append(segment.take(positions))
            hashes.append(matched)
            operations.append(segment.operations[positions])
            ages.append(np.full(len(positions), age, dtype=np.int64))
            if segment.times is not None:
                at = segment.times[positions]
                times.append(at)
                hidden.append(_hidden(at, operations[-1], run.deleted, cutoff))
    table = pa.Table.from_batches(batches, layout.stored)
    return GatheredRows(
        table=table,
        hashes=np.concatenate(hashes),
        operations=np.concatenate(operations),
        ages=np.concatenate(ages),
        times=np.concatenate(times) if layout.timed else None,
        hidden=np.concatenate(hidden) if layout.timed else np.zeros(table.num_rows, np.bool_),
    )


def _hidden(times: Times, operations: npt.NDArray[np.int8], deleted: Ranges, cutoff: int) -> Mask:
    hidden: Mask = times < cutoff
    for start, end in deleted:
        hidden |= (times >= start) & (times < end)
    hidden &= operations != DELETE_KEY
    return hidden


@dataclass(frozen=True)
class Resolved:
    """Which of the gathered rows are live inserts, and which tombstones older runs still need."""

    live: Mask
    tombstones: Mask


def resolve(rows: GatheredRows, layout: RunLayout) -> Resolved:
    """Apply the tombstones of newer runs to older ones, and newer rows to the ones they replace."""
    if layout.replaces:
        return _resolve_newest(rows, layout)
    return _resolve_multiset(rows, layout)


def _resolve_newest(rows: GatheredRows, layout: RunLayout) -> Resolved:
    order, groups = group_rows(rows.hashes, rows.columns(layout.key))
    newest = np.zeros(len(order), dtype=np.bool_)
    # Rows come oldest first, so the last of a group is the newest.
    newest[order[np.append(groups[1:] != groups[:-1], np.ones(min(len(groups), 1), np.bool_))]] = True
    live = newest & (rows.operations == INSERT) & ~rows.hidden
    return Resolved(live=live, tombstones=newest & ~live)


def _resolve_multiset(rows: GatheredRows, layout: RunLayout) -> Resolved:
    live = (rows.operations == INSERT) & ~rows.hidden
    tombstones = (rows.operations != INSERT) & ~rows.hidden
    for operation in (DELETE_KEY, DELETE_TIME_KEY, DELETE_VALUE):
        killers = tombstones & (rows.operations == operation)
        if not killers.any():
            continue
        # Only rows that share a key hash with a tombstone need a closer look. Without a key the hash
        # says only which subtask a row belongs to.
        near = live | tombstones
        if layout.key:
            near &= np.isin(rows.hashes, once_each(rows.hashes[killers]))
        positions = np.flatnonzero(near)
        names = list(layout.columns.names if operation == DELETE_VALUE else layout.key)
        columns = [column.take(pa.array(positions)) for column in rows.columns(names)]
        hashes = rows.hashes[positions]
        if operation == DELETE_TIME_KEY and rows.times is not None:
            columns.append(pa.array(rows.times[positions]))
            hashes = hash_columns([pa.array(hashes), columns[-1]])
        elif operation == DELETE_VALUE:
            hashes = hash_columns(columns)
        order, groups = group_rows(hashes, columns)
        members = positions[order]
        if operation == DELETE_VALUE:
            _match_values(rows, members, groups, live, tombstones)
        else:
            _kill_older(rows, members, groups, live, tombstones, operation)
    return Resolved(live=live, tombstones=tombstones)


def _kill_older(
    rows: GatheredRows, members: Positions, groups: Positions, live: Mask, tombstones: Mask, operation: int
) -> None:
    """Drop every row of a group that is older than its newest tombstone; keep one tombstone."""
    is_killer = rows.operations[members] == operation
    newest = np.full(groups[-1] + 1, -1, dtype=np.int64)
    np.maximum.at(newest, groups[is_killer], rows.ages[members[is_killer]])
    older = rows.ages[members] < newest[groups]
    live[members[older]] = False
    tombstones[members[older]] = False


def _match_values(
    rows: GatheredRows, members: Positions, groups: Positions, live: Mask, tombstones: Mask
) -> None:
    """Each tombstone deletes one equal older row, the newest first.

    From new to old, a tombstone opens a bracket and an insert closes one. An insert without an open bracket
    stays. A tombstone with a closed bracket is used up.
    """
    kinds = rows.operations[members]
    counts = (kinds == DELETE_VALUE) | (kinds == INSERT)
    members, groups = members[counts], groups[counts]
    is_insert = rows.operations[members] == INSERT
    # New to old; inside one run inserts come before tombstones, which do not apply to them.
    order = np.lexsort((~is_insert, -rows.ages[members], groups))
    members, groups, is_insert = members[order], groups[order], is_insert[order]
    step = np.where(is_insert, -1, 1)
    depth = np.cumsum(step)
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    group = np.cumsum(np.append(0, groups[1:] != groups[:-1]))
    base = (depth - step)[starts]
    # Every group gets a level of its own, so that one running minimum serves them all.
    floor = -group * (2 * len(members) + 1)
    depth = depth - base[group] + floor
    lowest = np.minimum.accumulate(np.minimum(depth, floor))
    before = np.minimum(np.append(MAX_TIME, lowest[:-1]), floor)
    killed = is_insert & ~(depth < before)
    live[members[killed]] = False
    _retire(members, group, is_insert, killed, tombstones)


def _retire(members: Positions, group: Positions, is_insert: Mask, killed: Mask, tombstones: Mask) -> None:
    """Drop as many tombstones of each group as they deleted inserts."""
    # Of a bracket sequence only its net matters to older runs: an insert that stayed resets nothing,
    # because a tombstone never acts on a newer row. So the oldest tombstones are the ones left.
    used = np.bincount(group[killed], minlength=group[-1] + 1)
    is_tombstone = ~is_insert
    rank = np.cumsum(is_tombstone)
    first = np.concatenate([[0], rank[np.flatnonzero(group[1:] != group[:-1])]])
    rank_in_group = rank - first[group] - 1
    tombstones[members[is_tombstone & (rank_in_group < used[group])]] = False


def in_order(rows: GatheredRows, keep: Mask, layout: RunLayout) -> Positions:
    """Return the kept rows in the table's order; rows of one time or key in the order of insertion."""
    positions = np.flatnonzero(keep)
    if layout.by_time and rows.times is not None:
        values = rows.times[positions].copy()
        values[rows.operations[positions] == DELETE_KEY] = MIN_TIME
        first = np.lexsort((values, rows.operations[positions] != DELETE_KEY))
        return positions[first]
    return positions[hash_order(rows.hashes[positions])]


def live_rows(runs: Sequence[Run], layout: RunLayout, pick: Pick, *, cutoff: int) -> GatheredRows:
    """Return the live rows among those that `pick` selects, in the table's order."""
    rows = gather(runs, layout, pick, cutoff=cutoff)
    positions = in_order(rows, resolve(rows, layout).live, layout)
    return GatheredRows(
        table=rows.select(positions),
        hashes=rows.hashes[positions],
        operations=rows.operations[positions],
        ages=rows.ages[positions],
        times=None if rows.times is None else rows.times[positions],
        hidden=rows.hidden[positions],
    )


def everything(segment: Segment) -> Positions:
    """Pick every row."""
    return np.arange(len(segment))


def picks(runs: Sequence[Run], layout: RunLayout) -> Iterator[Pick]:
    """Yield picks of about CHUNK rows each, in order, that can be resolved one by one."""
    if sum(run.rows for run in runs) <= CHUNK:
        yield everything
        return
    step = CHUNK // 8
    samples = [segment.sorted_values()[::step] for run in runs for segment in run.load()]
    bounds = np.unique(np.sort(np.concatenate(samples))[::8])[1:]
    edges = [MIN_TIME if layout.by_time else 0, *(int(bound) for bound in bounds)]
    for first, end in zip(edges, [*edges[1:], None], strict=True):
        yield _share(first, end, by_time=layout.by_time)


def _share(first: int, end: int | None, *, by_time: bool) -> Pick:
    if by_time:
        return lambda segment: segment.between(first, end)
    return lambda segment: segment.within(first, 2**64 - 1 if end is None else end - 1)


def merge(runs: Sequence[Run], layout: RunLayout, *, oldest: bool, cutoff: int) -> Iterator[pa.RecordBatch]:
    """Merge runs: yield sorted batches of live rows, and of tombstones unless `oldest` is included."""
    if len(runs) == 1 and _is_merged(runs[0], oldest=oldest, cutoff=cutoff):
        yield from (segment.batch for segment in runs[0].load())
        return
    for number, pick in enumerate(picks(runs, layout)):
        rows = gather(runs, layout, pick, cutoff=cutoff)
        resolved = resolve(rows, layout)
        keep = resolved.live
        tombstones = np.zeros_like(keep)
        if not oldest:
            tombstones = resolved.tombstones
            if number and layout.by_time:  # tombstones for all time are in every share
                tombstones &= rows.operations != DELETE_KEY
            keep = keep | tombstones
        positions = in_order(rows, keep, layout)
        table = rows.select(positions)
        if layout.replaces and tombstones.any():
            # A row that replaced others and then expired goes on hiding them.
            kinds = np.where(tombstones, DELETE_KEY, INSERT).astype(np.int8)[positions]
            index = table.schema.get_field_index(OPERATION)
            table = table.set_column(index, layout.stored.field(OPERATION), pa.array(kinds))
        yield from (batch for batch in table.to_batches(max_chunksize=CHUNK) if batch.num_rows)


def _is_merged(run: Run, *, oldest: bool, cutoff: int) -> bool:
    return run.settled and not run.deleted and cutoff == MIN_TIME and not (oldest and run.tombstones)


def in_memory(
    batches: Sequence[pa.RecordBatch], layout: RunLayout, *, low: int, high: int, settled: bool = False
) -> Run:
    """Return a run of sorted batches in memory."""
    return Run.of([Segment(batch, layout) for batch in batches], low=low, high=high, settled=settled)


def sort_by_key(batch: pa.RecordBatch, hashes: Hashes) -> list[pa.RecordBatch]:
    """Return a batch sorted by key hash, as segments of a run; a sorted batch is not copied."""
    if (hashes[1:] < hashes[:-1]).any():
        batch = batch.take(pa.array(hash_order(hashes)))
    return [batch.slice(start, CHUNK) for start in range(0, batch.num_rows, CHUNK)]


def size_level(rows: int, compact_after: int) -> int:
    """Return the level of a new run: a large one is not merged together with small ones."""
    level, size = 0, CHUNK // 8
    while rows > size:
        level, size = level + 1, size * compact_after
    return level


def plan_compaction(levels: Sequence[int], compact_after: int) -> list[tuple[int, int, int]]:
    """Return which runs to merge: (start, stop, new level) over runs from old to new.

    A level with `compact_after` runs is merged into one run of the next level, which may fill that one.
    A row is therefore rewritten once per level, and there are logarithmically many levels.
    """
    # After a rescale runs of several subtasks mix. A run counts as at least as deep as any newer one,
    # so that the runs of a level always follow each other.
    depths: list[int] = []
    deepest = 0
    for level in reversed(levels):
        deepest = max(deepest, level)
        depths.append(deepest)
    depths.reverse()
    groups = [(index, index + 1, depth) for index, depth in enumerate(depths)]
    level = 0
    while groups and level <= max(depth for _, _, depth in groups):
        members = [group for group in groups if group[2] == level]
        if len(members) >= compact_after:
            first = groups.index(members[0])
            merged = (members[0][0], members[-1][1], level + 1)
            groups[first : first + len(members)] = [merged]
        level += 1
    return [group for group in groups if group[1] - group[0] > 1]
