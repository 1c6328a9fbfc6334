"""The process of a `path:` node, at the other end of a link: it was started here, or it has joined."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from headrace.base.private import socket_address, user_at
from headrace.dataflow.runtime.hosts import Log
from headrace.dataflow.runtime.link import (
    LINK,
    Decoder,
    Frame,
    FrameKind,
    Link,
    Pieces,
    guest_name,
    kind_of,
    nothing_frame,
    question_of,
    setup_frame,
)

_LINE = 1024 * 1024
_LAST_LINES = 20
_PORTION = 0.001

# Asks the kernel to kill this process with the one that started it, and becomes the user's program. A process
# of its own does this because no Python may run between fork and exec in a process that has threads.
_LAUNCH = """
import os, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit(1)
try:
    os.execvp(program[0], program)
except OSError as error:
    hint = {8: "; give it a first line such as #!/bin/sh", 13: "; make it executable: chmod +x"}
    sys.exit(f"cannot run {program[0]}: {error.strerror}{hint.get(error.errno, '')}")
"""


class Peer(ABC):
    """A process as its node sees it: what it sends, what it is given, and its end."""

    def __init__(
        self, setup: Mapping[str, Any], *, log: Log, limit: int, on_sent: Callable[[], None]
    ) -> None:
        self._setup, self._log, self._limit, self._on_sent = setup, log, limit, on_sent
        self._link: Link
        self.last_errors: deque[str] = deque(maxlen=_LAST_LINES)
        # What follows is shared with the threads, under `_changed`.
        self._changed = threading.Condition()
        self._frames: list[bytes | pa.Buffer] = []
        self._unread = 0
        self._has_messages = False
        """Whether there are more than questions among the frames."""
        self._last: Pieces = []
        self._closed = False
        self._code: int | None = None
        self.connected = False
        """Whether it has made its `Node`."""
        self.answers = False
        """Whether a node that asks is told at once that nothing waits; else who gives it events says so."""
        self._question = 0
        self._writing = threading.Lock()

    @property
    def ended(self) -> int | None:
        with self._changed:
            return None if self._frames else self._code

    @property
    def has_sent(self) -> bool:
        with self._changed:
            return self._has_messages or self._code is not None

    def take(self) -> list[bytes | pa.Buffer]:
        """All frames that have arrived, not decoded."""
        with self._changed:
            frames, self._frames, self._unread, self._has_messages = self._frames, [], 0, False
            self._changed.notify_all()
            return frames

    def wait_for_frames(self, deadline: float | None) -> bool:
        """Wait for what it sends, or its end; whether there is something to take."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._code is not None, timeout)
            return bool(self._frames)

    def wait_for_node(self, timeout: float | None) -> bool:
        """Wait until it has made its `Node`, or has ended; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self.connected or self._code is not None, timeout)

    def write(self, pieces: Pieces, take: Callable[[], None]) -> None:
        """Send frames, calling `take` while they are not read: it may wait for us to take what it sends.

        Frames for one that has ended are dropped: whoever waits for it learns how it ended.
        """
        if self._link.fileno() < 0:
            return  # closed by another thread
        writable = select.poll()
        writable.register(self._link, select.POLLOUT)

        def stuck() -> None:
            take()
            writable.poll(20)

        with self._writing:
            self._link.write(pieces, stuck=stuck)

    def answer(self, *, at_once: bool = False) -> None:
        """Nothing waits for the node: say so if it has asked, and with `at_once` whenever it asks."""
        self.answers = self.answers or at_once
        with self._changed:
            question, self._question = self._question, 0
        if question:
            self._say_nothing(question)

    def _say_nothing(self, question: int) -> None:
        # While another thread writes, an event is on its way. Nobody may wait here: the node may wait for us.
        if self._link.fileno() >= 0 and self._writing.acquire(blocking=False):
            try:
                writable = select.poll()
                writable.register(self._link, select.POLLOUT)
                if writable.poll(0):
                    self._link.write(nothing_frame(question))
            finally:
                self._writing.release()

    def write_last(self, pieces: Pieces, take: Callable[[], None]) -> None:
        """Send the last frames; one that has not made its `Node` yet gets them when it does."""
        with self._changed:
            self._last = pieces
            connected = self.connected
        if connected:
            self.write(pieces, take)

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """End the process, as far as it can be made to."""

    @abstractmethod
    def close(self) -> None:
        """End the process, and forget it. Any thread may call this."""

    def _read_link(self) -> None:
        try:
            while self._link.read():
                self._accept()
        except OSError:
            return  # reset: it has ended and left events unread
        except Exception as error:  # noqa: BLE001 - the process would wait for ever
            self.last_errors.append(f"its link broke: {error!r}")
            self.signal(signal.SIGKILL)

    def _accept(self) -> None:
        lines: list[Frame | None] = []
        question: int | None = None
        has_messages = False
        with self._changed:
            while self._link.frames:
                raw = self._link.frames.popleft()
                kind = kind_of(raw)
                if kind == FrameKind.HELLO:
                    self.write(setup_frame(self._setup) + self._last, lambda: None)
                    self.connected = True
                elif kind == FrameKind.LOG:
                    lines.append(Decoder().decode(raw))
                elif kind == FrameKind.ASK:
                    question = question_of(raw) or question
                    if self._frames and kind_of(self._frames[-1]) == FrameKind.ASK:
                        self._frames[-1] = raw  # a node may ask often; what it asked last counts
                    else:
                        self._frames.append(raw)
                else:
                    has_messages = True
                    self._frames.append(raw)
                    self._unread += len(raw)
            self._has_messages = self._has_messages or has_messages
            if question is not None:
                self._question = question
            self._changed.notify_all()
        if question is not None and self.answers:
            self.answer()
        if has_messages:
            self._on_sent()
        for line in lines:
            assert line is not None
            self._log(line.name, line.value)
        with self._changed:
            # A moment for whoever takes them: small frames then come in large portions.
            self._changed.wait_for(lambda: not self._frames or self._closed, _PORTION)
            self._changed.wait_for(lambda: self._unread <= self._limit or self._closed)


class Child(Peer):
    """A process that this one starts: its link, its lines and its end are each read by a thread."""

    def __init__(
        self, setup: Mapping[str, Any], *, log: Log, limit: int, on_sent: Callable[[], None]
    ) -> None:
        super().__init__(setup, log=log, limit=limit, on_sent=on_sent)
        ours, self._theirs = socket.socketpair()
        self._link = Link(ours)
        self._process: subprocess.Popen[bytes]
        self._gone = False

    def start(self, command: list[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        started: Future[None] = Future()
        # The kernel ends the process with the *thread* that started it: this one stays until it has ended.
        threading.Thread(target=self._run, args=(command, cwd, env, started), daemon=True).start()
        started.result()

    def signal(self, number: signal.Signals) -> None:
        """Signal the process and what it has started."""
        with self._changed:
            if not self._gone:
                _signal_group(self._process.pid, number)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            with self._changed:
                if self._changed.wait_for(lambda: self._code is not None, timeout=1.0):
                    break
        self._link.close()

    def _run(self, command: list[str], cwd: Path, env: Mapping[str, str], started: Future[None]) -> None:
        """Start the process, and return when it has ended and its output is read."""
        try:
            process = self._process = self._popen(command, cwd, env)
        except BaseException as error:  # noqa: BLE001 - it is raised where `start` was called
            with self._changed:
                self._gone, self._code = True, -1
            started.set_exception(error)
            return
        finally:
            self._theirs.close()
        started.set_result(None)
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=self._read_link, daemon=True),
            threading.Thread(target=self._read_lines, args=("stdout", process.stdout), daemon=True),
            threading.Thread(target=self._read_lines, args=("stderr", process.stderr), daemon=True),
        ]
        for reader in readers:
            reader.start()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._changed:
            # Its number is its own until `wait`; after that it may be another's and must not be signalled.
            self._gone = True
            _signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
        self._link.shut()
        for reader in readers:
            reader.join()
        with self._changed:
            self._code = code
            self._changed.notify_all()
        self._on_sent()

    def _popen(self, command: list[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        descriptor = self._theirs.fileno()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command],
            cwd=cwd,
            env={**env, LINK: str(descriptor)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[descriptor],
            start_new_session=True,  # Ctrl-C is for the dataflow, which then tells its nodes
        )

    def _read_lines(self, stream: str, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LINE):
                text = line.decode(errors="replace").removesuffix("\n")
                if stream == "stderr":
                    self.last_errors.append(text)
                self._log(stream, text)


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return  # there is nobody left who could be signalled


class Guest(Peer):
    """A process that somebody starts by hand: the first one that asks to be the node joins.

    It ends when it hangs up. It cannot be signalled: what would end a child hangs up on it.
    """

    def __init__(
        self,
        node: str,
        setup: Mapping[str, Any],
        *,
        log: Log,
        limit: int,
        on_sent: Callable[[], None],
    ) -> None:
        super().__init__(setup, log=log, limit=limit, on_sent=on_sent)
        self._address = socket_address(os.getpid(), guest_name(node))
        self._listener = socket.socket(socket.AF_UNIX)
        self._has_joined = False

    def wait_to_be_joined(self) -> None:
        """Begin to listen; returns at once."""
        self._address.unlink(missing_ok=True)
        self._listener.bind(str(self._address))
        self._address.chmod(0o600)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def signal(self, number: signal.Signals) -> None:
        with self._changed:
            joined = self._has_joined
            self._closed = self._closed or not joined
        if joined:
            self._link.shut()  # whoever reads it sees the end
        else:
            self._hear_no_more()
            self._end()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.signal(signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(lambda: self._code is not None, timeout=1.0)
        if self._has_joined:
            self._link.close()

    def _serve(self) -> None:
        """Wait for a process that joins, and read what it sends until it hangs up."""
        while True:
            try:
                asker, _ = self._listener.accept()
            except OSError:
                return  # nobody may join any more
            with self._changed:
                if user_at(asker) == os.geteuid() and not self._closed:
                    self._link, self._has_joined = Link(asker), True
                    break
            asker.close()
        self._hear_no_more()
        self._log("info", "a process has joined as this node")
        self._read_link()
        self._link.shut()
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._code = 0
            self._changed.notify_all()
        self._on_sent()

    def _hear_no_more(self) -> None:
        self._address.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
