"""A source that gives what was recorded of a port, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from headrace.connectors.recording.files import RecordedEpoch, RecordingReader
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split

LANE = "recording"


class RecordedSource(SourceOperator):
    """The rows of ports of a recording, each for one output of the source.

    An epoch of the replay is an epoch of the recording. All such sources of a pipeline go on together, so
    that an epoch has the same rows of every port as it had when it was recorded. `first` and `last` are the
    numbers of the epochs to replay.
    """

    def __init__(self, directory: str, ports: Mapping[str, str], *, first: int, last: int) -> None:
        self._directory, self._ports = directory, dict(ports)
        self._first, self._last = first, last

    @property
    def name(self) -> str:
        return "recorded"

    def display(self) -> str:
        """Whose rows."""
        return f"recorded({', '.join(self._ports.values())})"

    @property
    def _epochs(self) -> list[RecordedEpoch]:
        return _selected(self._directory, self._first, self._last)[1]

    def initial_offset(self, *, time: float) -> Offset:
        """Before the first epoch."""
        return {LANE: 0}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """One epoch further."""
        return {LANE: min(start[LANE] + 1, len(self._epochs))}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """The epoch in one task: its order counts."""
        return [Split(LANE, {"first": start[LANE], "last": end[LANE]})]

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Give the rows of the epoch again."""
        reader, epochs = _selected(self._directory, self._first, self._last)
        first, last = ctx.split.detail["first"], ctx.split.detail["last"]
        ended = False
        for epoch in epochs[first:last]:
            for output, port in self._ports.items():
                for batch in reader.read(port, epoch):
                    collector.collect(batch, output)
            ended = set(self._ports.values()) <= set(epoch.ended)
        return Finish.FINAL if ended else Finish.GRACEFUL

    def count(self, start: Offset, end: Offset) -> int:
        """Exactly the rows of the range."""
        epochs = self._epochs[start[LANE] : end[LANE]]
        return sum(
            epoch.segments[port].rows
            for epoch in epochs
            for port in self._ports.values()
            if port in epoch.segments
        )


@lru_cache(maxsize=4)
def _selected(directory: str, first: int, last: int) -> tuple[RecordingReader, list[RecordedEpoch]]:
    """The recording and its epochs to replay: read once by a process, however many epochs it runs."""
    reader = RecordingReader(Path(directory))
    return reader, [epoch for epoch in reader.epochs if first <= epoch.epoch <= last]
