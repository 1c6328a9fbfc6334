"""The sources `kafka` and `confluent`: read the messages of a topic."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from headrace.base.errors import ConfigurationError, ExternalError, suggest
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.messages import MessageReader, Messages, declared_columns
from headrace.connectors._shared.ranges import even_ranges
from headrace.connectors.base import Delivery, bounded_for_good
from headrace.connectors.kafka import client as kafka
from headrace.connectors.kafka.client import KafkaConnector, Partition, Trouble, load_client
from headrace.connectors.kafka.options import HEADER, CloudLoginOptions, KafkaSourceOptions, LoginOptions
from headrace.connectors.kafka.upsert import UpsertReader, is_upsert
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

BATCH_MESSAGES = 10_000
_WORTH_SPLITTING = 100_000
_POLL_SECONDS = 0.05
_LAST_MILLISECOND = (2**63 - 1) // 10**6

_log = logging.getLogger("headrace.kafka")


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
        self._ends: Mapping[str, int] = {}
        """By lane: where the partition ended when it was last asked."""

    @classmethod
    def is_updating(cls, options: Mapping[str, Any]) -> bool:
        """Whether rows are changes: those of `debezium_json`, and of a compacted topic."""
        return super().is_updating(options) or is_upsert(options)

    @classmethod
    def emits_upserts(cls, options: Mapping[str, Any]) -> bool:
        """Whether the topic is a table."""
        return is_upsert(options)

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
        earliest: dict[str, Any] = {"source_offset": "earliest", "source_offsets": {}}
        earliest["source_timestamp"] = None
        return type(self)(self.options.model_copy(update=earliest))

    @property
    def _subject(self) -> str:
        """The topic, or the pattern of topics, for messages."""
        options = self.options
        return f"topic {options.topic}" if options.topic else f"topics like {options.topic_pattern}"

    def find_columns(self) -> pa.Schema:
        """Return the columns of the messages' schema, or those inferred from the first messages."""
        return message_columns(self, where=self._subject)

    def initial_offset(self, *, time: float) -> Offset:
        """Return the start offsets according to `source.offset`; each existing partition is a lane."""
        partitions = self._partitions(patience=kafka.FIRST_CONTACT_SECONDS)
        starts = self._starts(partitions)
        ends = self._offsets(partitions, "latest") if self.options.source_bounded else None
        group = self._group()
        offset: Offset = {}
        for partition in partitions:
            lane = self.options.lane(partition)
            offset[lane] = {"offset": starts[partition], "group": group}
            if ends is not None:
                offset[lane]["end"] = max(ends[partition], starts[partition])
        return offset

    def _starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        options = self.options
        if options.source_offset == "group":
            starts = self.cluster.group_offsets(options.source_group_id, partitions)
            rest = [partition for partition in partitions if partition not in starts]
            # A group that stands nowhere starts as groups do; else partitions it does not know are new.
            return starts | self._offsets(rest, "earliest" if starts else "latest")
        if options.source_offset == "offsets":
            starts = {options.lane_partition(lane): offset for lane, offset in options.source_offsets.items()}
            self._check_starts(starts, partitions)
            return starts | self._offsets([at for at in partitions if at not in starts], "earliest")
        if options.source_offset == "timestamp":
            return self._offsets(partitions, options.source_timestamp)
        return self._offsets(partitions, options.source_offset)

    def _check_starts(self, starts: Mapping[Partition, int], partitions: Sequence[Partition]) -> None:
        lane = self.options.lane
        for partition in starts:
            if partition not in partitions:
                raise ConfigurationError(
                    f"`source.offsets` names the partition `{lane(partition)}`: {self._subject} has no such",
                    hint=suggest(lane(partition), map(lane, partitions), listing="there are"),
                )
        for partition, end in self._offsets(list(starts), "latest").items():
            if starts[partition] > end:
                raise ConfigurationError(
                    f"`source.offsets` starts with offset {starts[partition]} of the partition "
                    f"`{lane(partition)}`, which ends at offset {end}",
                    hint="write an offset up to its end",
                )

    def _group(self) -> str:
        """A consumer group for the life of the state directory."""
        options = self.options
        prefix = options.source_group_id_prefix or "headrace"
        return options.source_group_id or f"{prefix}-{options.topic or 'topics'}-{uuid.uuid4().hex[:8]}"

    def _partitions(self, *, patience: float | None = None) -> list[Partition]:
        """The partitions that there are now."""
        if self.options.topic is not None:
            return self.cluster.partitions(self.options.topic, patience=patience)
        return self.cluster.matching(self.options.pattern, patience=patience)

    def _offsets(
        self, partitions: Sequence[Partition], at: Literal["earliest", "latest"] | int
    ) -> dict[Partition, int]:
        return self.cluster.offsets(partitions, at=at, committed=self._committed_only)

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
        self._ends = ends
        waiting = {lane: ends[lane] - position["offset"] for lane, position in start.items()}
        shares = _share(waiting, limit.rows)
        moved = {
            lane: {**position, "offset": position["offset"] + shares[lane]}
            for lane, position in start.items()
        }
        return {**moved, **new}

    def _ends_and_new(self, start: Offset) -> tuple[dict[str, int], Offset]:
        """Return where every partition ends, and the lanes of those that were added, at their beginning."""
        lane, partitions = self.options.lane, self._partitions()
        ends = {lane(partition): end for partition, end in self._offsets(partitions, "latest").items()}
        self._check_ends(start, ends)
        added = [partition for partition in partitions if lane(partition) not in start]
        group = next((position["group"] for position in start.values()), None) or self._group()
        firsts = self._offsets(added, "earliest")
        return ends, {lane(partition): {"offset": firsts[partition], "group": group} for partition in added}

    def _check_ends(self, before: Offset, ends: Mapping[str, int]) -> None:
        for lane, position in before.items():
            if lane not in ends or ends[lane] < position["offset"]:
                topic, partition = self.options.lane_partition(lane)
                state = f"ends at offset {ends[lane]}" if lane in ends else "is gone"
                raise ExternalError(
                    f"topic `{topic}` is not the one that was read before: partition {partition} "
                    f"{state}, and was read up to offset {position['offset']}",
                    hint="if the topic was created again, start the pipeline with another state directory",
                    where="kafka",
                )

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many messages of each partition are behind its offset."""
        ends = self._ends
        return {
            lane: max(0, ends[lane] - position["offset"]) for lane, position in offset.items() if lane in ends
        }

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return a split for each partition with new messages; a large one is divided further."""
        total, final = self.count(start, end), self.is_finished(end)
        splits = []
        for lane in sorted(start, key=self.options.lane_partition):
            topic, partition = self.options.lane_partition(lane)
            partition_name = {"topic": topic, "partition": partition}
            first, last = start[lane]["offset"], end[lane]["offset"]
            rows = last - first
            shares = max(1, min(parallelism * rows // max(total, 1), rows // _WORTH_SPLITTING))
            splits += [
                Split(lane, {**partition_name, "offset": low, "end": high, "final": final})
                for low, high in even_ranges(first, last, shares)
                if low < high
            ]
        return splits

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the messages of one split."""
        detail = ctx.split.detail
        partition = detail["topic"], detail["partition"]
        where = f"kafka, topic {detail['topic']}"
        reader: MessageReader | UpsertReader = MessageReader(self.options, connector=self.label, where=where)
        if self.options.upsert:
            columns = declared_columns(self.options, self.label)
            reader = UpsertReader(self.options, columns, connector=self.label, where=where)
        for messages in self._read(partition, detail["offset"], detail["end"]):
            rows = reader.read(_described(messages, detail["partition"]), ctx, collector)
            for batch in rows.to_batches():
                collector.collect(batch)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _read(self, partition: Partition, first: int, end: int) -> Iterator[list[Any]]:
        """Yield the messages from `first` up to `end` in batches; some offsets may have no message."""
        client, reached = load_client(), first
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
            consumer.assign([client.TopicPartition(*partition, first)])
            last_message_at = time.monotonic()
            while reached < end:
                polled = consumer.consume(min(BATCH_MESSAGES, end - reached), _POLL_SECONDS)
                if polled:
                    last_message_at = time.monotonic()
                elif time.monotonic() - last_message_at > kafka.PATIENCE_SECONDS:
                    raise self.cluster.silence(trouble)
                trouble.check(self.cluster, partition[0])
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

    def _end_of_partition(
        self, signals: Sequence[Any], partition: Partition, first: int, trouble: Trouble
    ) -> int:
        """Return where the partition ends, if reported; raise errors that the client does not retry."""
        (topic, number), end = partition, first
        for signal in signals:
            problem = signal.error()
            if problem.name() == "_PARTITION_EOF":
                end = max(end, signal.offset())
            elif problem.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
                raise ExternalError(
                    f"topic `{topic}` no longer has offset {first} of partition {number}: "
                    "messages were deleted before they were read",
                    hint="to continue without them, set `source.lost_messages` = 'skip'",
                    where="kafka",
                )
            elif problem.fatal() or not kafka.is_transient(problem):
                raise self.cluster.failure(problem, topic, trouble)
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
        groups: dict[str, dict[Partition, int]] = {}
        for lane, position in offset.items():
            group = self.options.source_group_id or position["group"]
            groups.setdefault(group, {})[self.options.lane_partition(lane)] = position["offset"]
        for group, offsets in groups.items():
            try:
                self.cluster.commit_group(group, offsets)
            except ExternalError as error:
                # The offsets that count are in the checkpoint.
                _log.warning("consumer group `%s` was not moved: %s", group, error.message)


class KafkaSource(_TopicSource):
    """Reads the messages of topics, each once; `_timestamp` is the timestamp of the Kafka message.

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
        if name == "headers":
            return [
                [{"key": key, "value": value} for key, value in message.headers() or ()]
                for message in messages
            ]
        if name.startswith(HEADER):
            return [dict(message.headers() or ()).get(name.removeprefix(HEADER)) for message in messages]
        read = {"offset_id": "offset"}.get(name, name)
        return [getattr(message, read)() for message in messages]

    return Messages(
        [message.value() for message in messages],
        np.minimum(times, _LAST_MILLISECOND) * 10**6,
        metadata,
        lambda index: f"offset {messages[index].offset()} of partition {partition}",
        lambda index: int(messages[index].offset()),
        partition,
    )
