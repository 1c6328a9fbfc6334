"""Find ranges of complete rows in a stream of lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ExternalError
from headrace.formats.base import Decoded, Format, RowEnds, count_newlines, line_ends, too_long

BLOCK = 4 * 1024 * 1024
_HEAD = 1024
"""The number of bytes of a line that is too long which its error shows."""
_NEAR = 64 * 1024
"""The number of bytes to search first for the end of a line."""


class ByteStream(Protocol):
    """A stream that can be read."""

    def read(self, size: int, /) -> bytes: ...


class SeekableStream(ByteStream, Protocol):
    """A stream that can be read from any position."""

    def seek(self, position: int, /) -> int: ...


class Mark(NamedTuple):
    """A byte position, and the number of lines before it in its range."""

    at: int
    line: int


class LongLine(NamedTuple):
    """A line that is too long: its first bytes, its size with the newline, and its number of newlines."""

    head: bytes
    size: int
    newlines: int


class Scanned(NamedTuple):
    """The end of some rows, the number of lines and rows, and whether it is the end of the stream."""

    end: int
    lines: int
    rows: int
    at_end: bool
    marks: Sequence[Mark] = ()
    """Some positions in between, with their line numbers."""


class Share(NamedTuple):
    """A range of complete rows and the number of its first line."""

    begin: int
    end: int
    line: int


def scan_rows(
    stream: ByteStream, begin: int, end: int | None, *, rows: int, row_ends: RowEnds | None = None
) -> Scanned:
    """Find the end of the next `rows` rows. The stream is at byte `begin`; `end` is None if unknown.

    `row_ends` finds the ends of rows that may span several lines; without it each line is a row.
    """
    if row_ends is None:
        return _scan_lines(stream, begin, end, lines=rows)
    row_count = line_count = 0
    position = begin
    for at, data, ends in _pieces(stream, begin, end, row_ends):
        new_rows = min(rows - row_count, len(ends))
        stop = int(ends[new_rows - 1])
        row_count, line_count, position = row_count + new_rows, line_count + _count(data, stop), at + stop
        if row_count == rows:
            read_all = isinstance(data, bytes) and stop == len(data)
            ended = position == end or (read_all and not stream.read(1))
            return Scanned(position, line_count, rows, ended)
    return Scanned(position if end is None else end, line_count, row_count, True)


def _scan_lines(
    stream: ByteStream, begin: int, end: int | None, *, lines: int, block: int | None = None
) -> Scanned:
    position, line_count, chunk = begin, 0, b"\n"
    marks: list[Mark] = []
    while end is None or position < end:
        read = stream.read(_size(position, end, block))
        if not read:
            break
        chunk = read
        breaks = count_newlines(chunk)
        if line_count + breaks >= lines:
            stop = position + int(line_ends(chunk, last=False)[lines - line_count - 1])
            last = stop == position + len(chunk) and (stop == end or not stream.read(1))
            return Scanned(stop, lines, lines, last, marks)
        line_count += breaks
        position += len(chunk)
        marks.append(Mark(position, line_count))
    line_count += not chunk.endswith(b"\n")
    return Scanned(position if end is None else end, line_count, line_count, True, marks)


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
    """Divide a range of rows, which starts on line `line`, at the end of the row of each target.

    `marks` are those of a scan from the same byte.
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
            nearest = max([Mark(begin, line - first_line), *marks[before - 1 : before]])
            stream.seek(nearest.at)
            lines = first_line + nearest.line - line + _count_lines(stream, nearest.at, stop)
        else:
            # Whether a line break ends a row depends on all quotes before it.
            stream.seek(begin)
            stop, lines = _scan_to(stream, begin, end, target, row_ends)
        yield Share(begin, stop, line)
        begin, line = stop, line + lines


def _scan_to(stream: ByteStream, begin: int, end: int, target: int, row_ends: RowEnds) -> tuple[int, int]:
    """Return the first end of a row at or after `target`, and the number of lines before it."""
    lines = 0
    for at, data, ends in _pieces(stream, begin, end, row_ends):
        index = min(int(np.searchsorted(ends, target - at)), len(ends) - 1)
        stop = int(ends[index])
        lines += _count(data, stop)
        if at + stop >= target:
            return at + stop, lines
    return end, lines


def _count_lines(stream: ByteStream, begin: int, end: int) -> int:
    position, count = begin, 0
    while position < end and (chunk := stream.read(_size(position, end))):
        count += count_newlines(chunk)
        position += len(chunk)
    return count


def _count(data: bytes | LongLine, stop: int) -> int:
    """Count lines up to an offset, the last with or without its newline."""
    if isinstance(data, LongLine):
        return 1
    rows = data[:stop]
    return count_newlines(rows) + (not rows.endswith(b"\n"))


def read_blocks(
    stream: ByteStream,
    begin: int,
    end: int | None,
    *,
    line: int,
    where: str,
    limit: int,
    row_ends: RowEnds | None = None,
) -> Iterator[tuple[int, bytes | LongLine]]:
    """Yield blocks of complete rows with the number of their first line; `end` None reads to the end.

    A line with more than `limit` bytes is yielded as a LongLine, and is not held in memory.
    """
    position = begin
    for block in (
        _line_blocks(stream, begin, end, limit)
        if row_ends is None
        else _blocks(stream, begin, end, row_ends, limit)
    ):
        for part in [block] if isinstance(block, LongLine) else _split_long(block, limit, row_ends):
            yield line, part
            position += part.size if isinstance(part, LongLine) else len(part)
            line += part.newlines if isinstance(part, LongLine) else count_newlines(part)
    if end is not None and position < end:
        raise ExternalError("the file has become shorter while it was read", where=where)


def read_sample(stream: ByteStream, end: int, *, limit: int) -> bytes:
    """Return the rows up to byte `end`, or as many complete lines as `limit` bytes hold."""
    sample = bytes(stream.read(min(end, limit)))
    return sample if end <= limit else sample[: sample.rfind(b"\n") + 1]


def decode_block(
    form: Format, block: bytes | LongLine, *, line: int, where: str, limit: int, drop_bad: bool
) -> Decoded:
    """Decode a block of `read_blocks`; a line that is too long is bad data."""
    if not isinstance(block, LongLine):
        return form.decode(block, first_line=line, where=where)
    size = block.size - (block.newlines > 0)
    error = too_long(line, block.head, size=size, limit=limit, where=where)
    if not drop_bad:
        raise error
    return Decoded(form.decode(b"").rows, [error])


def _split_long(block: bytes, limit: int, row_ends: RowEnds | None) -> Iterator[bytes | LongLine]:
    """Yield the rows of a block; those that are too long separately."""
    if len(block) <= limit:
        yield block
        return
    ends = (row_ends or line_ends)(block, last=True)
    begins, done = np.append(0, ends[:-1]), 0
    sizes = ends - begins - (np.frombuffer(block, np.uint8)[ends - 1] == ord("\n"))
    for index in np.flatnonzero(sizes > limit).tolist():
        begin, end = int(begins[index]), int(ends[index])
        if begin > done:
            yield block[done:begin]
        yield LongLine(block[begin : min(end, begin + _HEAD)], end - begin, count_newlines(block[begin:end]))
        done = end
    if done < len(block):
        yield block[done:]


def _line_blocks(stream: ByteStream, begin: int, end: int | None, limit: int) -> Iterator[bytes | LongLine]:
    """Yield blocks of complete lines, each copied only once."""
    waiting: list[bytes | memoryview] = []
    position, buffered = begin, 0
    long: LongLine | None = None
    while position != end and (chunk := stream.read(_size(position, end))):
        position += len(chunk)
        if waiting and long is None and buffered > limit:
            long, waiting = LongLine(bytes(waiting[0][:_HEAD]), buffered, 0), []
        if long is not None:
            stop = chunk.find(b"\n") + 1
            long = long._replace(size=long.size + (stop or len(chunk)), newlines=int(stop > 0))
            if not stop:
                continue
            yield long
            chunk, long = chunk[stop:], None
            if not chunk:
                continue
        stop = len(chunk) if position == end else chunk.rfind(b"\n") + 1
        if stop:
            yield b"".join([*waiting, memoryview(chunk)[:stop]])
            waiting = []
            buffered = 0
        if stop < len(chunk):
            waiting.append(chunk[stop:])
            buffered += len(chunk) - stop
    if long is not None:
        yield long
    if waiting:
        yield b"".join(waiting)


def _blocks(
    stream: ByteStream, begin: int, end: int | None, row_ends: RowEnds, limit: int
) -> Iterator[bytes | LongLine]:
    for _, data, ends in _pieces(stream, begin, end, row_ends, limit=limit):
        stop = int(ends[-1])
        yield data if isinstance(data, LongLine) or stop == len(data) else data[:stop]


def _pieces(
    stream: ByteStream, begin: int, end: int | None, row_ends: RowEnds, *, limit: int = BLOCK
) -> Iterator[tuple[int, bytes | LongLine, NDArray[np.int64]]]:
    """Yield bytes that start with a row, their position, and the ends of rows in them, at least one.

    A line with more than `limit` bytes is yielded as a LongLine, and is not held in memory.
    """
    rest, position, ended = b"", begin, begin == end
    while not ended:
        size = _size(position + len(rest), end)
        chunk = stream.read(size)
        data, rest = rest + chunk if rest else chunk, b""
        ended = not chunk or position + len(data) == end
        ends = row_ends(data, last=ended)
        stop = int(ends[-1]) if len(ends) else 0
        if stop:
            yield position, data, ends
        position, rest = position + stop, data[stop:]
        if not ended and len(rest) > max(limit, row_ends.longest):
            # A row that long is its first line, of which the end has not come yet.
            line, rest, ended = _skip_line(stream, position, end, rest)
            yield position, line, np.array([line.size])
            position += line.size


def _skip_line(stream: ByteStream, begin: int, end: int | None, read: bytes) -> tuple[LongLine, bytes, bool]:
    """Read to the end of a line with this beginning; return it, what follows it, and whether that is all."""
    line = LongLine(read[:_HEAD], len(read), 0)
    while begin + line.size != end and (chunk := stream.read(_size(begin + line.size, end))):
        stop = chunk.find(b"\n") + 1
        line = line._replace(size=line.size + (stop or len(chunk)), newlines=int(stop > 0))
        if stop:
            return line, chunk[stop:], begin + line.size == end
    return line, b"", True


def _size(position: int, end: int | None, block: int | None = None) -> int:
    size = block or BLOCK
    return size if end is None else min(size, end - position)
