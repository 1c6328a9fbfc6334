"""The timers of a dataflow as a source: its offset counts the ticks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headrace.connectors.base import wall_clock
from headrace.dataflow.runtime.packing import pack_ticks
from headrace.dataflow.runtime.wakeups import Wakeups
from headrace.model.ahead import FollowedSource, Follower
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split

LANE = "timers"
ALIVE = "headrace/alive"
"""A timer that nobody reads: it lets time pass where nothing else does."""
IDLE_SECONDS = 1.0
"""How long a dataflow may have no epoch while its processes, which can ask for one, are silent."""
BATCH_ROWS = 4096


class TimerSource(SourceOperator, FollowedSource):
    """Ticks of any number of timers, in the order of their times.

    The first tick comes when the dataflow starts; the others come at exact distances from when it has been
    handled, so that operators may take their time to start. What fell due while the dataflow was stopped is
    not made up for: a resumed one ticks at once and goes on from there. While it runs no tick is lost, even
    if it is handled late.
    """

    def __init__(self, periods: Mapping[str, Fraction], *, attends: bool = False) -> None:
        self._periods = dict(periods)
        self._attends = attends
        """Whether `ALIVE` ticks for processes only: when one asks, and otherwise rarely."""
        self._wakeups: Wakeups | None = None
        self._attended: int | None = None
        self._since: dict[str, Any] = {}
        """When the ticks of this life are counted from, and from which tick on."""
        self._started = False

    @property
    def name(self) -> str:
        return "timer"

    def display(self) -> str:
        """The timers."""
        return f"timer({', '.join(self._periods)})"

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Let the processes of the job ask for epochs."""
        if self._attends:
            self._wakeups = Wakeups(job_id)

    def close(self) -> None:
        """No process is listened to any more."""
        wakeups, self._wakeups = self._wakeups, None
        if wakeups is not None:
            wakeups.close()

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
        elif any(position[name] != value for name, value in self._since.items()):
            # A resident task has counted on by its own clock.
            self._started = True
            self._since = {name: position[name] for name in self._since}
        elif not self._started and ticks != self._since["base"]:
            # The first epoch is over, and with it the start of Spark and of the operators.
            self._started = True
            self._since = {"begun": now, "base": {name: count - 1 for name, count in ticks.items()}}
        position |= self._since
        alive = {ALIVE: ticks[ALIVE] + self._must_attend(now)} if self._attends else {}
        due = {name: self._due(position, name, now) for name in self._periods} | alive
        if all(due[name] <= ticks[name] for name in ticks):
            return start
        # With more than an epoch takes, each timer gets its share up to the same moment.
        while sum(due[name] - ticks[name] for name in ticks) > limit.rows and now > position["begun"]:
            now = max(position["begun"], now - max(1, (now - self._first(position, ticks)) // 2))
            shorter = {name: max(ticks[name], self._due(position, name, now)) for name in ticks} | alive
            if shorter == ticks:
                break
            due = shorter
        return {LANE: {**position, "ticks": {name: max(due[name], ticks[name]) for name in ticks}}}

    def _must_attend(self, now: int) -> bool:
        """Whether an epoch has to look after the processes now."""
        woken = self._wakeups is not None and self._wakeups.take()
        can_wake = self._wakeups is not None and self._wakeups.are_heard
        pause = IDLE_SECONDS * 1e9 if can_wake else self._periods[ALIVE]
        if not woken and self._attended is not None and now - self._attended < pause:
            return False
        self._attended = now
        return True

    def _first(self, position: Mapping[str, Any], ticks: Mapping[str, int]) -> int:
        """When the next tick of all was due."""
        return min(self._time(position, name, count) for name, count in ticks.items())

    def _due(self, position: Mapping[str, Any], name: str, now: int) -> int:
        """The number of ticks of a timer that are due by now, including earlier runs."""
        elapsed = now - position["begun"]
        return int(
            position["base"].get(name, 0) + (elapsed // self._periods[name] + 1 if elapsed >= 0 else 0)
        )

    def _time(self, position: Mapping[str, Any], name: str, count: int) -> int:
        return tick_time(position, name, count, self._periods[name])

    def follow(self, offset: Offset, *, time: float, anew: bool) -> TimerFollower:
        """Tick by the clock of the task, from an offset on."""
        position = dict(offset[LANE])
        ticks = {name: position["ticks"].get(name, 0) for name in self._periods}
        if anew:
            # As `latest_offset` does: Spark and the operators took their time to start.
            base = {name: count - 1 for name, count in ticks.items()}
            position |= {"begun": wall_clock(time), "base": base}
        return TimerFollower(self._periods, {**position, "ticks": ticks})

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


class TimerFollower(Follower):
    """Ticks as they fall due."""

    def __init__(self, periods: Mapping[str, Fraction], position: dict[str, Any]) -> None:
        self._periods = periods
        self._position = position
        self._ticks: dict[str, int] = position["ticks"]
        self._next = [(self._time(name), name) for name in periods]
        heapq.heapify(self._next)

    def _time(self, name: str) -> int:
        return tick_time(self._position, name, self._ticks[name], self._periods[name])

    @property
    def offset(self) -> Offset:
        """The ticks so far."""
        return {LANE: {**self._position, "ticks": dict(self._ticks)}}

    def due(self) -> float | None:
        """When the next tick is due."""
        return self._next[0][0] / 1e9

    def read(self, now: float, most: int) -> Sequence[pa.RecordBatch]:
        """The ticks that are due by now."""
        until, rows = wall_clock(now), list[tuple[int, str]]()
        while len(rows) < most and self._next[0][0] <= until:
            rows.append(self._next[0])
            name = rows[-1][1]
            self._ticks[name] += 1
            heapq.heapreplace(self._next, (self._time(name), name))
        self.rows += len(rows)
        return [pack_ticks(rows)] if rows else []


def tick_time(position: Mapping[str, Any], name: str, count: int, period: Fraction) -> int:
    """When a tick is due, in nanoseconds; `count` ticks came before it."""
    return int(position["begun"] + (count - position["base"].get(name, 0)) * period)
