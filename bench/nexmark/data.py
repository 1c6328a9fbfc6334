"""The events that every engine reads: made once, the same every time."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.connectors.nexmark import LANE, NexmarkSource
from headrace.operator import TIMESTAMP
from tests.support import read_split

EVENT_RATE = 10_000
"""Events in a second of event time."""
BASE_TIME = "2026-01-01T00:00:00"
_ROW_GROUP = 50_000
_LATER = 7200 * 1_000_000
"""Microseconds from the last event to those that close all windows for an engine that knows no end."""


@dataclass(frozen=True)
class Events:
    """Files of events, in the order of event time."""

    folder: Path
    count: int

    @property
    def closing(self) -> Path:
        """A file with a person, an auction and a bid long after all others."""
        return self.folder.parent / f"{self.folder.name}-closing" / "last.parquet"


def make_events(root: Path, *, files: int, per_file: int) -> Events:
    """The events in a folder of that size, made now if they are not there."""
    found = Events(root / f"{files}x{per_file}", files * per_file)
    if found.closing.exists():
        return found
    unfinished = found.folder.with_suffix(".unfinished")
    for folder in (found.folder, unfinished, found.closing.parent):
        shutil.rmtree(folder, ignore_errors=True)
    unfinished.mkdir(parents=True)
    table = pa.table({})
    for number in range(files):
        table = _read(number * per_file, (number + 1) * per_file)
        _write(table, unfinished / f"{number:05}.parquet")
    unfinished.rename(found.folder)
    found.closing.parent.mkdir()
    _write(_closing(table), found.closing)
    return found


def _write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=_ROW_GROUP, compression="zstd", coerce_timestamps="us")


def _read(first: int, last: int) -> pa.Table:
    source = NexmarkSource(event_rate=EVENT_RATE, message_count=last, base_time=BASE_TIME, paced=False)
    start = source.initial_offset(time=0.0)[LANE]
    (split,) = source.splits(
        {LANE: {**start, "event": first}}, {LANE: {**start, "event": last}}, parallelism=1
    )
    table = pa.Table.from_batches(read_split(source, split)[0])
    return _in_microseconds(table.rename_columns({TIMESTAMP: "datetime"}))


def _in_microseconds(table: pa.Table) -> pa.Table:
    """What all engines can read: times in microseconds, and all columns nullable."""
    return table.cast(pa.schema([(field.name, _type(field.type)) for field in table.schema]), safe=False)


def _type(given: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(given):
        return pa.timestamp("us")
    if pa.types.is_struct(given):
        return pa.struct([(field.name, _type(field.type)) for field in given])
    return given


def _closing(table: pa.Table) -> pa.Table:
    """One event of each kind from a table, much later and with numbers that no other event has."""
    rows: list[dict[str, Any]] = []
    for kind in ("person", "auction", "bid"):
        row = table.filter(pc.is_valid(table[kind])).slice(0, 1).to_pylist()[0]
        for name, value in row[kind].items():
            if isinstance(value, int):
                row[kind][name] = -1 - len(rows)
        rows.append(row)
    late = pa.Table.from_pylist(rows, schema=table.schema)
    latest = pc.max(table["datetime"]).cast(pa.int64()).as_py() + _LATER
    at = pa.array([latest] * 3).cast(pa.timestamp("us"))
    columns = {}
    for name in table.column_names:
        column = late[name].combine_chunks()
        if pa.types.is_struct(column.type):
            fields = [at if f.name == "datetime" else column.field(f.name) for f in column.type]
            column = pa.StructArray.from_arrays(fields, fields=list(column.type), mask=column.is_null())
        columns[name] = at if name == "datetime" else column
    return pa.table(columns)
