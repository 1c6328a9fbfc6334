"""Decode the pgoutput messages of logical replication, column by column.

A message is a kind and its fields: `B` begins a transaction and `C` commits it, `R` describes a table, `I`,
`U` and `D` insert, update and delete a row, `T` truncates tables. Numbers are big-endian.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.base.errors import InternalError

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

CHUNK_ROWS = 20_000
_HEADER, _FIELD = 19, 6
_EPOCH = 946_684_800 * 10**6
"""The epoch of PostgreSQL, 2000-01-01, in microseconds since 1970."""


@dataclass(frozen=True)
class ReplicatedRelation:
    """The name and the columns of a table at the time of a change."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class ReplicatedRows:
    """Rows that were added or retracted, in their order."""

    relation: ReplicatedRelation
    columns: Sequence[pa.Array]
    """The values as strings, one array for each column of the table."""
    retracts: NDArray[np.bool_]
    times: Int64s
    """The commit time of the transaction of each row, in nanoseconds since 1970."""
    positions: Int64s
    """The LSN at which the transaction of each row ends."""


class MissingRowError(Exception):
    """An update or a delete was logged without the complete old row."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class ReplicationMessages:
    """The messages of the transactions in a range, from the blocks of COPY … (FORMAT binary).

    `oid` is the table. Transactions that end after `start` and not after `end` are in the range.
    """

    def __init__(self, blocks: Sequence[bytes], *, oid: int, start: int, end: int) -> None:
        messages = list(blocks[:-1])  # the last block says that it is the last
        if messages:
            messages[0] = messages[0][_HEADER:]
        self._data: Bytes = np.frombuffer(b"".join(messages), np.uint8)
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self._starts: Int64s = np.cumsum(lengths) - lengths + _FIELD
        self._kinds = self._data[self._starts]
        self._oid = oid
        begins, ends = self._of_kind("B"), self._of_kind("C")
        if len(begins) != len(ends):
            raise InternalError(f"{len(begins)} transactions begin, {len(ends)} end")
        self._ends = self._long(self._starts[ends] + 10)
        self._times = (self._long(self._starts[ends] + 18) + _EPOCH) * 1000
        self._transaction: Int64s = np.cumsum(self._kinds == ord("B")) - 1
        in_range = (self._ends > start) & (self._ends <= end)
        self._in_range = in_range[self._transaction] if len(in_range) else np.zeros(len(messages), np.bool_)

    def _of_kind(self, *kinds: str) -> Int64s:
        return np.flatnonzero(np.isin(self._kinds, [ord(kind) for kind in kinds]))

    def _byte(self, offsets: Int64s) -> Int64s:
        return self._data[offsets].astype(np.int64)

    def _short(self, offsets: Int64s) -> Int64s:
        return self._byte(offsets) << 8 | self._byte(offsets + 1)

    def _int(self, offsets: Int64s) -> Int64s:
        return self._short(offsets) << 16 | self._short(offsets + 2)

    def _long(self, offsets: Int64s) -> Int64s:
        return self._int(offsets) << 32 | self._int(offsets + 4)

    def truncates(self) -> list[int]:
        """Return the end of the transaction of each truncation of the table."""
        positions = []
        for index in self._of_kind("T"):
            start = int(self._starts[index])
            count = int(self._int(np.array([start + 1]))[0])
            oids = self._int(start + 6 + 4 * np.arange(count))
            if self._in_range[index] and self._oid in oids:
                positions.append(int(self._ends[self._transaction[index]]))
        return positions

    def rows(self, *, inserts_only: bool = False) -> Iterator[ReplicatedRows]:
        """Yield the rows of all changes; an update retracts the old row, then adds the new one."""
        changes = self._of_kind("I") if inserts_only else self._of_kind("I", "U", "D")
        changes = changes[self._in_range[changes]]
        changes = changes[self._int(self._starts[changes] + 1) == self._oid]
        if not len(changes):
            return
        relations = [index for index in self._of_kind("R") if self._relation_oid(index) == self._oid]
        bounds = [*relations, len(self._kinds)]
        for index, following in zip(relations, bounds[1:], strict=True):
            some = changes[(changes > index) & (changes < following)]
            relation = self._relation(index)
            for first in range(0, len(some), CHUNK_ROWS):
                yield self._rows(relation, some[first : first + CHUNK_ROWS])

    def _relation_oid(self, index: int) -> int:
        return int(self._int(self._starts[[index]] + 1)[0])

    def _relation(self, index: int) -> ReplicatedRelation:
        start = int(self._starts[index]) + 5
        schema, start = self._text(start)
        name, start = self._text(start)
        count = int(self._short(np.array([start + 1]))[0])
        start += 3
        columns = []
        for _ in range(count):
            column, start = self._text(start + 1)
            columns.append(column)
            start += 8
        return ReplicatedRelation(name if schema == "public" else f"{schema}.{name}", tuple(columns))

    def _text(self, start: int) -> tuple[str, int]:
        """Return a zero-terminated string, and the offset after it."""
        end = start + int(np.flatnonzero(self._data[start : start + 256] == 0)[0])
        return self._data[start:end].tobytes().decode(), end + 1

    def _rows(self, relation: ReplicatedRelation, changes: Int64s) -> ReplicatedRows:
        starts, kinds = self._starts[changes], self._kinds[changes]
        updates, deletes = kinds == ord("U"), kinds == ord("D")
        old = updates | deletes
        # A row of an update or a delete is preceded by `O` if it is the whole old one.
        partial = old & (self._data[starts + 5] != ord("O"))
        if partial.any():
            first = changes[np.flatnonzero(partial)[0]]
            raise MissingRowError(int(self._ends[self._transaction[first]]))
        after = starts + 6
        after[updates] = self._walk(after[updates], len(relation.columns))[0] + 1
        owners = np.concatenate([np.flatnonzero(old), np.flatnonzero(~deletes)])
        retracts = np.arange(len(owners)) < int(old.sum())
        tuples = np.concatenate([starts[old] + 6, after[~deletes]])
        order = np.argsort(owners * 2 + ~retracts)
        owners, retracts, tuples = owners[order], retracts[order], tuples[order]
        _, fields = self._walk(tuples, len(relation.columns))
        transactions = self._transaction[changes[owners]]
        return ReplicatedRows(
            relation,
            [self._column(*field) for field in fields],
            retracts,
            self._times[transactions],
            self._ends[transactions],
        )

    def _walk(self, offsets: Int64s, count: int) -> tuple[Int64s, list[tuple[Int64s, Int64s, Bytes]]]:
        """Return where tuples end, and for each column the offsets, lengths and kinds of its values."""
        if len(offsets) and (self._short(offsets) != count).any():
            raise InternalError(f"a row does not have the {count} columns of its table")
        offsets = offsets + 2
        fields = []
        for _ in range(count):
            kinds = self._data[offsets]
            filled = kinds == ord("t")
            lengths = np.zeros(len(offsets), np.int64)
            lengths[filled] = self._int(offsets[filled] + 1)
            fields.append((offsets + 5, lengths, kinds))
            offsets = offsets + np.where(filled, lengths + 5, 1)
        return offsets, fields

    def _column(self, starts: Int64s, lengths: Int64s, kinds: Bytes) -> pa.Array:
        unchanged = np.flatnonzero(kinds == ord("u"))
        if len(unchanged):
            # A long value that an update left as it was is not sent again; the old row is just before.
            starts, lengths, kinds = starts.copy(), lengths.copy(), kinds.copy()
            for array in (starts, lengths, kinds):
                array[unchanged] = array[unchanged - 1]
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        source = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        values = pa.LargeStringArray.from_buffers(
            len(lengths), pa.py_buffer(offsets), pa.py_buffer(self._data[source].tobytes())
        )
        texts = values.cast(pa.string())
        empty = kinds == ord("n")
        return texts if not empty.any() else pa.compute.if_else(pa.array(empty), None, texts)
