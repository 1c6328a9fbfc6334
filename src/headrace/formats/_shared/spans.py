"""Records in a buffer by position: take the few that are bad out, without splitting the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.formats._shared.refused import not_utf8
from headrace.formats.base import line_ends


class Spans:
    """The positions of records in some bytes, in order, without the newlines between them."""

    def __init__(self, data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.data, self.begins, self.ends = data, begins, ends

    @classmethod
    def of_rows(cls, data: bytes, ends: NDArray[np.int64] | None = None) -> Self:
        """Return the rows with these ends, after their newlines; by default each line is one."""
        ends = line_ends(data, last=True) if ends is None else ends
        begins = np.append(0, ends[:-1])[: len(ends)]
        return cls(data, begins, ends - (np.frombuffer(data, np.uint8)[ends - 1] == ord("\n")))

    @classmethod
    def of_messages(cls, messages: Sequence[bytes]) -> Self:
        """Return the positions of messages that are joined by newlines."""
        ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)) + 1) - 1
        return cls(b"\n".join([*messages, b""]), np.append(0, ends[:-1] + 1)[: len(ends)], ends)

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.begins[index] : self.ends[index]]

    def take(self, records: Any) -> Self:
        """Return some of the records, given by their indices or a mask."""
        return type(self)(self.data, self.begins[records], self.ends[records])

    def not_blank(self) -> NDArray[np.int64]:
        """Return which records have more than white space."""
        buffer = np.frombuffer(self.data, np.uint8)
        # One that is empty, or begins with white space, may be blank.
        doubtful = buffer.take(self.begins, mode="clip") <= ord(" ") if len(buffer) else self.begins == 0
        blank = [index for index in np.flatnonzero(doubtful).tolist() if not self[index].strip()]
        return np.delete(np.arange(len(self)), blank)

    def not_utf8(self) -> NDArray[np.int64]:
        """Return which records are not UTF-8."""
        return _NONE if self.data.isascii() else not_utf8(self.data, self.begins, self.ends)

    def count(self, character: bytes) -> NDArray[np.int64]:
        """Return how often each record has a character of one byte."""
        if character not in self.data:
            return np.zeros(len(self), np.int64)
        places = np.flatnonzero(np.frombuffer(self.data, np.uint8) == character[0])
        return np.searchsorted(places, self.ends) - np.searchsorted(places, self.begins)

    def lines(self, first_line: int) -> NDArray[np.int64]:
        """Return the number of the line in which each record begins."""
        return np.searchsorted(line_ends(self.data, last=False), self.begins, side="right") + first_line

    def joined(self) -> bytes:
        """Return the records, each followed by a newline, and nothing else."""
        if not len(self):
            return b""
        # Neighbours are copied together.
        apart = np.flatnonzero(self.begins[1:] != self.ends[:-1] + 1)
        firsts, lasts = np.append(0, apart + 1), np.append(apart, len(self) - 1)
        view = memoryview(self.data)
        runs = zip(self.begins[firsts].tolist(), self.ends[lasts].tolist(), strict=True)
        return b"\n".join([*(view[begin:end] for begin, end in runs), b""])


_NONE = np.zeros(0, np.int64)
