"""The `nats` source: read a JetStream stream, or subscribe to a subject."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.messages import MessageReader, Messages, declared_columns
from headrace.connectors._shared.ranges import even_ranges
from headrace.connectors.base import Connector, Delivery, bounded_for_good
from headrace.connectors.nats import client as nats
from headrace.connectors.nats.client import NatsServers, client_errors, close, in_loop, load_client
from headrace.connectors.nats.options import NatsSourceOptions
from headrace.connectors.nats.stream import (
    NatsConnector,
    NatsReading,
    StreamMessage,
    StreamState,
    stream_state,
)
from headrace.connectors.received import Inbox, ReceivedSource
from headrace.connectors.sample import message_columns
from headrace.formats.options import check_readable
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split

BATCH_MESSAGES = 20_000
_WORTH_SPLITTING = 50_000
_HELD_MESSAGES = 10_000
_WAIT_SECONDS = 0.05


class _StreamSource(NatsConnector, SourceOperator):
    """Reads a stream by sequence numbers."""

    Options = NatsSourceOptions
    options: Any

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.idle_timeout = self.options.idle_timeout
        self._stream: str = self.options.stream
        settings: dict[str, Any] = {
            "num_replicas": self.options.consumer_num_replicas,
            "inactive_threshold": int(self.options.consumer_inactive_threshold.total_seconds() * 10**9),
        }
        if self.options.consumer_description is not None:
            settings["description"] = self.options.consumer_description
        self._reading = NatsReading(
            self._stream,
            self.options.consumer_filter_subjects,
            settings,
            self.options.consumer_max_bytes,
        )

    _available: int | None = None
    """The sequence at which a run with `available_now` ends."""
    _last_end: int | None = None
    """Where the stream ended when it was last asked."""

    def validate(self) -> None:
        """Raise an error for columns that cannot be read and settings that are not valid."""
        super().validate()
        check_readable(self.options)
        declared_columns(self.options, "nats")

    def for_sampling(self) -> Self:
        """Return a copy that starts with the earliest message."""
        return type(self)(self.options.model_copy(update={"source_offset": "earliest"}))

    def initial_offset(self, *, time: float) -> Offset:
        """Return the start sequence according to `source.offset`; the stream is the lane."""
        state = self._state(patience=nats.FIRST_CONTACT_SECONDS)
        if state.retention != "limits":
            raise ConfigurationError(
                f"stream `{self._stream}` drops messages that were read, its retention is {state.retention}: "
                "a checkpoint could not go back to them",
                hint="read a stream with the retention `limits`, such as a mirror or a source of this one",
            )
        first = state.first if self.options.source_offset == "earliest" else state.end
        bound = {"end": state.end} if self.options.source_bounded else {}
        return {self._stream: {"sequence": first, **bound}}

    def _state(self, *, patience: float | None = None) -> StreamState:
        stream = self._stream
        return self.servers.ask(lambda connection: stream_state(connection, stream), patience=patience)

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Read up to the sequence at which the stream ends now."""
        if self.options.source_bounded:
            raise bounded_for_good()
        self._available = self._end(start[self._stream]["sequence"])
        return start

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the position `limit.rows` sequences further."""
        position = start[self._stream]
        first, end = position["sequence"], position.get("end")
        if limit.rows <= 0 or (end is not None and first >= end):
            return start
        if end is None:
            end = self._end(first) if self._available is None else self._available
        self._last_end = end
        return {self._stream: {**position, "sequence": min(end, first + limit.rows)}}

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many sequences are behind the offset; some have no message."""
        end = self._last_end
        return {} if end is None else {self._stream: max(0, end - offset[self._stream]["sequence"])}

    def _end(self, first: int) -> int:
        """Return where the stream ends; raises an error if that is before what was read."""
        end: int = self._state().end
        if end < first:
            raise ExternalError(
                f"stream `{self._stream}` is not the one that was read before: it ends at sequence "
                f"{end}, and was read up to {first}",
                hint="if the stream was created again, start the pipeline with another state directory",
                where="nats",
            )
        return end

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return one split, or more if there are many messages."""
        first, rows = start[self._stream]["sequence"], self._distance(start, end)
        if not rows:
            return []
        shares = max(1, min(parallelism, rows // _WORTH_SPLITTING))
        final = self.is_finished(end)
        return [
            Split(self._stream, {"sequence": low, "end": high, "final": final})
            for low, high in even_ranges(first, first + rows, shares)
        ]

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the messages of one split."""
        detail = ctx.split.detail
        reader = MessageReader(self.options, connector="nats", where=f"nats, stream {self._stream}")
        for messages in self._read(detail["sequence"], detail["end"]):
            for batch in reader.read(_described(messages), ctx, collector).to_batches():
                collector.collect(batch)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _read(self, first: int, end: int) -> Iterator[list[StreamMessage]]:
        """Yield the messages from `first` up to `end` in parts; some sequences may have no message."""
        reached = first
        while reached < end:
            messages, reached = self.servers.ask(self._part(reached, end))
            if messages:
                yield messages

    def _part(self, reached: int, end: int) -> Any:
        async def read(connection: Any) -> tuple[list[StreamMessage], int]:
            state = await stream_state(connection, self._stream)
            self._check_retained(reached, state)
            most = min(BATCH_MESSAGES, self.options.consumer_max_batch, end - reached)
            messages, over = await self._reading.part(connection, reached, most=most)
            last = messages[-1].sequence if messages else reached - 1
            if last + 1 >= end:
                return [message for message in messages if message.sequence < end], end
            if over and not state.settled:
                raise load_client().errors.TimeoutError  # a copy of the stream that is late was asked
            return messages, end if over else last + 1

        return read

    def _check_retained(self, reached: int, state: StreamState) -> None:
        if state.first > reached and not state.overwrites and self.options.source_lost_messages == "fail":
            raise ExternalError(
                f"stream `{self._stream}` no longer has sequence {reached}: messages were dropped before "
                "they were read",
                hint="to continue without them, set `source.lost_messages` = 'skip'",
                where="nats",
            )

    def is_finished(self, offset: Offset) -> bool:
        """Whether a bounded source has read all messages that existed at its first start."""
        position = offset[self._stream]
        return "end" in position and position["sequence"] >= position["end"]

    def count(self, start: Offset, end: Offset) -> int | None:
        """Return the number of sequences in a range, unless subjects are filtered; some have no message."""
        return None if self.options.consumer_filter_subjects else self._distance(start, end)

    def _distance(self, start: Offset, end: Offset) -> int:
        distance: int = end[self._stream]["sequence"] - start[self._stream]["sequence"]
        return distance


class _SubjectSource(NatsConnector, ReceivedSource):
    """Subscribes to a subject."""

    Options = NatsSourceOptions
    label = "nats"

    def validate(self) -> None:
        """Raise an error for columns that cannot be read and settings that are not valid."""
        NatsConnector.validate(self)
        ReceivedSource.validate(self)

    @property
    def address(self) -> str:
        return f"nats, subject {self.options.subject}"

    def listen(self, inbox: Inbox) -> None:
        """Put the messages of the subject into the inbox."""
        waiting: deque[Any] = deque()
        came = threading.Event()

        async def take(message: Any) -> None:
            waiting.append(message)
            came.set()
            while len(waiting) >= _HELD_MESSAGES:  # noqa: ASYNC110 - another thread takes them
                await asyncio.sleep(_WAIT_SECONDS)

        try:
            connection = in_loop(self._subscribe(take))
        except client_errors() as error:
            raise self.servers.failure(error) from None
        try:
            while not inbox.closed.is_set():
                if connection.is_closed:
                    raise self.servers.failure(load_client().errors.ConnectionClosedError())
                inbox.connected()
                came.wait(_WAIT_SECONDS)
                came.clear()
                while waiting and not inbox.closed.is_set():
                    message = waiting.popleft()
                    inbox.put(message.data, metadata={"subject": message.subject})
        finally:
            in_loop(close(connection))

    async def _subscribe(self, take: Any) -> Any:
        connection = await self.servers.connect()
        await connection.subscribe(self.options.subject, cb=take)
        await connection.flush(int(nats.ANSWER_SECONDS))
        return connection


class NatsSource(Connector, SourceOperator):
    """Reads a JetStream stream by sequence numbers, or subscribes to a subject of core NATS.

    With `stream` the sequence is part of the checkpoint: a pipeline resumes with the next message, and any
    range can be read again; `_timestamp` is the time at which the stream stored the message. The stream is
    read with ephemeral consumers that acknowledge nothing, so other consumers are not affected. With
    `subject` only current subscribers receive a message: received messages are logged in the state directory
    before they are processed, and count once; messages that are sent while disconnected, or faster than they
    can be buffered, are lost. `_timestamp` is then the time of receipt.
    """

    Options = NatsSourceOptions
    options: NatsSourceOptions
    deliveries = (
        Delivery(
            "exactly once",
            "sequences are in the checkpoint, and any range can be read again",
            when="`stream`",
        ),
        Delivery(
            "at most once",
            "core NATS stores nothing; received messages are logged and count once",
            when="`subject`",
        ),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        kind = _SubjectSource if self.options.stream is None else _StreamSource
        self._inner: _SubjectSource | _StreamSource = kind(self.options)
        self.idle_timeout = self.options.idle_timeout

    @property
    def servers(self) -> NatsServers:
        """Return the servers."""
        return self._inner.servers

    def validate(self) -> None:
        """Raise an error for columns that cannot be read and settings that are not valid."""
        self._inner.validate()

    def reach(self) -> str:
        """Connect, and return a line about the server and the stream."""
        return self._inner.reach()

    def for_sampling(self) -> Self:
        """Return a copy that reads a sample and changes nothing on the servers."""
        sampler = copy.copy(self)
        sampler._inner = self._inner.for_sampling()  # noqa: SLF001 - it is of the same class
        return sampler

    def find_columns(self) -> pa.Schema:
        """Return the columns of the messages' schema, or those inferred from the first messages."""
        return message_columns(self, where=f"nats, {self.options.stream or self.options.subject}")

    def display(self) -> str:
        """Return the stream or the subject, and the servers."""
        name = self.options.stream or self.options.subject
        return f"{type(self).__name__}({name} at {self.servers.addresses})"

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Take the state storage, and find received messages that are not processed yet."""
        self._inner.open(storage, job_id=job_id, node=node)

    def close(self) -> None:
        """End the subscription."""
        self._inner.close()

    def initial_offset(self, *, time: float) -> Offset:
        """Return where a new pipeline starts."""
        return self._inner.initial_offset(time=time)

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Read a stream up to its end now; messages of subjects have none."""
        return self._inner.limit_to_available(start, time=time)

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the end of the next epoch."""
        return self._inner.latest_offset(start, limit, parallelism=parallelism)

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how much is behind the offset."""
        return self._inner.lag(offset, time=time)

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return the splits of a range."""
        return self._inner.splits(start, end, parallelism=parallelism)

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read a split."""
        return self._inner.run(ctx, collector)

    def is_finished(self, offset: Offset) -> bool:
        """Whether the source has ended."""
        return self._inner.is_finished(offset)

    def count(self, start: Offset, end: Offset) -> int | None:
        """Return the number of sequences in a range, if that is known."""
        return self._inner.count(start, end)


def _described(messages: Sequence[StreamMessage]) -> Messages:
    def metadata(name: str) -> Sequence[Any]:
        return [getattr(message, name) for message in messages]

    return Messages(
        [message.data for message in messages],
        np.fromiter((message.time for message in messages), np.int64, len(messages)),
        metadata,
        lambda index: f"sequence {messages[index].sequence}",
        lambda index: int(messages[index].sequence),
    )
