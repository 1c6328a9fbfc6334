"""The timers of a dataflow as a source: its offset counts the ticks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from headrace.connectors.base import wall_clock
from headrace.dataflow.runtime.packing import pack_ticks
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split

LANE = "timers"
BATCH_ROWS = 4096


class TimerSource(SourceOperator):
    """Ticks of any number of timers, in the order of their times.

    The first tick comes when the dataflow starts; the others come at exact distances from when it has been
    handled, so that operators may take their time to start. What fell due while the dataflow was stopped is
    not made up for: a resumed one ticks at once and goes on from there. While it runs no tick is lost, even
    if it is handled late.
    """

    def __init__(self, periods: Mapping[str, Fraction]) -> None:
        self._periods = dict(periods)
        self._since: dict[str, Any] = {}
        """When the ticks of this life are counted from, and from which tick on."""
        self._started = False

    @property
    def name(self) -> str:
        return "timer"

    def display(self) -> str:
        """The timers."""
        return f"timer({', '.join(self._periods)})"

    def initial_offset(self, *, time: float) -> Offset:
        """No timer has ticked."""
        return {LANE: {"begun": wall_clock(time), "base": {}, "ticks": dict.fromkeys(self._periods, 0)}}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """The ticks that are due by now."""
        now = wall_clock(limit.time)
        position = dict(start[LANE])
        ticks = {name: position["ticks"].get(name, 0) for name in self._periods}
        if not self._since:
            # A new life of the dataflow: time starts again where its ticks had come to.
            self._since = {"begun": now, "base": ticks}
        elif not self._started and ticks != self._since["base"]:
            # The first epoch is over, and with it the start of Spark and of the operators.
            self._started = True
            self._since = {"begun": now, "base": {name: count - 1 for name, count in ticks.items()}}
        position |= self._since
        due = {name: self._due(position, name, now) for name in self._periods}
        if all(due[name] <= ticks[name] for name in ticks):
            return start
        # With more than an epoch takes, each timer gets its share up to the same moment.
        while sum(due[name] - ticks[name] for name in ticks) > limit.rows and now > position["begun"]:
            now = max(position["begun"], now - max(1, (now - self._first(position, ticks)) // 2))
            shorter = {name: max(ticks[name], self._due(position, name, now)) for name in ticks}
            if shorter == ticks:
                break
            due = shorter
        return {LANE: {**position, "ticks": {name: max(due[name], ticks[name]) for name in ticks}}}

    def _first(self, position: Mapping[str, Any], ticks: Mapping[str, int]) -> int:
        """When the next tick of all was due."""
        return min(self._time(position, name, count) for name, count in ticks.items())

    def _due(self, position: Mapping[str, Any], name: str, now: int) -> int:
        """How many ticks of a timer there should have been by now, those of earlier lives included."""
        elapsed = now - position["begun"]
        return int(
            position["base"].get(name, 0) + (elapsed // self._periods[name] + 1 if elapsed >= 0 else 0)
        )

    def _time(self, position: Mapping[str, Any], name: str, count: int) -> int:
        return int(position["begun"] + (count - position["base"].get(name, 0)) * self._periods[name])

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """All ticks in one task: they are few, and their order matters."""
        return [Split(LANE, {**end[LANE], "from": start[LANE]["ticks"]})]

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Make the ticks of one epoch."""
        position = ctx.split.detail
        ticks = heapq.merge(*(self._ticks(position, name) for name in self._periods))
        rows: list[tuple[int, str]] = []
        for tick in ticks:
            rows.append(tick)
            if len(rows) == BATCH_ROWS:
                collector.collect(pack_ticks(rows))
                rows = []
        if rows:
            collector.collect(pack_ticks(rows))
        return Finish.GRACEFUL

    def _ticks(self, position: Mapping[str, Any], name: str) -> Iterator[tuple[int, str]]:
        for count in range(position["from"].get(name, 0), position["ticks"][name]):
            yield self._time(position, name, count), name

    def count(self, start: Offset, end: Offset) -> int:
        """Exactly the ticks of the range."""
        before = start[LANE]["ticks"]
        return sum(ticks - before.get(name, 0) for name, ticks in end[LANE]["ticks"].items())
