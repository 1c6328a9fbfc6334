"""Divides messages among the instances of a parallel unit, by a column of their rows or by their metadata."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.base.errors import PlanError
from headrace.base.keys import hash_key
from headrace.dataflow.document.model import Output
from headrace.dataflow.runtime.messages import Closed, Message, Unreadable
from headrace.dataflow.runtime.packing import message_of, pack, unpack
from headrace.model.operator import ArrowOperator, Collector, OperatorContext


def divide(message: Message | Closed, *, by: str, partitions: int) -> Iterator[tuple[Message | Closed, int]]:
    """A message with the number of its instance, or its parts if it has rows for several.

    The end of an input and the tick of a timer are for all instances.
    """
    if isinstance(message, Closed) or pa.types.is_null(message.value.type):
        for number in range(partitions):
            yield message, number
        return
    value = message.value
    if pa.types.is_struct(value.type) and value.type.get_field_index(by) >= 0:
        rows = pa.RecordBatch.from_struct_array(value)
        numbers = _numbers(rows.select([by]), partitions)
        for number in np.unique(numbers).tolist():
            part = value.filter(pa.array(numbers == number))
            yield message._replace(value=part), number
        return
    metadata = message.metadata or {}
    if by not in metadata:
        has = f"metadata {', '.join(f'`{name}`' for name in metadata) or 'without keys'}"
        raise PlanError(
            f"partition_by: a message has neither a column nor metadata called `{by}`; it is "
            f"{value.type} with {has}",
            hint="send record batches with that column, or metadata with that key",
        )
    key = pa.RecordBatch.from_pydict({by: pa.array([str(metadata[by])])})
    yield message, int(_numbers(key, partitions)[0])


def _numbers(keys: pa.RecordBatch, partitions: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    hashes = hash_key(keys, keys.schema.names)
    return (hashes % np.uint64(partitions)).astype(np.int64)


def _readable(batch: pa.RecordBatch) -> list[tuple[str, Message | Closed]]:
    """The messages of a batch; one that cannot be read has no key, and so no instance that could be told."""
    messages: list[tuple[str, Message | Closed]] = []
    for output, message in unpack(batch):
        if isinstance(message, Unreadable):
            raise PlanError(f"a message of `{output}` cannot be read: {message.error}")
        messages.append((output, message))
    return messages


class Divide(ArrowOperator):
    """Divides what comes from a source among the instances of a parallel unit, in the source's own task."""

    def __init__(self, *, by: str, partitions: int, rows: Output | None = None, key: str = "") -> None:
        self._by = by
        self._partitions = partitions
        self._rows = rows
        self._key = key

    @property
    def name(self) -> str:
        return "divide"

    def display(self) -> str:
        """By what, and among how many."""
        return f"divide(by {self._by}, {self._partitions} instances)"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Give each message, or each part of the rows, the number of its instance."""
        messages = [(self._key, message_of(batch))] if self._rows is not None else _readable(batch)
        divided = [
            (key, part, number)
            for key, message in messages
            for part, number in divide(message, by=self._by, partitions=self._partitions)
        ]
        numbers = [number for _, _, number in divided]
        for packed in pack([(key, part) for key, part, _ in divided], partitions=numbers):
            collector.collect(packed)
