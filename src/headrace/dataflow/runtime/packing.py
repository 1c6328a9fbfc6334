"""Messages as record batches, for the edges of the engine between two runtimes of a dataflow.

One row is one message: its time, the output it left by, its metadata, and its array as a list. Messages in a
row with values of one type share a batch, so that many small ones cost little; a large one is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.dataflow.runtime.messages import (
    TICK,
    Closed,
    Message,
    Unreadable,
    decode_metadata,
    encode_metadata,
)

PARTITION = "partition"
"""The column that says which instance of a parallel unit a message is for."""

_SHARED_BYTES = 64 * 1024
"""Larger values get a batch of their own: bringing them together would copy them."""
_MOST = 4096


def pack(
    messages: Sequence[tuple[str, Message | Closed]], *, partitions: Sequence[int] = ()
) -> Iterator[pa.RecordBatch]:
    """The messages, each with its output, as record batches in their order."""
    numbered = list(enumerate(messages))
    for _, group in groupby(numbered, key=_Grouping()):
        rows = list(group)
        for start in range(0, len(rows), _MOST):
            part = rows[start : start + _MOST]
            yield _batch([row for _, row in part], [partitions[i] for i, _ in part] if partitions else [])


class _Grouping:
    """Says which messages may share a batch: those in a row with small values of the same type."""

    def __init__(self) -> None:
        self._number = 0
        self._before: pa.DataType | None = None

    def __call__(self, row: tuple[int, tuple[str, Message | Closed]]) -> int:
        message = row[1][1]
        kind = message.value.type if isinstance(message, Message) else pa.null()
        small = not isinstance(message, Message) or message.value.nbytes <= _SHARED_BYTES
        if not small or kind != self._before or not _can_be_joined(kind):
            self._number += 1
        self._before = kind if small else None
        return self._number


def _can_be_joined(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_primitive(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_null(kind)
        or pa.types.is_boolean(kind)
    )


def _batch(rows: Sequence[tuple[str, Message | Closed]], partitions: Sequence[int]) -> pa.RecordBatch:
    values = [message.value if isinstance(message, Message) else TICK for _, message in rows]
    lengths = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(value) for value in values], out=lengths[1:])
    joined = values[0] if len(values) == 1 else pa.concat_arrays(values)
    columns = {
        TIMESTAMP: pa.array([message.time for _, message in rows], pa.int64()).view(pa.timestamp("ns")),
        "output": pa.array([output for output, _ in rows], pa.string()),
        "closed": pa.array([isinstance(message, Closed) for _, message in rows], pa.bool_()),
        "metadata": pa.array(
            [
                encode_metadata(message.metadata) if isinstance(message, Message) else None
                for _, message in rows
            ],
            pa.string(),
        ),
        "value": pa.LargeListArray.from_arrays(pa.array(lengths), joined),
    }
    if partitions:
        columns[PARTITION] = pa.array(partitions, pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def unpack(batch: pa.RecordBatch) -> Iterator[tuple[str, Message | Closed | Unreadable]]:
    """What `pack` made, message by message; one that cannot be read does not keep the others back."""
    times = batch.column(TIMESTAMP).cast(pa.int64()).to_pylist()
    outputs, closed = batch.column("output").to_pylist(), batch.column("closed").to_pylist()
    metadata, values = batch.column("metadata").to_pylist(), batch.column("value")
    offsets, flat = values.offsets.to_pylist(), values.values
    for row, time in enumerate(times):
        if closed[row]:
            yield outputs[row], Closed(time)
            continue
        try:
            parameters = decode_metadata(metadata[row])
            value = flat.slice(offsets[row], offsets[row + 1] - offsets[row])
        except (ValueError, TypeError, IndexError) as error:
            yield outputs[row], Unreadable(f"{type(error).__name__}: {error}", time)
        else:
            yield outputs[row], Message(value, time, parameters)


def pack_ticks(ticks: Iterable[tuple[int, str]]) -> pa.RecordBatch:
    """The ticks of timers, as times with the timers' names."""
    return _batch([(name, Message(TICK, time)) for time, name in ticks], [])


def rows_of(message: Message) -> pa.RecordBatch:
    """A message as rows, for sinks and SQL: a struct's fields are columns, anything else is one, `value`."""
    value = message.value
    if pa.types.is_struct(value.type):
        batch = pa.RecordBatch.from_struct_array(value)
    else:
        batch = pa.RecordBatch.from_arrays([value], names=["value"])
    if TIMESTAMP in batch.schema.names:
        return batch
    times = pa.repeat(pa.scalar(message.time, pa.int64()), batch.num_rows).view(pa.timestamp("ns"))
    return batch.append_column(pa.field(TIMESTAMP, pa.timestamp("ns")), times)


def message_of(batch: pa.RecordBatch) -> Message:
    """The rows of a source as one message: a struct array, at the time of its last row."""
    times = batch.column(TIMESTAMP).cast(pa.int64())
    last = times[batch.num_rows - 1].as_py()
    return Message(batch.to_struct_array(), 0 if last is None else last)
