"""The `nats` sink: publish rows to a subject, with or without JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from headrace.base.errors import ExternalError, PlanError
from headrace.connectors._shared.message_sink import RECHECK_SECONDS, VALUE, MessageSink
from headrace.connectors.base import CommitMarker, Delivery, Refusal, check_column, excerpt, longer_than
from headrace.connectors.nats import client as nats
from headrace.connectors.nats.client import NOT_NOW, ApiError, load_client
from headrace.connectors.nats.options import NatsServerOptions
from headrace.connectors.nats.stream import NatsConnector, NatsReading, stream_state
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import OperatorContext

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
SUBJECT = "subject"
_LONGEST_SUBJECT = 3_840
"""The most bytes of a subject: a server reads at most 4,096 of a line, with the subject for the answer."""
_HEADER_BYTES = 150
"""The most bytes of the headers of a message, without the name of the stream."""
_BATCH_MESSAGES = 5_000
"""The number of messages to send before waiting for acknowledgements."""


class NatsSink(NatsConnector, MessageSink):
    """Publishes rows as messages of a subject, when their epoch is committed.

    Without `stream` the commit ends when the servers have received the messages; only current subscribers get
    them, and an interrupted commit sends them again. With `stream`, the JetStream stream that stores the
    subject, each message is acknowledged, and has an id (`Nats-Msg-Id`) made of its epoch and its index. A
    retried commit first looks up which of its messages the stream has, and the stream drops duplicates within
    its duplicate window: each message is stored once, after a crash at any moment, unless the stream dropped
    it meanwhile. A run that was replaced while it was suspended stops before the next message; what it had
    handed to the connection before is dropped as a duplicate within the duplicate window.
    """

    class Options(NatsServerOptions, DropOptions, FormatOptions):
        """The options of the nats sink."""

        subject: str | None = Field(
            None,
            min_length=1,
            description="The subject of the messages, or of rows without their own.",
        )
        stream: str | None = Field(
            None, min_length=1, description="The JetStream stream that stores the subject."
        )
        sink_subject_field: str | None = Field(
            None, alias="sink.subject_field", description="The column with the subject of the message."
        )

        @model_validator(mode="after")
        def _can_be_written(self) -> Self:
            if self.subject is None and self.sink_subject_field is None:
                raise ValueError("it takes `subject`, or `sink.subject_field`")
            if self.subject is not None and not _is_subject(self.subject):
                raise ValueError(f"`{self.subject}` is not a subject that can be written to")
            if self.sink_subject_field is not None and self.format == "debezium_json":
                raise ValueError("`sink.subject_field` does not go with debezium_json")
            return self

    options: Options
    parallel = True
    deliveries = (
        Delivery(
            "exactly once",
            (
                "each message has an id; a retried commit sends only missing messages, and the stream "
                "drops duplicates within its duplicate window"
            ),
            when="`stream`",
        ),
        Delivery(
            "at least once",
            (
                "an epoch is sent on commit, and again if the commit was interrupted; only current "
                "subscribers receive it"
            ),
            when="no `stream`",
        ),
    )

    def attributes(self, rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """Return the subject of each message, if it is in a column."""
        name = self.options.sink_subject_field
        if name is None:
            return {}
        check_column(name, rows.schema.names, what="nats sink, option `sink.subject_field`")
        column = rows.column(name)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise PlanError(
                f"column `{name}` has the type {column.type} and cannot be a subject",
                hint="a subject is a text",
            )
        subjects = column.cast(pa.string())
        if self.options.subject is not None:
            subjects = subjects.fill_null(self.options.subject)
        return {SUBJECT: subjects}

    def refusals(self, staged: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which messages have a subject that cannot be written to."""
        if SUBJECT not in staged.schema.names:
            return ()
        subjects = staged.column(SUBJECT)
        bad = [
            subject
            for subject in subjects.unique().to_pylist()
            if subject is None or len(subject.encode()) > _LONGEST_SUBJECT or not _is_subject(subject)
        ]
        if not bad:
            return ()
        return [
            Refusal(
                pc.is_in(subjects, pa.array(bad, pa.string())),
                lambda row: (
                    f"column `{self.options.sink_subject_field}` holds {_shown(subjects[row].as_py())}, "
                    f"which is not a subject that can be written to, of at most {_LONGEST_SUBJECT} bytes"
                ),
                "leave such rows out, or give rows without a subject one with the option `subject`",
            )
        ]

    def misfits(self, staged: pa.RecordBatch, ctx: OperatorContext) -> Sequence[Refusal]:
        """Return which messages are larger than the servers and the stream allow; they are asked once."""
        try:
            largest: int = ctx.resource(f"limit of {self.display()}", self._largest)
        except ExternalError:
            return ()  # the commit waits for them
        values = staged.column(VALUE)
        return [
            Refusal(
                longer_than(values, largest),
                lambda row: (
                    f"its message has {len(values[row].as_py()):,} bytes, and {largest:,} are allowed"
                ),
                "raise `max_payload` of the servers, or `max_msg_size` of the stream, or leave such rows out",
            )
        ]

    def _largest(self) -> int:
        """The most bytes of a message without its headers."""
        stream = self.options.stream

        async def ask(connection: Any) -> int:
            most: int = connection.max_payload
            if stream is None:
                return most
            of_stream = (await stream_state(connection, stream)).largest
            return min(most, of_stream or most) - _HEADER_BYTES - len(stream.encode())

        return self.servers.ask(ask, patience=0)

    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        """Publish the messages; with a stream, those that it does not have yet."""
        values = messages.column(VALUE).to_pylist()
        if SUBJECT in messages.column_names:
            subjects = messages.column(SUBJECT).to_pylist()
        else:
            subjects = [self.options.subject] * len(values)
        left = list(zip(range(len(values)), subjects, values, strict=True))
        if self.options.stream is None:
            self.servers.ask(lambda connection: _send(connection, left, ctx))
            return
        stream, batch = self.options.stream, hashlib.sha256(batch_id.encode()).hexdigest()[:24]
        first, again = self._begin(stream, batch, ctx)
        reading = NatsReading(stream, tuple(set(subjects)) if len(set(subjects)) == 1 else ())

        async def publish(connection: Any) -> None:
            nonlocal again
            if again:
                stored = await _look_up(connection, reading, batch, first)
                left[:] = [message for message in left if message[0] not in stored]
            again = True
            await _publish(connection, stream, batch, left, ctx)

        self.servers.ask(publish)

    def _begin(self, stream: str, batch: str, ctx: OperatorContext) -> tuple[int, bool]:
        """Return the stored end of the stream before a batch, and whether it was stored before."""
        marker = CommitMarker("sending", ctx)
        begun = marker.read() or {}
        if begun.get("batch") == batch:
            return begun["end"], True
        end = self.servers.ask(lambda connection: stream_state(connection, stream)).end
        marker.write({"batch": batch, "end": end})
        return end, False


async def _look_up(connection: Any, reading: NatsReading, batch: str, first: int) -> set[int]:
    """Return the indices of the messages of a batch that the stream has."""
    stored: set[int] = set()
    over = False
    while not over:
        messages, over = await reading.part(connection, first, most=_BATCH_MESSAGES)
        for message in messages:
            sender, _, index = message.headers.get(MESSAGE_ID, "").rpartition("-")
            if sender == batch:
                stored.add(int(index))
            first = message.sequence + 1
    return stored


async def _send(connection: Any, left: list[tuple[int, str, bytes]], ctx: OperatorContext) -> None:
    """Publish messages without acknowledgements, and remove those that were sent from `left`."""
    while left:
        part = left[:_BATCH_MESSAGES]
        for _, subject, value in part:
            ctx.check_generation(every=RECHECK_SECONDS)
            await connection.publish(subject, value)
        await connection.flush(int(nats.ANSWER_SECONDS))
        del left[: len(part)]


async def _publish(
    connection: Any, stream: str, batch: str, left: list[tuple[int, str, bytes]], ctx: OperatorContext
) -> None:
    """Publish messages to a stream, and remove those that it acknowledged from `left`."""
    answers: dict[int, Any] = {}
    came = asyncio.Event()

    async def take(message: Any) -> None:
        answers[int(message.subject.rpartition(".")[2])] = message
        came.set()

    inbox = connection.new_inbox()
    subscription = await connection.subscribe(f"{inbox}.*", cb=take)
    try:
        while left:
            part = left[:_BATCH_MESSAGES]
            for index, subject, value in part:
                ctx.check_generation(every=RECHECK_SECONDS)
                headers = {MESSAGE_ID: f"{batch}-{index}", EXPECTED_STREAM: stream}
                await connection.publish(subject, value, reply=f"{inbox}.{index}", headers=headers)
            while len(answers) < len(part):
                came.clear()
                await asyncio.wait_for(came.wait(), nats.ANSWER_SECONDS)
            for index, subject, _ in part:
                _check(answers[index], stream, subject)
            answers.clear()
            del left[: len(part)]
    finally:
        with contextlib.suppress(load_client().errors.Error):
            await subscription.unsubscribe()


def _check(answer: Any, stream: str, subject: str) -> None:
    """Raise an error unless the stream stored the message."""
    if (answer.headers or {}).get("Status") == str(NOT_NOW):
        code, why = NOT_NOW, "no stream keeps it"
    else:
        problem = json.loads(answer.data).get("error")
        if problem is None:
            return
        code, why = problem.get("code", 0), problem.get("description", "it does not say why")
    failure = ExternalError(
        f"stream `{stream}` does not take a message of the subject `{subject}`: {why}",
        hint="check that the stream keeps the subject, and its limits",
        where="nats",
    )
    raise ApiError(code, why, failure)


def _shown(subject: str | None) -> str:
    return "null" if subject is None else repr(excerpt(subject))


def _is_subject(text: str) -> bool:
    """Whether a subject is valid for publishing: no blanks, no wildcards, no empty token."""
    parts = text.split(".")
    return not any(char.isspace() for char in text) and not any(part in {"", "*", ">"} for part in parts)
