"""What every format is: bytes to rows and rows to bytes, with the columns a table declares."""

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
"""The metadata of a text field that holds JSON: it is read and written as JSON, not as a text."""

Rows: TypeAlias = "pa.RecordBatch | pa.Table"
Path: TypeAlias = tuple[str, ...]
_SHOWN = 200
_NEWLINE = 10
_COUNTED = 256 * 1024
"""Bytes that are looked at together: so few that they stay in the cache of a core."""


def is_json(field: pa.Field) -> bool:
    """Whether a field holds JSON values of any shape, as texts."""
    if isinstance(field.type, pa.BaseExtensionType) and field.type.extension_name == "arrow.json":
        return True
    return bool(field.metadata and field.metadata.get(b"headrace.json") == b"true")


def plain_field(field: pa.Field) -> pa.Field:
    """The field as batches have it: nullable, without metadata, at every depth."""
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
    """Finds where rows end in bytes that begin with a row; without `last`, more of them may follow."""

    def __call__(self, data: bytes, *, last: bool) -> NDArray[np.int64]: ...


class LineError(ValueError):
    """Why a line or message is bad: the reason, the column if it is one, and what to do."""

    def __init__(self, reason: str, *, path: Path = (), hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.column = ".".join(path) or None
        self.hint = hint

    def at(self, number: int, line: bytes, where: str, *, binary: bool = False) -> BadLineError:
        """The error of the line with this number; `binary` if it is no text."""
        hint = self.hint
        if hint is None and self.column is not None:
            hint = "correct the line, or declare the column with another type"
        return bad_line(number, line, self.reason, where=where, column=self.column, hint=hint, binary=binary)


@dataclass(frozen=True)
class Decoded:
    """The rows that were read, and what was dropped on the way."""

    rows: pa.Table
    bad: Sequence[BadLineError] = ()
    counts: NDArray[np.int64] | None = None
    """How many rows each line became; None if it was one for each line that is neither blank nor bad."""


class Format(ABC):
    """Reads and writes rows as lines or messages. It pickles.

    `schema` holds the columns of the table: reading gives exactly these, in this order, writing writes these
    and no others. Without a schema every column of a batch is written, and nothing can be read.
    """

    updating: bool = False
    """Whether rows that take others back (`_retract`) can be read and written."""

    head_lines: int = 0
    """How many rows at the beginning of a file are none, but tell about them."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self.schema = schema

    def __getstate__(self) -> dict[str, object]:
        # A reader holds functions made for the columns: it is made again where the rows are read.
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    @abstractmethod
    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "input") -> Decoded:
        """The rows of lines, or of messages given one by one; numbered from `first_line` in errors."""

    row_ends: RowEnds | None = None
    """Where rows end in a file whose rows may be several lines; None if each is one."""

    def read_head(self, head: bytes, where: str) -> None:
        """Learn from the first rows of a file, `head_lines`; to be called before others are decoded.

        Lines that are numbered from 1 on have them at their beginning, and need no call.
        """

    def split_rows(self, data: bytes, first_line: int = 1) -> list[tuple[int, bytes]]:
        """Each row of some lines, without its newline, with the number of its first line."""
        if self.row_ends is None:
            return split_lines(data, first_line)
        rows, begin = [], 0
        for end in self.row_ends(data, last=True).tolist():
            row = data[begin:end]
            rows.append((first_line, row.removesuffix(b"\n")))
            begin, first_line = end, first_line + row.count(b"\n")
        return rows

    def head(self, schema: pa.Schema) -> bytes:
        """The lines that a file of rows with these columns begins with."""
        return b""

    @abstractmethod
    def encode(self, rows: Rows) -> bytes:
        """The rows as lines, each ended by a newline; without those that a file begins with."""

    def messages(self, rows: Rows) -> list[bytes]:
        """The rows as messages, without newlines between them."""
        return self.encode(rows).split(b"\n")[:-1]

    def check(self, schema: pa.Schema) -> None:
        """Raise a PlanError unless rows of this schema can be written."""
        if RETRACT in schema.names and not self.updating:
            raise PlanError(
                "rows that change earlier rows reach a sink that can only add rows",
                hint="use the format `debezium_json`, or an aggregate over a window",
            )
        for name in self.schema.names if self.schema is not None else ():
            if name not in schema.names:
                raise PlanError(
                    f"the rows have no column `{name}`",
                    hint=suggest(name, schema.names, listing="the columns are"),
                )

    def columns(self, rows: Rows) -> tuple[list[pa.Field], pa.RecordBatch]:
        """The declared fields and their columns in these types; all but `_retract` if none are declared."""
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
    """How many newlines there are; several times faster than `bytes.count` where lines are short."""
    buffer = np.frombuffer(data, np.uint8)
    pieces = (buffer[begin : begin + _COUNTED] for begin in range(0, len(buffer), _COUNTED))
    return sum(int(np.count_nonzero(piece == _NEWLINE)) for piece in pieces)


def line_ends(data: bytes, *, last: bool) -> NDArray[np.int64]:
    """Where lines end: behind their newlines, and with `last` at the very end."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE) + 1
    return np.append(ends, len(data)) if last and data and not data.endswith(b"\n") else ends


def split_lines(data: bytes | Sequence[bytes], first_line: int = 1) -> list[tuple[int, bytes]]:
    """Each line, or each message, with its number; the newline at the very end begins no line."""
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
) -> BadLineError:
    """The error for a line that cannot be read: its number, why, and its beginning."""
    content = line.hex(" ") if binary else line.decode("utf-8", "replace").strip()
    shown = content if len(content) <= _SHOWN else content[:_SHOWN] + "…"
    if column is not None:
        reason = f"column `{column}`: {reason}"
    return BadLineError(
        f"line {number} cannot be read, {reason}: {shown}",
        line=number,
        content=content,
        column=column,
        where=where,
        hint=hint,
        record=bytes(line),
    )


def bad_file(
    reason: str,
    *,
    where: str,
    column: str | None = None,
    hint: str | None = None,
    position: str = "the whole file",
) -> BadLineError:
    """The error for a file, or what is left of it, that cannot be read; its bytes are not part of it."""
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
    )


def plain_name(name: str) -> str:
    """A name that schemas of Avro and Protobuf take: letters, digits and `_`.

    >>> plain_name("unit price (€)")
    'unit_price____'
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain


def is_list(kind: pa.DataType) -> bool:
    """Whether values of the type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether values of the type are bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
