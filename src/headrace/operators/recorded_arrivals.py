"""Which event times the stored rows of an epoch have, so that whole epochs can be removed unread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import InternalError
from headrace.model.operator import OperatorContext
from headrace.operators.changes import now
from headrace.state.global_table import GlobalKey

ARRIVALS: Final = "arrivals"
"""The global table of what has arrived."""
_MOST = 64
"""Ranges of arrival that are recorded for a side and subtask; more are merged, two by two."""


@dataclass(frozen=True)
class _Arrivals:
    """Rows that arrived between two instants of the wall clock, and the latest event time among them."""

    first: int
    last: int
    latest: int

    def overlaps(self, other: _Arrivals) -> bool:
        return self.first <= other.last and other.first <= self.last

    def merged(self, other: _Arrivals) -> _Arrivals:
        return _Arrivals(
            min(self.first, other.first), max(self.last, other.last), max(self.latest, other.latest)
        )


class RecordedArrivals:
    """The rows of one side of a join by the time of their arrival, in ranges.

    Each subtask records its own; all are read, since rows change subtasks when a pipeline is rescaled.
    """

    def __init__(self, ctx: OperatorContext, side: str) -> None:
        self._ctx = ctx
        self._side = side
        self._table = ctx.global_table(ARRIVALS)
        self._key = (side, ctx.task_info.subtask)

    def add(self, rows: pa.Table) -> None:
        """Record rows that have arrived in this epoch."""
        if not rows.num_rows:
            return
        latest = pc.max(rows.column(TIMESTAMP).cast(pa.int64())).as_py()
        arrived = _Arrivals(now(self._ctx), now(self._ctx), latest)
        own = self._read(self._key)
        # The clock may have been set back: what arrives within a range belongs to it.
        for at, arrivals in enumerate(own):
            if arrivals.overlaps(arrived):
                own[at] = arrivals.merged(arrived)
                break
        else:
            own = sorted([*own, arrived], key=lambda arrivals: arrivals.first)
        if len(own) > _MOST:
            own = [own[at].merged(own[min(at + 1, len(own) - 1)]) for at in range(0, len(own), 2)]
        self._write(self._key, own)

    def take_before(self, time: int) -> list[tuple[int, int]]:
        """Return and forget the ranges of arrival in which every row has an earlier event time."""
        task = self._ctx.task_info
        recorded = {
            subtask: self._read((self._side, subtask))
            for side, subtask in map(_side_and_subtask, self._table.get_all())
            if side == self._side
        }
        everything = [arrivals for ranges in recorded.values() for arrivals in ranges]
        later = [arrivals for arrivals in everything if arrivals.latest >= time]
        over = [a for a in everything if a.latest < time and not any(a.overlaps(other) for other in later)]
        for subtask, ranges in recorded.items():
            remaining = [arrivals for arrivals in ranges if arrivals not in over]
            # A subtask forgets what it has recorded; the first also what those did that are no longer there.
            is_own = subtask == task.subtask or (task.subtask == 0 and subtask >= task.parallelism)
            if is_own and len(remaining) < len(ranges):
                self._write((self._side, subtask), remaining)
        return [(arrivals.first, arrivals.last) for arrivals in over]

    def _read(self, key: tuple[str, int]) -> list[_Arrivals]:
        return [_Arrivals(*arrivals) for arrivals in self._table.get(key, [])]

    def _write(self, key: tuple[str, int], recorded: list[_Arrivals]) -> None:
        if recorded:
            self._table.insert(key, [[a.first, a.last, a.latest] for a in recorded])
        else:
            self._table.delete(key)


def _side_and_subtask(key: GlobalKey) -> tuple[str, int]:
    if not isinstance(key, tuple):
        raise InternalError(f"`{key}` was recorded as the arrivals of a subtask")
    return str(key[0]), int(str(key[1]))
