"""The input data of all engines: generated once, deterministic."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.base.columns import TIMESTAMP
from headrace.connectors.nexmark import LANE, NexmarkSource
from tests.support import read_split

EVENT_RATE = 10_000
"""Events in a second of event time."""
BASE_TIME = "2026-01-01T00:00:00"
_ROW_GROUP = 50_000
_LATER = 7200 * 1_000_000
"""Microseconds from the last event to those that close all windows for an engine that knows no end."""


@dataclass(frozen=True)
class Size:
    """How many files there are, how many rows each has, and how many make a micro-batch or an epoch.

    With 0 of them epochs are as large as Headrace makes them by itself.
    """

    files: int
    per_file: int
    per_batch: int


FULL = Size(40, 250_000, 8)
HALF = Size(20, 250_000, 4)
SMALL = Size(4, 50_000, 1)
"""For the comparison of rows."""


@dataclass(frozen=True)
class Events:
    """Files of rows, in the order of event time."""

    folder: Path
    count: int
    per_batch: int
    """Files in a micro-batch, and in an epoch."""

    @property
    def closed(self) -> Path:
        """The same files, the last of them with a person, an auction and a bid long after all others."""
        return self.folder.with_name(f"{self.folder.name}-closed")


@dataclass(frozen=True)
class Data:
    """What a table of a query holds: `nexmark` events, or uniformly drawn `keys`."""

    table: str = "nexmark"
    format: str = "parquet"
    size: Size = FULL
    keys: int = 0

    def make(self, root: Path, size: Size | None = None) -> Events:
        """The rows in a folder of that size, generated if they do not exist."""
        size = size or self.size
        name = f"keys{self.keys}" if self.keys else self.table
        events = Events(
            root / f"{name}-{self.format}-{size.files}x{size.per_file}",
            size.files * size.per_file,
            size.per_batch,
        )
        if not events.folder.exists():
            _make(events, size, format=self.format, read=self._draw if self.keys else _read)
        return events

    def _draw(self, first: int, last: int) -> pa.Table:
        keys = np.random.default_rng([self.keys, first]).integers(0, self.keys, last - first)
        start = np.datetime64(BASE_TIME, "us").astype(np.int64)
        times = start + np.arange(first, last) * (1_000_000 // EVENT_RATE)
        return pa.table({"key": pa.array(keys), "ts": pa.array(times).cast(pa.timestamp("us"))})


def make_events(root: Path, *, files: int, per_file: int, per_batch: int = 1) -> Events:
    """Nexmark events as Parquet files."""
    return Data().make(root, Size(files, per_file, per_batch))


def _make(events: Events, size: Size, *, format: str, read: Callable[[int, int], pa.Table]) -> None:  # noqa: A002
    write = _write_json if format == "json" else _write_parquet
    unfinished = events.folder.with_name(f"{events.folder.name}-unfinished")
    for folder in (unfinished, events.closed):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for number in range(size.files):
        table = read(number * size.per_file, (number + 1) * size.per_file)
        path = unfinished / f"{number:05}.{format}"
        write(table, path)
        if number < size.files - 1:
            os.link(path, events.closed / path.name)
        else:
            write(_with_end(table), events.closed / path.name)
    unfinished.rename(events.folder)


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=_ROW_GROUP, compression="zstd", coerce_timestamps="us")


def _write_json(table: pa.Table, path: Path) -> None:
    from datafusion import SessionConfig, SessionContext

    context = SessionContext(SessionConfig().with_target_partitions(1))
    context.register_record_batches("rows", [table.to_batches()])
    context.sql(f"COPY rows TO '{path}' STORED AS JSON").collect()


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


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _type(field.type)) for field in kind])
    return kind


def _with_end(table: pa.Table) -> pa.Table:
    """With one more event of each kind, much later and with numbers that no other event has."""
    if "bid" not in table.column_names:
        return table
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
    return pa.concat_tables([table, pa.table(columns)])
