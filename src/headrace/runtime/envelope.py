"""The envelope: the one schema that crosses Spark, whatever flows in the pipeline."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PlanError, near
from headrace.keys import hash_key, subtask_of
from headrace.runtime.stages import Crossing

SCHEMA = pa.schema(
    [
        pa.field("to", pa.int32()),
        pa.field("edge", pa.int32()),
        pa.field("sender", pa.int32()),
        pa.field("seq", pa.int32()),
        pa.field("kind", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)
SPARK_SCHEMA = "`to` int, edge int, sender int, seq int, kind int, payload binary"
CONTROL = -1
"""The edge of envelopes that are for the driver: every stage passes them on."""

_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
_SEAL_BYTES = 4 * 1024 * 1024
_FLUSH_BYTES = 16 * 1024 * 1024
_LARGEST_BATCH = 64 * 1024 * 1024


class Kind(enum.IntEnum):
    """What an envelope carries."""

    DATA = 0
    WATERMARK = 1
    SOURCE_SIGNAL = 2
    MANIFEST = 3
    ERROR = 4


@dataclass(frozen=True, slots=True)
class Envelope:
    """One sealed message: for whom, on which edge, from whom, in which order, and what."""

    to: int
    edge: int
    sender: int
    seq: int
    kind: Kind
    payload: bytes | pa.Buffer

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorting by this makes a replay identical, whatever order the shuffle delivers in."""
        return self.edge, self.sender, self.seq

    def message(self) -> Any:
        return json.loads(bytes(self.payload))


def seal(batch: pa.RecordBatch) -> bytes:
    """A batch as bytes that `unseal` opens without a copy."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    sealed: bytes = sink.getvalue().to_pybytes()
    return sealed


def unseal(payload: bytes | pa.Buffer) -> list[pa.RecordBatch]:
    """The batches of a sealed payload, backed by its memory where that is aligned."""
    with pa.ipc.open_stream(pa.py_buffer(payload), options=_ALIGNED) as reader:
        return list(reader)


def _message_bytes(message: Any) -> bytes:
    """A message as JSON, padded to eight bytes as sealed batches are.

    Payloads lie one after the other in one column: this keeps every batch among them aligned, so that
    opening it needs no copy.
    """
    text = json.dumps(message).encode()
    return text + b" " * (-len(text) % 8)


def read_envelopes(batch: pa.RecordBatch) -> Iterator[Envelope]:
    """The envelopes of a batch of the envelope schema; payloads are not copied."""
    if batch.num_rows == 0:
        return
    to, edge, sender, seq, kind = (batch.column(i).to_pylist() for i in range(5))
    payloads = batch.column(5)
    # A scalar of the column would be a copy: cut the column's own memory instead.
    _, offset_buffer, data = payloads.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[payloads.offset :].tolist()
    for i in range(batch.num_rows):
        payload = data.slice(offsets[i], offsets[i + 1] - offsets[i])
        yield Envelope(to[i], edge[i], sender[i], seq[i], Kind(kind[i]), payload)


class EnvelopeWriter:
    """Seals the output of one task and hands it on in batches of the envelope schema."""

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._seq: dict[int, int] = {}
        self._open: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        self._open_bytes: dict[tuple[int, int], int] = {}
        self._rows: list[Envelope] = []
        self._bytes = 0

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
                self._add(crossing.index, to, batch)
        elif crossing.edge.kind == "forward":
            self._add(crossing.index, self._sender % crossing.parallelism, batch)
        elif crossing.parallelism == 1:
            _check_keys(crossing, batch)
            self._add(crossing.index, 0, batch)
        else:
            _check_keys(crossing, batch)
            targets = subtask_of(hash_key(batch, crossing.edge.keys), crossing.parallelism)
            counts = np.bincount(targets, minlength=crossing.parallelism)
            if counts.max() == batch.num_rows:
                self._add(crossing.index, int(targets[0]), batch)
                return
            sorted_batch = batch.take(pa.array(np.argsort(targets, kind="stable")))
            start = 0
            for to, count in enumerate(counts.tolist()):
                if count:
                    self._add(crossing.index, to, sorted_batch.slice(start, count))
                start += count

    def _add(self, edge: int, to: int, batch: pa.RecordBatch) -> None:
        key = (edge, to)
        parts = self._open.setdefault(key, [])
        if parts and parts[0].schema != batch.schema:
            self._seal(key)
            parts = self._open.setdefault(key, [])
        parts.append(batch)
        size = self._open_bytes.get(key, 0) + batch.nbytes
        self._open_bytes[key] = size
        if size >= _SEAL_BYTES:
            self._seal(key)

    def _seal(self, key: tuple[int, int]) -> None:
        parts = self._open.pop(key, [])
        self._open_bytes.pop(key, None)
        if parts:
            batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
            self._put(key[0], key[1], Kind.DATA, seal(batch))

    def _put(self, edge: int, to: int, kind: Kind, payload: bytes) -> None:
        seq = self._seq.get(edge, 0)
        self._seq[edge] = seq + 1
        self._rows.append(Envelope(to, edge, self._sender, seq, kind, payload))
        self._bytes += len(payload)

    def signal(self, crossing: Crossing, kind: Kind, message: Any) -> None:
        """Send a message to every subtask behind a crossing, after all data sent so far."""
        for key in [key for key in self._open if key[0] == crossing.index]:
            self._seal(key)
        payload = _message_bytes(message)
        for to in range(crossing.parallelism):
            self._put(crossing.index, to, kind, payload)

    def control(self, kind: Kind, message: Any, *, to: int = 0) -> None:
        """Send a message to the driver."""
        self._put(CONTROL, to, kind, _message_bytes(message))

    def drain(self, *, everything: bool = False) -> Iterator[pa.RecordBatch]:
        """The batches that are ready to leave; `everything` also seals what is still open."""
        if everything:
            for key in list(self._open):
                self._seal(key)
        if self._rows and (everything or self._bytes >= _FLUSH_BYTES):
            rows, self._rows, self._bytes = self._rows, [], 0
            # A binary column has 32-bit offsets: cut well before they run out.
            start, size = 0, 0
            for i, row in enumerate(rows):
                if i > start and size + len(row.payload) > 4 * _FLUSH_BYTES:
                    yield _to_batch(rows[start:i])
                    start, size = i, 0
                size += len(row.payload)
            yield _to_batch(rows[start:])


def _check_keys(crossing: Crossing, batch: pa.RecordBatch) -> None:
    edge = crossing.edge
    for key in edge.keys:
        if key not in batch.schema.names:
            raise PlanError(
                f"key_by: the rows from `{edge.source}` to `{edge.target}` have no column `{key}`",
                hint=near(key, batch.schema.names) or f"the columns are {', '.join(batch.schema.names)}",
            )


def _to_batch(rows: list[Envelope]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.to for row in rows], pa.int32()),
            pa.array([row.edge for row in rows], pa.int32()),
            pa.array([row.sender for row in rows], pa.int32()),
            pa.array([row.seq for row in rows], pa.int32()),
            pa.array([int(row.kind) for row in rows], pa.int32()),
            pa.array([row.payload for row in rows], pa.binary()),
        ],
        schema=SCHEMA,
    )
