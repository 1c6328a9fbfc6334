"""Read many Avro records into columns at once, with DataFusion's reader of Avro files.

The messages are written into one file, each followed by a mark with its number: if a mark is missing, the
message before it did not match its schema. Such messages are then read one by one, to report the error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.formats._shared.conform import check_columns, conform_rows
from headrace.formats._shared.records import BadRow, ReadRecords, conform_records
from headrace.formats._shared.refused import convert_accepted
from headrace.formats._shared.wire import content, join, sized, zigzag
from headrace.formats.avro.file import file_header
from headrace.formats.avro.records import read_record_of
from headrace.formats.avro.schema import AvroType, arrow_schema, to_json
from headrace.formats.avro.unions import with_branches
from headrace.formats.avro.walk import find_broken
from headrace.formats.base import LineError
from headrace.formats.json.write import encode_json_lines

_MARK = "headrace_mark"
_MARK_BYTES = 8
_MANY = 1 << 62
_PIECE = 128
_BATCH = 8192
_OTHERS = 8
"""At most one in this many messages is read singly before all are."""


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
        # After bad messages more of them are likely: then they are looked for before all are read in vain.
        self._bad_before = False

    def read(self, messages: pa.Array) -> ReadRecords:
        """Read the messages, an array of bytes, into rows, in order."""
        bad: dict[int, LineError] = {}
        return conform_records(self._read(messages, bad), bad, self._target, messages=len(messages))

    def _read(self, messages: pa.Array, bad: dict[int, LineError]) -> pa.Table:
        """Return the columns of good messages; errors of the others go to `bad`."""
        if not len(messages):
            return self._read_schema.empty_table()
        if not self._fast:
            return self._read_singly(messages, range(len(messages)), bad)
        marked = _Marked.of(messages)
        if not self._bad_before:
            with contextlib.suppress(_RefusedError):
                return self._together(messages, marked)
        with contextlib.suppress(_RefusedError):
            table = self._read_most(messages, marked, bad)
            self._bad_before = bool(bad)
            return table
        return pa.concat_tables(self._read_halves(messages, 0, bad))

    def _read_most(self, messages: pa.Array, marked: _Marked, bad: dict[int, LineError]) -> pa.Table:
        """Read all messages together but a few, which are read singly; a _RefusedError if these are too many.

        Strings are read as bytes, which may be anything.
        """
        singly = find_broken(messages, self._node)
        if np.count_nonzero(singly) * _OTHERS > len(messages):
            raise _RefusedError
        places = np.flatnonzero(~singly)
        together = messages.filter(pa.array(~singly)) if len(self._slow) else messages
        table = self._marked_columns(self._as_bytes, together, marked.filter(~singly))
        refused: set[int] = set()
        columns = []
        for column, field in zip(table.columns, self._read_schema, strict=True):
            if column.type == field.type and not _may_overflow(field.type):
                columns.append(column)
                continue
            values, errors = convert_accepted(
                column.combine_chunks(), functools.partial(_checked, kind=field.type)
            )
            columns.append(values)
            refused |= errors.keys()
        table = pa.table(columns, schema=self._read_schema)
        if refused:
            good = np.ones(len(places), np.bool_)
            good[list(refused)] = False
            singly[places[~good]] = True
            table, places = table.filter(pa.array(good)), places[good]
        others = np.flatnonzero(singly)
        singles = self._read_singly(messages.take(pa.array(others)), others.tolist(), bad)
        if not singles.num_rows:
            return table
        order = np.argsort(np.append(places, [row for row in others.tolist() if row not in bad]))
        return pa.concat_tables([table, singles]).take(pa.array(order))

    def _read_halves(self, messages: pa.Array, first: int, bad: dict[int, LineError]) -> Iterator[pa.Table]:
        """Yield the columns of good messages; errors of the others, numbered from `first`, go to `bad`."""
        try:
            yield self._together(messages, _Marked.of(messages))
        except _RefusedError:
            pass
        else:
            return
        if len(messages) > _PIECE:
            half = len(messages) // 2
            yield from self._read_halves(messages[:half], first, bad)
            yield from self._read_halves(messages[half:], first + half, bad)
            return
        yield self._read_singly(messages, range(first, first + len(messages)), bad)

    def _together(self, messages: pa.Array, marked: _Marked) -> pa.Table:
        table = self._marked_columns(self._marked, messages, marked)
        table = pa.table(
            [
                _cast(column, field.type)
                for column, field in zip(table.columns, self._read_schema, strict=True)
            ],
            schema=self._read_schema,
        )
        if self._decimals:
            try:
                table.validate(full=True)  # numbers with more digits than the schema says pass the reader
            except pa.ArrowInvalid:
                raise _RefusedError from None
        return table

    def _marked_columns(self, schema: bytes, messages: pa.Array, marked: _Marked) -> pa.Table:
        """Read the columns of messages, which may not have their types yet; raises a _RefusedError."""
        names = [name for name in self._read_schema.names[:-1] if name not in self._slow.names]
        table = _read_marked(schema, marked, names)
        table = table.append_column("", pa.nulls(table.num_rows))
        if len(self._slow):
            try:
                values = [self._read_one(message) for message in messages.to_pylist()]
                slow = _columns(values, self._slow)
            except ValueError:
                raise _RefusedError from None
            for name in slow.schema.names:
                table = table.append_column(name, slow.column(name))
        return table.select(self._read_schema.names)

    @functools.cached_property
    def _as_bytes(self) -> bytes:
        """Return the schema of a message and its mark, with bytes for its strings."""
        return self._with_mark(
            replace(
                self._node, fields=[(name, _bytes_for_text(member)) for name, member in self._node.fields]
            )
        )

    @functools.cached_property
    def _marked(self) -> bytes:
        """Return the schema of a message and the mark after it."""
        return self._with_mark(self._node)

    def _with_mark(self, node: AvroType) -> bytes:
        mark = (_MARK, AvroType("fixed", "headrace.Mark", size=_MARK_BYTES))
        return json.dumps(to_json(_plain(replace(node, fields=[*node.fields, mark])))).encode()

    def _read_singly(self, messages: pa.Array, places: Sequence[int], bad: dict[int, LineError]) -> pa.Table:
        """Read messages one by one; errors, by the place of the message, go to `bad`."""
        values: dict[int, Any] = {}
        for index, message in zip(places, messages.to_pylist(), strict=True):
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
        rows = pa.table(lists.flatten().flatten(), schema=declared)
        conformed = conform_rows(rows, target)
        # The path of an error begins with the array that a block is.
        bad = {block: error.under(error.path[1:]) for block, error in result.bad.items()}
        owners = np.repeat(np.arange(len(blocks)), counts)
        begins, places = np.cumsum(counts) - counts, sorted(conformed.bad)
        bad_rows = []
        for row, text in zip(places, _as_lines(rows, places), strict=True):
            owner, error = int(owners[row]), conformed.bad[row]
            bad_rows.append(BadRow(owner, row - int(begins[owner]), text, error))
            counts[owner] -= 1
            bad.setdefault(owner, error)
        return ReadRecords(conformed.rows, bad, counts, bad_rows)

    return read


def _as_lines(rows: pa.Table, places: Sequence[int]) -> list[str]:
    """Return some of the rows as JSON."""
    if not places:
        return []
    return encode_json_lines(rows.take(pa.array(places))).decode().rstrip("\n").split("\n")


def _columns(values: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([value.get(column.name) for value in values], column.type) for column in schema]
    return pa.table(columns, schema=schema)


def _cast(column: Any, kind: pa.DataType) -> Any:
    return column if column.type == kind else column.cast(kind)


def _checked(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values in a type; raises a ValueError if some are not of it."""
    values = _cast(values, kind)
    if _may_overflow(kind):
        values.validate(full=True)
    return values


def _may_overflow(kind: pa.DataType) -> bool:
    """Whether there are decimals in a type: those with more digits than the schema says pass the reader."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_nested(kind))


def _bytes_for_text(node: AvroType) -> AvroType:
    if node.kind == "union":
        branches = [_bytes_for_text(branch) for _, branch in node.fields]
        kinds = [branch.kind for branch in branches]
        if kinds.count("bytes") > 1:
            return node
        return replace(node, fields=[(branch.name or branch.kind, branch) for branch in branches])
    return AvroType("bytes") if node.kind == "string" else node


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


@dataclass(frozen=True)
class _Marked:
    """Messages, each followed by a mark with its number."""

    messages: pa.Array
    marks: NDArray[np.int64]

    @classmethod
    def of(cls, messages: pa.Array) -> Self:
        first = int.from_bytes(secrets.token_bytes(_MARK_BYTES - 1), "little")
        marks = np.arange(first, first + len(messages), dtype="<i8")
        return cls(join(messages, sized(marks, _MARK_BYTES)), marks)

    def filter(self, mask: NDArray[np.bool_]) -> Self:
        return type(self)(self.messages.filter(pa.array(mask)), self.marks[mask])

    def padded(self, count: int) -> tuple[Sequence[memoryview], NDArray[np.int64]]:
        """Return the bytes of so many messages, and their marks: the last is repeated."""
        more = count - len(self.marks)
        last = content(self.messages[-1:])
        return [content(self.messages), *[last] * more], np.pad(self.marks, (0, more), mode="edge")


def _read_marked(schema: bytes, messages: _Marked, columns: Sequence[str]) -> pa.Table:
    """Read columns of messages that all match the schema; raises a _RefusedError."""
    from datafusion import SessionConfig, SessionContext, col

    # Batches of one size, so that those that are misread are soon seen: the last message fills the last one.
    count = len(messages.marks)
    size = -(-count // -(-count // _BATCH))
    block, marks = messages.padded(-(-count // size) * size)
    block_bytes = sum(map(len, block))
    sync = secrets.token_bytes(16)
    # More records are announced than there are: the reader does not come back from a block that has bytes
    # left after its last record. It gives the full batches before it finds out.
    parts: list[bytes | memoryview] = [
        file_header(schema, sync),
        zigzag(_MANY),
        zigzag(block_bytes),
        *block,
        sync,
    ]
    config = SessionConfig().with_target_partitions(1).with_batch_size(size)
    tables = []
    with tempfile.NamedTemporaryFile(suffix=".avro", dir=_memory(block_bytes)) as file:
        file.writelines(parts)
        file.flush()
        try:
            frame = SessionContext(config).read_avro(file.name)
            frame = frame.select(*(col(f'"{name}"') for name in (*columns, _MARK)))
            stream = frame.execute_stream()
            for begin in range(0, len(marks), size):
                batch = next(stream).to_pyarrow()
                if not np.array_equal(_numbers(batch.column(_MARK)), marks[begin : begin + size]):
                    raise _RefusedError  # noqa: TRY301 - as for any other error
                tables.append(pa.Table.from_batches([batch]))
        except Exception as error:  # the reader has no error of its own
            raise _RefusedError from error
    return pa.concat_tables(tables).slice(0, count)


def _numbers(marks: pa.Array) -> NDArray[np.int64]:
    return np.frombuffer(marks.buffers()[1], "<i8")[marks.offset :][: len(marks)]


def _memory(size: int) -> str | None:
    """Return a directory in memory with room for so many bytes, if there is one."""
    folder = "/dev/shm"  # noqa: S108 - files there are made for their owner alone
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    roomy = space.f_bavail * space.f_frsize > 4 * size
    return folder if roomy and os.access(folder, os.W_OK) else None
