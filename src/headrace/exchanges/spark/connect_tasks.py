"""The tasks of an epoch over Spark Connect: envelopes as rows of Arrow batches, and functions over them.

Workers import this module, so it needs nothing of the client.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.engine.commits import run_commit
from headrace.engine.envelope import Envelope, EnvelopeKind
from headrace.engine.parts import PackedEpoch
from headrace.engine.stages import StagePlan
from headrace.engine.task import run_split, run_subtasks
from headrace.exchanges.spark.tasks import load_stages
from headrace.exchanges.spark.workers import freeze_loaded

NUMBERS = ("target", "to", "edge", "sender", "seq", "kind")
"""The columns of numbers: Spark routes a row by the first, the others are the envelope's own."""
PAYLOAD = "payload"
SCHEMA = pa.schema([*((name, pa.int32()) for name in NUMBERS), (PAYLOAD, pa.binary())])
_BATCH_BYTES = 1024 * 1024
"""Envelopes that are smaller than this leave together."""


def to_rows(envelopes: Iterable[Envelope], targets: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Envelopes as rows. `targets` has a value for each partition of the next stage by which Spark routes."""
    waiting: list[Envelope] = []
    size = 0
    for envelope in envelopes:
        waiting.append(envelope)
        size += len(envelope.payload)
        if size >= _BATCH_BYTES:
            yield _to_batch(waiting, targets)
            waiting, size = [], 0
    if waiting:
        yield _to_batch(waiting, targets)


def _to_batch(envelopes: list[Envelope], targets: Sequence[int]) -> pa.RecordBatch:
    numbers = [[targets[e.to % len(targets)], *e[:4], int(e.kind)] for e in envelopes]
    columns = [pa.array(column, pa.int32()) for column in zip(*numbers, strict=True)]
    return pa.RecordBatch.from_arrays([*columns, _payloads(envelopes)], schema=SCHEMA)


def _payloads(envelopes: list[Envelope]) -> pa.Array:
    if len(envelopes) == 1:  # the payload as it lies in memory
        payload = pa.py_buffer(envelopes[0].payload)
        ends = pa.array([0, payload.size], pa.int32()).buffers()[1]
        return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, ends, payload])
    return pa.array([memoryview(envelope.payload) for envelope in envelopes], pa.binary())


def from_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Envelope]:
    """The envelopes of the rows, with their payloads where they lie in memory."""
    for batch in batches:
        numbers = zip(*(batch.column(name).to_pylist() for name in NUMBERS[1:]), strict=True)
        for (to, edge, sender, seq, kind), payload in zip(numbers, batch.column(PAYLOAD), strict=True):
            yield Envelope(to, edge, sender, seq, EnvelopeKind(kind), payload.as_buffer())


@dataclass(frozen=True)
class FilePlan:
    """A plan that is too large to be in every function: a file that the workers of the session have."""

    name: str


@dataclass(frozen=True)
class ReadSplit:
    """Stage 0: each task reads one split."""

    plan: bytes | FilePlan
    epoch: bytes
    targets: Sequence[int]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the split with the number of the task."""
        for _ in numbers:
            pass  # a worker whose input was not read is not used again
        epoch: PackedEpoch = pickle.loads(self.epoch)  # noqa: S301 - made by this job's own driver
        envelopes = run_split(_stages(self.plan), *epoch.split(_partition()))
        return to_rows(freeze_loaded(envelopes), self.targets)


@dataclass(frozen=True)
class RunStage:
    """A later stage: each of so many tasks runs one or more subtasks of its chains."""

    plan: bytes | FilePlan
    epoch: bytes
    targets: Sequence[int]
    stage: int
    tasks: int

    def __call__(self, arrived: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the subtasks of the task."""
        epoch: PackedEpoch = pickle.loads(self.epoch)  # noqa: S301 - made by this job's own driver
        stages = _stages(self.plan)
        subtasks = range(_partition(), stages.width(self.stage), self.tasks)
        envelopes = run_subtasks(stages, self.stage, subtasks, epoch.context, from_rows(arrived))
        return to_rows(freeze_loaded(envelopes), self.targets)


@dataclass(frozen=True)
class Commit:
    """A commit: each task publishes one share."""

    plan: bytes | FilePlan
    commit: bytes

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Publish the share with the number of the task."""
        for _ in numbers:
            pass  # as above
        job, tasks = pickle.loads(self.commit)  # noqa: S301 - made by this job's own driver
        envelopes = run_commit(_stages(self.plan), job, tasks[_partition()])
        return to_rows(freeze_loaded(envelopes), (0,))


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    return context.partitionId()


def _stages(plan: bytes | FilePlan) -> StagePlan:
    if isinstance(plan, bytes):
        return load_stages(plan)
    from pyspark import SparkFiles

    return load_stages(Path(SparkFiles.get(plan.name)).read_bytes())
