"""The link between a node's process and the dataflow: frames over a socket, arrays as Arrow IPC.

A frame is a header, a payload, a name and metadata. A type is sent once, when it is first used, and has a
number from then on: a small message costs no schema. Numbers without nulls, the most common arrays, are sent
as they lie in memory.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.dataflow.runtime.messages import decode_metadata, encode_metadata

LINK = "HEADRACE_NODE_LINK"
"""The environment variable that tells a node's process the file descriptor of its end of the link."""


def guest_name(node: str) -> str:
    """What the socket is called through which a process that is started by hand becomes this node."""
    return f"{hashlib.sha256(node.encode()).hexdigest()[:16]}-node"


Pieces = list[Any]
"""A frame to be sent: its bytes in several buffers."""

_HEADER = struct.Struct("<QB?HIqII")
"""Size of the rest · kind · timed · size of the name · size of the metadata · time · number · padding."""

_PLAIN = {
    kind.id: (kind, kind.bit_width // 8)
    for kind in (
        pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
        pa.float16(), pa.float32(), pa.float64(),
    )
}  # fmt: skip
"""The types that can be sent as they lie in memory, by their ids, and the bytes of a value."""

_SCRATCH = 256 * 1024
_JOINED = 64 * 1024
_AT_ONCE = 512


class FrameKind(IntEnum):
    """What a frame is."""

    HELLO = 0
    """From the node: there is a `Node`."""
    SETUP = 1
    """To the node, the answer: who it is, as JSON."""
    TYPE = 2
    """An Arrow type, which has `number` from now on."""
    MESSAGE = 3
    """An array: an input to the node, an output from it."""
    PLAIN = 8
    """The same with numbers only; `number` is Arrow's id of their type. Decoded, it is a MESSAGE."""
    EVENT = 4
    """To the node: any other event, as JSON."""
    END = 5
    """To the node: no event will follow."""
    ASK = 6
    """From the node: it has handled as many events as `time` says and asks for the next.

    A `timed` one wants an answer now, if only NOTHING with the same `number`.
    """
    NOTHING = 9
    """To the node: when it asked, no event was waiting for it. `time` is the number of its question."""
    LOG = 7
    """From the node: a line, with its level as the name."""


class Frame(NamedTuple):
    """One frame, decoded."""

    kind: FrameKind
    name: str
    time: int
    timed: bool
    """Whether the sender has set the time, and not the clock."""
    value: Any
    """The array of a MESSAGE, the text of a LOG, what JSON said in SETUP and EVENT."""
    metadata: dict[str, Any] | None


def kind_of(raw: bytes | pa.Buffer) -> int:
    """The kind of a frame that is not decoded yet."""
    kind: int = _HEADER.unpack_from(raw)[1]
    return kind


class Encoder:
    """Makes the frames of one direction of a link."""

    def __init__(self) -> None:
        self._types: dict[pa.DataType, tuple[int, pa.Schema | None]] = {}

    def message(
        self,
        name: str,
        array: pa.Array,
        *,
        time: int,
        timed: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Pieces:
        """An array; the frame of its type comes first where it is new."""
        text = encode_metadata(metadata)
        rest: dict[str, Any] = {
            "name": name,
            "metadata": text.encode() if text else b"",
            "time": time,
            "timed": timed,
        }
        kind = array.type
        if kind.id in _PLAIN and not array.null_count:
            width, data = _PLAIN[kind.id][1], array.buffers()[1]
            values = data.slice(array.offset * width, len(array) * width) if len(array) else b""
            return _frame(FrameKind.PLAIN, values, number=kind.id, **rest)
        sent = self._types.get(kind)
        first: Pieces = []
        if sent is None:
            number = len(self._types)
            schema = pa.schema([pa.field("", kind)])
            sent = self._types[kind] = (number, None if _has_dictionary(kind) else schema)
            first = _frame(FrameKind.TYPE, schema.serialize(), number=number)
        number, fitting = sent
        payload = _stream(array) if fitting is None else _batch(array, fitting)
        return first + _frame(FrameKind.MESSAGE, payload, number=number, **rest)


def event_frame(event: Mapping[str, Any]) -> Pieces:
    """An event without an array."""
    return _frame(FrameKind.EVENT, json.dumps(event).encode())


def setup_frame(setup: Mapping[str, Any]) -> Pieces:
    """The configuration of a node; values that JSON does not have become strings."""
    return _frame(FrameKind.SETUP, json.dumps(setup, default=str).encode())


def hello_frame() -> Pieces:
    """The first frame of a node."""
    return _frame(FrameKind.HELLO, b"")


def end_frame() -> Pieces:
    """The last frame to a node."""
    return _frame(FrameKind.END, b"")


def ask_frame(handled: int, question: int | None = None) -> Pieces:
    """A node has handled this many events, and asks for more; a question is answered at once."""
    return _frame(FrameKind.ASK, b"", time=handled, timed=question is not None, number=question or 0)


def question_of(raw: bytes | pa.Buffer) -> int | None:
    """The number of a question; None for any other frame."""
    _, kind, timed, _, _, _, number, _ = _HEADER.unpack_from(raw)
    return number if kind == FrameKind.ASK and timed else None


def nothing_frame(question: int) -> Pieces:
    """The answer to a question: no event waits."""
    return _frame(FrameKind.NOTHING, b"", time=question)


def log_frame(level: str, line: str) -> Pieces:
    """A line that a node logs."""
    return _frame(FrameKind.LOG, line.encode(errors="replace"), name=level)


def _frame(
    kind: FrameKind,
    payload: Any,
    *,
    name: str = "",
    metadata: bytes = b"",
    time: int = 0,
    timed: bool = False,
    number: int = 0,
) -> Pieces:
    text = name.encode()
    size = len(payload) + len(text) + len(metadata)
    return [
        _HEADER.pack(size, kind, timed, len(text), len(metadata), time, number, 0),
        payload,
        text + metadata,
    ]


def _batch(array: pa.Array, schema: pa.Schema) -> pa.Buffer:
    return pa.RecordBatch.from_arrays([array], schema=schema).serialize()


def _stream(array: pa.Array) -> pa.Buffer:
    """Of arrays with dictionaries, which a batch alone does not hold."""
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([array], names=[""])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


class Decoder:
    """Reads the frames of one direction of a link, in their order."""

    def __init__(self) -> None:
        self._types: list[tuple[pa.Schema, bool]] = []

    def decode(self, raw: bytes | pa.Buffer) -> Frame | None:
        """The decoded frame; None for one that only declares a schema for later ones."""
        size, number_of_kind, timed, name_size, metadata_size, time, number, _ = _HEADER.unpack_from(raw)
        view = memoryview(raw)
        start = _HEADER.size
        at_name = start + size - metadata_size - name_size
        at_metadata = at_name + name_size
        name = str(view[at_name:at_metadata], "utf-8")
        metadata = decode_metadata(str(view[at_metadata:], "utf-8")) if metadata_size else None
        value: Any = None
        if number_of_kind == FrameKind.PLAIN:
            data = pa.py_buffer(raw).slice(start, at_name - start)
            plain, width = _PLAIN[number]
            value = pa.Array.from_buffers(plain, len(data) // width, [None, data], 0)
            return Frame(FrameKind.MESSAGE, name, time, timed, value, metadata)
        if number_of_kind == FrameKind.MESSAGE:
            payload = pa.py_buffer(raw).slice(start, at_name - start)
            schema, in_stream = self._types[number]
            if in_stream:
                value = pa.ipc.open_stream(payload).read_next_batch().column(0)
            else:
                value = pa.ipc.read_record_batch(payload, schema).column(0)
            return Frame(FrameKind.MESSAGE, name, time, timed, value, metadata)
        kind = FrameKind(number_of_kind)
        payload = view[start:at_name]
        if kind is FrameKind.TYPE:
            schema = pa.ipc.read_schema(pa.py_buffer(payload))
            self._types.append((schema, _has_dictionary(schema.field(0).type)))
            return None
        if kind in {FrameKind.SETUP, FrameKind.EVENT}:
            value = json.loads(bytes(payload))
        elif kind is FrameKind.LOG:
            value = str(payload, "utf-8")
        return Frame(kind, name, time, timed, value, metadata)


class Link:
    """One end of the socket.

    One thread reads and one writes at a time; each frame has memory of its own, so that keeping a small
    array does not keep a large buffer.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._filled = 0
        self._large: pa.Buffer | None = None
        self._large_view = memoryview(b"")
        self._large_filled = 0
        self._torn = False
        self.frames: deque[bytes | pa.Buffer] = deque()
        """What has been read and not been taken."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> bool:
        """Wait for bytes and add the frames that they complete to `frames`; False at the end."""
        if self._large is not None:
            return self._read_large()
        count = self._socket.recv_into(self._scratch[self._filled :])
        if not count:
            return False
        self._filled += count
        start = 0
        while self._filled - start >= _HEADER.size:
            size = _HEADER.size + _HEADER.unpack_from(self._scratch, start)[0]
            if size <= self._filled - start:
                self.frames.append(bytes(self._scratch[start : start + size]))
                start += size
            elif size <= _SCRATCH:
                break
            else:
                self._large = pa.allocate_buffer(size)
                self._large_view = memoryview(self._large).cast("B")
                self._large_filled = self._filled - start
                self._large_view[: self._large_filled] = self._scratch[start : self._filled]
                start = self._filled
        if start:
            rest = bytes(self._scratch[start : self._filled])
            self._scratch[: len(rest)] = rest
            self._filled = len(rest)
        return True

    def _read_large(self) -> bool:
        count = self._socket.recv_into(self._large_view[self._large_filled :], 0, socket.MSG_WAITALL)
        self._large_filled += count
        if self._large_filled == len(self._large_view):
            self.frames.append(self._large)
            self._large = None
        return count > 0

    def write(self, pieces: Pieces, *, stuck: Callable[[], None] | None = None) -> bool:
        """Send frames; False if the connection is closed.

        Waits while the other end does not read, and calls `stuck` again and again meanwhile, if given.
        """
        if self._torn:
            raise RuntimeError("a message was interrupted while it was sent: nothing can follow it")
        flags = socket.MSG_DONTWAIT if stuck else 0
        pending = _joined(pieces)
        self._torn = True
        while pending:
            try:
                count = self._socket.sendmsg(pending[:_AT_ONCE], (), flags)
            except BlockingIOError:
                assert stuck is not None
                stuck()
            except OSError:
                self._torn = False
                return False
            else:
                pending = _after(pending, count)
        self._torn = False
        return True

    def shut(self) -> None:
        """Nothing is sent from here on, in either direction; what has arrived can still be read."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end has done it
            return

    def close(self) -> None:
        self._socket.close()


def _joined(pieces: Pieces) -> list[memoryview]:
    """The same bytes with the small pieces put together: copying them is cheaper than a vector of many."""
    joined: list[memoryview] = []
    small: list[Any] = []
    for piece in pieces:
        if len(piece) < _JOINED:
            small.append(piece)
        else:
            joined += [memoryview(b"".join(small)), memoryview(piece)]
            small = []
    joined.append(memoryview(b"".join(small)))
    return [view for view in joined if len(view)]


def _after(pending: list[memoryview], count: int) -> list[memoryview]:
    """What remains when `count` bytes have been sent."""
    for index, view in enumerate(pending):
        if count < len(view):
            return [view[count:], *pending[index + 1 :]]
        count -= len(view)
    return []
