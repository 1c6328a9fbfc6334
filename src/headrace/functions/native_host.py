"""The process that functions of shared libraries run in: a crash of one ends this process, and nothing else.

It is started by `headrace.functions.native`, which talks with it over a socket: a request is a pickled tuple.
The columns of a call, and then its result, are an Arrow stream in memory that both processes see. Columns
reach a function through the Arrow C data interface; `include/headrace_function.h` says what it has to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import socket
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

MESSAGE = 1024
"""How long a message of a function may be, with its end: HEADRACE_MESSAGE."""
_LOOK = 0.5
"""How often it looks whether whoever started it is still there, in seconds."""

_Schema = ctypes.c_uint64 * 9
_Array = ctypes.c_uint64 * 10
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class SharedMemory:
    """Memory that two processes see: what one writes, the other reads, by turns."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Of the open file behind it."""
        self._map: mmap.mmap | None = None

    @classmethod
    def make(cls) -> SharedMemory:
        """New memory, in no file that has a name."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("headrace"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def write(self, batch: pa.RecordBatch) -> int:
        """Write a batch; returns how long it is."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content = sink.getvalue()
        if os.fstat(self.number).st_size < content.size:
            os.ftruncate(self.number, 2 * content.size)
        self._mapped(content.size)[: content.size] = memoryview(content)
        return int(content.size)

    def read(self, length: int) -> pa.RecordBatch:
        """What was written; it is there until something else is."""
        content = memoryview(self._mapped(length))[:length]
        return pa.ipc.open_stream(pa.py_buffer(content)).read_next_batch()

    def read_copy(self, length: int) -> pa.RecordBatch:
        """What was written, for good."""
        return pa.ipc.open_stream(pa.py_buffer(self._mapped(length)[:length])).read_next_batch()

    def _mapped(self, length: int) -> mmap.mmap:
        # A map that is too small is left to the arrays that may still be in it.
        if self._map is None or len(self._map) < length:
            self._map = mmap.mmap(self.number, os.fstat(self.number).st_size)
        return self._map

    def close(self) -> None:
        """Let go of it."""
        self._map = None
        os.close(self.number)


class NativeError(Exception):
    """What is wrong with a library, or with what a function gave."""


class Libraries:
    """Libraries by file, and their functions by symbol."""

    def __init__(self) -> None:
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._functions: dict[tuple[str, str], Any] = {}

    def function(self, file: str, symbol: str) -> Any:
        """The function `symbol` of a library."""
        if (file, symbol) not in self._functions:
            try:
                library = self._libraries.get(file) or ctypes.CDLL(file)
            except OSError as error:
                raise NativeError(f"{file} cannot be loaded: {error}") from None
            self._libraries[file] = library
            try:
                function = library[symbol]
            except AttributeError:
                raise NativeError(f"{file} does not export `{symbol}`") from None
            function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_char_p]
            function.restype = ctypes.c_int
            self._functions[file, symbol] = function
        return self._functions[file, symbol]


def call(function: Any, columns: pa.RecordBatch, returns: pa.DataType) -> pa.Array:
    """Call a function with columns; raises a NativeError with what it said or did wrong."""
    given_type, given, made_type, made = _Schema(), _Array(), _Schema(), _Array()
    message = ctypes.create_string_buffer(MESSAGE)
    columns._export_to_c(ctypes.addressof(given), ctypes.addressof(given_type))  # noqa: SLF001
    try:
        failed = function(
            ctypes.addressof(given_type),
            ctypes.addressof(given),
            ctypes.addressof(made_type),
            ctypes.addressof(made),
            message,
        )
        if failed:
            said = message.value.decode(errors="replace")
            raise NativeError(said or f"it returned {failed} and gave no message")
        return _taken(made, made_type, returns, columns.num_rows)
    finally:
        _release(given, 8)
        _release(given_type, 7)
        _release(made, 8)
        _release(made_type, 7)


def _taken(made: Any, made_type: Any, returns: pa.DataType, rows: int) -> pa.Array:
    if not made[8]:
        raise NativeError("it returned 0 and gave no result: `result->release` is not set")
    length = ctypes.c_int64(made[0]).value
    if length != rows:
        raise NativeError(f"it gave {length} values for {rows} rows")
    if not made_type[7]:
        returns._export_to_c(ctypes.addressof(made_type))  # noqa: SLF001 - the way into foreign structs
    try:
        array = pa.Array._import_from_c(ctypes.addressof(made), ctypes.addressof(made_type))  # noqa: SLF001
        array.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise NativeError(f"it gave an array that cannot be read: {error}") from None
    if array.type != returns:
        raise NativeError(f"it gave {array.type}, and {returns} is declared")
    return array


def _release(words: Any, place: int) -> None:
    """Release an Arrow struct, if nobody has; `place` is where it says how, in words."""
    if words[place]:
        _Release(words[place])(ctypes.addressof(words))


def serve(link: Connection, memory: SharedMemory) -> None:
    """Answer requests until whoever asks has gone: with the length of a result, or with a text."""
    libraries = Libraries()
    while True:
        # From the worker that started us.
        file, symbol, length, returns = pickle.loads(link.recv_bytes())  # noqa: S301
        try:
            function = libraries.function(file, symbol)
            made = None if length is None else call(function, memory.read(length), returns)
        except NativeError as error:
            link.send_bytes(pickle.dumps(str(error)))
        else:
            written = 0 if made is None else memory.write(pa.record_batch([made], ["result"]))
            link.send_bytes(pickle.dumps(written))


def _end_with(owner: int) -> None:
    """End this process when its owner has ended, whatever it is doing."""
    while os.getppid() == owner:
        time.sleep(_LOOK)
    os._exit(0)


def main() -> None:
    """Serve whoever started this process; the arguments are its socket, its memory and its number."""
    number, memory, owner = (int(argument) for argument in sys.argv[1:])
    link = Connection(socket.socket(fileno=number).detach())
    os.dup2(2, 1)  # what a library prints goes to the log
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        serve(link, SharedMemory(memory))


if __name__ == "__main__":
    main()
