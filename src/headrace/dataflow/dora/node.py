"""`Node`: how the process of a `path:` node takes part in a dataflow, with the methods that dora's has."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import operator
import os
import select
import socket
import stat
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

from headrace.base.errors import suggest
from headrace.base.private import socket_addresses
from headrace.dataflow.runtime.link import (
    LINK,
    Decoder,
    Encoder,
    Frame,
    FrameKind,
    Link,
    ask_frame,
    guest_name,
    hello_frame,
    log_frame,
)
from headrace.dataflow.runtime.messages import check_metadata, to_array, to_datetime

_ANSWER = 0.1
"""Seconds that a node which takes only what waits gives the dataflow to say whether anything does."""

_LEVELS = {
    "error": "error",
    "critical": "error",
    "warn": "warning",
    "warning": "warning",
    "debug": "debug",
    "trace": "trace",
}
"""What a node or `logging` calls a level, and what it is here; all else is `info`."""


class Node:
    """The node that this process is: its events, and the way to send.

    Any thread may send. A process that a dataflow started is the node of its document, whatever `node_id`
    says, as in dora; one that was started by hand becomes the node `node_id`, which has `path: dynamic`, of
    the dataflow that runs. Asking for the next event says that all earlier ones have been handled.
    """

    _there: str | None = None
    """The id of the node, once this process has made it."""

    def __init__(self, node_id: str | None = None, daemon_port: int | None = None) -> None:
        self._link = Link(_connect(Node._there, node_id))
        self._encoder, self._decoder = Encoder(), Decoder()
        self._reading, self._writing = threading.RLock(), threading.Lock()
        self._events: deque[dict[str, Any]] = deque()
        self._handled = self._asked = 0
        self._question = self._answered = 0
        """The last question whether an event waits, and the last one to which the answer was no."""
        self._ending = False
        self._setup: dict[str, Any] = {}
        self._write(hello_frame())
        while not self._setup:
            self._arrived(None)
        self._id: str = self._setup["id"]
        self._outputs = frozenset(self._setup["config"]["outputs"])
        Node._there = self._id
        _bridge_logging(self)

    def __repr__(self) -> str:
        return f"<dora.Node {self._id}>"

    # Events

    @property
    def _over(self) -> bool:
        return self._ending and not self._events

    def __iter__(self) -> Node:
        return self

    def __next__(self) -> dict[str, Any]:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next event; None when no more will come, an ERROR event after `timeout` seconds without one."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            if timeout is not None and timeout <= _ANSWER:
                self._look()  # what waits is available, however short the time is
            while True:
                event = self._take()
                if event is not None or self._over:
                    return event
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._arrived(left):
                    return _timed_out(timeout)

    def try_recv(self) -> dict[str, Any] | None:
        """The next event if one is waiting at an input already."""
        with self._reading:
            self._look()
            return self._take() if self._events else None

    def drain(self) -> list[dict[str, Any]]:
        """All events that are waiting at the inputs already."""
        return list(iter(self.try_recv, None))

    def is_empty(self) -> bool:
        """Whether no event is waiting at an input yet."""
        with self._reading:
            self._look()
            return not self._events

    async def recv_async(self, timeout: float | None = None) -> dict[str, Any] | None:  # noqa: ASYNC109 - dora has it
        """What `next` gives, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self._reading:
                event = self._take()
                while event is None and not self._over and self._arrived(0):
                    event = self._take()
            if event is not None or self._over:
                return event
            arrived = asyncio.Event()
            loop.add_reader(self._link.fileno(), arrived.set)
            try:
                await asyncio.wait_for(arrived.wait(), None if deadline is None else deadline - loop.time())
            except TimeoutError:
                return _timed_out(timeout)
            finally:
                loop.remove_reader(self._link.fileno())

    # Outputs

    def send_output(self, output_id: str, data: Any, metadata: dict[str, Any] | None = None) -> None:
        """Send an array to all that read this output; waits while too much of it is unread.

        A `timestamp` in the metadata is the message's time; without one it is now.
        """
        if output_id not in self._outputs:
            raise ValueError(self._no_output(output_id))
        array = to_array(data)
        checked, moment = check_metadata(metadata, self.log_warn) if metadata is not None else (None, None)
        with self._writing:
            self._write(
                self._encoder.message(
                    output_id,
                    array,
                    time=time.time_ns() if moment is None else moment,
                    timed=moment is not None,
                    metadata=checked,
                )
            )

    def send_output_raw(
        self, output_id: str, data_length: int, metadata: dict[str, Any] | None = None
    ) -> Sample:
        """Memory to be filled and then sent as bytes: by its `send`, or at the end of `with`."""
        return Sample(self, output_id, data_length, metadata)

    def send_service_request(self, output_id: str, data: Any, metadata: dict[str, Any] | None = None) -> str:
        """Send with a new `request_id` in the metadata, and return it."""
        request = str(uuid.uuid4())
        self.send_output(output_id, data, {**(metadata or {}), "request_id": request})
        return request

    def send_service_response(self, output_id: str, data: Any, metadata: dict[str, Any]) -> None:
        """Send the answer to a request, whose metadata has the `request_id`."""
        if "request_id" not in metadata:
            self.log_warn(f"a response on `{output_id}` has no `request_id`: nobody can match it")
        self.send_output(output_id, data, metadata)

    # What the node is

    def node_config(self) -> dict[str, Any]:
        """The node's `inputs` and `outputs`."""
        config: dict[str, Any] = self._setup["config"]
        return config

    def dataflow_descriptor(self) -> dict[str, Any]:
        """The whole document, as plain values."""
        descriptor: dict[str, Any] = self._setup["descriptor"]
        return descriptor

    def dataflow_id(self) -> str:
        return str(self._setup["dataflow"])

    def is_restart(self) -> bool:
        """Whether the node ran before in this dataflow and has been started again."""
        return self.restart_count() > 0

    def restart_count(self) -> int:
        return int(self._setup["restarts"])

    def timestamp(self) -> dt.datetime:
        """Now, as the `timestamp` of a message."""
        return to_datetime(time.time_ns())

    # Logs

    def log(
        self, level: str, message: str, target: str | None = None, fields: Mapping[str, str] | None = None
    ) -> None:
        """Show a line with its level: error, warn, info, debug or trace; any other is info."""
        named = f"{target}: {message}" if target else message
        line = " ".join([named, *(f"{key}={value}" for key, value in (fields or {}).items())])
        with self._writing:
            self._write(log_frame(_LEVELS.get(level.lower(), "info"), line))

    def log_error(self, message: str) -> None:
        self.log("error", message)

    def log_warn(self, message: str) -> None:
        self.log("warn", message)

    def log_info(self, message: str) -> None:
        self.log("info", message)

    def log_debug(self, message: str) -> None:
        self.log("debug", message)

    def log_trace(self, message: str) -> None:
        self.log("trace", message)

    # What there is not

    def merge_external_events(self, subscription: Any) -> NoReturn:
        raise NotImplementedError(
            "Headrace has no ROS 2: read its topics in a node of their own and send them on"
        )

    def _no_extensions(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("nodes share no memory in Headrace: send arrays with send_output")

    extension_store = extension_load = extension_drop = drain_dropped_extension_keys = _no_extensions
    register_tensor_pool = write_tensor_pool = read_tensor_pool = free_tensor_pool = _no_extensions

    # The link

    def _take(self) -> dict[str, Any] | None:
        """The next event of those that have been read."""
        if self._events:
            self._handled += 1
            return self._events.popleft()
        if self._asked < self._handled and not self._ending:
            self._asked = self._handled
            with self._writing:
                self._write(ask_frame(self._asked))
        return None

    def _look(self) -> None:
        """Fetch a queued event from the dataflow, unless one is here already."""
        if self._events or self._ending:
            return
        self._question += 1
        self._asked = self._handled
        with self._writing:
            self._write(ask_frame(self._handled, self._question))
        deadline = time.monotonic() + _ANSWER
        while self._arrived(max(0.0, deadline - time.monotonic())):
            if self._events or self._over or self._answered == self._question:
                return

    def _arrived(self, timeout: float | None) -> bool:
        """Read what has arrived, waiting up to `timeout` seconds for it."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            return False
        if not self._link.read():
            _die()
        while self._link.frames:
            frame = self._decoder.decode(self._link.frames.popleft())
            if frame is not None:
                self._accept(frame)
        return True

    def _accept(self, frame: Frame) -> None:
        if frame.kind is FrameKind.MESSAGE:
            metadata = {"timestamp": to_datetime(frame.time), **(frame.metadata or {})}
            self._events.append(
                {
                    "type": "INPUT",
                    "id": frame.name,
                    "kind": "dora",
                    "value": frame.value,
                    "metadata": metadata,
                }
            )
        elif frame.kind is FrameKind.EVENT:
            self._events.append({**frame.value, "kind": "dora"})
        elif frame.kind is FrameKind.NOTHING:
            self._answered = frame.time
        elif frame.kind is FrameKind.END:
            self._ending = True
        elif frame.kind is FrameKind.SETUP:
            self._setup = frame.value

    def _write(self, pieces: list[Any]) -> None:
        if not self._link.write(pieces):
            _die()

    def _no_output(self, name: str) -> str:
        declared = ", ".join(f"`{output}`" for output in self._setup["config"]["outputs"]) or "none"
        hint = suggest(str(name), self._outputs) or "name it under `outputs:` of the node"
        return f"node `{self._id}` has no output `{name}`; declared: {declared}; {hint}"


class SampleBuffer(bytearray):
    """The memory of a sample, for `memoryview` or numpy; empty once the sample has been sent."""


class Sample:
    """Memory for one message: filled through `as_memoryview` or `as_buffer`, sent once, as bytes."""

    def __init__(self, node: Node, output_id: str, size: int, metadata: dict[str, Any] | None) -> None:
        if metadata is not None and not isinstance(metadata, dict):
            raise TypeError(f"metadata must be a dict, got {type(metadata).__name__}")
        self._node, self._output, self._metadata = node, output_id, metadata
        self._memory: SampleBuffer | None = SampleBuffer(_size(size))

    def as_buffer(self) -> SampleBuffer:
        """The memory, an object that `memoryview` and numpy can look at."""
        if self._memory is None:
            raise RuntimeError("Cannot access buffer: the sample has already been sent")
        return self._memory

    def as_memoryview(self) -> memoryview:
        """The memory, to be written to; release it before `send`."""
        return memoryview(self.as_buffer())

    def send(self) -> None:
        """Send what the memory holds; no view of it may be open."""
        if self._memory is None:
            raise RuntimeError("Sample has already been sent")
        data = bytes(self._memory)
        try:
            self._memory.clear()  # refused while somebody has a view
        except BufferError:
            raise RuntimeError(
                "Cannot send: views of the sample are still open. Release every memoryview and numpy array "
                "of it before send(), or before the end of `with`"
            ) from None
        self._memory = None
        self._node.send_output(self._output, data, self._metadata)

    def __enter__(self) -> SampleBuffer:
        return self.as_buffer()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.send()


class _LogBridge(logging.Handler):
    """Gives what `logging` gets to the dataflow."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node

    def emit(self, record: logging.LogRecord) -> None:
        self._node.log(record.levelname, self.format(record), None if record.name == "root" else record.name)


def _bridge_logging(node: Node) -> None:
    """`logging.info` and the like are shown with their levels, unless the script has set up its own."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_LogBridge(node))
        if root.level == logging.WARNING:
            root.setLevel(logging.INFO)


def _size(size: int) -> int:
    """A number of bytes; numpy's integers are some too."""
    count = operator.index(size)
    if count < 0:
        raise OverflowError(f"a sample cannot have {count} bytes")
    return count


def _timed_out(timeout: float | None) -> dict[str, Any]:
    return {"type": "ERROR", "kind": "dora", "error": f"Timeout: no event within {timeout} s"}


def _connect(there: str | None, node_id: str | None) -> socket.socket:
    if there is not None:
        raise RuntimeError(f"this process has its Node already, `{there}`: make it once and share it")
    descriptor = os.environ.pop(LINK, None)
    if descriptor is None and node_id is not None:
        return _join(node_id)
    if descriptor is None:
        raise RuntimeError(
            "Node() works in a running dataflow only: give this script as `path:` of a node in a YAML file "
            "and start it with `headrace run FILE.yml`. A script that is started by hand says which node it "
            'is, Node("name"), and that has `path: dynamic`'
        )
    number = int(descriptor)
    try:
        reachable = stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        reachable = False
    if not reachable:
        raise RuntimeError(
            "Node() cannot reach its dataflow: the program that started this process closed file descriptor "
            f"{number}. Let the node's `path:` start it without one in between, or let that one `exec` it"
        )
    os.set_inheritable(number, False)
    return socket.socket(fileno=number)


def _join(node_id: str) -> socket.socket:
    """The connection of a process that was started by hand."""
    addresses = socket_addresses(guest_name(node_id))
    if len(addresses) > 1:
        raise RuntimeError(
            f"{len(addresses)} dataflows wait for a node `{node_id}`: stop all but one, or give their nodes "
            "different ids"
        )
    for address in addresses:
        asking = socket.socket(socket.AF_UNIX)
        try:
            asking.connect(str(address))
        except OSError:  # it has ended, or another process was faster
            asking.close()
        else:
            return asking
    raise RuntimeError(
        f"no dataflow waits for a node `{node_id}`: one that has it, with `path: dynamic`, must run on this "
        "machine (`headrace run FILE.yml`), and no other process may have joined as it"
    )


def _die() -> NoReturn:
    """End this process, because the connection to the dataflow was lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)
