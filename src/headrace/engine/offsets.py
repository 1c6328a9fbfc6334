"""Plans what each epoch reads: one offset over all sources, and how large an epoch may be."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from headrace.base.errors import PlanError, UserError
from headrace.engine.sources import JobSources
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.model.operator import Limit, Offset, SourceOperator, Split

_SMALLEST = 1_000
_FIRST = 50_000
_LARGEST = 50_000_000


@dataclass
class EpochSize:
    """How many rows the next epoch may take, so that it lasts about as long as the target.

    An epoch costs a fixed part and a part per row. The fixed part is the shortest epoch seen; the rows
    get what is left of the target, but never less time than the fixed part itself, so that a slow
    machine with a backlog does not spend most of its time on epochs instead of rows.
    """

    target: float
    most: int | None = None
    rows: int = _FIRST
    fixed: float = field(default=float("inf"))

    def limit(self) -> int:
        return min(self.rows, self.most) if self.most else self.rows

    def measured(self, rows: int, seconds: float) -> None:
        """An epoch of `rows` rows took `seconds`: choose the size of the next one."""
        self.fixed = min(self.fixed, seconds)
        if rows < self.limit() // 2:
            return  # there was no backlog: the duration says nothing about the size
        budget = max(self.target - self.fixed, self.fixed, self.target / 4)
        # One of the shortest epochs has rows too: taken for nothing, the next one would be far too long.
        per_row = max(seconds - self.fixed, seconds / 3, 1e-6) / max(rows, 1)
        wanted = int(budget / per_row)
        # Never more than fourfold at once: the first epochs are slow for other reasons.
        self.rows = max(_SMALLEST, min(wanted, self.rows * 4, _LARGEST))


class OffsetPlanner:
    """Asks the sources how far an epoch reads and cuts the range into tasks.

    Its offset is one JSON object: `epoch`, `sources` (source → lane → position), `idle` lanes, `ended`
    sources, and `clock`, which moves when operators wait for time to pass without data. The sources must be
    open while they are asked. With `available_now` they are read up to what is there when the run starts.
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
    ) -> None:
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
        self._initial: dict[str, Any] | None = None

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
                after = source.latest_offset(before, limit, parallelism=self._stages.parallelism)
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
        if all(end[part] == start[part] for part in compared):
            return dict(start)
        self._asked = (now, rows)
        return end

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

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[SplitTask]:
        """The tasks of the epoch between two offsets; there is always at least one."""
        signals = _signals(start, end)
        splits: list[tuple[str | None, Split | None]] = []
        for name, source in self._sources.items():
            first, last = start["sources"][name], end["sources"][name]
            if first == last:
                continue
            with self._sources.calling(name, end["epoch"]):
                shares = source.splits(first, last, parallelism=self._stages.parallelism)
                for split in shares:
                    if split.lane not in last:
                        raise PlanError(
                            f"source `{name}` made a split of lane `{split.lane}`, which its offset has not",
                            hint=f"the lanes of the offset are {', '.join(last)}",
                        )
            splits += [(name, split) for split in shares]
        splits = splits or [(None, None)]
        signals["splits"] = len(splits)
        return [
            SplitTask(
                index=index,
                epoch=end["epoch"],
                time=end["time"],
                source=name,
                split=split,
                signals=signals if index == 0 else None,
            )
            for index, (name, split) in enumerate(splits)
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
    return SplitTask(index=0, epoch=epoch, time=time, source=None, split=None, signals=signals)


def _signals(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """What the first task of an epoch tells all others."""
    return {
        "start": dict(start),
        "end": dict(end),
        "lanes": {name: sorted(lanes) for name, lanes in end["sources"].items()},
        "idle": end["idle"],
        "ended": end["ended"],
    }
