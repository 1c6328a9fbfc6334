"""Plans what each epoch reads: one offset over all sources, and how large an epoch may be."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from headrace.errors import ConfigurationError
from headrace.operator import Limit, SourceOperator
from headrace.runtime.chain import load_operator
from headrace.runtime.stages import StagePlan
from headrace.runtime.task import SplitTask

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
        per_row = max(seconds - self.fixed, seconds / 20, 1e-6) / max(rows, 1)
        wanted = int(budget / per_row)
        # Never more than fourfold at once: the first epochs are slow for other reasons.
        self.rows = max(_SMALLEST, min(wanted, self.rows * 4, _LARGEST))


class OffsetPlanner:
    """Asks the sources how far an epoch reads and cuts the range into tasks.

    Its offset is one JSON object: `epoch`, `sources` (source → lane → position), `idle` lanes, `ended`
    sources, and `clock`, which moves when operators wait for time to pass without data.
    """

    def __init__(
        self,
        stages: StagePlan,
        *,
        size: EpochSize,
        restored: Mapping[str, Any] | None,
        epoch: int,
        now: Callable[[], float] = clock.time,
    ) -> None:
        self._stages = stages
        self._size = size
        self._now = now
        self._restored = restored
        self._epoch = epoch
        self._sources: dict[str, SourceOperator] = {node.id: load_operator(node) for node in stages.sources}
        ticks = [node.tick for node in stages.plan.nodes if node.tick is not None]
        self._tick = min(ticks) if ticks else None
        self._last_moved: dict[tuple[str, str], float] = {}
        self._asked: tuple[float, int] | None = None

    def initial(self) -> dict[str, Any]:
        """Where this run starts: the restored offsets, and the beginning for new sources."""
        now = self._now()
        restored = (self._restored or {}).get("sources", {})
        sources = {
            name: restored[name] if name in restored else source.initial_offset(time=now)
            for name, source in self._sources.items()
        }
        return {"epoch": self._epoch, "sources": sources, "idle": {}, "ended": [], "clock": 0}

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
        }
        limit = Limit(rows=max(1, self._size.limit() // max(1, len(active))), time=now)
        rows = 0
        for name in active:
            source, before = self._sources[name], start["sources"][name]
            after = source.latest_offset(before, limit, parallelism=self._stages.parallelism)
            end["sources"][name] = after
            if after != before:
                count = source.count(before, after)
                rows += limit.rows if count is None else count
            if source.is_finished(after):
                end["ended"].append(name)
            idle = self._idle_lanes(name, source, before, after, now)
            if idle:
                end["idle"][name] = idle
        if {**end, "epoch": 0} == {**start, "epoch": 0}:
            return dict(start)
        if active or self._tick is not None:
            self._asked = (now, rows)
            return end
        return dict(start)

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
        signals = {
            "start": dict(start),
            "end": dict(end),
            "lanes": {name: sorted(end["sources"][name]) for name in self._sources},
            "idle": end["idle"],
            "ended": end["ended"],
        }
        splits = [
            (name, split)
            for name, source in self._sources.items()
            if end["sources"][name] != start["sources"][name]
            for split in source.splits(
                start["sources"][name],
                end["sources"][name],
                parallelism=self._stages.parallelism,
            )
        ]
        for name, split in splits:
            if split.lane not in end["sources"][name]:
                raise ConfigurationError(
                    f"source `{name}` made a split of lane `{split.lane}`, which its offset does not have",
                    hint=f"the lanes of the offset are {', '.join(end['sources'][name])}",
                )
        signals["splits"] = max(1, len(splits))
        if not splits:
            return [SplitTask(0, end["epoch"], None, None, signals)]
        return [
            SplitTask(i, end["epoch"], name, split, signals if i == 0 else None)
            for i, (name, split) in enumerate(splits)
        ]

    def committed(self, offsets: Mapping[str, Any]) -> None:
        """Tell the sources that everything up to these offsets is durable."""
        for name, source in self._sources.items():
            if name in offsets["sources"]:
                source.committed(offsets["sources"][name])
