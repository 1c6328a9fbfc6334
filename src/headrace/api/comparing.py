"""Compares what a replay sent and wrote with what was recorded."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.api.recording import SENT, WRITTEN
from headrace.base.columns import TIMESTAMP
from headrace.connectors.recording.files import RecordedEpoch, RecordingReader
from headrace.dataflow.runtime.messages import Closed, Message, Unreadable
from headrace.dataflow.runtime.packing import unpack

_SHOWN = 200
"""How many letters of a value are shown."""


@dataclass(frozen=True)
class Difference:
    """One message or row that is not as it was recorded."""

    port: str
    number: int | None
    """Which message of its output, from 1 on; None for a row of a table, which has no order."""
    recorded: str | None
    """What it was; None for one that was not recorded."""
    replayed: str | None
    """What it is now; None for one that did not come."""

    def __str__(self) -> str:
        which = f"`{self.port}`" if self.number is None else f"`{self.port}`, message {self.number}"
        if self.recorded is None:
            return f"{which}: {self.replayed} was not recorded"
        if self.replayed is None:
            return f"{which}: {self.recorded} did not come"
        return f"{which}: {self.replayed}, recorded was {self.recorded}"


def compare_recordings(
    recorded: RecordingReader,
    epochs: Sequence[RecordedEpoch],
    replayed: RecordingReader,
    *,
    units: Collection[str] | None = None,
) -> Iterator[Difference]:
    """What differs between some epochs of a recording and a recording of their replay.

    Messages of units are compared in the order of each output, by value and metadata, not by the time of
    sending. Rows of sinks have no order. What operators did when the replay was stopped counts only if the
    recorded run was stopped too, and what they did when it was stopped and resumed in between does not.
    `units` are those that were replayed, if not all.
    """
    was_stopped = bool(epochs) and epochs[-1].stopped
    epochs = [epoch for epoch in epochs if not epoch.stopped or epoch is epochs[-1]]
    again = [epoch for epoch in replayed.epochs if was_stopped or not epoch.stopped]
    for port in recorded.ports:
        if port not in replayed.ports:
            continue
        if port.startswith(SENT):
            was = _messages(recorded, port, epochs)
            was = (pair for pair in was if units is None or pair[0].partition("|")[0] in units)
            yield from _compare_messages(was, _messages(replayed, port, again))
        elif port.startswith(WRITTEN):
            # The rows of a dataflow have the time at which they were sent, which is another one now.
            hidden = {TIMESTAMP} if recorded.header["dataflow"] else set()
            yield from _compare_rows(
                port, _rows(recorded, port, epochs, hidden), _rows(replayed, port, again, hidden)
            )


def _messages(
    reader: RecordingReader, port: str, epochs: Sequence[RecordedEpoch]
) -> Iterator[tuple[str, Message | Closed | Unreadable]]:
    for epoch in epochs:
        for batch in reader.read(port, epoch):
            yield from unpack(batch)


def _compare_messages(
    left: Iterator[tuple[str, Any]], right: Iterator[tuple[str, Any]]
) -> Iterator[Difference]:
    """Output by output; only what one side is ahead with is held."""
    ahead: dict[str, tuple[deque[Any], deque[Any]]] = {}
    numbers: Counter[str] = Counter()
    sides = [left, right]
    while sides:
        for side in list(sides):
            item = next(side, None)
            if item is None:
                sides.remove(side)
                continue
            output, message = item
            queues = ahead.setdefault(output, (deque(), deque()))
            queues[0 if side is left else 1].append(message)
            while queues[0] and queues[1]:
                numbers[output] += 1
                was, now = queues[0].popleft(), queues[1].popleft()
                if not _is_same(was, now):
                    yield Difference(_name(output), numbers[output], _text(was), _text(now))
    for output, (missing, added) in ahead.items():
        for number, message in enumerate(missing, numbers[output] + 1):
            yield Difference(_name(output), number, _text(message), None)
        for number, message in enumerate(added, numbers[output] + 1):
            yield Difference(_name(output), number, None, _text(message))


def _rows(
    reader: RecordingReader, port: str, epochs: Sequence[RecordedEpoch], hidden: Collection[str]
) -> Iterator[str]:
    for epoch in epochs:
        for batch in reader.read(port, epoch):
            for row in batch.to_pylist():
                yield ", ".join(f"{name}={value!r}" for name, value in row.items() if name not in hidden)


def _compare_rows(port: str, left: Iterator[str], right: Iterator[str]) -> Iterator[Difference]:
    rows = Counter(left)
    rows.subtract(right)
    for row, count in rows.items():
        for _ in range(abs(count)):
            yield Difference(
                port.removeprefix(WRITTEN), None, row if count > 0 else None, row if count < 0 else None
            )


def _is_same(left: Any, right: Any) -> bool:
    if not isinstance(left, Message) or not isinstance(right, Message):
        return type(left) is type(right)
    return (left.metadata or {}) == (right.metadata or {}) and _are_equal(left.value, right.value)


def _are_equal(left: pa.Array, right: pa.Array) -> bool:
    # Not a number is what it was, here.
    return left.type == right.type and (
        left.equals(right) or repr(left.to_pylist()) == repr(right.to_pylist())
    )


def _name(output: str) -> str:
    return output.replace("|", "/")


def _text(message: Any) -> str:
    if isinstance(message, Closed):
        return "the end of the output"
    if isinstance(message, Unreadable):
        return message.error
    text = str(message.value.slice(0, 20).to_pylist())
    metadata = f" with {message.metadata}" if message.metadata else ""
    return f"{message.value.type} {text[:_SHOWN]}{metadata}"
