"""The `sse` source: read an event stream (server-sent events)."""

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
    check_source_answer,
    connect,
    hang_up,
    keep_alive,
    load_client,
    no_answer,
    socket_of,
)
from headrace.connectors.received import Inbox, ReceivedSource

RECONNECT_SECONDS = 1.0
"""The pause after the server ended a stream, unless it sent another one (`retry`)."""
_LONGEST_RECONNECT = 600.0
_EVENT_STREAM = "text/event-stream"


class SseSource(EndpointConnector, ReceivedSource):
    """Reads an event stream; the data of each event is a message, logged before it is processed.

    After a lost connection, and after a restart, it asks for the events after the last logged one, by its id
    (`Last-Event-ID`). If the server supports that, no event is lost or counts twice; otherwise it continues
    with new events. The stream ends when the server answers 204.
    """

    label = "sse"
    deliveries = (
        Delivery(
            "exactly once",
            "each event is logged with its id, and the server is asked for the events after the last one",
            when="events have ids and the server honours Last-Event-ID",
        ),
        Delivery(
            "at most once",
            "events are logged before they are processed; those sent while disconnected are lost",
            when="events have no ids",
        ),
    )

    class Options(EndpointOptions, MessageOptions):
        """The options of the sse source."""

        METADATA: ClassVar = {"event": pa.string(), "id": pa.string()}

        events: Names = Field(
            default=[],
            description="The names of the events to read, comma-separated; by default all.",
        )
        max_event_size: Size = Field(16 * 1024 * 1024, ge=1, description="The largest event.")

    options: Options

    def listen(self, inbox: Inbox) -> None:
        """Read the stream until the run ends, or the server ends it (204)."""
        with connect(self.options, self.label, patient=True) as client:
            while not inbox.closed.is_set():
                headers = {"Accept": _EVENT_STREAM, "Cache-Control": "no-store"}
                if inbox.resume:
                    headers["Last-Event-ID"] = inbox.resume
                with ask(client, self.options, self.label, headers=headers) as response:
                    if response.status_code == 204:
                        inbox.connected()
                        return
                    pause = self._read(response, inbox)
                inbox.closed.wait(pause)

    def _read(self, response: Any, inbox: Inbox) -> float:
        """Read a stream to its end; return the pause before the next one."""
        check_source_answer(response, self.options, self.label, inbox)
        self._expect_stream(response, answered_before=inbox.contacts > 0)
        connection, httpx = socket_of(response), load_client(self.label)
        if connection is not None:
            keep_alive(connection)
            inbox.interrupt_with(lambda: hang_up(connection))
        stream = EventStream(self.options.max_event_size)
        event_names = frozenset(self.options.events)
        inbox.connected()
        try:
            for part in response.iter_bytes():
                for event in stream.feed(part):
                    if event_names and event.name not in event_names:
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

    def _expect_stream(self, response: Any, *, answered_before: bool = False) -> None:
        kind = response.headers.get("Content-Type", "")
        if kind.partition(";")[0].strip().lower() != _EVENT_STREAM:
            # Where a stream was before, a page that says to come back later may be for a while.
            failure = ExternalError if answered_before else RefusedError
            raise failure(
                f"sse is answered with `{kind}`, which is no event stream ({_EVENT_STREAM})",
                hint="check the option `endpoint`",
                where=self.address,
            )

    def reach(self) -> str:
        """Open and close the stream, and return a line about it."""
        with (
            connect(self.options, self.label) as client,
            ask(client, self.options, self.label, headers={"Accept": _EVENT_STREAM}) as response,
        ):
            check_answer(response, self.options, self.label)
            self._expect_stream(response)
        return f"{self.address} is an event stream"


class Event(NamedTuple):
    """An event: its name, its data, and the last id up to it."""

    name: str
    data: bytes
    id: str


class EventStream:
    r"""Parses the events of a stream, from chunks of any size.

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
        """The reconnection time that the server asked for, in seconds."""

    def feed(self, part: bytes) -> Iterator[Event]:
        """Yield the events that are complete after this chunk."""
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
