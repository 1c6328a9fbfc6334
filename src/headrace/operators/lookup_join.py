"""Joins rows with a table outside, by its key."""

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

Places = npt.NDArray[np.int64]

_ENTRY = np.dtype([("found", np.bool_), ("asked", np.float64), ("used", np.int64)])
_UNKNOWN = -1
_OVERHEAD = 150
"""About what an entry takes besides its columns, in bytes: the key as a Python value, and its place."""


class CacheOptions(Options):
    """What is remembered of a lookup table, by the names of SQL."""

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
    """Adds the columns that a lookup table has for the key in column `on` of each row.

    `columns` says which: column of the table → its name in the result. A row without an entry, or whose key
    is null, is left out of an `inner` join and has nulls in a `left` one. All keys of a batch are asked for
    in one request, unless the worker remembers them; that a key has no entry is remembered too. When there is
    too much to remember, what was not used for longest is forgotten.

    The age of an answer is measured by the clock of epochs, which is all that operators know of time: it may
    be older than `ttl` by the length of an epoch. The table changes as it likes, so an epoch that is tried
    again may find other values; those of the try that counts are kept, once.
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
                    hint=suggest(name, self.schema.names)
                    or f"its columns are {', '.join(self.schema.names)}",
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
        places = self._find(coded.dictionary, cache, ctx).take(coded.indices)
        if self.kind == "inner":
            batch = batch.filter(places.is_valid())
            places = places.drop_null()
        found = cache.rows.select(list(self.columns)).take(places)
        cache.trim()
        names = [*batch.schema.names, *self.columns.values()]
        collector.collect(pa.RecordBatch.from_arrays([*batch.columns, *found.columns], names))

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
        """Where in the cache the row of each key is, null if the table has none; asks for what is missing."""
        values = key_values(keys)
        unknown = cache.find(values, now=ctx.time) == _UNKNOWN
        ctx.metrics.add("cache_hits", len(keys) - int(unknown.sum()))
        if unknown.any():
            missing = keys.filter(pa.array(unknown))
            ctx.metrics.add("lookups", len(missing))
            cache.add(missing, self.lookup.lookup(missing, ctx), now=ctx.time)
        return cache.places(values)

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
    """Rows of a table by their key, and the keys that have none; at most `max_bytes` after `trim`."""

    def __init__(self, schema: pa.Schema, key: str, *, max_bytes: int, ttl: float | None) -> None:
        self.rows = pa.RecordBatch.from_pylist([], schema)
        """One for each entry; of a key without a row only the key."""
        self._key = key
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._entries = np.empty(0, _ENTRY)
        self._places: dict[Any, int] = {}
        self._uses = 0

    def find(self, values: list[Any], *, now: float) -> Places:
        """The entries of keys, `_UNKNOWN` for those that have none or an old one."""
        places = np.fromiter((self._places.get(one, _UNKNOWN) for one in values), np.int64, len(values))
        if self._ttl is not None:
            known = np.flatnonzero(places != _UNKNOWN)
            old = self._entries["asked"][places[known]] <= now - self._ttl
            places[known[old]] = _UNKNOWN
        self._uses += 1
        self._entries["used"][places[places != _UNKNOWN]] = self._uses
        return places

    def places(self, values: list[Any]) -> pa.Array:
        """The rows of keys that all have an entry; null for those the table does not have."""
        places = np.fromiter((self._places[one] for one in values), np.int64, len(values))
        return pa.array(places, mask=~self._entries["found"][places])

    def add(self, keys: pa.Array, found: pa.Table, *, now: float) -> None:
        """Remember what was found for these keys, and for which nothing was."""
        schema = self.rows.schema
        found = found.select(schema.names).cast(schema)
        known = set(key_values(found.column(self._key).combine_chunks()))
        absent = keys.filter(pa.array([one not in known for one in key_values(keys)], pa.bool_()))
        empty = [absent if one.name == self._key else pa.nulls(len(absent), one.type) for one in schema]
        start = self.rows.num_rows
        self.rows = pa.concat_batches(
            [self.rows, *found.to_batches(), pa.RecordBatch.from_arrays(empty, schema=schema)]
        )
        new = np.zeros(found.num_rows + len(absent), _ENTRY)
        new["found"][: found.num_rows] = True
        new["asked"] = now
        new["used"] = self._uses
        self._entries = np.concatenate([self._entries, new])
        self._index(start)

    def _index(self, start: int) -> None:
        keys = key_values(self.rows.column(self._key)[start:])
        self._places.update(zip(keys, range(start, self.rows.num_rows), strict=True))

    def trim(self) -> None:
        """Forget the entries that were not used for longest, if there is too much; then half is left."""
        while (size := self.rows.nbytes + _OVERHEAD * self.rows.num_rows) > self._max_bytes:
            kept = int(self.rows.num_rows * self._max_bytes / 2 / size)
            latest = np.argsort(self._entries["used"], kind="stable")[self.rows.num_rows - kept :]
            latest.sort()
            self.rows = self.rows.take(pa.array(latest))
            self._entries = self._entries[latest]
            self._places = {}
            self._index(0)
