"""Framing: messages with several rows, one in each line."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.formats.base import Decoded, Format, Rows, split_lines


class Framed(Format):
    """A format whose messages hold a row in each line; lines may be truncated to a length."""

    def __init__(self, inner: Format, max_length: int | None) -> None:
        super().__init__(inner.schema)
        self.updating = inner.updating
        self.head_lines = inner.head_lines
        self._inner = inner
        self._max_length = max_length

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "input") -> Decoded:
        """Decode every line of every message."""
        messages = [data] if isinstance(data, bytes) else data
        lines = [line[: self._max_length] for message in messages for _, line in split_lines(message)]
        return self._inner.decode(lines, first_line=first_line, where=where)

    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as lines."""
        return self._inner.encode(rows)

    def messages(self, rows: Rows) -> list[bytes]:
        """Encode the rows as messages."""
        return self._inner.messages(rows)
