"""The process that functions of shared libraries run in: a crash ends this process, and nothing else.

It is started by `headrace.functions.native`, which talks to it over a socket: a request is a pickled tuple.
The columns of a call, and then its result, are an Arrow stream in shared memory. Columns are passed to a
function through the Arrow C data interface; `include/headrace_function.h` documents it.
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
"""The size of the buffer for a function's message, with the final zero: HEADRACE_MESSAGE."""
_POLL_SECONDS = 0.5
"""How often it checks whether the process that started it still runs, in seconds."""

_Schema = ctypes.c_uint64 * 9
_Array = ctypes.c_uint64 * 10
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class SharedMemory:
    """Memory that two processes share: what one writes, the other reads, in turns."""

    def __init__(self, number: int) -> None:
        self.number = number
        """The descriptor of the file behind it."""
        self._map: mmap.mmap | None = None

    @classmethod
    def make(cls) -> SharedMemory:
        """New memory, in an anonymous file."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("headrace"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def write(self, batch: pa.RecordBatch) -> int:
        """Write a batch; returns its length in bytes."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content = sink.getvalue()
        if os.fstat(self.number).st_size < content.size:
            os.ftruncate(self.number, 2 * content.size)
        self._mapped(content.size)[: content.size] = memoryview(content)
        return int(content.size)

    def read(self, length: int) -> pa.RecordBatch:
        """The batch that was written, without a copy: valid until the next write."""
        content = memoryview(self._mapped(length))[:length]
        return pa.ipc.open_stream(pa.py_buffer(content)).read_next_batch()

    def read_copy(self, length: int) -> pa.RecordBatch:
        """A copy of the batch that was written."""
        return pa.ipc.open_stream(pa.py_buffer(self._mapped(length)[:length])).read_next_batch()

    def _mapped(self, length: int) -> mmap.mmap:
        # A map that is too small is left to the arrays that may still refer to it.
        if self._map is None or len(self._map) < length:
            self._map = mmap.mmap(self.number, os.fstat(self.number).st_size)
        return self._map

    def close(self) -> None:
        """Release the memory."""
        self._map = None
        os.close(self.number)


class NativeError(Exception):
    """A library cannot be used, or a function failed or returned an invalid result."""


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
    """Call a function with columns; raises a NativeError with its message, or for an invalid result."""
    columns_schema, columns_array, result_schema, result = _Schema(), _Array(), _Schema(), _Array()
    message = ctypes.create_string_buffer(MESSAGE)
    columns._export_to_c(ctypes.addressof(columns_array), ctypes.addressof(columns_schema))  # noqa: SLF001
    try:
        failed = function(
            ctypes.addressof(columns_schema),
            ctypes.addressof(columns_array),
            ctypes.addressof(result_schema),
            ctypes.addressof(result),
            message,
        )
        if failed:
            text = message.value.decode(errors="replace")
            raise NativeError(text or f"it returned {failed} and gave no message")
        return _import_result(result, result_schema, returns, columns.num_rows)
    finally:
        _release(columns_array, 8)
        _release(columns_schema, 7)
        _release(result, 8)
        _release(result_schema, 7)


def _import_result(result: Any, result_schema: Any, returns: pa.DataType, rows: int) -> pa.Array:
    if not result[8]:
        raise NativeError("it returned 0 and gave no result: `result->release` is not set")
    length = ctypes.c_int64(result[0]).value
    if length != rows:
        raise NativeError(f"it gave {length} values for {rows} rows")
    if not result_schema[7]:
        returns._export_to_c(ctypes.addressof(result_schema))  # noqa: SLF001 - the way into foreign structs
    try:
        array = pa.Array._import_from_c(ctypes.addressof(result), ctypes.addressof(result_schema))  # noqa: SLF001
        array.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise NativeError(f"it gave an array that cannot be read: {error}") from None
    if array.type != returns:
        raise NativeError(f"it gave {array.type}, and {returns} is declared")
    return array


def _release(words: Any, index: int) -> None:
    """Release an Arrow struct unless that was done; `index` is where its release callback is, in words."""
    if words[index]:
        _Release(words[index])(ctypes.addressof(words))


def serve(link: Connection, memory: SharedMemory) -> None:
    """Answer requests until the worker has closed: with the length of a result, or with an error message."""
    libraries = Libraries()
    while True:
        # From the worker that started us.
        file, symbol, length, returns = pickle.loads(link.recv_bytes())  # noqa: S301
        try:
            function = libraries.function(file, symbol)
            result = None if length is None else call(function, memory.read(length), returns)
        except NativeError as error:
            link.send_bytes(pickle.dumps(str(error)))
        else:
            written = 0 if result is None else memory.write(pa.record_batch([result], ["result"]))
            link.send_bytes(pickle.dumps(written))


def _end_with(owner: int) -> None:
    """End this process when its owner has ended, whatever it is doing."""
    while os.getppid() == owner:
        time.sleep(_POLL_SECONDS)
    os._exit(0)


def main() -> None:
    """Serve the worker that started this process; the arguments are its socket, its memory and its PID."""
    number, memory, owner = (int(argument) for argument in sys.argv[1:])
    link = Connection(socket.socket(fileno=number).detach())
    os.dup2(2, 1)  # what a library prints goes to the log
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        serve(link, SharedMemory(memory))


if __name__ == "__main__":
    main()
