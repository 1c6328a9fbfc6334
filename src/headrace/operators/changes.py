"""Updating streams: rows stored by key, matching of retractions, differences of results, time to live.

An updating stream is a stream of rows with a column `_retract`: true retracts an earlier row that is equal
in every column but `_timestamp`. Nulls are equal to nulls and NaN to NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.durations import format_duration, nanoseconds
from headrace.base.errors import PlanError
from headrace.base.keys import hash_array, hash_columns
from headrace.model.fragments import BATCH_ROWS, as_batches, plain_schema
from headrace.model.operator import Collector, OperatorContext
from headrace.state.config import TableConfig
from headrace.state.rows import Mask, Positions, group_rows, single

SEQUENCE: Final = "_sequence"
"""The column that numbers the rows of a key in the order of arrival, `int64`."""
UNMATCHED: Final = "unmatched_retractions"
"""The metric that counts retractions without a matching row."""

ONLY_KEY: Final = "_only_key"
"""The key column of rows without a key: always 0, so that one subtask has all rows."""

_ARRIVAL: Final = "_arrival"
_EVENT_TIME: Final = "_event_time"
_INSTANT: Final = pa.timestamp("ns")


# ------------------------------------------------------------------------------------------ equal rows


def number_rows(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> tuple[Positions, Positions]:
    """Give equal rows equal numbers: (the number of each row, the first row of each number)."""
    order, groups = _grouped(columns, rows)
    numbers = np.empty(rows, dtype=np.int64)
    numbers[order] = groups
    return numbers, order[begins(groups)]


def _grouped(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> tuple[Positions, Positions]:
    """Order rows so that equal ones are adjacent, as `group_rows` does; without columns all are equal."""
    if not columns or not rows:
        return np.arange(rows), np.zeros(rows, dtype=np.int64)
    arrays = [single(column) for column in columns]
    return group_rows(hash_columns(arrays), arrays)


def begins(groups: Positions) -> Positions:
    """Where groups begin, in numbers whose equal ones are adjacent."""
    return np.flatnonzero(np.append(np.ones(min(len(groups), 1), np.bool_), groups[1:] != groups[:-1]))


def ranks(counted: Mask, starts: Positions, groups: Positions) -> Positions:
    """How many positions of its group are counted, up to each position; groups begin at `starts`."""
    total = np.cumsum(counted)
    ranked: Positions = total - (total - counted)[starts][groups]
    return ranked


def pair_rows(left: pa.Table, right: pa.Table, names: Sequence[str]) -> tuple[Mask, Mask]:
    """Which rows of each side have a partner on the other side that is equal in the columns `names`.

    A row is the partner of one row at most. Of equal rows the first ones are paired.
    """
    count, total = left.num_rows, left.num_rows + right.num_rows
    paired = np.zeros(total, dtype=np.bool_)
    if count in (0, total):
        return paired[:count], paired[count:]
    columns = [pa.concat_arrays([single(left.column(name)), single(right.column(name))]) for name in names]
    order, groups = _grouped(columns, total)
    of_left, starts = order < count, begins(groups)
    lefts, rights = ranks(of_left, starts, groups), ranks(~of_left, starts, groups)
    ends = np.append(starts[1:], total) - 1
    paired[order] = np.where(of_left, lefts <= rights[ends][groups], rights <= lefts[ends][groups])
    return paired[:count], paired[count:]


def match_retractions(rows: pa.Table, retractions: pa.Table, names: Sequence[str]) -> tuple[Mask, Mask]:
    """(which rows are retracted, which retractions matched a row).

    A retraction matches a row that is equal in the columns `names`: one of the same `_timestamp` if there is
    one, otherwise the first.
    """
    retracted, matched = pair_rows(rows, retractions, [*names, TIMESTAMP])
    if not matched.all():
        left, open_retractions = np.flatnonzero(~retracted), np.flatnonzero(~matched)
        also_gone, also_found = pair_rows(
            rows.take(pa.array(left)), retractions.take(pa.array(open_retractions)), names
        )
        retracted[left[also_gone]] = True
        matched[open_retractions[also_found]] = True
    return retracted, matched


def signed(rows: pa.Table, *, retract: bool) -> pa.Table:
    """The rows with the column `_retract`."""
    flags = pa.array(np.full(rows.num_rows, retract, dtype=np.bool_))
    return rows.append_column(pa.field(RETRACT, pa.bool_()), flags)


def difference(old: pa.Table, new: pa.Table) -> pa.Table:
    """The changes from the multiset `old` to `new`: retractions, then appends; ignores `_timestamp`."""
    names = [name for name in new.schema.names if name != TIMESTAMP]
    stays_of_old, stays_of_new = pair_rows(old, new, names)
    retracted, appended = old.filter(pa.array(~stays_of_old)), new.filter(pa.array(~stays_of_new))
    return pa.concat_tables([signed(retracted, retract=True), signed(appended, retract=False)])


def check_comparable(schema: pa.Schema, what: str) -> None:
    """Raise a PlanError for columns of types whose values cannot be compared."""
    for column in schema:
        try:
            hash_array(pa.array([], column.type))
        except PlanError as error:
            kind = "an INTERVAL" if pa.types.is_interval(column.type) else column.type
            raise PlanError(
                f"column `{column.name}` of {what} is {kind}: rows with it cannot be retracted",
                hint="convert the column, for example to a string, or leave it out",
            ) from error


def collect_rows(rows: pa.Table, collector: Collector) -> None:
    """Collect a table in batches of bounded size."""
    for batch in rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        collector.collect(batch)


# ------------------------------------------------------------------------------------------ time to live

_BEGINNING = -(2**63)
"""The first instant there is."""


def now(ctx: OperatorContext) -> int:
    """The wall clock of the epoch in nanoseconds."""
    return round(ctx.time * 1_000_000) * 1_000


def check_ttl(ttl: timedelta | None) -> None:
    """Raise a PlanError unless a time to live is greater than zero, or None: then nothing expires."""
    if ttl is not None and ttl <= timedelta(0):
        raise PlanError(
            f"the time to live of updating results is {format_duration(ttl)}; it must be greater than zero",
            hint="for example 24 hours",
        )


def expiry_tick(ttl: timedelta | None) -> timedelta | None:
    """How often to scan for expired rows of idle keys: a tenth of `ttl`, 1 s to 10 minutes; or never."""
    check_ttl(ttl)
    if ttl is None:
        return None
    return min(max(ttl / 10, timedelta(seconds=1)), timedelta(minutes=10))


def cutoff(ctx: OperatorContext, ttl: timedelta | None) -> int:
    """The instant before which rows have expired."""
    return _BEGINNING if ttl is None else max(now(ctx) - nanoseconds(ttl), _BEGINNING)


def describe_ttl(ttl: timedelta | None, expiry: str) -> str:
    """The description of a time to live in plans; `expiry` is what happens then."""
    return "kept for ever" if ttl is None else f"ttl {format_duration(ttl)}, then {expiry}"


EXPIRES = "expires"
"""What plans say of an operator whose state expires: when, and what happens to its results."""


def expiry_detail(ttl: timedelta | None, expiry: str) -> dict[str, str]:
    """When the state of an operator expires, for plans; nothing if it does not."""
    return {} if ttl is None else {EXPIRES: f"{expiry} after {format_duration(ttl)}"}


# ------------------------------------------------------------------------------------------- stored rows


@dataclass
class Revision:
    """The stored rows of some keys and the new ones, and which of both are dropped."""

    rows: pa.Table
    """The stored rows in the order of arrival, then the new ones."""
    stored: int
    """How many of the rows are stored already."""
    dropped: Mask
    names: tuple[str, ...]
    """The columns that identify a row: all but its times and its number."""

    @property
    def before(self) -> pa.Table:
        """The rows before the revision."""
        return self.rows.slice(0, self.stored)

    @property
    def after(self) -> pa.Table:
        """The rows after the revision."""
        return _without(self.rows, self.dropped)

    @property
    def added(self) -> pa.Table:
        """The new rows that stay."""
        return _without(self.rows.slice(self.stored), self.dropped[self.stored :])

    @property
    def removed(self) -> pa.Table:
        """The stored rows that are dropped."""
        return self.before.filter(pa.array(self.dropped[: self.stored]))

    def expire(self, before: int) -> None:
        """Drop the rows that arrived before an instant."""
        self.dropped |= self.rows.column(_ARRIVAL).cast(pa.int64()).to_numpy() < before

    def retract(self, retractions: pa.Table) -> int:
        """Drop one row for each retraction; returns the number of retractions without a match."""
        if not retractions.num_rows:
            return 0
        present = np.flatnonzero(~self.dropped)
        retracted, matched = match_retractions(self.rows.take(pa.array(present)), retractions, self.names)
        self.dropped[present[retracted]] = True
        return int(np.count_nonzero(~matched))

    def keep(self, rows: pa.Table) -> None:
        """Drop every row that is not among `rows`, which have some or all of the columns."""
        present = np.flatnonzero(~self.dropped)
        matched, _ = pair_rows(self.rows.take(pa.array(present)), rows, rows.schema.names)
        self.dropped[present[~matched]] = True


def _without(rows: pa.Table, dropped: Mask) -> pa.Table:
    return rows.filter(pa.array(~dropped)) if dropped.any() else rows


class StoredRows:
    """The rows of one input, stored by key with the time and order of their arrival.

    In state `_timestamp` is the wall clock of the epoch in which a row arrived, so that state expires by it
    and not by event time. To the operator `_timestamp` is the event time.

    Rows of one key keep their order. Only `numbered` rows have one order across keys.
    """

    def __init__(self, name: str, schema: pa.Schema, *, key: Sequence[str], numbered: bool = True) -> None:
        own = (SEQUENCE, RETRACT)
        self.name = name
        self.key = tuple(key) or (ONLY_KEY,)
        self.columns = plain_schema(pa.schema([column for column in schema if column.name not in own]))
        self._schema = self.columns
        if not key:
            self._schema = self._schema.append(pa.field(ONLY_KEY, pa.int8()))
        self._schema = self._schema.append(pa.field(_ARRIVAL, _INSTANT))
        if numbered:
            self._schema = self._schema.append(pa.field(SEQUENCE, pa.int64()))
        self._identity = tuple(column for column in self.columns.names if column != TIMESTAMP)
        self._stored_names = [
            {TIMESTAMP: _EVENT_TIME, _ARRIVAL: TIMESTAMP}.get(column, column) for column in self._schema.names
        ]

    def config(self, description: str) -> TableConfig:
        """The state table of the rows; it does not expire by event time."""
        schema = pa.schema(
            [column.with_name(name) for column, name in zip(self._schema, self._stored_names, strict=True)]
        )
        return TableConfig(
            name=self.name, kind="time", description=description, schema=schema, key=self.key, order_by="key"
        )

    def arrived(
        self, batches: Sequence[pa.RecordBatch], ctx: OperatorContext, *, updating: bool
    ) -> tuple[pa.Table, pa.Table]:
        """The rows of an epoch with the columns of state: (appended rows, retractions)."""
        schema = self.columns.append(pa.field(RETRACT, pa.bool_())) if updating else self.columns
        came = pa.Table.from_batches(as_batches(batches, schema))
        rows = came.select(self.columns.names)
        count = rows.num_rows
        if ONLY_KEY in self._schema.names:
            rows = rows.append_column(ONLY_KEY, pa.array(np.zeros(count, dtype=np.int8)))
        rows = rows.append_column(_ARRIVAL, pa.array(np.full(count, now(ctx))).cast(_INSTANT))
        if SEQUENCE in self._schema.names:
            # Epochs are ordered, and within one all rows of a key are in this subtask.
            sequence = (ctx.task_info.epoch << 32) + np.arange(count, dtype=np.int64)
            rows = rows.append_column(SEQUENCE, pa.array(sequence))
        rows = rows.cast(self._schema)
        if not updating:
            return rows, rows.slice(0, 0)
        retracts = came.column(RETRACT).fill_null(False)
        appends = pa.array(~retracts.to_numpy())
        return rows.filter(appends), rows.filter(retracts)

    def read(self, keys: pa.Table, ctx: OperatorContext) -> pa.Table:
        """The stored rows of these keys, those of a key in the order of arrival."""
        if not keys.num_rows:
            return self._schema.empty_table()
        return self._public(ctx.time_table(self.name).get(keys))

    def expired(self, before: int, ctx: OperatorContext) -> pa.Table:
        """The stored rows that arrived before an instant; a full scan."""
        return self._public(ctx.time_table(self.name).range(None, before))

    def _public(self, stored: pa.Table) -> pa.Table:
        rows = stored.select(self._stored_names).rename_columns(self._schema.names)
        if SEQUENCE not in rows.schema.names:
            return rows
        return rows.take(pa.array(np.argsort(rows.column(SEQUENCE).to_numpy(), kind="stable")))

    def revision(self, stored: pa.Table, appended: pa.Table) -> Revision:
        """Stored rows and the new rows of their keys; nothing is dropped yet."""
        rows = pa.concat_tables([stored, appended])
        return Revision(rows, stored.num_rows, np.zeros(rows.num_rows, dtype=np.bool_), self._identity)

    def write(self, revision: Revision, ctx: OperatorContext) -> None:
        """Write a revision to state."""
        table = ctx.time_table(self.name)
        for rows, change in ((revision.removed, table.delete_value), (revision.added, table.insert)):
            if rows.num_rows:
                change(rows.rename_columns(self._stored_names))

    def expire(self, before: int, ctx: OperatorContext) -> None:
        """Remove every row that arrived before an instant, without reading any."""
        ctx.time_table(self.name).expire(before)

    def remove_arrivals(self, first: int, last: int, ctx: OperatorContext) -> None:
        """Remove every row that arrived between two instants, both included, without reading any."""
        ctx.time_table(self.name).delete_time_range(first, last + 1)

    def delete(self, keys: pa.Table, ctx: OperatorContext) -> None:
        """Remove every row of these keys."""
        if keys.num_rows:
            ctx.time_table(self.name).delete_key(keys)
