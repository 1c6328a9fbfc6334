"""The envelope: the one thing that crosses Spark, whatever flows in the pipeline."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.base.errors import PlanError, suggest
from headrace.base.keys import hash_key, subtask_of
from headrace.engine.stages import Crossing

CONTROL = -1
"""The edge of envelopes that are for the driver: every stage passes them on."""

_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
_HELD_BYTES = 80 * 1024 * 1024
_LARGEST_BATCH = 64 * 1024 * 1024
_SMALL_ROWS = 8192
_SMALL_BYTES = 256 * 1024
"""Small batches that arrive are joined up to so many rows: copying them costs less than a call."""


class EnvelopeKind(enum.IntEnum):
    """What an envelope carries."""

    DATA = 0
    WATERMARK = 1
    SOURCE_SIGNAL = 2
    MANIFEST = 3
    ERROR = 4


class Envelope(NamedTuple):
    """One sealed message: for whom, on which edge, from whom, in which order, and what."""

    to: int
    edge: int
    sender: int
    seq: int
    kind: EnvelopeKind
    payload: bytes | pa.Buffer

    def message(self) -> Any:
        """What a control record says."""
        return json.loads(bytes(self.payload))

    def signal(self) -> Any:
        """The content of a signal, read-only: all subtasks get the same ones, so each is decoded once."""
        return _read_signal(bytes(self.payload))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with the bytes of the payload as they lie in memory, without a copy of their own."""
        return _open, (*self[:4], int(self.kind), PickleBuffer(self.payload))


BY_ORDER = itemgetter(1, 2, 3)
"""Sorting envelopes by edge, sender and number makes a replay identical, whatever order they arrive in."""


@functools.lru_cache(maxsize=2048)
def _read_signal(payload: bytes) -> Any:
    return json.loads(payload)


def _open(to: int, edge: int, sender: int, seq: int, kind: int, payload: bytes) -> Envelope:
    return Envelope(to, edge, sender, seq, EnvelopeKind(kind), payload)


def seal(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as bytes that `unseal` opens without a copy."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def unseal(payload: bytes | pa.Buffer) -> list[pa.RecordBatch]:
    """The batches of a sealed payload, backed by its memory where that is aligned."""
    with pa.ipc.open_stream(pa.py_buffer(payload), options=_ALIGNED) as reader:
        return list(reader)


def batches_of(envelopes: Iterable[Envelope]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches in envelopes of data with the edges they came over; many small ones of an edge become one.

    Each batch costs an operator the same, however few rows it has. With many tasks before a shuffle an
    envelope has some rows only.
    """
    edge, held, rows = CONTROL, list[pa.RecordBatch](), 0
    for envelope in envelopes:
        for batch in unseal(envelope.payload):
            fits = edge == envelope.edge and rows + batch.num_rows <= _SMALL_ROWS
            if held and not (fits and held[0].schema.equals(batch.schema, check_metadata=True)):
                yield edge, _joined(held)
                held, rows = [], 0
            edge = envelope.edge
            held.append(batch)
            rows += batch.num_rows if batch.nbytes <= _SMALL_BYTES else _SMALL_ROWS
    if held:
        yield edge, _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def seal_bytes(parallelism: int) -> int:
    """How large an envelope becomes before it is sealed.

    Before a shuffle PySpark holds ten envelopes for each subtask, and a thousand at most.
    """
    return _HELD_BYTES // min(10 * parallelism, 1000)


class EnvelopeWriter:
    """Seals the output of one task and hands it on."""

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._seq: dict[int, int] = {}
        self._open: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        self._open_bytes: dict[tuple[int, int], int] = {}
        self._sealed: list[Envelope] = []

    def send(self, crossing: Crossing, batch: pa.RecordBatch) -> None:
        """Route a batch over a crossing: by key hash, to everyone, or to the like subtask."""
        if batch.num_rows > 1 and batch.nbytes > _LARGEST_BATCH:
            half = batch.num_rows // 2
            self.send(crossing, batch.slice(0, half))
            self.send(crossing, batch.slice(half))
            return
        if batch.num_rows == 0:
            return
        if crossing.edge.kind == "broadcast":
            for to in range(crossing.parallelism):
                self._add(crossing, to, batch)
        elif crossing.edge.kind == "forward":
            self._add(crossing, self._sender % crossing.parallelism, batch)
        elif crossing.parallelism == 1:
            _check_keys(crossing, batch)
            self._add(crossing, 0, batch)
        else:
            _check_keys(crossing, batch)
            targets = subtask_of(hash_key(batch, crossing.edge.keys), crossing.parallelism)
            counts = np.bincount(targets, minlength=crossing.parallelism)
            if counts.max() == batch.num_rows:
                self._add(crossing, int(targets[0]), batch)
                return
            sorted_batch = batch.take(pa.array(np.argsort(targets, kind="stable")))
            start = 0
            for to, count in enumerate(counts.tolist()):
                if count:
                    self._add(crossing, to, sorted_batch.slice(start, count))
                start += count

    def _add(self, crossing: Crossing, to: int, batch: pa.RecordBatch) -> None:
        key = (crossing.index, to)
        parts = self._open.setdefault(key, [])
        if parts and parts[0].schema != batch.schema:
            self._seal(key)
            parts = self._open.setdefault(key, [])
        parts.append(batch)
        size = self._open_bytes.get(key, 0) + batch.nbytes
        self._open_bytes[key] = size
        if size >= seal_bytes(crossing.parallelism):
            self._seal(key)

    def _seal(self, key: tuple[int, int]) -> None:
        parts = self._open.pop(key, [])
        self._open_bytes.pop(key, None)
        if parts:
            self._put(key[0], key[1], EnvelopeKind.DATA, seal(_joined(parts)))

    def _put(self, edge: int, to: int, kind: EnvelopeKind, payload: bytes | pa.Buffer) -> None:
        seq = self._seq.get(edge, 0)
        self._seq[edge] = seq + 1
        self._sealed.append(Envelope(to, edge, self._sender, seq, kind, payload))

    def signal(self, crossing: Crossing, kind: EnvelopeKind, message: Any) -> None:
        """Send a message to every subtask behind a crossing, after all data sent so far."""
        for key in [key for key in self._open if key[0] == crossing.index]:
            self._seal(key)
        payload, edge, sender = json.dumps(message).encode(), crossing.index, self._sender
        seq = self._seq.get(edge, 0)  # every subtask gets one of this number
        self._seq[edge] = seq + 1
        self._sealed += [Envelope(to, edge, sender, seq, kind, payload) for to in range(crossing.parallelism)]

    def control(self, kind: EnvelopeKind, message: Any, *, to: int = 0) -> None:
        """Send a message to the driver."""
        self._put(CONTROL, to, kind, json.dumps(message).encode())

    def drain(self, *, everything: bool = False) -> Iterator[Envelope]:
        """The envelopes that are ready to leave; `everything` also seals what is still open."""
        if everything:
            for key in list(self._open):
                self._seal(key)
        while self._sealed:
            sealed, self._sealed = self._sealed, []
            yield from sealed


def _check_keys(crossing: Crossing, batch: pa.RecordBatch) -> None:
    edge = crossing.edge
    for key in edge.keys:
        if key not in batch.schema.names:
            raise PlanError(
                f"key_by: the rows from `{edge.source}` to `{edge.target}` have no column `{key}`",
                hint=suggest(key, batch.schema.names) or f"the columns are {', '.join(batch.schema.names)}",
            )
