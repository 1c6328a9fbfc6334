"""Read many Avro records into columns at once, with DataFusion's reader of Avro files.

The messages are written into one file, each followed by a mark with its number: if a mark is missing, the
message before it did not match its schema. Such messages are then read one by one, to report the error.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats._shared.conform import check_columns, conform_rows
from headrace.formats._shared.records import ReadRecords, conform_records
from headrace.formats._shared.wire import content, join, sized, zigzag
from headrace.formats.avro.file import file_header
from headrace.formats.avro.records import read_record_of
from headrace.formats.avro.schema import AvroType, arrow_schema, to_json
from headrace.formats.avro.unions import with_branches
from headrace.formats.base import LineError

_MARK = "headrace_mark"
_MARK_BYTES = 8
_MANY = 1 << 62
_PIECE = 128


class _RefusedError(Exception):
    """Some of the messages cannot be read."""


class AvroReader:
    """Reads messages of one schema, each one record, into the target columns.

    Raises a ConfigurationError if the schema does not fit the columns.
    """

    def __init__(self, node: AvroType, target: pa.Schema) -> None:
        node = with_branches(as_record(node), target)
        self._node, self._target = node, target
        columns = arrow_schema(node)
        check_columns(columns, target)
        # The last column is there for its length, if no other is.
        declared = [column for column in columns if column.name in target.names]
        self._read_schema = pa.schema([*declared, pa.field("", pa.null())])
        self._fast = not any(part.kind == "ref" for part in _parts(node))
        self._slow = pa.schema([column for column in declared if _by_record(dict(node.fields)[column.name])])
        self._decimals = any(part.logical == "decimal" for part in _parts(node))
        self._read_one = read_record_of(node)

    def read(self, messages: pa.Array) -> ReadRecords:
        """Read the messages, an array of bytes, into rows, in order."""
        bad: dict[int, LineError] = {}
        tables = list(self._read(messages, 0, bad)) or [self._read_schema.empty_table()]
        return conform_records(pa.concat_tables(tables), bad, self._target, messages=len(messages))

    def _read(self, messages: pa.Array, first: int, bad: dict[int, LineError]) -> Iterator[pa.Table]:
        """Yield the columns of good messages; errors of the others, numbered from `first`, go to `bad`."""
        if not len(messages):
            return
        if self._fast:
            try:
                yield self._together(messages)
            except _RefusedError:
                pass
            else:
                return
            if len(messages) > _PIECE:
                half = len(messages) // 2
                yield from self._read(messages[:half], first, bad)
                yield from self._read(messages[half:], first + half, bad)
                return
        yield self._read_singly(messages, first, bad)

    def _together(self, messages: pa.Array) -> pa.Table:
        names = [name for name in self._read_schema.names[:-1] if name not in self._slow.names]
        table = _read_marked(self._marked, messages, names)
        table = table.append_column("", pa.nulls(len(messages)))
        if len(self._slow):
            try:
                values = [self._read_one(message) for message in messages.to_pylist()]
                slow = _columns(values, self._slow)
            except ValueError:
                raise _RefusedError from None
            for name in slow.schema.names:
                table = table.append_column(name, slow.column(name))
        columns = [table.column(column.name) for column in self._read_schema]
        kinds = [column.type for column in self._read_schema]
        arrays = [
            column if column.type == kind else column.cast(kind)
            for column, kind in zip(columns, kinds, strict=True)
        ]
        table = pa.table(arrays, schema=self._read_schema)
        if self._decimals:
            try:
                table.validate(full=True)  # numbers with more digits than the schema says pass the reader
            except pa.ArrowInvalid:
                raise _RefusedError from None
        return table

    @functools.cached_property
    def _marked(self) -> bytes:
        """Return the schema of a message and the mark after it."""
        mark = (_MARK, AvroType("fixed", "headrace.Mark", size=_MARK_BYTES))
        return json.dumps(to_json(_plain(replace(self._node, fields=[*self._node.fields, mark])))).encode()

    def _read_singly(self, messages: pa.Array, first: int, bad: dict[int, LineError]) -> pa.Table:
        values: dict[int, Any] = {}
        for index, message in enumerate(messages.to_pylist(), first):
            try:
                values[index] = self._read_one(message)
            except LineError as error:
                bad[index] = error
        try:
            return _columns(list(values.values()), self._read_schema)
        except ValueError:
            tables = [self._read_schema.empty_table()]
        for index, value in values.items():
            try:
                tables.append(_columns([value], self._read_schema))
            except ValueError as error:
                bad[index] = LineError(str(error))
        return pa.concat_tables(tables)


def as_record(node: AvroType) -> AvroType:
    """Return a record type with the one member `value` and the same encoding; a record stays itself."""
    return node if node.kind == "record" else AvroType("record", "Value", fields=[("value", node)])


Reader: TypeAlias = Callable[[pa.Array], ReadRecords]
"""A function that reads records, or arrays of records, into rows."""


def record_reader(node: AvroType, target: pa.Schema) -> Reader:
    """Return a reader of records of a schema into the target columns."""
    return AvroReader(node, target).read


def block_reader(node: AvroType, target: pa.Schema) -> Reader:
    """Return a reader of arrays of records of a schema into the target columns."""
    node = with_branches(as_record(node), target)
    columns = arrow_schema(node)
    check_columns(columns, target)
    declared = pa.schema([column for column in columns if column.name in target.names] or list(columns)[:1])
    block = AvroType("record", "Block", fields=[("rows", AvroType("array", item=node))])
    reader = AvroReader(block, pa.schema([pa.field("rows", pa.list_(pa.struct(list(declared))))]))

    def read(blocks: pa.Array) -> ReadRecords:
        result = reader.read(blocks)
        lists = result.rows.column("rows").combine_chunks()
        counts = result.counts_of(len(blocks))
        counts[counts == 1] = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        conformed = conform_rows(pa.table(lists.flatten().flatten(), schema=declared), target)
        owners, bad = np.repeat(np.arange(len(blocks)), counts), dict(result.bad)
        for row, error in conformed.bad.items():
            counts[owners[row]] -= 1
            bad.setdefault(int(owners[row]), error)
        return ReadRecords(conformed.rows, bad, counts)

    return read


def _columns(values: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([value.get(column.name) for value in values], column.type) for column in schema]
    return pa.table(columns, schema=schema)


def _plain(node: AvroType) -> AvroType:
    """Return the type without the logical type UUID, which is read as a string."""
    return replace(
        node,
        logical="" if node.logical == "uuid" else node.logical,
        fields=[(name, _plain(member)) for name, member in node.fields],
        item=None if node.item is None else _plain(node.item),
    )


def _parts(node: AvroType) -> Iterator[AvroType]:
    yield node
    for _, member in node.fields:
        yield from _parts(member)
    if node.item is not None:
        yield from _parts(node.item)


def _by_record(node: AvroType) -> bool:
    """Whether a value of the type has to be read record by record."""
    return any(
        (part.kind == "union" and part.optional is None)
        or (part.kind == "fixed" and part.logical == "uuid")
        # Any number of items without content would fit into a message.
        or (part.kind == "array" and part.item is not None and _is_empty(part.item))
        for part in _parts(node)
    )


def _is_empty(node: AvroType) -> bool:
    if node.kind == "record":
        return all(_is_empty(member) for _, member in node.fields)
    return node.kind == "null" or (node.kind == "fixed" and node.size == 0)


def _read_marked(schema: bytes, messages: pa.Array, columns: Sequence[str]) -> pa.Table:
    """Read columns of messages that all match the schema; raises a _RefusedError."""
    from datafusion import SessionConfig, SessionContext, col

    count = len(messages)
    first = int.from_bytes(secrets.token_bytes(_MARK_BYTES - 1), "little")
    marks = np.arange(first, first + count, dtype="<i8")
    block = content(join(messages, sized(marks, _MARK_BYTES)))
    sync = secrets.token_bytes(16)
    # More records are announced than there are: the reader does not come back from a block that has bytes
    # left after its last record. It gives the first batch before it finds out.
    parts = (file_header(schema, sync), zigzag(_MANY), zigzag(len(block)), block, sync)
    config = SessionConfig().with_target_partitions(1).with_batch_size(count)
    with tempfile.NamedTemporaryFile(suffix=".avro", dir=_memory(len(block))) as file:
        file.writelines(parts)
        file.flush()
        try:
            frame = SessionContext(config).read_avro(file.name)
            frame = frame.select(*(col(f'"{name}"') for name in (*columns, _MARK)))
            batch = next(frame.execute_stream()).to_pyarrow()
        except Exception as error:  # the reader has no error of its own
            raise _RefusedError from error
    mark_column = batch.column(_MARK)
    numbers = np.frombuffer(mark_column.buffers()[1], "<i8")[mark_column.offset :][: len(mark_column)]
    if not np.array_equal(numbers, marks):
        raise _RefusedError
    return pa.Table.from_batches([batch])


def _memory(size: int) -> str | None:
    """Return a directory in memory with room for so many bytes, if there is one."""
    folder = "/dev/shm"  # noqa: S108 - files there are made for their owner alone
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    roomy = space.f_bavail * space.f_frsize > 4 * size
    return folder if roomy and os.access(folder, os.W_OK) else None
