"""Shared by formats whose messages are records of a schema: collect good rows in order, and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.formats._shared.conform import conform_rows
from headrace.formats.base import Decoded, LineError


class BadRow(NamedTuple):
    """A row of a message that cannot be read while others can."""

    message: int
    row: int
    """Its place among those of the message."""
    content: str
    error: LineError


@dataclass(frozen=True)
class ReadRecords:
    """The rows of the messages that could be read, and the errors of the others by index."""

    rows: pa.Table
    bad: Mapping[int, LineError] = field(default_factory=dict)
    counts: NDArray[np.int64] | None = None
    """The number of rows of each message; None if each good one has one row."""
    bad_rows: Sequence[BadRow] = ()
    """Of messages with several rows each row that cannot be read; `bad` has the first of a message."""

    def counts_of(self, messages: int) -> NDArray[np.int64]:
        """Return the number of rows of each message."""
        if self.counts is not None:
            return self.counts
        counts = np.ones(messages, np.int64)
        counts[list(self.bad)] = 0
        return counts

    def decoded(self, messages: Sequence[bytes], *, first_line: int, where: str, drop_bad: bool) -> Decoded:
        """Return the result of `Format.decode`; raises the first error unless bad records are dropped."""
        bad = [
            self.bad[index].at(first_line + index, messages[index], where, binary=True)
            for index in sorted(self.bad)
        ]
        if bad and not drop_bad:
            raise bad[0]
        plain = self.counts is None and not bad
        return Decoded(self.rows, bad, None if plain else self.counts_of(len(messages)))


def conform_records(
    table: pa.Table, bad: Mapping[int, LineError], target: pa.Schema, *, messages: int
) -> ReadRecords:
    """Convert the rows of good messages to the target columns; `bad` holds the errors of the others."""
    conformed = conform_rows(table, target)
    if not conformed.bad:
        return ReadRecords(conformed.rows, bad)
    left = [index for index in range(messages) if index not in bad]
    return ReadRecords(
        conformed.rows, {**bad, **{left[index]: error for index, error in conformed.bad.items()}}
    )


def read_groups(
    messages: pa.Array,
    keys: NDArray[np.int64],
    read: Callable[[int, pa.Array], ReadRecords],
    *,
    empty: pa.Table,
) -> ReadRecords:
    """Read messages in groups by key; the rows are in the order of the messages.

    `read` may raise a LineError: then every message of the group is bad for this reason.
    """
    tables, places = [empty], [np.zeros(0, np.int64)]
    bad: dict[int, LineError] = {}
    bad_rows: list[BadRow] = []
    counts = np.zeros(len(messages), np.int64)
    for key in np.unique(keys).tolist():
        group = np.flatnonzero(keys == key)
        try:
            records = read(key, messages if len(group) == len(messages) else messages.take(pa.array(group)))
        except LineError as error:
            bad |= dict.fromkeys(group.tolist(), error)
            continue
        bad |= {int(group[index]): error for index, error in records.bad.items()}
        bad_rows += [row._replace(message=int(group[row.message])) for row in records.bad_rows]
        counts[group] = records.counts_of(len(group))
        tables.append(records.rows)
        places.append(np.repeat(group, counts[group]))
    rows, order = pa.concat_tables(tables), np.concatenate(places)
    if len(tables) > 2:
        rows = rows.take(pa.array(np.argsort(order, kind="stable")))
    return ReadRecords(rows, bad, counts, bad_rows)
