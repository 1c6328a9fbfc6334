"""Runs a `path:` node: a user's script or program, in a separate process."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from headrace.base.errors import OperatorError
from headrace.dataflow.document.files import PYTHON
from headrace.dataflow.document.model import Unit
from headrace.dataflow.runtime.hosts import CONTINUE, STOP, STOP_GRACE, Event, Host, Log, Send
from headrace.dataflow.runtime.link import (
    Decoder,
    Encoder,
    Frame,
    FrameKind,
    Pieces,
    end_frame,
    event_frame,
)
from headrace.dataflow.runtime.messages import to_datetime, to_nanoseconds
from headrace.dataflow.runtime.peers import Child, Guest, Peer

PROVIDED = Path(__file__).parents[1] / "dora" / "provided"
"""The directory with the module `dora`, for `sys.path`."""

UNREAD = 64 * 1024 * 1024
"""Bytes that a node may have sent and nobody has taken before its `send_output` waits."""

FINISH_GRACE = 120.0
"""Seconds that a process has to end after its inputs have ended."""

Sent = tuple[str, pa.Array, int, Mapping[str, Any] | None]
"""What a node has sent: output, array, time in nanoseconds and metadata."""

_MOMENT = 0.1
"""Seconds for which what a process sends is passed on before somebody looks whether that is enough."""


class ProcessNode(Host):
    """A process that is given events and that sends.

    An event counts as handled when the process asks for the one after it, so `handle` waits for as long as
    the process takes, and for ever if it never makes a `Node` and never ends. `close`, from any thread, ends
    both. A node with `health_check_timeout` that is silent for so long fails instead, and so does one that
    has not made its `Node` within its `startup_timeout`. The process ends with this one, however that ends.
    `log` is called from threads of this object, and so is `on_sent`, when it has sent something or ended.

    A node without inputs has no events to answer to: `receive` gives what it sends. The process of a node
    with `path: dynamic` is started by hand and may join at any time; events before that are dropped.
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
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self._unit, self._directory, self._python, self._log = unit, directory, python, log
        self._descriptor = descriptor
        self._dataflow = dataflow_id or str(uuid.uuid4())
        self._limit, self._on_sent = limit, on_sent
        self._restarts = 0
        self._peer: Peer | None = None
        self._encoder, self._decoder = Encoder(), Decoder()
        self._taken: deque[bytes | pa.Buffer] = deque()
        self._given = self._asked = 0
        self._stop: str | None = None
        self._told = False
        self._missed = 0
        """Events for a process that had not joined yet."""

    def start(self, state: bytes | None) -> None:
        """Start the process; does not wait until it has made its `Node`."""
        self._encoder, self._decoder = Encoder(), Decoder()
        self._taken.clear()
        self._given = self._asked = 0
        self._stop, self._told = None, False
        setup = self._setup()
        if self._unit.joins:
            guest = Guest(self._unit.node, setup, log=self._log, limit=self._limit, on_sent=self._on_sent)
            self._peer = guest
            guest.answers = not self._unit.inputs
            guest.wait_to_be_joined()
            return
        child = Child(setup, log=self._log, limit=self._limit, on_sent=self._on_sent)
        self._peer = child
        child.answers = not self._unit.inputs
        child.start(self._command(), cwd=self._directory, env=self._environment())

    def restart(self) -> None:
        """Restart; the process can see it in `Node.is_restart`."""
        self._restarts += 1
        super().restart()

    def snapshot(self) -> bytes | None:
        """None: what a process remembers cannot be saved. Until the next events nothing waits for it."""
        self._running.answer(at_once=True)
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
            self._running.answers = False  # there may be more than these
            self._give(events[:stop], send)
        elif not events:
            self._running.answer()
        if stop < len(events):
            self._say_stop(events[stop]["id"], send)
            return CONTINUE
        limit = self._unit.health_timeout
        while True:
            self._pass_on(send, time.monotonic() + _MOMENT)
            if self.ended is not None:
                self._raise_failure()
                return STOP
            if self._asked >= self._given:
                return CONTINUE
            deadline = None if limit is None else time.monotonic() + limit
            if not self._running.wait_for_frames(deadline) and self.ended is None:
                self._give_up(f"has not asked for its next event for {limit:g} s (`health_check_timeout`)")

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
        """Close the event stream, and wait for the end while forwarding what the process still sends.

        What has not ended after `grace` seconds gets SIGTERM, and after half of it more SIGKILL; that is
        logged and is no error, but an exit code other than 0 before that is. The grace is the node's
        `finish_grace_secs`, else 10 seconds after a STOP event and 120 when its inputs have ended.
        """
        if self._peer is None:
            return
        if grace is None:
            grace = FINISH_GRACE if self._unit.inputs and self._stop is None else STOP_GRACE
            grace = grace if self._unit.finish_grace is None else self._unit.finish_grace
        self._say_stop("ALL_INPUTS_CLOSED" if self._unit.inputs else "MANUAL", send)
        # A program without Node and inputs cannot hear of the stop; who has not joined is not there.
        deaf = not self._peer.connected and (self._unit.joins or not self._unit.inputs)
        if self._missed:
            self._log("warning", f"nobody has joined as this node: {self._missed} events were dropped")
            self._missed = 0
        forced = False
        for number, patience in ((signal.SIGTERM, 0.0 if deaf else grace), (signal.SIGKILL, grace / 2)):
            if self._pass_on_until_ended(send, time.monotonic() + patience):
                break
            forced = True
            if not deaf or number is signal.SIGKILL:
                what = "its connection is closed" if self._unit.joins else number.name
                self._log("warning", f"it has not ended within {patience:g} s: {what}")
            self._peer.signal(number)
        self._pass_on_until_ended(send, None)
        if not forced:
            self._raise_failure()

    def close(self) -> None:
        """End the process if it runs: SIGTERM, and SIGKILL a second later. Any thread may call this."""
        if self._peer is not None:
            self._peer.close()

    @property
    def has_sent(self) -> bool:
        """Whether it has sent something, or ended, and `handle` has not taken it."""
        return bool(self._taken) or self._running.has_sent

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
        return self._error(how if self._stop is None else f"{how} after it was told to stop")

    def _error(self, what: str) -> OperatorError:
        """The error for a process that failed, with the last lines that it printed to stderr."""
        output = "".join(f"\n  {line}" for line in self._running.last_errors)
        error = OperatorError(
            f"node `{self._unit.address}` {what}{':' if output else ''}{output}",
            operator_id=self._unit.address,
            subtask=0,
            epoch=0,
            traceback_text="",
        )
        error.where = None  # the message begins with it
        return error

    @property
    def _running(self) -> Peer:
        assert self._peer is not None, "start comes first"
        return self._peer

    def _give_up(self, what: str) -> NoReturn:
        """End a process that is taken for stuck."""
        self._running.close()
        self._told = True
        raise self._error(what)

    def _raise_failure(self) -> None:
        """Report the failure once."""
        failure = self.failure
        if failure is not None and not self._told:
            self._told = True
            raise failure

    def _setup(self) -> dict[str, Any]:
        """What the process's `Node` is configured with."""
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
        limit = self._unit.startup_timeout
        if self._unit.joins and not self._running.connected:
            self._missed += len(events)
            return
        if self._missed:
            self._log("info", f"{self._missed} events that came before it had joined were dropped")
            self._missed = 0
        if not self._running.wait_for_node(limit):
            self._give_up(f"has made no `Node` within {limit:g} s (`startup_timeout`)")
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
            self._running.answer(at_once=True)
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
