"""Keeps the process of a unit alive between epochs, whichever worker runs the next epoch.

A shared library or a user's process cannot move between Spark's Python workers, and a crash of it must not be
the end of one. So it lives in a keeper: a process that listens on a Unix socket, that any worker of the same
executor finds, and that ends with the executor.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time as clock
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from headrace.base.errors import ExternalError, HeadraceError
from headrace.base.private import socket_address
from headrace.dataflow.document.model import Unit
from headrace.dataflow.runtime.hosts import Event, Host, Log, Send
from headrace.dataflow.runtime.wakeups import ring, wake

_START_SECONDS = 60.0
_LOOK = 0.5
"""How often a keeper looks whether its executor is still there."""
_DAEMONS = frozenset({"pyspark.daemon", "headrace.exchanges.spark.daemon"})
"""The programs that Spark's Python workers are forks of: PySpark's, and ours in its stead."""


@dataclass(frozen=True)
class KeeperSpec:
    """What a keeper has to run, and for whom."""

    unit: Unit
    directory: Path
    python: str
    descriptor: Mapping[str, Any]
    job_id: str
    partition: int
    owner: int
    """The process that it must not outlive."""

    @property
    def address(self) -> Path:
        """Its socket: the same for every worker of one executor."""
        name = hashlib.sha256(
            f"{self.job_id}/{self.partition}\0{self.unit.address}\0{self.owner}".encode()
        ).hexdigest()[:16]
        return socket_address(self.owner, name)


def owner_of_workers() -> int:
    """The process whose end is the end of the executor: the parent of Spark's workers, else this one."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return os.getppid() if getattr(spec, "name", "") in _DAEMONS else os.getpid()


class KeeperHost(Host):
    """The worker's side: a unit that runs in a keeper process."""

    at_once = 256

    def __init__(self, spec: KeeperSpec, *, log: Log) -> None:
        self._spec = spec
        self._log = log
        self.lives_alone = spec.unit.kind == "process"
        self._link: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.epoch = 0
        """The epoch that is at work; the keeper remembers the last one that it has finished."""

    def start(self, state: bytes | None) -> None:
        """Find the keeper or start one; the unit continues if it has finished the previous epoch."""
        if self._link is not None and self._link.poll():
            self._hang_up()  # nothing was asked: another worker has ended this keeper
        if self._link is None:
            self._link = self._connect()
        self._ask("start", self.epoch, state)

    def _connect(self) -> Connection:
        with contextlib.suppress(OSError):
            return _dial(self._spec.address)
        with contextlib.suppress(FileNotFoundError):
            self._spec.address.unlink()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.dataflow.runtime.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(pickle.dumps(self._spec))
        deadline = clock.monotonic() + _START_SECONDS
        while clock.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                return _dial(self._spec.address)
            clock.sleep(0.02)
        raise ExternalError(f"the process that keeps `{self._spec.unit.address}` did not start")

    def handle(self, events: Sequence[Event], send: Send) -> int:
        """Pass the events to the unit; what it sends is returned."""
        return int(self._ask("handle", list(events), send=send))

    def finish(self, send: Send) -> None:
        """Let the unit end."""
        if self._link is not None:
            self._ask("finish", send=send)

    def _pass_on(self, outputs: Sequence[tuple[str, Any, Any]], send: Send) -> None:
        refused: Exception | None = None
        for output, data, metadata in outputs:
            try:
                send(output, data, metadata)
            except ValueError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def snapshot(self) -> bytes | None:
        """The state of the unit; marks this epoch as finished in the keeper."""
        answer: bytes | None = self._ask("snapshot", self.epoch)
        return answer

    def restart(self) -> None:
        """Restart, in a new keeper process if the old one has ended."""
        if self._link is None:
            self.start(None)
        else:
            self._ask("restart")

    def close(self) -> None:
        """End the keeper."""
        if self._link is not None:
            with contextlib.suppress(Exception):
                self._ask("close")
        self._hang_up()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK * 10)
            self._process = None

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _ask(self, what: str, *arguments: Any, send: Send | None = None) -> Any:
        """The keeper's response; what the unit has sent is forwarded first, even if it failed afterwards."""
        if self._link is None:
            raise ExternalError(f"`{self._spec.unit.address}` has no process")
        try:
            self._link.send((what, *arguments))
            lines, sent, failure, answer = self._link.recv()
        except (EOFError, OSError) as error:
            self._hang_up()
            raise RuntimeError(f"`{self._spec.unit.address}` {self._how_it_ended()}") from error
        for stream, text in lines:
            self._log(stream, text)
        if send is not None:
            self._pass_on(sent, send)
        if failure is not None:
            raise failure
        return answer

    def _how_it_ended(self) -> str:
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(5)
        if code is not None and code < 0:
            return f"crashed: its process was ended by {signal.Signals(-code).name}"
        return "crashed: its process has ended" + ("" if code is None else f" with exit code {code}")


def _dial(address: Path) -> Connection:
    dialled = socket.socket(socket.AF_UNIX)
    try:
        dialled.connect(str(address))
    except OSError:
        dialled.close()
        raise
    return Connection(dialled.detach())


# ------------------------------------------------------------------------------------------ the keeper's end


class _Keeper:
    """Serves the workers of its executor, one question after the other."""

    def __init__(self, spec: KeeperSpec) -> None:
        self._spec = spec
        self._lines: deque[tuple[str, str]] = deque()
        """Threads that read what the unit prints append to it at any time: it is emptied, never replaced."""
        self._sent: list[tuple[str, Any, Mapping[str, Any] | None]] = []
        self._host = _make_host(spec, self.log, self._call)
        self._finished: int | None = None
        """The last epoch that the unit has finished; None while it has not started."""
        self._within = False
        """Whether it has begun another since: an event given or a message taken belongs to an epoch."""
        self._has_called = self._has_rung = False
        self._asker: Connection | None = None
        """The worker that waits for an answer."""
        self.over = False

    def serve(self, link: Connection) -> None:
        """Answer one question."""
        what, *arguments = link.recv()
        self._asker = link
        failure: BaseException | None = None
        answer: Any = None
        try:
            answer = getattr(self, f"_on_{what}")(*arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again by the worker
            failure = _portable(error)
        self._asker = None
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        sent, self._sent = self._sent, []
        link.send((lines, sent, failure, answer))

    def log(self, stream: str, text: str) -> None:
        """Keep a line of the unit for the next worker that asks; any thread may call this."""
        self._lines.append((stream, text))
        self._call()

    def _call(self) -> None:
        """Request an epoch: the unit has messages. A running epoch reads them anyway."""
        if self._has_rung or ring(self._spec.job_id):
            self._has_rung = True
        elif not self._within and not self._has_called:
            self._has_called = True
            wake(self._spec.job_id)

    def give_up_lost(self) -> None:
        """End the unit if the worker that waits for it has ended; the next worker starts a new one.

        Called by another thread, again and again. A library that does not return ends with this process.
        """
        asker = self._asker
        if asker is None or not _has_hung_up(asker):
            return
        if self._spec.unit.kind == "native":
            self._spec.address.unlink(missing_ok=True)
            os._exit(1)
        self._host.close()

    def _on_start(self, epoch: int, state: bytes | None) -> None:
        if self._finished is not None and self._finished == epoch - 1 and not self._within:
            return
        if self._finished is not None:
            self._lines.append(("warning", "an epoch is tried again: the unit begins anew"))
            self._host.close()
        elif state is None and epoch > 1:
            self._lines.append(("warning", "what it had in memory cannot be saved: it begins anew"))
        self._host.start(state)
        self._finished, self._within = epoch - 1, False
        self._has_called = self._has_rung = False
        self._call()

    def _on_handle(self, events: list[Event]) -> int:
        self._within, self._has_called, self._has_rung = True, False, False
        try:
            return self._host.handle(events, self._keep)
        finally:
            _flush_printed()

    def _on_finish(self) -> None:
        self._host.finish(self._keep)

    def _keep(self, output: str, data: Any, metadata: Mapping[str, Any] | None = None) -> None:
        self._sent.append((output, data, metadata))

    def _on_snapshot(self, epoch: int) -> bytes | None:
        self._finished, self._within = epoch, False
        state = self._host.snapshot()
        if self._host.has_sent:
            self._call()  # it came behind the last look
        return state

    def _on_restart(self) -> None:
        self._host.restart()

    def _on_close(self) -> None:
        self.over = True
        self._host.close()
        _flush_printed()


def _make_host(spec: KeeperSpec, log: Log, on_sent: Callable[[], None]) -> Host:
    if spec.unit.kind == "native":
        from headrace.dataflow.runtime.native import NativeOperator

        if spec.unit.file is None:
            raise TypeError("a native unit without a library")
        return NativeOperator(spec.unit.file, address=spec.unit.address, log=log)
    from headrace.dataflow.runtime.process import ProcessNode

    return ProcessNode(
        spec.unit,
        directory=spec.directory,
        python=spec.python,
        descriptor=spec.descriptor,
        log=log,
        on_sent=on_sent,
    )


def _portable(error: BaseException) -> BaseException:
    """An error that the worker can unpickle: one of Headrace's, or its message."""
    if isinstance(error, HeadraceError):
        return error
    text = str(error) or type(error).__name__
    message = (
        text if isinstance(error, RuntimeError) else "".join(traceback.format_exception_only(error)).strip()
    )
    return RuntimeError(message)


def _has_hung_up(link: Connection) -> bool:
    poll = select.poll()
    poll.register(link.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
    return bool(poll.poll(0))


_PRINTED = threading.Event()
_MARK = b"\0headrace\0\n"


def _flush_printed() -> None:
    """Wait until what the library has printed has been read."""
    ctypes.CDLL(None).fflush(None)
    _PRINTED.clear()
    os.write(1, _MARK)
    _PRINTED.wait(5)


def _read_printed(log: Log) -> None:
    """Turn what this process prints, from Python or from C, into lines of the unit."""
    read, write = os.pipe()
    os.dup2(write, 1)
    os.dup2(write, 2)
    os.close(write)

    def follow() -> None:
        with os.fdopen(read, "rb") as pipe:
            for line in pipe:
                before, mark, _ = line.partition(_MARK.rstrip(b"\n"))
                if before.rstrip(b"\n") or not mark:
                    log("stdout", before.decode(errors="replace").rstrip("\n"))
                if mark:
                    _PRINTED.set()

    threading.Thread(target=follow, daemon=True).start()


def main() -> None:
    """Run a keeper until its executor ends or stops it."""
    spec: KeeperSpec = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from the worker that started us
    address = spec.address
    listener = socket.socket(socket.AF_UNIX)
    staged = address.with_suffix(f".{os.getpid()}")
    listener.bind(str(staged))
    listener.listen()
    os.chdir(spec.directory)
    os.environ.update(spec.unit.env)
    keeper = _Keeper(spec)
    _read_printed(keeper.log)
    threading.Thread(target=_watch, args=(spec.owner, keeper), daemon=True).start()
    staged.rename(address)  # whoever finds it can connect
    links: list[Connection] = []
    try:
        while not keeper.over:
            ready = wait([listener, *links])
            for link in [link for link in links if link in ready]:
                try:
                    keeper.serve(link)
                except (EOFError, OSError):
                    links.remove(link)
                    link.close()
            if listener in ready:
                links.append(Connection(listener.accept()[0].detach()))
    finally:
        address.unlink(missing_ok=True)


def _watch(owner: int, keeper: _Keeper) -> None:
    """End this process when its owner has ended, and its unit when nobody waits for it, whatever it does."""
    while True:
        keeper.give_up_lost()
        try:
            os.kill(owner, 0)
        except ProcessLookupError:
            os._exit(0)
        clock.sleep(_LOOK)


if __name__ == "__main__":
    main()
