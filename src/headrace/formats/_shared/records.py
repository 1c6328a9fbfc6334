"""What formats share whose messages are records of a schema: rows of those that are good, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.formats._shared.conform import conform_rows
from headrace.formats.base import Decoded, LineError


@dataclass(frozen=True)
class ReadRecords:
    """The rows of the messages that could be read, and why the others could not, by their place."""

    rows: pa.Table
    bad: Mapping[int, LineError] = field(default_factory=dict)
    counts: NDArray[np.int64] | None = None
    """How many rows each message became; None if each good one became one."""

    def counts_of(self, messages: int) -> NDArray[np.int64]:
        """How many rows each of so many messages became."""
        if self.counts is not None:
            return self.counts
        counts = np.ones(messages, np.int64)
        counts[list(self.bad)] = 0
        return counts

    def decoded(self, messages: Sequence[bytes], *, first_line: int, where: str, drop_bad: bool) -> Decoded:
        """The rows, as a format gives them; raises the first error unless they are to be dropped."""
        bad = [
            self.bad[place].at(first_line + place, messages[place], where, binary=True)
            for place in sorted(self.bad)
        ]
        if bad and not drop_bad:
            raise bad[0]
        plain = self.counts is None and not bad
        return Decoded(self.rows, bad, None if plain else self.counts_of(len(messages)))


def conform_records(
    table: pa.Table, bad: Mapping[int, LineError], wanted: pa.Schema, *, messages: int
) -> ReadRecords:
    """The columns wanted of good messages; `table` has their rows, `bad` the others of so many messages."""
    conformed = conform_rows(table, wanted)
    if not conformed.bad:
        return ReadRecords(conformed.rows, bad)
    left = [place for place in range(messages) if place not in bad]
    return ReadRecords(
        conformed.rows, {**bad, **{left[place]: error for place, error in conformed.bad.items()}}
    )


def read_groups(
    messages: pa.Array,
    keys: NDArray[np.int64],
    read: Callable[[int, pa.Array], ReadRecords],
    *,
    empty: pa.Table,
) -> ReadRecords:
    """Read messages that belong together by their key; the rows come in the order of the messages.

    `read` may raise a LineError: then every message of the group is bad for this reason.
    """
    tables, places = [empty], [np.zeros(0, np.int64)]
    bad: dict[int, LineError] = {}
    counts = np.zeros(len(messages), np.int64)
    for key in np.unique(keys).tolist():
        group = np.flatnonzero(keys == key)
        try:
            records = read(key, messages if len(group) == len(messages) else messages.take(pa.array(group)))
        except LineError as error:
            bad |= dict.fromkeys(group.tolist(), error)
            continue
        bad |= {int(group[place]): error for place, error in records.bad.items()}
        counts[group] = records.counts_of(len(group))
        tables.append(records.rows)
        places.append(np.repeat(group, counts[group]))
    rows, order = pa.concat_tables(tables), np.concatenate(places)
    if len(tables) > 2:
        rows = rows.take(pa.array(np.argsort(order, kind="stable")))
    return ReadRecords(rows, bad, counts)
