"""Requests to JetStream: the state of a stream, and messages of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.base.errors import ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import Connector
from headrace.connectors.nats import client as nats
from headrace.connectors.nats.client import NOT_FOUND, NOT_NOW, ApiError, NatsServers, load_client


class NatsConnector(Connector):
    """What the source and the sink share: the connection to the servers."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.servers = NatsServers(self.options)

    def validate(self) -> None:
        """Raise an error if the client's package is missing or settings are not valid."""
        self.servers.check_settings()

    def reach(self) -> str:
        """Connect, and return a line about the server and the stream."""
        return self.servers.ask(self._describe, patience=0)

    async def _describe(self, connection: Any) -> str:
        server_version, stream = connection.connected_server_version, self.options.stream
        version = f"{server_version.major}.{server_version.minor}.{server_version.patch}"
        if stream is None:
            return f"NATS {version}"
        state = await stream_state(connection, stream)
        return f"NATS {version}, stream {stream} with {state.messages} messages"

    def display(self) -> str:
        """Return the stream or the subject, and the servers, without secrets."""
        of = self.options.stream or self.options.subject
        return f"{type(self).__name__}({of} at {self.servers.addresses})"


@dataclass(frozen=True)
class StreamState:
    """The state of a stream."""

    first: int
    """The sequence of its first message, or of the next one if it has none."""
    end: int
    """The sequence that the next message gets."""
    messages: int
    retention: str
    overwrites: bool
    """Whether new messages replace old ones of their subject."""
    settled: bool
    """Whether all replicas are up to date."""
    largest: int | None
    """The most bytes of a message, with its headers."""


async def call(connection: Any, what: str, request: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Send a request to JetStream, and return the response; raises an ApiError."""
    payload = b"" if request is None else json.dumps(request).encode()
    message = await connection.request(f"$JS.API.{what}", payload, timeout=nats.ANSWER_SECONDS)
    answer: Mapping[str, Any] = json.loads(message.data)
    if "error" in answer:
        raise ApiError(answer["error"].get("code", 0), answer["error"].get("description", "it failed"))
    return answer


async def stream_state(connection: Any, stream: str) -> StreamState:
    """Return the state of a stream; raises an ExternalError if it does not exist."""
    try:
        info = await call(connection, f"STREAM.INFO.{stream}")
    except ApiError as error:
        if error.code != NOT_FOUND:
            raise
        raise ExternalError(
            f"NATS has no stream `{stream}`",
            hint="create the stream, or correct the option `stream`",
            where="nats",
        ) from None
    state, config = info["state"], info["config"]
    copies = (info.get("cluster") or {}).get("replicas") or []
    end = state["last_seq"] + 1
    return StreamState(
        first=state["first_seq"] if state["messages"] else end,
        end=end,
        messages=state["messages"],
        retention=config.get("retention", "limits"),
        overwrites=config.get("max_msgs_per_subject", -1) > 0,
        largest=size if (size := config.get("max_msg_size", -1)) > 0 else None,
        settled=all(copy.get("current") and not copy.get("lag") for copy in copies),
    )


@dataclass(frozen=True)
class NatsReading:
    """Reads a stream with ephemeral consumers."""

    stream: str
    subjects: Sequence[str] = ()
    settings: Mapping[str, Any] | None = None
    """Further settings of consumers."""
    max_bytes: int = 64 * 1024 * 1024

    async def part(self, connection: Any, first: int, *, most: int) -> tuple[list[StreamMessage], bool]:
        """Return at most `most` messages from sequence `first` on, and whether there are no more now."""
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, first),
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": (60 * 10**9),
            **self._filter(),
            **(self.settings or {}),
        }
        request = {"stream_name": self.stream, "config": config}
        consumer = await call(connection, f"CONSUMER.CREATE.{self.stream}", request)
        try:
            return await self._pull(connection, consumer["name"], most)
        finally:
            with contextlib.suppress(Exception):  # it ends by itself if it is not used
                await connection.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{consumer['name']}")

    def _filter(self) -> Mapping[str, Any]:
        if len(self.subjects) == 1:
            return {"filter_subject": self.subjects[0]}  # servers before 2.10 know no other
        return {"filter_subjects": list(self.subjects)} if self.subjects else {}

    async def _pull(self, connection: Any, consumer: str, most: int) -> tuple[list[StreamMessage], bool]:
        got: list[Any] = []
        ended: list[Any] = []
        changed = asyncio.Event()

        async def take(message: Any) -> None:
            if message.reply:
                got.append(message)
                if len(got) < most:
                    return
            else:
                ended.append(message)
            changed.set()

        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
        request = {"batch": most, "no_wait": True, "max_bytes": self.max_bytes}
        try:
            await connection.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{consumer}",
                json.dumps(request).encode(),
                reply=inbox,
            )
            while not changed.is_set():
                before = len(got)
                try:
                    await asyncio.wait_for(changed.wait(), nats.ANSWER_SECONDS)
                except TimeoutError:
                    if connection.is_closed or len(got) == before:
                        raise load_client().errors.TimeoutError from None
        finally:
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()
        messages = [StreamMessage.read(message) for message in got]
        if messages and messages[-1].consumer_sequence != len(messages):
            raise load_client().errors.TimeoutError  # one was lost on the way
        if not ended:
            return messages, False
        status = (ended[0].headers or {}).get("Status", "")
        if status in {"404", "408"}:
            return messages, True
        if status == "409" and messages:
            return messages, False  # so many bytes were wanted, and no more
        raise ApiError(NOT_NOW, (ended[0].headers or {}).get("Description", "the consumer has ended"))


class StreamMessage(NamedTuple):
    """A message of a stream."""

    data: bytes
    subject: str
    sequence: int
    time: int
    """When the stream stored it, in nanoseconds since 1970."""
    headers: Mapping[str, str]
    consumer_sequence: int
    """The consumer sequence, from 1."""

    @classmethod
    def read(cls, message: Any) -> StreamMessage:
        """Parse a message; JetStream has its metadata in the reply subject."""
        parts = message.reply.split(".")
        # $JS.ACK.stream.consumer.deliveries.sequence.consumer_sequence.time.left; newer: two more first
        # and one at the end
        sequence, consumer_sequence, at = parts[5:8] if len(parts) == 9 else parts[7:10]
        return cls(
            message.data,
            message.subject,
            int(sequence),
            int(at),
            message.headers or {},
            int(consumer_sequence),
        )
