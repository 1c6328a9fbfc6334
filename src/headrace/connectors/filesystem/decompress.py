"""Read compressed files as streams, up to the first damage."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Self

import pyarrow as pa

_PIECE = 64 * 1024


def is_damage(error: BaseException) -> bool:
    """Whether an error means damaged content; I/O errors have an errno or their own class."""
    return isinstance(error, pa.ArrowInvalid) or (type(error) is OSError and error.errno is None)


class Decompressed:
    """A stream over a compressed file; it ends where the file is damaged.

    `damage` then holds the reason. The bytes before the damage are always the same.
    """

    def __init__(self, open_file: Callable[[], Any], codec: str) -> None:
        self._open_file, self._codec = open_file, codec
        self._stack = contextlib.ExitStack()
        self._stream: Any = None
        self._rest = b""
        self.position = 0
        """How many bytes have been read."""
        self.damage: str | None = None

    def __enter__(self) -> Self:
        self._stream = self._stack.enter_context(_opened(self._open_file, self._codec))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; none at the end, or at the damage."""
        if self.damage is None:
            try:
                data: bytes = self._stream.read(size)
            except OSError as error:
                if not is_damage(error):
                    raise
                self.damage = str(error)
                self._rest = self._salvage()
            else:
                self.position += len(data)
                return data
        data, self._rest = self._rest[:size], self._rest[size:]
        self.position += len(data)
        return data

    def skip(self, size: int) -> None:
        """Skip the next bytes."""
        while size > 0 and (skipped := self.read(min(size, 16 * _PIECE))):
            size -= len(skipped)

    def _salvage(self) -> bytes:
        """Return the bytes between the position and the damage, which a failed read loses."""
        pieces = _inflate(self._open_file) if self._codec == "gzip" else self._in_steps()
        seen, rest = 0, bytearray()
        for piece in pieces:
            rest += piece[max(0, self.position - seen) :]
            seen += len(piece)
        return bytes(rest)

    def _in_steps(self) -> Iterator[bytes]:
        """Yield all readable bytes: in pieces, and in single bytes where a piece fails."""
        position = 0
        for step in (_PIECE, 1):
            with _opened(self._open_file, self._codec) as stream:
                left = position
                while left and (skipped := stream.read(min(left, _PIECE))):
                    left -= len(skipped)
                try:
                    while piece := stream.read(step):
                        position += len(piece)
                        yield piece
                except OSError as error:
                    if not is_damage(error):
                        raise


@contextlib.contextmanager
def _opened(open_file: Callable[[], Any], codec: str) -> Iterator[Any]:
    with open_file() as file, pa.CompressedInputStream(file, codec) as stream:
        yield stream


def _inflate(open_file: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the readable bytes of a gzip file, which may have several members."""
    with open_file() as file:
        decoder = zlib.decompressobj(wbits=31)
        while data := file.read(_PIECE):
            while data:
                before = decoder.copy()
                try:
                    yield decoder.decompress(data)
                except zlib.error:
                    with contextlib.suppress(zlib.error):
                        for byte in data:
                            yield before.decompress(bytes([byte]))
                    return
                data = decoder.unused_data
                if decoder.eof:
                    decoder = zlib.decompressobj(wbits=31)
