"""Runs a `path:` node: a user's script or program, in a process of its own."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from headrace.base.errors import OperatorError
from headrace.dataflow.document.files import PYTHON
from headrace.dataflow.document.model import Unit
from headrace.dataflow.runtime.hosts import CONTINUE, STOP, Event, Host, Log, Send
from headrace.dataflow.runtime.link import (
    LINK,
    Decoder,
    Encoder,
    Frame,
    FrameKind,
    Link,
    Pieces,
    end_frame,
    event_frame,
    kind_of,
    setup_frame,
)
from headrace.dataflow.runtime.messages import to_datetime, to_nanoseconds

PROVIDED = Path(__file__).parents[1] / "dora" / "provided"
"""The directory with the module `dora`, for `sys.path`."""

UNREAD = 64 * 1024 * 1024
"""Bytes that a node may have sent and nobody has taken before its `send_output` waits."""

STOP_GRACE, FINISH_GRACE = 10.0, 120.0
"""Seconds that a process has to end after it was told to stop, and after its inputs have ended."""

Sent = tuple[str, pa.Array, int, Mapping[str, Any] | None]
"""What a node has sent: output, array, time in nanoseconds and metadata."""

_LINE = 1024 * 1024
_LAST_LINES = 20
_PORTION = 0.001
_MOMENT = 0.1
"""Seconds for which what a process sends is passed on before somebody looks whether that is enough."""

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


class ProcessNode(Host):
    """A process that is given events and that sends.

    An event counts as handled when the process asks for the one after it, so `handle` waits for as long as
    the process takes, and for ever if it never makes a `Node` and never ends. `close`, from any thread, ends
    both. The process ends with this one, however that ends. `log` is called from threads of this object.

    A node without inputs has no events to answer to: `receive` gives what it sends.
    """

    at_once = 64

    def __init__(
        self,
        unit: Unit,
        *,
        directory: Path,
        python: str,
        descriptor: Mapping[str, Any],
        log: Log,
        dataflow_id: str | None = None,
        limit: int = UNREAD,
    ) -> None:
        self._unit, self._directory, self._python, self._log = unit, directory, python, log
        self._descriptor = descriptor
        self._dataflow = dataflow_id or str(uuid.uuid4())
        self._limit = limit
        self._restarts = 0
        self._child: _Child | None = None
        self._encoder, self._decoder = Encoder(), Decoder()
        self._taken: deque[bytes | pa.Buffer] = deque()
        self._given = self._asked = 0
        self._stop: str | None = None
        self._told = False

    def start(self, state: bytes | None) -> None:
        """Start the process; does not wait until it has made its `Node`."""
        self._encoder, self._decoder = Encoder(), Decoder()
        self._taken.clear()
        self._given = self._asked = 0
        self._stop, self._told = None, False
        child = self._child = _Child(self._setup(), log=self._log, limit=self._limit)
        child.start(self._command(), cwd=self._directory, env=self._environment())

    def restart(self) -> None:
        """Begin anew; the process can learn of it from `Node.is_restart`."""
        self._restarts += 1
        super().restart()

    def snapshot(self) -> bytes | None:
        """None: what a process remembers cannot be saved."""
        return None

    def handle(self, events: Sequence[Event], send: Send) -> int:
        """Give the events; returns CONTINUE when all are handled, and STOP when the process ended with 0.

        After a STOP event it returns at once, and what comes then is dropped: `finish` is what waits, and not
        for ever. Without events it passes on what the process has sent since, and says whether it has ended.
        """
        if self._stop is not None:
            self._pass_on(send, time.monotonic() + _MOMENT)
            return CONTINUE
        stop = next((index for index, event in enumerate(events) if event["type"] == "STOP"), len(events))
        if stop:
            self._give(events[:stop], send)
        if stop < len(events):
            self._say_stop(events[stop]["id"], send)
            return CONTINUE
        while True:
            self._pass_on(send, time.monotonic() + _MOMENT)
            if self.ended is not None:
                self._raise_failure()
                return STOP
            if self._asked >= self._given:
                return CONTINUE
            self._running.wait_for_frames(None)

    def receive(self, timeout: float) -> list[Sent]:
        """What the process has sent since, in its order.

        Waits up to `timeout` seconds for the first message, and less when the process ends.
        """
        sent: list[Sent] = []
        deadline = time.monotonic() + timeout
        while not sent and self._running.wait_for_frames(deadline):
            while (frame := self._take()) is not None:
                if frame.kind is FrameKind.MESSAGE:
                    sent.append((frame.name, frame.value, frame.time, frame.metadata))
        return sent

    def finish(self, send: Send, grace: float | None = None) -> None:
        """Say that no more events come, and wait for the end, passing on what the process still sends.

        What has not ended after `grace` seconds gets SIGTERM, and after half of it more SIGKILL; that is
        logged and is no error, but an exit code other than 0 before that is. The grace is the node's
        `finish_grace_secs`, else 10 seconds after a STOP event and 120 when its inputs have ended.
        """
        if self._child is None:
            return
        if grace is None:
            grace = FINISH_GRACE if self._stop is None else STOP_GRACE
            grace = grace if self._unit.finish_grace is None else self._unit.finish_grace
        self._say_stop("ALL_INPUTS_CLOSED" if self._unit.inputs else "MANUAL", send)
        # A program that has no Node and no inputs cannot hear of the stop.
        deaf = not self._unit.inputs and not self._child.connected
        forced = False
        for number, patience in ((signal.SIGTERM, 0.0 if deaf else grace), (signal.SIGKILL, grace / 2)):
            if self._pass_on_until_ended(send, time.monotonic() + patience):
                break
            forced = True
            if not deaf or number is signal.SIGKILL:
                self._log("warning", f"it has not ended within {patience:g} s: {number.name}")
            self._child.signal(number)
        self._pass_on_until_ended(send, None)
        if not forced:
            self._raise_failure()

    def close(self) -> None:
        """End the process if it runs: SIGTERM, and SIGKILL a second later. Any thread may call this."""
        if self._child is not None:
            self._child.close()

    @property
    def ended(self) -> int | None:
        """The exit code, once the process has ended and all that it sent has been taken; -9 is SIGKILL."""
        return None if self._taken else self._running.ended

    @property
    def failure(self) -> OperatorError | None:
        """What went wrong, once the process has ended with another exit code than 0."""
        code = self.ended
        if not code:
            return None
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        when = "" if self._stop is None else " after it was told to stop"
        output = "".join(f"\n  {line}" for line in self._running.last_errors)
        error = OperatorError(
            f"node `{self._unit.address}` {how}{when}{':' if output else ''}{output}",
            operator_id=self._unit.address,
            subtask=0,
            epoch=0,
            traceback_text="",
        )
        error.where = None  # the message begins with it
        return error

    @property
    def _running(self) -> _Child:
        assert self._child is not None, "start comes first"
        return self._child

    def _raise_failure(self) -> None:
        """Once: what is said twice looks like two failures."""
        failure = self.failure
        if failure is not None and not self._told:
            self._told = True
            raise failure

    def _setup(self) -> dict[str, Any]:
        """What `Node` knows of itself."""
        nodes = self._descriptor.get("nodes", ())
        node: Mapping[str, Any] = next((node for node in nodes if node.get("id") == self._unit.node), {})
        return {
            "id": self._unit.node,
            "config": {"inputs": node.get("inputs") or {}, "outputs": list(self._unit.outputs)},
            "descriptor": self._descriptor,
            "dataflow": self._dataflow,
            "restarts": self._restarts,
        }

    def _command(self) -> list[str]:
        program, *args = self._unit.command
        python = self._python if self._own_env is None else str(self._own_env / "bin" / "python")
        return [python, "-u", *args] if program == PYTHON else [program, *args]

    @property
    def _own_env(self) -> Path | None:
        """The virtual environment of the node, where one was built."""
        own = self._unit.python_env
        return own if own is not None and (own / "bin" / "python").exists() else None

    def _environment(self) -> dict[str, str]:
        env = {**os.environ, **self._unit.env}
        paths = [str(PROVIDED), *filter(None, [env.get("PYTHONPATH")])]
        if (own := self._own_env) is not None:
            # What this process sees first must not hide what the node has of its own.
            paths = [str(PROVIDED), *filter(None, [self._unit.env.get("PYTHONPATH")])]
            env["PATH"] = os.pathsep.join([str(own / "bin"), env.get("PATH", os.defpath)])
            env["VIRTUAL_ENV"] = str(own)
        return {**env, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}

    def _give(self, events: Sequence[Event], send: Send) -> None:
        self._running.wait_for_node()
        pieces: Pieces = []
        for event in events:
            pieces += self._encode(event)
        self._given += len(events)
        self._running.write(pieces, lambda: self._pass_on(send))

    def _encode(self, event: Event) -> Pieces:
        if event["type"] != "INPUT":
            return event_frame(event)
        metadata = dict(event["metadata"])
        moment = metadata.pop("timestamp", None)
        moment = time.time_ns() if moment is None else to_nanoseconds(moment)
        return self._encoder.message(event["id"], event["value"], time=moment, metadata=metadata)

    def _say_stop(self, reason: str, send: Send) -> None:
        """Tell the process, once, that this was all."""
        if self._stop is None:
            self._stop = reason
            last = event_frame({"type": "STOP", "id": reason}) + end_frame()
            self._running.write_last(last, lambda: self._pass_on(send))

    def _take(self) -> Frame | None:
        """The next ASK or MESSAGE that has arrived."""
        frame = None
        while frame is None:
            self._taken = self._taken or deque(self._running.take())
            if not self._taken:
                return None
            frame = self._decoder.decode(self._taken.popleft())
        return frame

    def _pass_on(self, send: Send, deadline: float | None = None) -> None:
        while (frame := self._take()) is not None:
            if frame.kind is FrameKind.ASK:
                self._asked = frame.time
                continue
            metadata = frame.metadata
            if frame.timed:
                metadata = {**(metadata or {}), "timestamp": to_datetime(frame.time)}
            send(frame.name, frame.value, metadata)
            if deadline is not None and time.monotonic() > deadline:
                return  # it may send for ever

    def _pass_on_until_ended(self, send: Send, deadline: float | None) -> bool:
        while True:
            self._pass_on(send, deadline)
            if self.ended is not None:
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False
            if not self._running.wait_for_frames(deadline) and self.ended is None:
                return False


class _Child:
    """One process: its link, its lines and its end, each read by a thread."""

    def __init__(self, setup: Mapping[str, Any], *, log: Log, limit: int) -> None:
        ours, self._theirs = socket.socketpair()
        self._link = Link(ours)
        self._setup, self._log, self._limit = setup, log, limit
        self._process: subprocess.Popen[bytes]
        self.last_errors: deque[str] = deque(maxlen=_LAST_LINES)
        # What follows is shared with the threads, under `_changed`.
        self._changed = threading.Condition()
        self._frames: list[bytes | pa.Buffer] = []
        self._unread = 0
        self._last: Pieces = []
        self._gone = self._closed = False
        self._code: int | None = None
        self.connected = False
        """Whether it has made its `Node`."""

    def start(self, command: list[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        started: Future[None] = Future()
        # The kernel ends the process with the *thread* that started it: this one stays until it has ended.
        threading.Thread(target=self._run, args=(command, cwd, env, started), daemon=True).start()
        started.result()

    @property
    def ended(self) -> int | None:
        with self._changed:
            return None if self._frames else self._code

    def take(self) -> list[bytes | pa.Buffer]:
        """All frames that have arrived, not decoded."""
        with self._changed:
            frames, self._frames, self._unread = self._frames, [], 0
            self._changed.notify_all()
            return frames

    def wait_for_frames(self, deadline: float | None) -> bool:
        """Wait for what it sends, or its end; whether there is something to take."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._code is not None, timeout)
            return bool(self._frames)

    def wait_for_node(self) -> None:
        """Wait until it has made its `Node`, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.connected or self._code is not None)

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

        self._link.write(pieces, stuck=stuck)

    def write_last(self, pieces: Pieces, take: Callable[[], None]) -> None:
        """Send the last frames; one that has not made its `Node` yet gets them when it does."""
        with self._changed:
            self._last = pieces
            connected = self.connected
        if connected:
            self.write(pieces, take)

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
        """Start the process and stay until it has ended and all that it said has been read."""
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
        with self._changed:
            while self._link.frames:
                raw = self._link.frames.popleft()
                kind = kind_of(raw)
                if kind == FrameKind.HELLO:
                    self.write(setup_frame(self._setup) + self._last, lambda: None)
                    self.connected = True
                elif kind == FrameKind.LOG:
                    lines.append(Decoder().decode(raw))
                else:
                    self._frames.append(raw)
                    self._unread += len(raw)
            self._changed.notify_all()
        for line in lines:
            assert line is not None
            self._log(line.name, line.value)
        with self._changed:
            # A moment for whoever takes them: small frames then come in large portions.
            self._changed.wait_for(lambda: not self._frames or self._closed, _PORTION)
            self._changed.wait_for(lambda: self._unread <= self._limit or self._closed)

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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
