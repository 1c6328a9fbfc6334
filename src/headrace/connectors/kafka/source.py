"""The sources `kafka` and `confluent`: read the messages of a topic."""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.errors import ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.messages import (
    MessageOptions,
    MessageReader,
    Messages,
    declared_columns,
)
from headrace.connectors.base import Delivery, bounded_for_good
from headrace.connectors.kafka import client as kafka
from headrace.connectors.kafka.client import (
    CloudLoginOptions,
    KafkaConnector,
    LoginOptions,
    TopicOptions,
    Trouble,
    load_client,
)
from headrace.connectors.sample import message_columns
from headrace.formats.options import check_readable
from headrace.model.operator import (
    Collector,
    Finish,
    Limit,
    Offset,
    SourceContext,
    SourceOperator,
    Split,
)

METADATA: Mapping[str, pa.DataType] = {
    "offset_id": pa.int64(),
    "partition": pa.int32(),
    "topic": pa.string(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
}
"""What METADATA FROM can name, with the type of the column."""

BATCH_MESSAGES = 10_000
_WORTH_SPLITTING = 100_000
_POLL_SECONDS = 0.05
_LAST_MILLISECOND = (2**63 - 1) // 10**6

_log = logging.getLogger("headrace")


class KafkaSourceOptions(TopicOptions, MessageOptions):
    """Where to start, and which messages to read."""

    METADATA: ClassVar = METADATA

    source_offset: Literal["latest", "earliest", "group"] = Field(
        "latest",
        alias="source.offset",
        description=(
            "Where a new pipeline starts: `latest`, `earliest`, or the committed offset of the "
            "consumer group `source.group_id`, if there is one."
        ),
    )
    source_read_mode: Literal["read_uncommitted", "read_committed"] = Field(
        "read_uncommitted",
        alias="source.read_mode",
        description="`read_committed` skips messages of open and aborted transactions.",
    )
    source_group_id: str | None = Field(
        None,
        min_length=1,
        alias="source.group_id",
        description=(
            "The consumer group whose committed offsets show the progress of the pipeline; by default "
            "its own."
        ),
    )
    source_group_id_prefix: str | None = Field(
        None,
        min_length=1,
        alias="source.group_id_prefix",
        description="Prefix of the name of the pipeline's own consumer group.",
    )
    source_bounded: bool = Field(
        default=False,
        alias="source.bounded",
        description=(
            "End, for good, with the last message that existed when the pipeline first started: a later run "
            "reads nothing. For runs that each read what came since the last one, use `available_now`."
        ),
    )
    source_lost_messages: Literal["fail", "skip"] = Field(
        "fail",
        alias="source.lost_messages",
        description="What to do if messages were deleted before they were read: end the run, or continue.",
    )
    metadata: Mapping[str, str] = Field(
        default={}, description=f"Column → what of a message it holds: {', '.join(METADATA)}."
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.source_offset == "group" and self.source_group_id is None:
            raise ValueError("`source.offset` = 'group' needs `source.group_id`")
        return self


class _TopicSource(KafkaConnector, SourceOperator):
    options: Any
    label = "kafka"
    deliveries = (
        Delivery(
            "exactly once", "partitions and offsets are in the checkpoint, and any range can be read again"
        ),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.idle_timeout = self.options.idle_timeout
        self._available: Mapping[str, int] | None = None
        """By lane: the offset at which a run with `available_now` ends."""

    @property
    def _committed_only(self) -> bool:
        return bool(self.options.source_read_mode == "read_committed")

    def validate(self) -> None:
        """Raise an error for columns that cannot be read and settings that are not valid."""
        super().validate()
        check_readable(self.options)
        declared_columns(self.options, self.label)

    def for_sampling(self) -> Self:
        """Return a copy that starts with the earliest message."""
        return type(self)(self.options.model_copy(update={"source_offset": "earliest"}))

    def find_columns(self) -> pa.Schema:
        """Return the columns of the messages' schema, or those inferred from the first messages."""
        return message_columns(self, where=f"topic {self.options.topic}")

    def initial_offset(self, *, time: float) -> Offset:
        """Return the start offsets as `source.offset` says; each existing partition is a lane."""
        options, topic = self.options, self.options.topic
        partitions = self.cluster.partitions(topic, patience=kafka.FIRST_CONTACT_SECONDS)
        if options.source_offset == "group":
            starts = self.cluster.group_offsets(options.source_group_id, topic, partitions)
            rest = [partition for partition in partitions if partition not in starts]
            # A group that stands nowhere starts as groups do; else partitions it does not know are new.
            starts |= self._offsets(rest, "earliest" if starts else "latest")
        else:
            starts = self._offsets(partitions, options.source_offset)
        ends = self._offsets(partitions, "latest") if options.source_bounded else None
        prefix = options.source_group_id_prefix or "headrace"
        group = options.source_group_id or f"{prefix}-{topic}-{uuid.uuid4().hex[:8]}"
        offset: Offset = {}
        for partition in partitions:
            offset[str(partition)] = {"offset": starts[partition], "group": group}
            if ends is not None:
                offset[str(partition)]["end"] = max(ends[partition], starts[partition])
        return offset

    def _offsets(self, partitions: Sequence[int], at: Literal["earliest", "latest"]) -> dict[int, int]:
        return self.cluster.offsets(self.options.topic, partitions, at=at, committed=self._committed_only)

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Read up to the offsets at which the partitions end now; new ones are read from their beginning."""
        if self.options.source_bounded:
            raise bounded_for_good()
        ends, new = self._ends_and_new(start)
        self._available = ends
        return {**start, **new}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the end offsets of an epoch of at most `limit.rows` messages, shared fairly by partition.

        A new partition first becomes a lane, at its beginning; the next epoch reads from there.
        """
        if limit.rows <= 0:
            return start
        new: Offset = {}
        ends: Mapping[str, int]
        if self.options.source_bounded:
            ends = {lane: position.get("end", position["offset"]) for lane, position in start.items()}
        elif self._available is not None:
            ends = self._available
        else:
            ends, new = self._ends_and_new(start)
        waiting = {lane: ends[lane] - position["offset"] for lane, position in start.items()}
        shares = _share(waiting, limit.rows)
        moved = {
            lane: {**position, "offset": position["offset"] + shares[lane]}
            for lane, position in start.items()
        }
        return {**moved, **new}

    def _ends_and_new(self, start: Offset) -> tuple[dict[str, int], Offset]:
        """Return where every partition ends, and the lanes of those that were added, at their beginning."""
        partitions = self.cluster.partitions(self.options.topic)
        ends = {str(partition): end for partition, end in self._offsets(partitions, "latest").items()}
        self._check_ends(start, ends)
        added = [partition for partition in partitions if str(partition) not in start]
        new = {
            str(partition): {**next(iter(start.values())), "offset": first}
            for partition, first in self._offsets(added, "earliest").items()
        }
        return ends, new

    def _check_ends(self, before: Offset, ends: Mapping[str, int]) -> None:
        for lane, position in before.items():
            if lane not in ends or ends[lane] < position["offset"]:
                state = f"ends at offset {ends[lane]}" if lane in ends else "is gone"
                raise ExternalError(
                    f"topic `{self.options.topic}` is not the one that was read before: partition {lane} "
                    f"{state}, and was read up to offset {position['offset']}",
                    hint="if the topic was created again, start the pipeline with another state directory",
                    where="kafka",
                )

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return a split for each partition with new messages; a large one is divided further."""
        total, final = self.count(start, end), self.is_finished(end)
        splits = []
        for lane in sorted(start, key=int):
            first, rows = start[lane]["offset"], end[lane]["offset"] - start[lane]["offset"]
            shares = max(1, min(parallelism * rows // max(total, 1), rows // _WORTH_SPLITTING))
            bounds = [first + rows * index // shares for index in range(shares + 1)]
            splits += [
                Split(lane, {"partition": int(lane), "offset": low, "end": high, "final": final})
                for low, high in itertools.pairwise(bounds)
                if low < high
            ]
        return splits

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the messages of one split."""
        detail = ctx.split.detail
        topic, partition = self.options.topic, detail["partition"]
        reader = MessageReader(self.options, connector=self.label, where=f"kafka, topic {topic}")
        for messages in self._read(partition, detail["offset"], detail["end"]):
            rows = reader.read(_described(messages, partition), ctx, collector)
            for batch in rows.to_batches():
                collector.collect(batch)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _read(self, partition: int, first: int, end: int) -> Iterator[list[Any]]:
        """Yield the messages from `first` up to `end` in batches; some offsets may have no message."""
        client, topic, reached = load_client(), self.options.topic, first
        settings = {
            "group.id": "headrace",  # asked for by the client, and not used
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": self.options.source_read_mode,
            "auto.offset.reset": "error" if self.options.source_lost_messages == "fail" else "earliest",
            "fetch.wait.max.ms": 20,  # the range is there already: an empty answer is its end
            "fetch.queue.backoff.ms": 20,  # by default a full queue pauses the fetching for a second
            **self.options.client_configs,
        }
        with self.cluster.borrow("Consumer", settings) as (consumer, trouble):
            consumer.assign([client.TopicPartition(topic, partition, first)])
            last_message_at = time.monotonic()
            while reached < end:
                polled = consumer.consume(min(BATCH_MESSAGES, end - reached), _POLL_SECONDS)
                if polled:
                    last_message_at = time.monotonic()
                elif time.monotonic() - last_message_at > kafka.PATIENCE_SECONDS:
                    raise self.cluster.silence(trouble)
                trouble.check(self.cluster, topic)
                messages = [message for message in polled if message.error() is None]
                if len(messages) < len(polled):
                    signals = [message for message in polled if message.error() is not None]
                    reached = max(reached, self._end_of_partition(signals, partition, first, trouble))
                if messages:
                    reached = max(reached, messages[-1].offset() + 1)
                while messages and messages[-1].offset() >= end:
                    messages.pop()  # what follows a gap at the end of the range
                if messages:
                    yield messages
            consumer.unassign()

    def _end_of_partition(self, signals: Sequence[Any], partition: int, first: int, trouble: Trouble) -> int:
        """Return where the partition ends, if reported; raise errors that the client does not retry."""
        end = first
        for signal in signals:
            problem = signal.error()
            if problem.name() == "_PARTITION_EOF":
                end = max(end, signal.offset())
            elif problem.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
                raise ExternalError(
                    f"topic `{self.options.topic}` no longer has offset {first} of partition {partition}: "
                    "messages were deleted before they were read",
                    hint="to continue without them, set `source.lost_messages` = 'skip'",
                    where="kafka",
                )
            elif problem.fatal() or not kafka.is_transient(problem):
                raise self.cluster.failure(problem, self.options.topic, trouble)
        return end

    def is_finished(self, offset: Offset) -> bool:
        """Whether a bounded source has read all messages that existed at its first start."""
        return bool(self.options.source_bounded) and all(
            position["offset"] >= position.get("end", 0) for position in offset.values()
        )

    def count(self, start: Offset, end: Offset) -> int:
        """Return the number of offsets in a range; some have no message (transactions, compaction)."""
        return sum(end[lane]["offset"] - position["offset"] for lane, position in start.items())

    def committed(self, offset: Offset) -> None:
        """Commit the offsets of the consumer group, so that its lag can be monitored."""
        groups: dict[str, dict[int, int]] = {}
        for lane, position in offset.items():
            group = self.options.source_group_id or position["group"]
            groups.setdefault(group, {})[int(lane)] = position["offset"]
        for group, offsets in groups.items():
            try:
                self.cluster.commit_group(group, self.options.topic, offsets)
            except ExternalError as error:
                # The offsets that count are in the checkpoint.
                _log.warning("consumer group `%s` was not moved: %s", group, error.message)


class KafkaSource(_TopicSource):
    """Reads the messages of a topic, each once; `_timestamp` is the timestamp of the Kafka message.

    Each partition is a lane with its own task. The offsets of the partitions are part of the checkpoint: a
    pipeline resumes with the next message of each, at any parallelism. Partitions that are added later are
    read from their beginning. The offsets are also committed to Kafka for a consumer group, for monitoring. A
    message without a value is counted in the metric `tombstones` and has no row; one that cannot be read ends
    the run with its partition and offset, or is dropped and counted in the metric `bad_rows`.
    """

    class Options(LoginOptions, KafkaSourceOptions):
        """The options of the kafka source."""

    options: Options


class ConfluentSource(_TopicSource):
    """Reads the messages of a topic of Confluent Cloud, as the kafka source does."""

    class Options(CloudLoginOptions, KafkaSourceOptions):
        """The options of the confluent source."""

    options: Options


def _share(waiting: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return how many messages to read of each lane: as equal as possible, `rows` in total."""
    shares = {}
    for lanes_left, lane in zip(
        range(len(waiting), 0, -1), sorted(waiting, key=lambda key: waiting[key]), strict=True
    ):
        shares[lane] = max(0, min(waiting[lane], rows // lanes_left))
        rows -= shares[lane]
    return shares


def _described(messages: Sequence[Any], partition: int) -> Messages:
    times = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))

    def metadata(name: str) -> Sequence[Any]:
        if name == "timestamp":
            return times  # type: ignore[return-value]
        read = {"offset_id": "offset"}.get(name, name)
        return [getattr(message, read)() for message in messages]

    return Messages(
        [message.value() for message in messages],
        np.minimum(times, _LAST_MILLISECOND) * 10**6,
        metadata,
        lambda index: f"offset {messages[index].offset()} of partition {partition}",
    )
