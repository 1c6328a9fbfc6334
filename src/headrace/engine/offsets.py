"""Plans what each epoch reads: one offset over all sources, and how large an epoch may be."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from headrace.base.errors import HeadraceError, PlanError, UserError
from headrace.engine.exchange import ResidentExchange
from headrace.engine.resident import Extension
from headrace.engine.sources import JobSources
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.model.ahead import FollowedSource, Positions
from headrace.model.operator import Limit, Offset, SourceOperator, Split

_FEW_TASKS = 8
_TASK_ROWS = 100
"""With more tasks than a few, each reads at least so many rows."""
_SMALLEST = 1_000
_AHEAD_ROWS = 10_000
"""How many rows of a source a task that stays is given at once."""
_FIRST = 100_000
"""Rows of the first epoch, if there are so many. Workers start in it, which takes longer than these rows."""
_SETTLED = 1.5
"""The first change that is smaller than this ends the growth of the beginning."""
_DAMPING = 1 / 3
"""The power of a change that is made of it."""
_FAR_TOO_LONG = 8
"""How many targets an epoch may last before a far smaller one is tried."""
_LARGEST = 50_000_000


@dataclass(frozen=True)
class Lag:
    """How much of a source is available and not read yet."""

    unit: Literal["rows", "bytes", "files"]
    lanes: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.lanes.values())


@dataclass
class EpochSize:
    """How many rows the next epoch may take, so that it lasts about as long as the target.

    An epoch costs a fixed part and a part per row. The fixed part is the shortest epoch seen; the rows
    get what is left of the target, but never less time than the fixed part itself, so that a slow
    machine with a backlog does not spend most of its time on epochs instead of rows.

    The size grows fast until it has once been large enough. From then on it is damped: epochs of one size
    differ in their time by a third, and a size that followed each of them would swing by more than that.
    """

    target: float
    most: int | None = None
    rows: int = _FIRST
    fixed: float = field(default=float("inf"))
    _has_settled: bool = False
    _per_row_before: float | None = None
    """Seconds per row of an epoch that was far too long, after which a smaller one is tried."""
    _is_fixed_large: bool = False
    """Whether a smaller epoch has been tried, and took about as long."""

    def limit(self) -> int:
        """How many rows the next epoch may take."""
        return min(self.rows, self.most) if self.most else self.rows

    def rescaled(self, factor: float) -> None:
        """There are `factor` times as many subtasks from now on: the fixed part is no longer what it was."""
        self.fixed *= max(1.0, factor)

    def measured(self, rows: int, seconds: float) -> None:
        """An epoch of `rows` rows took `seconds`: choose the size of the next one."""
        self.fixed = min(self.fixed, seconds)
        if rows < self.limit() // 2:
            return  # there was no backlog: the duration says nothing about the size
        wanted = self._shorter(rows, seconds) or self._towards_target(rows, seconds)
        self.rows = max(_SMALLEST, min(int(wanted), _LARGEST))

    def _towards_target(self, rows: int, seconds: float) -> float:
        """How many rows come closer to the target than an epoch of so many that took so long."""
        budget = max(self.target - self.fixed, self.fixed, self.target / 4)
        # One of the shortest epochs has rows too: taken for nothing, the next one would be far too long.
        in_rows = max(seconds - self.fixed, seconds / 3, 1e-6)
        # Never more than fourfold at once: the first epochs are slow for other reasons.
        change = min(budget / in_rows * max(rows, 1) / self.rows, 4.0)
        self._has_settled = self._has_settled or change < _SETTLED
        is_damped = self._has_settled and seconds < 2 * (self.fixed + budget)
        return self.rows * (change**_DAMPING if is_damped else change)

    def _shorter(self, rows: int, seconds: float) -> float | None:
        """A fraction to try after an epoch that was far too long, unless a fraction took no less time before.

        Its time is the shortest seen as long as all epochs are so long: it would be taken for the fixed part.
        """
        per_row = seconds / max(rows, 1)
        if self._is_fixed_large or seconds < _FAR_TOO_LONG * self.target:
            return None
        if self._per_row_before is not None and per_row > 2 * self._per_row_before:
            self._is_fixed_large = True
            return None
        self._per_row_before = per_row
        return rows / 4


class OffsetPlanner:
    """Asks the sources how far an epoch reads and cuts the range into tasks.

    Its offset is one JSON object: `epoch`, `sources` (source → lane → position), `idle` lanes, `ended`
    sources, and `clock`, which moves when operators wait for time to pass without data. The sources must be
    open while they are asked. With `available_now` they are read up to what is there when the run starts.
    `resident` is the exchange, if its task stays: it says how far sources were read before the epoch is
    planned. While that goes on, it is told how far to read those that its task does not follow by itself.
    """

    def __init__(
        self,
        stages: StagePlan,
        sources: JobSources,
        *,
        size: EpochSize,
        restored: Mapping[str, Any] | None,
        epoch: int,
        now: Callable[[], float] = clock.time,
        available_now: bool = False,
        resident: ResidentExchange | None = None,
    ) -> None:
        self._resident = resident
        self._extended: tuple[int, dict[str, Offset]] = -1, {}
        """How far sources are read in the epoch that is ahead, and its number."""
        self._answered: dict[str, Offset] = {}
        """The farthest that a source has said: it is not asked from before that again."""
        self._failure: HeadraceError | None = None
        """What a source has failed with, after rows that are not committed yet."""
        self._stages = stages
        self._size = size
        self._now = now
        self._restored = restored
        self._epoch = epoch
        self._sources = sources
        self._available_now = available_now
        ticks = [node.tick for node in stages.plan.nodes if node.tick is not None]
        self._tick = min(ticks) if ticks else None
        self._last_moved: dict[tuple[str, str], float] = {}
        self._asked: tuple[float, int] | None = None
        self.load = 0.0
        """The share of the rows that an epoch may take which the last one that was planned reads."""
        self._initial: dict[str, Any] | None = None

    def use(self, stages: StagePlan) -> None:
        """Plan for the same sources at another parallelism from the next epoch on."""
        self._size.rescaled(stages.parallelism / self._stages.parallelism)
        self._asked = None  # how long the last epoch took says nothing about the next one
        self._stages = stages

    def initial(self) -> dict[str, Any]:
        """Where this run starts: the restored offsets, and the beginning for new sources. Once for all."""
        if self._initial is not None:
            return self._initial
        now = self._now()
        restored = (self._restored or {}).get("sources", {})
        sources = {}
        ended = (self._restored or {}).get("ended", [])
        for name, source in self._sources.items():
            with self._sources.calling(name, self._epoch):
                sources[name] = restored[name] if name in restored else source.initial_offset(time=now)
                if self._available_now:
                    sources[name] = _limited(name, source, sources[name], time=now)
                    if name in ended and not source.is_finished(sources[name]):
                        raise _ended_before(name)
        self._initial = {
            "epoch": self._epoch,
            "sources": sources,
            "idle": {},
            "ended": [name for name in ended if name in sources],
            "clock": 0,
            "time": now,
        }
        return self._initial

    def latest(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """How far the next epoch reads; `start` itself when there is nothing to do."""
        handled: Positions = {}
        if self._resident is not None:
            position = self._resident.look()
            if position is None:
                self._read_on(self._resident, start)
                return dict(start)
            handled = position
        now = self._now()
        if self._asked is not None:
            asked_at, rows = self._asked
            self._asked = None
            self._size.measured(rows, now - asked_at)
        active = [name for name in self._sources if name not in start["ended"]]
        end: dict[str, Any] = {
            "epoch": start["epoch"] + 1,
            "sources": dict(start["sources"]),
            "idle": {},
            "ended": list(start["ended"]),
            "clock": 0 if self._tick is None else int(now / self._tick),
            "time": now,
        }
        limit = Limit(rows=max(1, self._size.limit() // max(1, len(active))), time=now)
        rows = 0
        for name in active:
            source, before = self._sources[name], start["sources"][name]
            with self._sources.calling(name, end["epoch"]):
                after = handled[name] if name in handled else self._latest(name, before, limit)
                if after != before:
                    count = source.count(before, after)
                    rows += limit.rows if count is None else count
                if source.is_finished(after):
                    end["ended"].append(name)
            end["sources"][name] = after
            idle = self._idle_lanes(name, source, before, after, now)
            if idle:
                end["idle"][name] = idle
        compared = ("sources", "ended") if self._available_now else ("sources", "idle", "ended", "clock")
        if not handled and all(end[part] == start[part] for part in compared):
            return dict(start)
        self._asked = (now, rows)
        self.load = rows / self._size.limit()
        return end

    def _latest(self, name: str, before: Offset, limit: Limit) -> Offset:
        """How far a source can be read."""
        source = self._sources[name]
        if self._resident is None or isinstance(source, FollowedSource):
            return source.latest_offset(before, limit, parallelism=self._stages.parallelism)
        if self._answered.setdefault(name, before) == before:
            self._answered[name] = source.latest_offset(before, limit, parallelism=self._stages.parallelism)
        return self._answered[name]

    def _read_on(self, resident: ResidentExchange, start: Mapping[str, Any]) -> None:
        """Let the task that is ahead read what sources have by now, if it does not follow them by itself.

        If a source fails, what came before is committed first.
        """
        if self._failure is not None:
            raise self._failure
        epoch, now = start["epoch"] + 1, self._now()
        if self._extended[0] != epoch:
            self._extended = epoch, dict(start["sources"])
        offsets, limit = self._extended[1], Limit(rows=min(self._size.limit(), _AHEAD_ROWS), time=now)
        extensions: dict[str, Extension] = {}
        for name, source in self._sources.items():
            before = offsets[name]
            if isinstance(source, FollowedSource) or name in start["ended"] or source.is_finished(before):
                continue
            try:
                with self._sources.calling(name, epoch):
                    after = self._latest(name, before, limit)
                    splits = [] if after == before else source.splits(before, after, parallelism=1)
            except HeadraceError as error:
                if error.retry:
                    raise
                self._failure = error
                resident.end_soon()
                return
            if after != before:
                extensions[name] = Extension(splits, after)
        if extensions and resident.extend(extensions):
            offsets.update({name: extension.offset for name, extension in extensions.items()})

    def lag(self, offset: Mapping[str, Any]) -> dict[str, Lag]:
        """How much is not read yet after this offset, for each source that can tell."""
        lag = {}
        for name, source in self._sources.items():
            with self._sources.calling(name, offset["epoch"]):
                if lanes := source.lag(offset["sources"][name], time=offset["time"]):
                    lag[name] = Lag(source.lag_unit, lanes)
        return lag

    def finished(self, offset: Mapping[str, Any]) -> bool:
        """Whether every source has ended at this offset."""
        return set(offset["ended"]) >= set(self._sources)

    def _idle_lanes(
        self,
        name: str,
        source: SourceOperator,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        now: float,
    ) -> list[str]:
        timeout: timedelta | None = source.idle_timeout
        if timeout is None:
            return []
        idle = []
        for lane, position in after.items():
            if position != before.get(lane) or (name, lane) not in self._last_moved:
                self._last_moved[name, lane] = now
            elif now - self._last_moved[name, lane] >= timeout.total_seconds():
                idle.append(lane)
        return sorted(idle)

    def _shares(self, rows: int | None) -> int:
        """About how many tasks read a source: no more than is worth it for so many rows."""
        parallelism = self._stages.parallelism
        return parallelism if rows is None else min(parallelism, max(_FEW_TASKS, -(-rows // _TASK_ROWS)))

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[SplitTask]:
        """The tasks of the epoch between two offsets; there is always at least one."""
        signals = _signals(start, end)
        splits: list[tuple[str | None, Split | None, int | None]] = []
        for name, source in self._sources.items():
            first, last = start["sources"][name], end["sources"][name]
            if first == last:
                continue
            with self._sources.calling(name, end["epoch"]):
                rows = source.count(first, last)
                shares = source.splits(first, last, parallelism=self._shares(rows))
                for split in shares:
                    if split.lane not in last:
                        raise PlanError(
                            f"source `{name}` made a split of lane `{split.lane}`, which its offset has not",
                            hint=f"the lanes of the offset are {', '.join(last)}",
                        )
            share = None if rows is None else -(-rows // max(1, len(shares)))
            splits += [(name, split, share) for split in shares]
        splits = splits or [(None, None, 0)]
        signals["splits"] = len(splits)
        return [
            SplitTask(
                index=index,
                epoch=end["epoch"],
                time=end["time"],
                source=name,
                split=split,
                signals=signals if index == 0 else None,
                rows=rows,
            )
            for index, (name, split, rows) in enumerate(splits)
        ]


def _limited(name: str, source: SourceOperator, start: Offset, *, time: float) -> Offset:
    try:
        return source.limit_to_available(start, time=time)
    except UserError as error:
        error.where = error.where or f"source `{name}`"
        raise


def _ended_before(name: str) -> PlanError:
    return PlanError(
        f"source `{name}` was read to its end, for good, by an earlier run without `available_now`: its "
        "windows are closed, and what came since would be late",
        hint="begin with another state directory, and read it with `--available-now` from the first run on",
    )


def quiet_task(offsets: Mapping[str, Any], *, epoch: int, time: float) -> SplitTask:
    """The only task of an epoch that reads nothing and ends where the one before it did."""
    end = {**offsets, "epoch": epoch, "time": time}
    signals = _signals(offsets, end) | {"splits": 1}
    return SplitTask(index=0, epoch=epoch, time=time, source=None, split=None, signals=signals, rows=0)


def _signals(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """The information that the first task of an epoch passes to the others."""
    return {
        "start": dict(start),
        "end": dict(end),
        "lanes": {name: sorted(lanes) for name, lanes in end["sources"].items()},
        "idle": end["idle"],
        "ended": end["ended"],
    }
