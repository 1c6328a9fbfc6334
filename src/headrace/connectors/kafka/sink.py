"""The sinks `kafka` and `confluent`: write rows as messages of a topic."""

from __future__ import annotations

import hashlib
import json
import threading
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import ConfigurationError, ExternalError, PlanError, suggest
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff, with_retry
from headrace.connectors._shared.message_sink import StagingSink
from headrace.connectors.base import (
    Delivery,
    Refusal,
    excerpt,
    from_ipc,
    unify_schemas,
    unstage,
    without_event_time,
)
from headrace.connectors.kafka import client as kafka
from headrace.connectors.kafka.client import (
    KafkaConnector,
    Trouble,
    UnknownTopicError,
    load_client,
)
from headrace.connectors.kafka.options import CloudLoginOptions, LoginOptions, TopicOptions
from headrace.connectors.kafka.upsert import UpsertOptions, latest_of_keys
from headrace.formats.base import Format
from headrace.formats.json.format import JsonFormat
from headrace.formats.options import DropOptions
from headrace.model.operator import CheckpointBarrier, Collector, CommitData, OperatorContext

DELIVERY_SECONDS = 120
"""How long the delivery of a message may take before the epoch fails; brokers may restart meanwhile."""

_TRANSACTION_SECONDS = 600
_POLL_SECONDS = 0.5
"""How often a waiting call checks for errors that retrying cannot fix."""
_REMEMBERED = 64
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_PURGE_QUEUE", "_PURGE_INFLIGHT"}
"""The errors of a producer whose transactional id another one uses by now, and of messages it had left."""
_BACKOFF = Backoff(first=0.1, longest=2.0)
_FENCED_BACKOFF = Backoff(first=0.1, longest=30.0)
"""Of two attempts that end the transactions of each other one has to wait for longer than the other takes."""
_LARGEST_BYTES, _OVERHEAD_BYTES = 1_000_000, 36
"""The default of `message.max.bytes`, and what the client adds to key and value when it compares them."""
_MESSAGE = pa.schema({"key": pa.binary(), "value": pa.large_binary(), "time": pa.int64()})


@dataclass(frozen=True)
class _Commit:
    """The record of a commit, which is an offset of a consumer group and its metadata."""

    epoch: int = 0
    generation: int = 0
    run: str = ""
    marks: Sequence[str] = ()
    """Those of the last epochs, this one included."""

    @classmethod
    def parse(cls, epoch: int, metadata: str) -> Self:
        """Read what `to_metadata` returned, or earlier versions: without the run, or with marks alone."""
        owner, _, marks = metadata.rpartition(":")
        generation, _, run = owner.partition("-")
        return cls(epoch, int(generation or 0), run, marks.split(","))

    def to_metadata(self) -> str:
        return f"{self.generation}-{self.run}:{','.join(self.marks)}"


class _FencedError(ExternalError):
    """Another producer has taken the transactional id: one of another run, or of an earlier attempt."""


class SinkOptions(UpsertOptions, DropOptions, TopicOptions):
    """How rows become messages, and how they are committed."""

    sink_commit_mode: Literal["at_least_once", "exactly_once"] = Field(
        "at_least_once",
        alias="sink.commit_mode",
        description=(
            "`exactly_once` writes each epoch in a transaction, for consumers with `read_committed`; "
            "`at_least_once` writes rows before the commit, and again if the epoch is retried."
        ),
    )
    sink_key_field: str | None = Field(
        None, alias="sink.key_field", description="The column with the message key."
    )
    sink_timestamp_field: str | None = Field(
        None,
        alias="sink.timestamp_field",
        description="The column with the message timestamp; by default the event time of the row.",
    )

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        if self.upsert and self.sink_key_field is not None:
            raise ValueError("with `upsert` the PRIMARY KEY is the key: leave `sink.key_field` out")
        for name in (self.sink_key_field, self.sink_timestamp_field):
            if name is not None and self.columns is not None and name not in self.columns.names:
                names = self.columns.names
                hint = suggest(name, names, listing="the columns are")
                raise ValueError(f"there is no column `{name}`; {hint}")
            if name is not None and self.columns is None and self.format == "debezium_json":
                raise ValueError(f"to find `{name}` in changes of rows, the option `schema` is needed")
        name = self.sink_timestamp_field
        if name is not None and self.columns is not None:
            kind = self.columns.field(name).type
            if not pa.types.is_timestamp(kind):
                raise ValueError(f"`sink.timestamp_field` names `{name}`, which is no TIMESTAMP but {kind}")
        return self


class _TopicSink(KafkaConnector, StagingSink):
    STAGED = "messages"
    parallel = True
    deliveries = (
        Delivery(
            "at least once",
            "messages are sent before the checkpoint; if an epoch is retried, its messages are sent again",
            "sink.commit_mode = 'at_least_once'",
        ),
        Delivery(
            "exactly once",
            (
                "a transaction for each subtask holds its messages of an epoch and a record of the epoch; "
                "for consumers with read_committed"
            ),
            "sink.commit_mode = 'exactly_once'",
        ),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        if self.options.upsert:
            self.max_parallelism = 1  # as with formats of changes: those of a key are told together
        self._writer = MessageWriter(self.options, self._format)

    updates_with = "write format = 'debezium_json', or upsert = true with a PRIMARY KEY"

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether changes can be written: as such, or as the current row of each key."""
        return bool(self._format.updating or self.options.upsert)

    @property
    def _exactly_once(self) -> bool:
        return bool(self.options.sink_commit_mode == "exactly_once")

    @property
    def asked_in_tasks(self) -> bool:  # type: ignore[override]
        """Whether tasks send the messages."""
        return not self._exactly_once

    def reach(self) -> str:
        """Connect, and return a line about the topic; the first message may create one that is missing."""
        try:
            return super().reach()
        except UnknownTopicError:
            if not self.cluster.creates_topics():
                raise
            return f"{self.cluster.name}, topic {self.options.topic} is not there; the brokers may create it"

    def check(self, schema: pa.Schema) -> None:
        """Raise a PlanError unless rows of this schema can be written."""
        self._writer.check(schema)

    def write(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return the messages of the epoch."""
        rows = self._writer.group(batches)
        return [batch for part in rows for batch in self._writer.write(part).to_batches()]

    def refusals(self, staged: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which messages are larger than the client sends."""
        most = int(self.options.client_configs.get("message.max.bytes", _LARGEST_BYTES))
        keys = pc.fill_null(pc.binary_length(staged.column("key")), 0)
        sizes = pc.add(pc.fill_null(pc.binary_length(staged.column("value")), 0), keys.cast(pa.int64()))
        return [
            Refusal(
                pc.greater(sizes, most - _OVERHEAD_BYTES),
                lambda row: (
                    f"the message `{excerpt(staged.column('value')[row].as_py())}` has {sizes[row]} bytes "
                    f"with its key, and `message.max.bytes` is {most}"
                ),
                "allow larger ones: `message.max.bytes` in `client_configs`, and of the topic",
            )
        ]

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage the messages of the epoch for the transaction that commits it, or send them."""
        if self._exactly_once:
            super().handle_checkpoint(barrier, ctx, collector)
            return
        batches, self._batches = self._batches, []
        messages = self.accept(self.write(batches), ctx)
        if messages:
            with self._producer() as (producer, trouble):
                self._send(producer, messages, trouble)
                self._flush(producer, trouble)

    def handle_commit(self, epoch: int, data: CommitData, ctx: OperatorContext) -> None:
        """Send what each subtask has staged in a transaction of its own, unless an earlier commit did.

        The transaction also commits an offset of a consumer group without members: the epoch, with the
        generation of the run and the epoch's mark as its metadata. The mark exists if and only if the
        messages do. Transactional id and group are those of the subtask in the epoch, whatever parallelism
        the run has that commits it. Of two runs, or two attempts of a task, the one that came last to use the
        transactional id ends the transaction of the other: a replaced run then finds the greater generation,
        a late attempt the mark or a later epoch, and any other one starts again.
        """
        name = f"headrace-{ctx.task_info.job_id}-{ctx.task_info.operator_id}"
        for part in self.parts(data):
            staged = sorted(part.get(self.STAGED, {}).items())
            if staged:
                own_name = name if part is data else f"{name}/{staged[0][0]}"
                self._commit_part(own_name, epoch, [content for _, content in staged], ctx)

    def _commit_part(self, name: str, epoch: int, staged: Sequence[bytes], ctx: OperatorContext) -> None:
        attempts = ",".join(json.loads(content)["id"] for content in staged)
        mark = hashlib.sha256(attempts.encode()).hexdigest()[:16]
        with_retry(
            lambda: self._transact(name, epoch, mark, staged, ctx),
            is_transient=lambda error: isinstance(error, _FencedError),
            backoff=_BACKOFF,
            deadline=DELIVERY_SECONDS,
            # Only a run that was not replaced takes its transactional id back.
            on_retry=lambda _error, _attempt: ctx.check_generation(),
        )

    def _transact(
        self, name: str, epoch: int, mark: str, staged: Sequence[bytes], ctx: OperatorContext
    ) -> None:
        client, topic = load_client(), self.options.topic
        group = {"group.id": name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        try:
            with (
                self._transactional(name) as (producer, trouble),
                self.cluster.connect("Consumer", group) as (consumer, _),
            ):
                self._start(producer, trouble)
                # That has ended what a crash left open under this name: only now the marks are certain. And
                # what another run starts from now on ends this transaction.
                last = self._last_commit(consumer)
                if last.generation > ctx.generation:
                    ctx.check_generation()
                # An attempt that comes late finds its mark, or that this run has gone on long ago.
                if mark in last.marks or (last.run == ctx.run_id and last.epoch > epoch):
                    return
                producer.begin_transaction()
                for content in staged:
                    self._send(producer, from_ipc(unstage(ctx, content)[0]), trouble)
                self._flush(producer, trouble)
                latest = _Commit(epoch, ctx.generation, ctx.run_id, (*last.marks, mark)[-_REMEMBERED:])
                position = client.TopicPartition(topic, 0, epoch, latest.to_metadata())
                _with_timeout(
                    lambda: producer.send_offsets_to_transaction(
                        [position], consumer.consumer_group_metadata()
                    ),
                    lambda: self.cluster.silence(trouble),
                )
                producer.commit_transaction(DELIVERY_SECONDS)
        except client.KafkaException as error:
            raise self._lost(error.args[0]) from None

    def _start(self, producer: Any, trouble: Trouble) -> None:
        """Initialize transactions of the producer; a refused login is raised at once.

        In one call: the client allows to resume it in slices, but has once ended the whole process in such a
        slice, with a broker that had just restarted (librdkafka 2.16).
        """

        def check() -> None:
            producer.poll(0)
            trouble.check(self.cluster, self.options.topic)

        try:
            _wait_for(
                lambda: producer.init_transactions(kafka.PATIENCE_SECONDS),
                lambda: self.cluster.silence(trouble),
                check,
            )
        except load_client().KafkaException as error:
            check()
            raise self._failure(error.args[0], trouble) from None

    def _last_commit(self, consumer: Any) -> _Commit:
        """Return the last commit that is recorded."""
        client = load_client()
        partition = client.TopicPartition(self.options.topic, 0)

        def ask() -> Any:
            (committed,) = consumer.committed([partition], kafka.PATIENCE_SECONDS)
            if committed.error is not None:  # not a group without marks: the epoch would be sent twice
                raise client.KafkaException(committed.error)
            return committed

        committed = with_retry(
            ask,
            is_transient=lambda error: (
                isinstance(error, client.KafkaException) and kafka.is_transient(error.args[0])
            ),
            backoff=_BACKOFF,
            deadline=kafka.PATIENCE_SECONDS,
        )
        if committed.offset < 0 or not committed.metadata:
            return _Commit()
        return _Commit.parse(committed.offset, committed.metadata)

    def _producer(self) -> Any:
        return self.cluster.borrow("Producer", self._settings())

    def _transactional(self, name: str) -> Any:
        settings = {"transaction.timeout.ms": _TRANSACTION_SECONDS * 1000, **self._settings()}
        # A new one each time: one that has seen a broker restart may not find it again.
        return self.cluster.connect("Producer", {**settings, "transactional.id": name})

    def _settings(self) -> dict[str, Any]:
        return {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # keys go where a Java client puts them
            "delivery.report.only.error": True,
            "message.timeout.ms": DELIVERY_SECONDS * 1000,
            "queue.buffering.max.messages": 1_000_000,
            **self.options.client_configs,
        }

    def _send(self, producer: Any, messages: Sequence[pa.RecordBatch], trouble: Trouble) -> None:
        client, topic = load_client(), self.options.topic

        def on_failure(problem: Any, _: Any) -> None:
            trouble.undelivered = trouble.undelivered or problem

        # A transaction fails as a whole. The client calls back with an error of its own pending if that is
        # fatal, as when another producer has taken the transactional id: Python must not run then.
        report = None if self._exactly_once else on_failure

        try:
            for batch in messages:
                for key, value, time in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    while True:
                        try:
                            producer.produce(topic, value, key, on_delivery=report, timestamp=time)
                            break
                        except BufferError:
                            producer.poll(0.1)
                            self._check_delivery(trouble)
                producer.poll(0)
                self._check_delivery(trouble)
        except client.KafkaException as error:
            raise self._lost(error.args[0], trouble) from None

    def _flush(self, producer: Any, trouble: Trouble) -> None:
        deadline = clock.monotonic() + DELIVERY_SECONDS + 10
        while producer.flush(_POLL_SECONDS):
            self._check_delivery(trouble)
            if clock.monotonic() >= deadline:
                raise self.cluster.silence(trouble)
        self._check_delivery(trouble)

    def _check_delivery(self, trouble: Trouble) -> None:
        """Raise an ExternalError if a message cannot be delivered."""
        if trouble.undelivered is not None:
            raise self._lost(trouble.undelivered, trouble)
        trouble.check(self.cluster, self.options.topic)

    def _failure(self, problem: Any, trouble: Trouble | None = None) -> ExternalError:
        failure = self.cluster.failure(problem, self.options.topic, trouble)
        if problem.name() in _FENCED:
            return _FencedError(failure.message, hint=failure.hint, where=failure.where)
        return failure

    def _lost(self, problem: Any, trouble: Trouble | None = None) -> ExternalError:
        failure = self._failure(problem, trouble)
        if problem.name() == "MSG_SIZE_TOO_LARGE":
            failure.hint = "allow larger ones: `message.max.bytes` in `client_configs`, and of the topic"
        return failure


class KafkaSink(_TopicSink):
    """Writes rows as messages of a topic, from every subtask.

    With `at_least_once` the messages of an epoch are sent, and acknowledged, before the checkpoint: none is
    lost, and those of a retried epoch are written twice. With `exactly_once` they are staged in the state
    directory, and sent after the commit point from tasks in parallel, in a transaction for each subtask and
    epoch. The transaction also records the epoch, so a retried commit does nothing: consumers with
    `read_committed` see each message once, after a crash at any moment. The record lives as long as Kafka
    keeps the offsets of a consumer group without members, a week by default. With the format `debezium_json`
    one subtask writes, and the changes of one epoch to one row become one message.
    """

    class Options(LoginOptions, SinkOptions):
        """The options of the kafka sink."""

    options: Options


class ConfluentSink(_TopicSink):
    """Writes rows as messages of a topic of Confluent Cloud, as the kafka sink does."""

    class Options(CloudLoginOptions, SinkOptions):
        """The options of the confluent sink."""

    options: Options


class MessageWriter:
    """Converts rows to messages: key, value and timestamp. It pickles."""

    def __init__(self, options: SinkOptions, form: Format) -> None:
        self._options = options
        self._format = form

    def check(self, schema: pa.Schema) -> None:
        """Raise a PlanError unless rows of this schema can be written."""
        hidden = schema.get_field_index(RETRACT)
        rows_only = schema.remove(hidden) if self._options.upsert and hidden >= 0 else schema
        self._format.check(rows_only)
        for name in (*self._upsert_key, self._options.sink_key_field, self._options.sink_timestamp_field):
            if name is not None and name not in schema.names:
                names = [column for column in schema.names if column not in {TIMESTAMP, RETRACT}]
                raise PlanError(
                    f"the rows have no column `{name}`",
                    hint=suggest(name, names, listing="the columns are"),
                )

    def group(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch | pa.Table]:
        """Return the batches of an epoch, as one table if they hold retractions."""
        if self._options.upsert or any(RETRACT in batch.schema.names for batch in batches):
            return [pa.Table.from_batches(unify_schemas(batches))]
        return list(batches)

    def write(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return the messages of these rows: the columns key, value and time, in milliseconds."""
        if self._options.upsert:
            return self._upserts(rows)
        written = rows if self._options.columns is not None else without_event_time(rows)
        values = pa.array(self._format.messages(written), pa.large_binary())
        if RETRACT in rows.schema.names:
            rows = self._changed(values)
        key = self._options.sink_key_field
        keys = pa.nulls(len(values), pa.binary()) if key is None else _as_key(rows.column(key), key)
        return pa.table([keys, values, self._times(rows, len(values))], schema=_MESSAGE)

    @property
    def _upsert_key(self) -> Sequence[str]:
        return self._options.primary_key if self._options.upsert else ()

    def _upserts(self, rows: pa.Table) -> pa.Table:
        """Return a message for each key: its last row, or no value if that was retracted."""
        names = self._upsert_key
        rows = latest_of_keys(rows, names)
        plain = rows.drop_columns([RETRACT]) if RETRACT in rows.schema.names else rows
        written = plain if self._options.columns is not None else without_event_time(plain)
        values = pa.array(self._format.messages(written), pa.large_binary())
        if self._options.json_keys:
            key = plain.select(names)
            keys = pa.array(JsonFormat(key.schema).messages(key), pa.binary())
        else:
            keys = _as_key(plain.column(names[0]), names[0])
        if keys.null_count:
            raise ConfigurationError(f"a row has no value for `{', '.join(names)}`, the key of the topic")
        if RETRACT in rows.schema.names:
            retracted = rows.column(RETRACT).fill_null(False).combine_chunks()
            values = pc.if_else(retracted, pa.scalar(None, values.type), values)
        return pa.table([keys, values, self._times(plain, len(values))], schema=_MESSAGE)

    def _times(self, rows: pa.Table | pa.RecordBatch, count: int) -> pa.Array:
        time = self._options.sink_timestamp_field or TIMESTAMP
        if time in rows.schema.names:
            return _milliseconds(rows.column(time), time)
        return pa.repeat(pa.scalar(0, pa.int64()), count)  # the time of sending

    def _changed(self, values: pa.Array) -> pa.Table:
        """Return the key and the time of each change, from the new row or, of a deletion, the old one."""
        fields = (self._options.sink_key_field, self._options.sink_timestamp_field)
        names = sorted({name for name in fields if name is not None})
        if not names:
            return pa.table({})
        assert self._options.columns is not None
        row = pa.struct([self._options.columns.field(name) for name in names])
        options = self._options.model_copy(update={"format": "json", "framing": None})
        change = pa.schema([pa.field("before", row), pa.field("after", row)])
        changes = options.format_for(change).decode(values.to_pylist()).rows.combine_chunks()
        before, after = (changes.column(name).combine_chunks() for name in ("before", "after"))
        latest = pc.if_else(after.is_valid(), after, before)
        return pa.table(latest.flatten(), schema=pa.schema(list(row)))


def _as_key(column: Any, name: str) -> Any:
    """Return the bytes of a binary column, the string form of any other."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    try:
        return column.cast(pa.string()).cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise PlanError(
            f"column `{name}` has the type {kind} and cannot be a key",
            hint="a key is a string, bytes, a number or a time",
        ) from None


def _milliseconds(column: Any, name: str) -> Any:
    if not pa.types.is_timestamp(column.type):
        raise PlanError(
            f"column `{name}` has the type {column.type} and cannot be the time of a message",
            hint="name a column of the type TIMESTAMP",
        )
    times = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    # Kafka knows no time before 1970, and 0 and null stand for the time of sending.
    return pc.fill_null(pc.max_element_wise(times, 1, skip_nulls=False), 0)


def _with_timeout(call: Callable[[], object], late: Callable[[], ExternalError]) -> None:
    """Call a function that may hang, in a thread that is abandoned after a timeout.

    The client ignores its own timeout for the offsets of a transaction, and may wait for a broker that it has
    given up (librdkafka issues 5456 and 5511).
    """
    _wait_for(call, late, lambda: None)


def _wait_for(
    call: Callable[[], object], late: Callable[[], ExternalError], check: Callable[[], None]
) -> None:
    """Call a function in a thread that is abandoned after a timeout, or when `check` raises meanwhile."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # A function with the same timeout says itself why it took too long.
    deadline = clock.monotonic() + kafka.PATIENCE_SECONDS + _POLL_SECONDS
    while thread.is_alive():
        if clock.monotonic() >= deadline:
            raise late()
        thread.join(_POLL_SECONDS)
        check()
    if raised:
        raise raised[0]
