"""Ranges of whole lines in a stream of bytes, such as a file that is open or being decompressed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from headrace.errors import ExternalError

BLOCK = 4 * 1024 * 1024
_NEWLINE = 10


class Stream(Protocol):
    """What can be read from its current position on."""

    def read(self, size: int, /) -> bytes: ...


class Scanned(NamedTuple):
    """Where some lines end, how many they are, and whether nothing follows them."""

    end: int
    lines: int
    at_end: bool


def scan_lines(stream: Stream, begin: int, end: int | None, *, lines: int) -> Scanned:
    """Where the next `lines` lines end. The stream stands at byte `begin`; `end` is None if unknown."""
    position, found, chunk = begin, 0, b"\n"
    while end is None or position < end:
        read = stream.read(_size(position, end))
        if not read:
            break
        chunk = read
        breaks = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == _NEWLINE)
        if found + len(breaks) >= lines:
            stop = position + int(breaks[lines - found - 1]) + 1
            last = stop == position + len(chunk) and (stop == end or not stream.read(1))
            return Scanned(stop, lines, last)
        found += len(breaks)
        position += len(chunk)
    return Scanned(position if end is None else end, found + (not chunk.endswith(b"\n")), True)


def count_lines(stream: Stream, begin: int, end: int) -> int:
    """How many lines end between two positions."""
    position, found = begin, 0
    while position < end and (chunk := stream.read(_size(position, end))):
        found += chunk.count(b"\n")
        position += len(chunk)
    return found


def read_blocks(
    stream: Stream, begin: int, end: int | None, *, line: int, where: str
) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines, each with the number of its first line; `end` is None for all there are."""
    rest, position = b"", begin
    while end is None or position < end:
        chunk = stream.read(_size(position, end))
        if not chunk and end is None:
            break
        if not chunk:
            raise ExternalError("the file has become shorter while it was read", where=where)
        position += len(chunk)
        cut = len(chunk) if position == end else chunk.rfind(b"\n") + 1
        if cut == 0:
            rest += chunk
            continue
        block, rest = rest + chunk[:cut], chunk[cut:]
        yield line, block
        line += block.count(b"\n")
    if rest:
        yield line, rest


def _size(position: int, end: int | None) -> int:
    return BLOCK if end is None else min(BLOCK, end - position)
