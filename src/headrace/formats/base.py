"""The interface of formats: bytes to rows and rows to bytes, with the columns that a table declares."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.base.columns import RETRACT
from headrace.base.errors import BadLineError, PlanError, suggest

JSON_COLUMN = {b"headrace.json": b"true"}
"""The metadata of a string field that holds JSON: it is read and written as JSON, not as a string."""

Rows: TypeAlias = "pa.RecordBatch | pa.Table"
Path: TypeAlias = tuple[str, ...]
_SHOWN = 200
_NEWLINE = 10
_COUNTED = 256 * 1024
"""The number of bytes that are scanned together: they fit into the cache of a core."""


def is_json(field: pa.Field) -> bool:
    """Whether a field holds any JSON values, as strings."""
    if isinstance(field.type, pa.BaseExtensionType) and field.type.extension_name == "arrow.json":
        return True
    return bool(field.metadata and field.metadata.get(b"headrace.json") == b"true")


def plain_field(field: pa.Field) -> pa.Field:
    """Return the field as it is in batches: nullable, without metadata, at every depth."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        kind = pa.struct([plain_field(kind.field(i)) for i in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(plain_field(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, plain_field(kind.item_field))
    return pa.field(field.name, kind)


class RowEnds(Protocol):
    """Finds the ends of rows in bytes that start with a row; without `last`, more bytes may follow."""

    longest: int
    """The most bytes of a row with several lines; a longer one is its first line alone."""

    def __call__(self, data: bytes, *, last: bool) -> NDArray[np.int64]: ...


class LineError(ValueError):
    """A bad line or message: the reason, the column if it is one, and what to do."""

    def __init__(
        self, reason: str, *, path: Path = (), hint: str | None = None, fault: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.column = ".".join(path) or None
        self.hint = hint
        self.fault = fault

    def under(self, path: Path) -> LineError:
        """Return the error of a value at this path."""
        return LineError(self.reason, path=path, hint=self.hint, fault=self.fault)

    def at(self, number: int, line: bytes, where: str, *, binary: bool = False) -> BadLineError:
        """Return the error of the line with this number; `binary` if it is not text."""
        hint = self.hint
        if hint is None and self.column is not None:
            hint = "correct the line, or declare the column with another type"
        return bad_line(
            number,
            line,
            self.reason,
            where=where,
            column=self.column,
            hint=hint,
            binary=binary,
            fault=self.fault,
        )


def missing_value(path: Path) -> LineError:
    """Return the error of a column that is NOT NULL and has no value."""
    return LineError("the value is missing, and the column is NOT NULL", path=path, fault="missing-value")


@dataclass(frozen=True)
class Decoded:
    """The rows that were read, and the errors of dropped records."""

    rows: pa.Table
    bad: Sequence[BadLineError] = ()
    counts: NDArray[np.int64] | None = None
    """The number of rows of each line; None if every line that is neither blank nor bad has one."""


class Format(ABC):
    """Reads and writes rows as lines or messages. It pickles.

    `schema` holds the columns of the table: reading returns exactly these, in this order, and writing writes
    only these. Without a schema every column of a batch is written, and nothing can be read.
    """

    updating: bool = False
    """Whether retractions (`_retract`) can be read and written."""

    head_lines: int = 0
    """The number of header lines of a file."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self.schema = schema

    def __getstate__(self) -> dict[str, object]:
        # A reader holds functions made for the columns: it is made again where the rows are read.
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    @abstractmethod
    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "input") -> Decoded:
        """Decode lines, or a sequence of messages; errors number them from `first_line`."""

    row_ends: RowEnds | None = None
    """Finds the ends of rows that may span several lines; None if each line is a row."""

    def read_head(self, head: bytes, where: str) -> None:
        """Read the header of a file, its first `head_lines`; call it before decoding other lines.

        Lines that are numbered from 1 start with the header, and need no call.
        """

    def split_rows(self, data: bytes, first_line: int = 1) -> list[tuple[int, bytes]]:
        """Yield each row of some lines, without its newline, with the number of its first line."""
        if self.row_ends is None:
            return split_lines(data, first_line)
        rows, begin = [], 0
        for end in self.row_ends(data, last=True).tolist():
            row = data[begin:end]
            rows.append((first_line, row.removesuffix(b"\n")))
            begin, first_line = end, first_line + row.count(b"\n")
        return rows

    def head(self, schema: pa.Schema) -> bytes:
        """Return the header of a file of rows with these columns."""
        return b""

    @abstractmethod
    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as lines, each ended by a newline; without the header."""

    def messages(self, rows: Rows) -> list[bytes]:
        """Encode the rows as messages, without newlines."""
        return self.encode(rows).split(b"\n")[:-1]

    def check(self, schema: pa.Schema) -> None:
        """Raise a PlanError unless rows of this schema can be written."""
        if RETRACT in schema.names and not self.updating:
            raise PlanError(
                "rows that change earlier rows reach a sink that can only add rows",
                hint="use the format `debezium_json`, or an aggregate over a window",
            )
        names = set(schema.names)
        for name in self.schema.names if self.schema is not None else ():
            if name not in names:
                raise PlanError(
                    f"the rows have no column `{name}`",
                    hint=suggest(name, schema.names, listing="the columns are"),
                )

    def columns(self, rows: Rows) -> tuple[list[pa.Field], pa.RecordBatch]:
        """Return the declared fields and their columns; all but `_retract` if none are declared."""
        self.check(rows.schema)
        if isinstance(rows, pa.Table):
            batches = rows.combine_chunks().to_batches()
            rows = batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)
        if self.schema is None:
            names = [name for name in rows.schema.names if name != RETRACT]
            rows = rows.select(names)
            return list(rows.schema), rows
        plain = pa.schema([plain_field(field) for field in self.schema])
        rows = rows.select(plain.names)
        if rows.schema.types != plain.types:
            try:
                rows = rows.cast(plain)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise PlanError(f"the rows do not fit the columns of the sink: {error}") from error
        return list(self.schema), rows


def count_newlines(data: bytes) -> int:
    """Count newlines; several times faster than `bytes.count` where lines are short."""
    buffer = np.frombuffer(data, np.uint8)
    pieces = (buffer[begin : begin + _COUNTED] for begin in range(0, len(buffer), _COUNTED))
    return sum(int(np.count_nonzero(piece == _NEWLINE)) for piece in pieces)


def line_ends(data: bytes, *, last: bool) -> NDArray[np.int64]:
    """Return the ends of lines, after their newlines, and with `last` also the end of the data."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE) + 1
    return np.append(ends, len(data)) if last and data and not data.endswith(b"\n") else ends


def split_lines(data: bytes | Sequence[bytes], first_line: int = 1) -> list[tuple[int, bytes]]:
    """Yield each line, or each message, with its number; a trailing newline starts no line."""
    if isinstance(data, bytes):
        data = data.removesuffix(b"\n").split(b"\n") if data else []
    return list(enumerate(data, first_line))


def bad_line(
    number: int,
    line: bytes,
    reason: str,
    *,
    where: str,
    column: str | None = None,
    hint: str | None = None,
    binary: bool = False,
    fault: str | None = None,
) -> BadLineError:
    """Return the error for a line that cannot be read: its number, the reason and an excerpt."""
    content = line.hex(" ") if binary else line.decode("utf-8", "replace").strip()
    excerpt = content if len(content) <= _SHOWN else content[:_SHOWN] + "…"
    if column is not None:
        reason = f"column `{column}`: {reason}"
    return BadLineError(
        f"line {number} cannot be read, {reason}: {excerpt}",
        line=number,
        content=content,
        column=column,
        where=where,
        hint=hint,
        record=bytes(line),
        fault=fault,
    )


def too_long(number: int, head: bytes, *, size: int, limit: int, where: str) -> BadLineError:
    """Return the error for a line or message with more bytes than `max_record_bytes`; `head` begins it."""
    return bad_line(
        number,
        head,
        f"it has {size:,} bytes, and `max_record_bytes` is {limit:,}",
        where=where,
        hint="raise `max_record_bytes`, or choose `bad_data` = 'drop' or 'dead_letter' to go on after it",
        fault="too-long",
    )


def bad_file(
    reason: str,
    *,
    where: str,
    column: str | None = None,
    hint: str | None = None,
    position: str = "the whole file",
) -> BadLineError:
    """Return the error for a file, or the rest of it, that cannot be read, without its bytes."""
    column_text = "" if column is None else f"column `{column}`: "
    return BadLineError(
        f"`{where}` cannot be read, {column_text}{reason}",
        line=0,
        content="",
        column=column,
        where=where,
        hint=hint,
        record=b"",
        position=position,
        fault="bad-file",
    )


def bad_row(number: int, content: str, error: LineError, where: str) -> BadLineError:
    """Return the error for a row of a file that cannot be read; `content` is the row as JSON."""
    excerpt = content if len(content) <= _SHOWN else content[:_SHOWN] + "…"
    return BadLineError(
        f"row {number} cannot be read, column `{error.column}`: {error.reason}: {excerpt}",
        line=number,
        content=content,
        column=error.column,
        where=where,
        hint="declare the column with a type that holds what is there, or choose `bad_data`",
        position=f"row {number}",
        offset=number,
        fault=error.fault,
    )


def plain_name(name: str) -> str:
    """Return a name that is valid in Avro and Protobuf: letters, digits and `_`.

    >>> plain_name("unit price (€)")
    'unit_price____'
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain


def is_list(kind: pa.DataType) -> bool:
    """Whether values of the type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether the type is a string type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether values of the type are bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
