"""User-defined functions in shared libraries, called with whole Arrow arrays.

They run in a separate process, one for each worker: a library that crashes ends that process, and the run
fails with an error that says so. A library is sent to the workers inside the plan, so they need not have its
file.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.base.errors import ConfigurationError, ExpressionError, ExternalError, suggest
from headrace.base.private import private_directory
from headrace.functions.annotations import to_python
from headrace.functions.call_errors import format_arguments
from headrace.functions.native_host import NativeError, SharedMemory
from headrace.functions.user_function import ColumnFunction, spread

LARGEST = 16 * 2**20
"""In bytes. A larger library is not sent: it has to be at the same path on every machine."""
_END_SECONDS = 5.0


def cache_folder() -> Path:
    """The directory of libraries that were received from the driver or built from source."""
    return Path(private_directory("functions"))


@dataclass(frozen=True)
class Library:
    """A shared library: the path it was loaded from, and its content."""

    path: str
    digest: str
    content: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, file: Path) -> Library:
        """The library in a file."""
        if not file.is_file():
            siblings = [sibling.name for sibling in file.parent.glob("*")] if file.parent.is_dir() else []
            raise ConfigurationError(
                f"there is no shared library at {file}", hint=suggest(file.name, siblings) or "build it first"
            )
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        return cls(str(file.resolve()), digest, zlib.compress(content) if len(content) <= LARGEST else None)

    def file(self) -> str:
        """A file on this machine with this content."""
        return _local_copy(self)


@functools.lru_cache(maxsize=256)
def _local_copy(library: Library) -> str:
    file = Path(library.path)
    if _digest(file) == library.digest:
        return library.path
    if library.content is None:
        what = "is another one" if file.is_file() else "is not there"
        raise ConfigurationError(
            f"the shared library {library.path} {what} on this machine",
            hint="it is too large to be sent along: put it in the same place on every machine",
        )
    copy = cache_folder() / library.digest[:32] / file.name
    if _digest(copy) != library.digest:
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staged = copy.with_name(f"{copy.name}.{os.getpid()}.{threading.get_ident()}")
        staged.write_bytes(zlib.decompress(library.content))
        staged.rename(copy)
    return str(copy)


def _digest(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


class CrashedError(Exception):
    """The process of the libraries has ended; the message says how."""


class NativeHost:
    """The worker's side of the process that libraries run in; started at the first call and after a crash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: Connection | None = None
        self._memory: SharedMemory | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, library: Library, symbol: str) -> None:
        """Raise a NativeError if the library has no such function."""
        self._ask(library, symbol)

    def call(self, library: Library, symbol: str, columns: pa.RecordBatch, returns: pa.DataType) -> pa.Array:
        """The result of the function for the columns; raises a NativeError or a CrashedError."""
        result = self._ask(library, symbol, columns, returns)
        assert result is not None, "a call is answered with a result, or with an error"
        return result.column(0)

    def _ask(
        self,
        library: Library,
        symbol: str,
        columns: pa.RecordBatch | None = None,
        returns: pa.DataType | None = None,
    ) -> pa.RecordBatch | None:
        file = library.file()
        with self._lock:
            link, memory = self._ensure_started()
            try:
                length = None if columns is None else memory.write(columns)
                link.send_bytes(pickle.dumps((file, symbol, length, returns)))
                answer = pickle.loads(link.recv_bytes())  # noqa: S301 - from the process that we started
            except (EOFError, OSError):
                raise CrashedError(self._how_it_ended()) from None
            if isinstance(answer, str):
                raise NativeError(answer)
            return memory.read_copy(answer) if answer else None

    def _ensure_started(self) -> tuple[Connection, SharedMemory]:
        if self._link is not None and self._memory is not None:
            return self._link, self._memory
        ours, theirs = socket.socketpair()
        self._memory = SharedMemory.make()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "headrace.functions.native_host",
                    str(theirs.fileno()),
                    str(self._memory.number),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), self._memory.number],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._link = Connection(ours.detach())
        return self._link, self._memory

    def _how_it_ended(self) -> str:
        self._hang_up()
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_END_SECONDS)
        if code is None:
            raise ExternalError("the process that functions of shared libraries run in does not answer")
        if code < 0:
            return f"crashed: its process was ended by {signal.Signals(-code).name}"
        return f"ended its process with exit code {code}"

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._hang_up()
            if self._process is not None:
                try:
                    self._process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                self._process = None


@functools.lru_cache(maxsize=1)
def _host_of(process: int) -> NativeHost:  # noqa: ARG001 - a forked process starts its own
    host = NativeHost()
    atexit.register(host.close)
    return host


def shared_host() -> NativeHost:
    """The host of this process."""
    return _host_of(os.getpid())


def _no_python(*_: Any) -> Any:
    raise AssertionError


@dataclass(frozen=True)
class NativeFunction(ColumnFunction):
    """A function of a shared library over the values of rows."""

    library: Library = field(kw_only=True)
    symbol: str = field(kw_only=True)

    @classmethod
    def make(
        cls,
        name: str,
        arguments: Sequence[tuple[str, pa.DataType]],
        returns: pa.DataType,
        *,
        library: Library,
        symbol: str,
        nullable: bool | Sequence[bool] = False,
    ) -> NativeFunction:
        """The function `symbol` of a library; raises a ConfigurationError if it is not exported."""
        each = (nullable,) * len(arguments) if isinstance(nullable, bool) else tuple(nullable)
        function = cls(
            name,
            tuple(kind for _, kind in arguments),
            returns,
            tuple(parameter for parameter, _ in arguments),
            each,
            function=_no_python,
            library=library,
            symbol=symbol,
            identity=f"{library.digest}:{symbol}",
        )
        try:
            shared_host().check(library, symbol)
        except NativeError as error:
            raise ConfigurationError(
                f"udf `{name}`: {error}", hint='in C++ and Rust a function has to be exported: extern "C"'
            ) from None
        except CrashedError as error:
            raise ConfigurationError(f"udf `{name}`: {library.path} {error}") from None
        return function

    def __call__(self, *values: Any, **named: Any) -> Any:
        if named or len(values) != len(self.arguments):
            raise TypeError(f"{self.name}() takes {len(self.arguments)} values")
        columns = [pa.array([value], kind) for value, kind in zip(values, self.arguments, strict=True)]
        return to_python(self.call(columns))[0]

    def call(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The result for each row of some columns; raises an ExpressionError."""
        complete = self.complete(columns)
        if complete is not None:
            columns = [column.filter(complete) for column in columns]
        batch = pa.RecordBatch.from_arrays(list(columns), list(self.parameters))
        try:
            results = self._ask(batch) if batch.num_rows else pa.nulls(0, self.returns)
        except (NativeError, CrashedError) as error:
            raise self._failed(batch, error) from None
        return results if complete is None else spread(results, complete)

    def _ask(self, batch: pa.RecordBatch) -> pa.Array:
        return shared_host().call(self.library, self.symbol, batch, self.returns)

    def _failed(self, batch: pa.RecordBatch, error: Exception) -> ExpressionError:
        """The error of a call, narrowed to the first row that causes it alone."""
        while batch.num_rows > 1:
            half = batch.num_rows // 2
            for part in (batch.slice(0, half), batch.slice(half)):
                try:
                    self._ask(part)
                except (NativeError, CrashedError) as part_error:
                    batch, error = part, part_error
                    break
            else:
                break
        inputs = f"a batch of {batch.num_rows} rows"
        if batch.num_rows == 1:
            inputs = f"the row {format_arguments(self.parameters, self.row(batch.columns, 0))}"
        did = str(error) if isinstance(error, CrashedError) else f"failed: {error}"
        return ExpressionError(f"udf `{self.name}` {did}, for {inputs}")
