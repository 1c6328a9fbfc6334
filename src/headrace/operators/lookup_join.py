"""Joins rows with an external table, by its key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from headrace.base.errors import PlanError, suggest
from headrace.base.options import Duration, Options, Size
from headrace.model.fragments import plain_schema
from headrace.model.operator import ArrowOperator, Collector, Lookup, OperatorContext, key_values

Positions = npt.NDArray[np.int64]

_ENTRY = np.dtype([("found", np.bool_), ("asked", np.float64), ("used", np.int64)])
_UNKNOWN = -1
_OVERHEAD = 150
"""About how many bytes an entry takes besides its columns: the key as a Python value, and its position."""


class CacheOptions(Options):
    """The cache of a lookup table; the aliases are the option names in SQL."""

    max_bytes: Size | None = Field(
        None,
        ge=0,
        le=2**30,
        alias="lookup.cache.max_bytes",
        description="How much of the table each worker remembers at most; 0 for nothing.",
    )
    ttl: Duration | None = Field(
        None,
        gt=timedelta(0),
        alias="lookup.cache.ttl",
        description="How long what was found is believed; without it, for as long as it is remembered.",
    )


class LookupJoin(ArrowOperator):
    """Adds the columns of a lookup table for the key in column `on` of each row.

    `columns` maps a column of the table to its name in the result. A row without an entry, or whose key is
    null, is left out of an `inner` join and has nulls in a `left` one. All keys of a batch that are not in
    the worker's cache are looked up in one request; that a key has no entry is cached too. A full cache
    evicts the least recently used entries.

    The age of an entry is measured by the clock of epochs: it may exceed `ttl` by the length of an epoch. The
    table may change at any time, so an epoch that is retried may see other values; only those of the
    successful attempt are emitted.
    """

    def __init__(
        self,
        lookup: Lookup,
        *,
        on: str,
        columns: Mapping[str, str],
        kind: Literal["inner", "left"] = "inner",
        cache: CacheOptions | None = None,
    ) -> None:
        self.lookup = lookup
        self.on = on
        self.columns = dict(columns)
        self.kind = kind
        self.schema = plain_schema(lookup.columns)
        for name in (lookup.key, *columns):
            if name not in self.schema.names:
                raise PlanError(
                    f"the lookup table has no column `{name}`",
                    hint=suggest(name, self.schema.names, listing="its columns are"),
                )
        self._key_type = self.schema.field(lookup.key).type
        _check_key(self._key_type)
        cache = cache or CacheOptions()
        self.max_bytes = lookup.cache_bytes if cache.max_bytes is None else cache.max_bytes
        self.ttl = cache.ttl

    @property
    def name(self) -> str:
        return "lookup_join"

    def validate(self) -> None:
        self.lookup.validate()

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        coded = self._keys(batch).dictionary_encode()
        cache = ctx.resource("lookup.cache", self._new_cache)
        positions = self._find(coded.dictionary, cache, ctx).take(coded.indices)
        if self.kind == "inner":
            batch = batch.filter(positions.is_valid())
            positions = positions.drop_null()
        matches = cache.rows.select(list(self.columns)).take(positions)
        cache.trim()
        names = [*batch.schema.names, *self.columns.values()]
        collector.collect(pa.RecordBatch.from_arrays([*batch.columns, *matches.columns], names))

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        keys = batch.column(self.on)
        try:
            return keys.cast(self._key_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise PlanError(
                f"column `{self.on}` cannot be compared with key `{self.lookup.key}`: {error}",
                hint=f"cast it to {self._key_type} first",
            ) from None

    def _find(self, keys: pa.Array, cache: _Cache, ctx: OperatorContext) -> pa.Array:
        """The position of each key's row in the cache, null if the table has none; looks up missing keys."""
        values = key_values(keys)
        unknown = cache.find(values, now=ctx.time) == _UNKNOWN
        ctx.metrics.add("cache_hits", len(keys) - int(unknown.sum()))
        if unknown.any():
            missing = keys.filter(pa.array(unknown))
            ctx.metrics.add("lookups", len(missing))
            cache.add(missing, self.lookup.lookup(missing, ctx), now=ctx.time)
        return cache.positions(values)

    def _new_cache(self) -> _Cache:
        ttl = None if self.ttl is None else self.ttl.total_seconds()
        return _Cache(self.schema, self.lookup.key, max_bytes=self.max_bytes, ttl=ttl)

    def display(self) -> str:
        return f"{self.kind} join with {self.lookup.display()}"


def _check_key(kind: pa.DataType) -> None:
    try:
        pa.nulls(0, kind).dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise PlanError(
            f"a key of type {kind} cannot be looked up",
            hint="use a number, a text, bytes, a date or a timestamp",
        ) from None


class _Cache:
    """Rows of a table by their key, and the keys without a row; at most `max_bytes` after `trim`."""

    def __init__(self, schema: pa.Schema, key: str, *, max_bytes: int, ttl: float | None) -> None:
        self.rows = pa.RecordBatch.from_pylist([], schema)
        """One row for each entry; for a key without a row only the key is set."""
        self._key = key
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._entries = np.empty(0, _ENTRY)
        self._positions: dict[Any, int] = {}
        self._uses = 0

    def find(self, values: list[Any], *, now: float) -> Positions:
        """The positions of entries by key, `_UNKNOWN` for keys without an entry or with an expired one."""
        positions = np.fromiter(
            (self._positions.get(value, _UNKNOWN) for value in values), np.int64, len(values)
        )
        if self._ttl is not None:
            cached = np.flatnonzero(positions != _UNKNOWN)
            old = self._entries["asked"][positions[cached]] <= now - self._ttl
            positions[cached[old]] = _UNKNOWN
        self._uses += 1
        self._entries["used"][positions[positions != _UNKNOWN]] = self._uses
        return positions

    def positions(self, values: list[Any]) -> pa.Array:
        """The positions of the rows of keys that all have an entry; null where the table has no row."""
        positions = np.fromiter((self._positions[value] for value in values), np.int64, len(values))
        return pa.array(positions, mask=~self._entries["found"][positions])

    def add(self, keys: pa.Array, rows: pa.Table, *, now: float) -> None:
        """Cache the rows of these keys, and which keys have no row."""
        schema = self.rows.schema
        rows = rows.select(schema.names).cast(schema)
        present = set(key_values(rows.column(self._key).combine_chunks()))
        absent = keys.filter(pa.array([key not in present for key in key_values(keys)], pa.bool_()))
        empty = [
            absent if column.name == self._key else pa.nulls(len(absent), column.type) for column in schema
        ]
        start = self.rows.num_rows
        self.rows = pa.concat_batches(
            [self.rows, *rows.to_batches(), pa.RecordBatch.from_arrays(empty, schema=schema)]
        )
        new = np.zeros(rows.num_rows + len(absent), _ENTRY)
        new["found"][: rows.num_rows] = True
        new["asked"] = now
        new["used"] = self._uses
        self._entries = np.concatenate([self._entries, new])
        self._index(start)

    def _index(self, start: int) -> None:
        keys = key_values(self.rows.column(self._key)[start:])
        self._positions.update(zip(keys, range(start, self.rows.num_rows), strict=True))

    def trim(self) -> None:
        """Evict the least recently used entries if the cache is too large, down to half of its size."""
        while (size := self.rows.nbytes + _OVERHEAD * self.rows.num_rows) > self._max_bytes:
            remaining = int(self.rows.num_rows * self._max_bytes / 2 / size)
            latest = np.argsort(self._entries["used"], kind="stable")[self.rows.num_rows - remaining :]
            latest.sort()
            self.rows = self.rows.take(pa.array(latest))
            self._entries = self._entries[latest]
            self._positions = {}
            self._index(0)
