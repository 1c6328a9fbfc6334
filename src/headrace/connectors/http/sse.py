"""`sse`: the events of an event stream (server-sent events)."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
from pydantic import Field

from headrace.base.errors import ExternalError, RefusedError
from headrace.base.options import Names, Size
from headrace.connectors._shared.messages import MessageOptions
from headrace.connectors.base import Delivery
from headrace.connectors.http.client import (
    EndpointConnector,
    EndpointOptions,
    ask,
    check_answer,
    check_heard,
    connect,
    hang_up,
    keep_alive,
    load_client,
    no_answer,
    socket_of,
)
from headrace.connectors.received import Inbox, ReceivedSource

RECONNECT_SECONDS = 1.0
"""The pause after the server has ended a stream in good order, unless it names another one (`retry`)."""
_LONGEST_RECONNECT = 600.0
_EVENT_STREAM = "text/event-stream"


class SseSource(EndpointConnector, ReceivedSource):
    """Reads an event stream; the data of each event is a message, in the state directory before it is read.

    After a lost connection, and after a restart, it asks for what follows the last event that is kept, by its
    id (`Last-Event-ID`). A server that gives ids and honours that loses nothing, and nothing counts twice;
    one that does not goes on with what is new. The stream ends for good when the server answers 204.
    """

    label = "sse"
    deliveries = (
        Delivery(
            "exactly once",
            "the id of an event is in a log with it, and the server is asked for what follows the last",
            when="events have ids and the server honours Last-Event-ID",
        ),
        Delivery(
            "at most once",
            "events are in a log before they are read; those of a time without a connection are gone",
            when="events have no ids",
        ),
    )

    class Options(EndpointOptions, MessageOptions):
        """The options of the sse source."""

        METADATA: ClassVar = {"event": pa.string(), "id": pa.string()}

        events: Names = Field(
            default=[],
            description="The events that are wanted, by name, with commas between; by default all of them.",
        )
        max_event_size: Size = Field(16 * 1024 * 1024, ge=1, description="How large an event may be.")

    options: Options

    def listen(self, inbox: Inbox) -> None:
        """Read the stream until the run ends, or the server says that nothing follows."""
        with connect(self.options, self.label, patient=True) as client:
            while not inbox.closed.is_set():
                asked = {"Accept": _EVENT_STREAM, "Cache-Control": "no-store"}
                if inbox.resume:
                    asked["Last-Event-ID"] = inbox.resume
                with ask(client, self.options, self.label, headers=asked) as response:
                    if response.status_code == 204:
                        inbox.connected()
                        return
                    pause = self._read(response, inbox)
                inbox.closed.wait(pause)

    def _read(self, response: Any, inbox: Inbox) -> float:
        """Read a stream to its end; how long to wait before the next one."""
        check_heard(response, self.options, self.label, inbox)
        self._expect_stream(response, known=inbox.contacts > 0)
        connection, httpx = socket_of(response), load_client(self.label)
        if connection is not None:
            keep_alive(connection)
            inbox.interrupt_with(lambda: hang_up(connection))
        stream = EventStream(self.options.max_event_size)
        wanted = frozenset(self.options.events)
        inbox.connected()
        try:
            for part in response.iter_bytes():
                for event in stream.feed(part):
                    if wanted and event.name not in wanted:
                        inbox.resume = event.id or inbox.resume
                        continue
                    metadata = {"event": event.name, "id": event.id or None}
                    inbox.put(event.data, metadata=metadata, resume=event.id or None)
                if inbox.closed.is_set():
                    break
        except httpx.HTTPError as error:
            if not inbox.closed.is_set():
                raise no_answer(error, self.address, self.label) from None
        finally:
            inbox.interrupt_with(None)
        return RECONNECT_SECONDS if stream.retry is None else min(stream.retry, _LONGEST_RECONNECT)

    def _expect_stream(self, response: Any, *, known: bool = False) -> None:
        kind = response.headers.get("Content-Type", "")
        if kind.partition(";")[0].strip().lower() != _EVENT_STREAM:
            # Where a stream was before, a page that says to come back later may be for a while.
            failure = ExternalError if known else RefusedError
            raise failure(
                f"sse is answered with `{kind}`, which is no event stream ({_EVENT_STREAM})",
                hint="check the option `endpoint`",
                where=self.address,
            )

    def reach(self) -> str:
        """Open the stream, and close it again."""
        with (
            connect(self.options, self.label) as client,
            ask(client, self.options, self.label, headers={"Accept": _EVENT_STREAM}) as response,
        ):
            check_answer(response, self.options, self.label)
            self._expect_stream(response)
        return f"{self.address} is an event stream"


class Event(NamedTuple):
    """An event: its name, its data, and the id that stands for everything up to it."""

    name: str
    data: bytes
    id: str


class EventStream:
    r"""Finds events in the bytes of a stream, in whatever parts they come.

    >>> list(EventStream(100).feed(b"event: tick\ndata: 1\ndata: 2\nid: 7\n\ndata: not yet"))
    [Event(name='tick', data=b'1\n2', id='7')]
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._rest = b""
        self._first = True
        self._half = False
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""
        self._id = ""
        self.retry: float | None = None
        """How many seconds the server wants a client to wait before it connects again."""

    def feed(self, part: bytes) -> Iterator[Event]:
        """The events that a part completes."""
        if self._half and part:
            part, self._half = part.removeprefix(b"\n"), False
        data = self._rest + part
        if self._first:
            if len(data) < 3 and codecs.BOM_UTF8.startswith(data):
                self._rest = data
                return
            data, self._first = data.removeprefix(codecs.BOM_UTF8), False
        # A line ends with \r\n, \n or \r; the two halves of the first may come apart.
        self._half = self._half or data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) + self._size > self._max_size:
            raise _too_large(self._max_size)
        for line in lines:
            if line:
                self._take(line)
                continue
            event = self._end()
            if event is not None:
                yield event

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            if self._size > self._max_size:
                raise _too_large(self._max_size)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit():
            self.retry = int(value) / 1000

    def _end(self) -> Event | None:
        data, name = self._data, self._name or "message"
        self._data, self._size, self._name = [], 0, ""
        return Event(name, b"\n".join(data), self._id) if data else None


def _too_large(most: int) -> RefusedError:
    return RefusedError(
        f"an event of the stream has more than {most} bytes", hint="allow more with `max_event_size`"
    )
