"""The current rows of a result: the last rows if it is append-only, all valid rows if it is updating."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.columns import RETRACT
from headrace.formats.json.format import encode_json_values, encode_objects

MAX_ROWS = 10_000
"""How many rows of a result are remembered: more than any screen shows."""

Cells = tuple[str, ...]


class Appended:
    """A result whose rows never change: the last of them."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._rows: deque[Cells] = deque(maxlen=MAX_ROWS)
        self.total = 0

    def add(self, rows: pa.Table) -> None:
        """Add the rows of an epoch."""
        self.total += rows.num_rows
        self._rows.extend(_cells(rows.slice(max(0, rows.num_rows - MAX_ROWS)).select(self._columns.names)))

    def last(self, count: int) -> list[Cells]:
        """At most this many rows, the newest at the end."""
        return list(self._rows)[-count:]


@dataclass
class _Current:
    """A current row of an updating result."""

    text: str
    cells: Cells
    count: int
    changed: int


class Updated:
    """An updating result: its current rows, in the order of their first appearance."""

    def __init__(self, columns: pa.Schema, key: Sequence[str] = ()) -> None:
        self._columns = columns
        self._key = [columns.names.index(name) for name in key if name in columns.names]
        self._rows: dict[Any, _Current] = {}
        self._changes = 0
        self.total = 0

    def add(self, rows: pa.Table) -> None:
        """Take the changes of an epoch."""
        taken_back = pc.fill_null(rows.column(RETRACT).combine_chunks(), False)
        shown = rows.select(self._columns.names).combine_chunks()
        batch = shown.to_batches()[0] if shown.num_rows else None
        if batch is None:
            return
        changes = pa.table(
            {
                "row": encode_objects(list(batch.schema), batch),
                "by": pc.if_else(taken_back, -1, 1),
                "at": pa.array(range(batch.num_rows), pa.int64()),
            }
        )
        self.total += pc.sum(changes["by"]).as_py()
        # Most changes of an epoch cancel each other out: only what is left is looked at row by row.
        net = changes.group_by("row", use_threads=False).aggregate([("by", "sum"), ("at", "max")])
        net = net.filter(pc.not_equal(net["by_sum"], 0)).sort_by("at_max")
        gone = net.filter(pc.less(net["by_sum"], 0))
        shown = pa.array([row.text for row in self._rows.values()], net["row"].type)
        gone = gone.filter(pc.is_in(gone["row"], value_set=shown))
        come = net.filter(pc.greater(net["by_sum"], 0))
        come = come.slice(max(0, come.num_rows - MAX_ROWS))
        self._change(batch, gone)
        self._change(batch, come)
        emptied = [key for key, row in self._rows.items() if row.count <= 0]
        for key in emptied + list(self._rows)[: max(0, len(self._rows) - len(emptied) - MAX_ROWS)]:
            self._rows.pop(key, None)

    def _change(self, batch: pa.RecordBatch, net: pa.Table) -> None:
        cells = _cells(pa.Table.from_batches([batch]).take(net["at_max"]))
        for text, count, row in zip(net["row"].to_pylist(), net["by_sum"].to_pylist(), cells, strict=True):
            key = tuple(row[index] for index in self._key) if self._key else text
            self._changes += 1
            current = self._rows.get(key)
            if current is not None and current.text == text:
                current.count += count
                current.changed = self._changes
            elif count > 0:
                self._rows[key] = _Current(text, row, count, self._changes)

    def last(self, count: int) -> list[Cells]:
        """At most this many rows, those that changed last, in the order of their places."""
        rows = list(self._rows.values())
        if sum(row.count for row in rows) > count:
            oldest = sorted((row.changed for row in rows), reverse=True)[min(count, len(rows)) - 1]
            rows = [row for row in rows if row.changed >= oldest]
        return [row.cells for row in rows for _ in range(row.count)][-count:]


def _cells(rows: pa.Table) -> list[Cells]:
    """The rows as strings for display."""
    columns = [_texts(column.combine_chunks()) for column in rows.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


def _texts(column: pa.Array) -> list[str]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.to_pylist()
    else:
        texts = pc.if_else(column.is_valid(), encode_json_values(column), None).to_pylist()
        if not pa.types.is_nested(kind):
            texts = [text and text.strip('"') for text in texts]
    if pa.types.is_timestamp(kind):
        texts = [text and text.replace("T", " ", 1) for text in texts]
    return ["" if text is None else printable(text) for text in texts]


def printable(text: str) -> str:
    """The string without control characters of a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
