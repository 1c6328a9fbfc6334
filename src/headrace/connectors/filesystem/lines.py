"""Ranges of whole rows in a stream of lines, such as a file that is open or being decompressed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ExternalError
from headrace.formats.base import RowEnds, count_newlines, line_ends

BLOCK = 4 * 1024 * 1024
_NEAR = 64 * 1024
"""Bytes in which the end of a line is looked for first."""


class ByteStream(Protocol):
    """What can be read from its current position on."""

    def read(self, size: int, /) -> bytes: ...


class SeekableStream(ByteStream, Protocol):
    """What can be read from any position on."""

    def seek(self, position: int, /) -> int: ...


class Mark(NamedTuple):
    """A byte, and how many lines end before it in its range."""

    at: int
    line: int


class Scanned(NamedTuple):
    """Where some rows end, how many lines and rows they are, and whether nothing follows them."""

    end: int
    lines: int
    rows: int
    at_end: bool
    marks: Sequence[Mark] = ()
    """Some places on the way."""


class Share(NamedTuple):
    """A range of whole rows and the number of its first line."""

    begin: int
    end: int
    line: int


def scan_rows(
    stream: ByteStream, begin: int, end: int | None, *, rows: int, row_ends: RowEnds | None = None
) -> Scanned:
    """Where the next `rows` rows end. The stream stands at byte `begin`; `end` is None if unknown.

    `row_ends` says where rows end that may be several lines; without it each line is one.
    """
    if row_ends is None:
        return _scan_lines(stream, begin, end, lines=rows)
    found = lines = 0
    position = begin
    for at, data, places in _pieces(stream, begin, end, row_ends):
        taken = min(rows - found, len(places))
        stop = int(places[taken - 1])
        found, lines, position = found + taken, lines + _count(data[:stop]), at + stop
        if found == rows:
            ended = stop == len(data) and (position == end or not stream.read(1))
            return Scanned(position, lines, rows, ended)
    return Scanned(position if end is None else end, lines, found, True)


def _scan_lines(
    stream: ByteStream, begin: int, end: int | None, *, lines: int, block: int | None = None
) -> Scanned:
    position, found, chunk = begin, 0, b"\n"
    marks: list[Mark] = []
    while end is None or position < end:
        read = stream.read(_size(position, end, block))
        if not read:
            break
        chunk = read
        breaks = count_newlines(chunk)
        if found + breaks >= lines:
            stop = position + int(line_ends(chunk, last=False)[lines - found - 1])
            last = stop == position + len(chunk) and (stop == end or not stream.read(1))
            return Scanned(stop, lines, lines, last, marks)
        found += breaks
        position += len(chunk)
        marks.append(Mark(position, found))
    found += not chunk.endswith(b"\n")
    return Scanned(position if end is None else end, found, found, True, marks)


def share_rows(
    stream: SeekableStream,
    begin: int,
    end: int,
    *,
    line: int,
    targets: Sequence[int],
    row_ends: RowEnds | None = None,
    marks: Sequence[Mark] = (),
) -> Iterator[Share]:
    """A range of whole rows, the first on line `line`, in shares that end with the row of each target.

    `marks` are what a scan from the same byte on has seen.
    """
    first_line = line
    for target in (*targets, end):
        if target <= begin:
            continue
        if target == end:
            stop, lines = end, 0
        elif row_ends is None:
            stream.seek(target - 1)
            stop = _scan_lines(stream, target - 1, end, lines=1, block=_NEAR).end
            before = bisect_right(marks, stop, key=lambda mark: mark.at)
            known = max([Mark(begin, line - first_line), *marks[before - 1 : before]])
            stream.seek(known.at)
            lines = first_line + known.line - line + _count_lines(stream, known.at, stop)
        else:
            # Whether a line break ends a row depends on all quotes before it.
            stream.seek(begin)
            stop, lines = _scan_to(stream, begin, end, target, row_ends)
        yield Share(begin, stop, line)
        begin, line = stop, line + lines


def _scan_to(stream: ByteStream, begin: int, end: int, target: int, row_ends: RowEnds) -> tuple[int, int]:
    """The first end of a row at or behind `target`, and how many lines there are up to it."""
    lines = 0
    for at, data, places in _pieces(stream, begin, end, row_ends):
        found = min(int(np.searchsorted(places, target - at)), len(places) - 1)
        stop = int(places[found])
        lines += _count(data[:stop])
        if at + stop >= target:
            return at + stop, lines
    return end, lines


def _count_lines(stream: ByteStream, begin: int, end: int) -> int:
    position, found = begin, 0
    while position < end and (chunk := stream.read(_size(position, end))):
        found += count_newlines(chunk)
        position += len(chunk)
    return found


def _count(rows: bytes) -> int:
    """How many lines there are, the last with or without its newline."""
    return count_newlines(rows) + (not rows.endswith(b"\n"))


def read_blocks(
    stream: ByteStream,
    begin: int,
    end: int | None,
    *,
    line: int,
    where: str,
    row_ends: RowEnds | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole rows, each with the number of its first line; `end` is None for all there are."""
    position = begin
    for block in (
        _line_blocks(stream, begin, end) if row_ends is None else _blocks(stream, begin, end, row_ends)
    ):
        yield line, block
        position += len(block)
        line += count_newlines(block)
    if end is not None and position < end:
        raise ExternalError("the file has become shorter while it was read", where=where)


def _line_blocks(stream: ByteStream, begin: int, end: int | None) -> Iterator[bytes]:
    """Blocks of whole lines, each copied only once."""
    waiting: list[bytes | memoryview] = []
    position = begin
    while position != end and (chunk := stream.read(_size(position, end))):
        position += len(chunk)
        stop = len(chunk) if position == end else chunk.rfind(b"\n") + 1
        if stop:
            yield b"".join([*waiting, memoryview(chunk)[:stop]])
            waiting = []
        if stop < len(chunk):
            waiting.append(chunk[stop:])
    if waiting:
        yield b"".join(waiting)


def _blocks(stream: ByteStream, begin: int, end: int | None, row_ends: RowEnds) -> Iterator[bytes]:
    for _, data, places in _pieces(stream, begin, end, row_ends):
        stop = int(places[-1])
        yield data if stop == len(data) else data[:stop]


def _pieces(
    stream: ByteStream, begin: int, end: int | None, row_ends: RowEnds
) -> Iterator[tuple[int, bytes, NDArray[np.int64]]]:
    """Some bytes that begin with a row, where they stand, and where rows end in them: at least one does."""
    rest, position, ended = b"", begin, begin == end
    while not ended:
        size = _size(position + len(rest), end)
        chunk = stream.read(size)
        data, rest = rest + chunk if rest else chunk, b""
        ended = not chunk or position + len(data) == end
        places = row_ends(data, last=ended)
        stop = int(places[-1]) if len(places) else 0
        if stop:
            yield position, data, places
        position, rest = position + stop, data[stop:]


def _size(position: int, end: int | None, block: int | None = None) -> int:
    size = block or BLOCK
    return size if end is None else min(size, end - position)
