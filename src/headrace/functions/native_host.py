"""The process that functions of shared libraries run in: a crash of one ends this process, and nothing else.

It is started by `headrace.functions.native`, which talks with it over a socket: a request is a pickled tuple,
and behind a call come its columns as one Arrow stream. Columns reach a function through the Arrow C data
interface; `include/headrace_function.h` says what it has to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import socket
import sys
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


def serve(link: Connection) -> None:
    """Answer requests until whoever asks has gone."""
    libraries = Libraries()
    while True:
        file, symbol, returns = pickle.loads(link.recv_bytes())  # noqa: S301 - from the worker that started us
        columns = None if returns is None else link.recv_bytes()
        try:
            function = libraries.function(file, symbol)
            if columns is None:
                link.send_bytes(b"")
                continue
            batch = pa.ipc.open_stream(pa.py_buffer(columns)).read_next_batch()
            made = call(function, batch, returns)
        except NativeError as error:
            link.send_bytes(b"!" + str(error).encode())
        else:
            link.send_bytes(b"=")
            link.send_bytes(to_stream(pa.record_batch([made], ["result"])))


def to_stream(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _end_with(owner: int) -> None:
    """End this process when its owner has ended, whatever it is doing."""
    while os.getppid() == owner:
        time.sleep(_LOOK)
    os._exit(0)


def main() -> None:
    """Serve the socket whose number is the first argument."""
    link = Connection(socket.socket(fileno=int(sys.argv[1])).detach())
    os.dup2(2, 1)  # what a library prints goes to the log
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        serve(link)


if __name__ == "__main__":
    main()
