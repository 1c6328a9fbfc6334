"""What a run measures of itself: totals since its start, and how they grew over the last minutes.

`RunMetrics.snapshot` is plain data. Python's `handle.metrics_snapshot()`, the question `metrics` of the
control socket, Prometheus and the server all show it, under the same names.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.base.watermarks import END_OF_TIME
from headrace.engine.offsets import Lag
from headrace.engine.reports import EpochReport, Phases, Work
from headrace.engine.stages import StagePlan
from headrace.state.metadata import TableSize

HISTORY_SECONDS = 600.0
"""How far back the history goes."""
RESOLUTION = 5.0
"""Seconds between two points of the history."""
RECENT_SECONDS = 60.0
"""Over how long it is measured how busy an operator is."""
MOST_SERIES = 2_000
"""With more subtasks than that in all, the history has one series for each operator."""
ALL_SUBTASKS = -1
"""The subtask of that series."""
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds, in seconds, of the histogram of epochs."""
PHASES = tuple(field.name for field in dataclasses.fields(Phases))

Subtasks = Mapping[str, Mapping[int, Work]]


@dataclass(frozen=True)
class _Point:
    """Where the totals stood at some time."""

    time: float
    work: Subtasks
    run: Mapping[str, float | None]


@dataclass
class _Totals:
    """What has been added up over the epochs of a run."""

    epochs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    bytes_written: int = 0
    errors: int = 0
    retries: int = 0
    work: dict[str, dict[int, Work]] = field(default_factory=lambda: defaultdict(dict))
    counters: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    commits: dict[str, tuple[int, float]] = field(default_factory=dict)


class RunMetrics:
    """Adds up the reports of one run; `add` is called in its thread, everything else in any."""

    def __init__(self, stages: StagePlan, *, job_id: str, clock: Callable[[], float] = time.time) -> None:
        self._stages = stages
        self._job_id = job_id
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._totals = _Totals()
        self._last: EpochReport | None = None
        self._last_at = 0.0
        self._lag: Mapping[str, Lag] = {}
        self._history: deque[_Point] = deque()
        behind: dict[str, set[str]] = {}
        for node in reversed(stages.plan.nodes):
            direct = {edge.target for edge in stages.plan.outputs(node.id)}
            behind[node.id] = direct.union(*(behind[target] for target in direct))
        self._behind = behind
        """By operator: all that its rows can reach."""

    # ------------------------------------------------------------------------------------- the run

    def add(self, report: EpochReport) -> None:
        """Add an epoch."""
        now = self._clock()
        with self._lock:
            if not self._history:
                self._keep(now - _seconds(report.phases))
            elif (began := now - _seconds(report.phases)) > self._history[-1].time + RESOLUTION:
                self._keep(began + report.phases.wait)  # until then nothing has changed
            self._add(report)
            self._last, self._last_at, self._lag = report, now, report.lag or self._lag
            if now >= self._history[-1].time + RESOLUTION:
                self._keep(now)
                while self._history[0].time < now - HISTORY_SECONDS:
                    self._history.popleft()

    def _add(self, report: EpochReport) -> None:
        totals = self._totals
        totals.epochs += 1
        totals.rows_in += report.rows_in
        totals.rows_out += report.rows_out
        totals.bytes_written += report.bytes_written
        totals.errors += len(report.errors)
        for node, subtasks in report.work.items():
            parts = totals.work[node]
            for subtask, work in subtasks.items():
                parts[subtask] = parts[subtask] + work if subtask in parts else work
        for node, counters in report.metrics.items():
            sums = totals.counters[node]
            for name, value in counters.items():
                sums[name] = sums.get(name, 0.0) + value
        for phase in PHASES:
            totals.phases[phase] += getattr(report.phases, phase)
        seconds = _seconds(report.phases) - report.phases.wait
        totals.buckets[sum(seconds > bound for bound in BUCKETS)] += 1
        for sink, seconds in report.commits.items():
            commits, spent = totals.commits.get(sink, (0, 0.0))
            totals.commits[sink] = commits + 1, spent + seconds

    def count_retry(self) -> None:
        """Count an epoch, or a question to a source, that is tried again."""
        with self._lock:
            self._totals.retries += 1

    def _keep(self, now: float) -> None:
        self._history.append(self._point(now))

    def _point(self, now: float) -> _Point:
        work = self._totals.work
        totals: Subtasks
        if sum(map(len, work.values())) <= MOST_SERIES:
            totals = {node: dict(subtasks) for node, subtasks in work.items()}
        else:
            totals = {node: {ALL_SUBTASKS: _sum(subtasks)} for node, subtasks in work.items()}
        return _Point(now, totals, self._of_run(now))

    # ------------------------------------------------------------------------------------ questions

    def counters(self) -> dict[str, dict[str, float]]:
        """The counters of every source and operator, summed over the epochs so far."""
        with self._lock:
            return {node: dict(counters) for node, counters in self._totals.counters.items()}

    def operators(self) -> dict[str, dict[str, float]]:
        """The counters of every source and operator, with the bytes, the seconds and the state of each."""
        with self._lock:
            return {node: self._of_operator(node) for node in self._totals.counters}

    def _of_operator(self, node: str) -> dict[str, float]:
        tables = self._tables(node).values()
        commits = self._totals.commits.get(node)
        return {
            **_measured(_sum(self._totals.work.get(node, {}))),
            **({"state_rows": sum(t.rows for t in tables)} if tables else {}),
            **({"state_bytes": sum(t.bytes for t in tables)} if tables else {}),
            **({} if commits is None else {"commits": commits[0], "commit_seconds": commits[1]}),
            **self._totals.counters[node],
        }

    def _tables(self, node: str) -> Mapping[str, TableSize]:
        return {} if self._last is None else self._last.tables.get(node, {})

    def lag(self) -> dict[str, float]:
        """What the last epoch has left unread, by its unit: rows, bytes or files."""
        with self._lock:
            return self._unread()

    def _unread(self) -> dict[str, float]:
        lags: dict[str, float] = {}
        for lag in self._lag.values():
            lags[lag.unit] = lags.get(lag.unit, 0) + lag.total
        return lags

    def snapshot(self, *, history: bool = True) -> dict[str, Any]:
        """Everything that is known, as JSON; `history` is whether with that of the last minutes."""
        now = self._clock()
        with self._lock:
            totals, last = self._totals, self._last
            busy = self._busy(now)
            snapshot: dict[str, Any] = {
                "pipeline": self._stages.plan.name,
                "job": self._job_id,
                "time": now,
                "started": self._started,
                "parallelism": self._stages.parallelism,
                "epochs": totals.epochs,
                "last_epoch": None if last is None else last.epoch,
                "last_epoch_seconds": None if last is None else dataclasses.asdict(last.phases),
                "phase_seconds": dict(totals.phases),
                "epoch_buckets": _cumulated(totals.buckets),
                "checkpoint_time": None if last is None else self._last_at,
                "checkpoint_seconds": None if last is None else last.phases.seal + last.phases.commit,
                "bytes_written": totals.bytes_written,
                "rows_in": totals.rows_in,
                "rows_out": totals.rows_out,
                "errors": totals.errors,
                "retries": totals.retries,
                **self._of_run(now),
                "operators": {
                    node.id: self._described(node.id, busy, now) for node in self._stages.plan.nodes
                },
                "lag": {
                    source: {"unit": lag.unit, "total": lag.total, "partitions": dict(lag.lanes)}
                    for source, lag in self._lag.items()
                },
                "slowest_operator": _slowest(busy),
            }
            if history:
                snapshot["history"] = self._history_until(now)
            return snapshot

    def _of_run(self, now: float) -> dict[str, float | None]:
        """What the run as a whole shows over time."""
        last = self._last
        counters = self._totals.counters.values()
        lag = self._unread()
        lags = {f"lag_{unit}": lag.get(unit) for unit in ("rows", "bytes", "files")}
        return {
            "epoch_seconds": None if last is None else _seconds(last.phases) - last.phases.wait,
            "watermark_delay": None if last is None else _delay(last.watermark, now),
            "state_rows": None if last is None else last.state_rows,
            "state_bytes": None if last is None else last.state_bytes,
            **{
                name: sum(values.get(name, 0) for values in counters)
                for name in ("late_rows", "bad_rows", "dead_letters")
            },
            **lags,
        }

    def _described(self, node: str, busy: Mapping[str, Mapping[int, float]], now: float) -> dict[str, Any]:
        plan_node = self._stages.plan.by_id[node]
        chain = next(chain for chain in self._stages.chains if node in chain.nodes)
        work = self._totals.work.get(node, {})
        counters = self._totals.counters.get(node, {})
        tables = self._tables(node)
        mark = None if self._last is None else self._last.watermarks.get(node)
        commits, commit_seconds = self._totals.commits.get(node, (0, 0.0))
        shares = list(busy.get(node, {}).values())
        mean = sum(shares) / max(1, len(shares))
        return {
            "name": plan_node.operator,
            "role": plan_node.role,
            "chain": chain.index,
            "stage": chain.stage,
            **_measured(_sum(work)),
            "state_rows": sum(table.rows for table in tables.values()),
            "state_bytes": sum(table.bytes for table in tables.values()),
            "tables": {name: dataclasses.asdict(table) for name, table in tables.items()},
            "watermark": mark,
            "watermark_delay": _delay(mark, now),
            "commits": commits,
            "commit_seconds": commit_seconds,
            "counters": {name: value for name, value in counters.items() if name not in _MEASURED},
            "busy": max(shares, default=0.0),
            "skew": max(shares) / mean if mean > 0 else None,
            "backpressure": self._backpressure(node, busy),
            "subtasks": {str(subtask): _measured(done) for subtask, done in sorted(work.items())},
        }

    def _busy(self, now: float) -> dict[str, dict[int, float]]:
        """By operator and subtask: for which share of the last minute it worked."""
        before = next((p for p in self._history if p.time >= now - RECENT_SECONDS), None)
        before = before or (self._history[-1] if self._history else None)
        if before is None or now <= before.time:
            return {}
        current, seconds = self._point(now).work, now - before.time
        return {
            node: {
                subtask: min(1.0, (work.seconds - _before(before, node, subtask)) / seconds)
                for subtask, work in subtasks.items()
            }
            for node, subtasks in current.items()
        }

    def _backpressure(self, node: str, busy: Mapping[str, Mapping[int, float]]) -> float:
        """The share of time in which the operators downstream worked while rows waited in a source."""
        if not any(lag.total for lag in self._lag.values()):
            return 0.0
        return max(
            (max(busy.get(after, {}).values(), default=0.0) for after in self._behind[node]), default=0.0
        )

    def _history_until(self, now: float) -> dict[str, Any]:
        points = [*self._history, self._point(now)] if self._history else []
        series: dict[str, dict[str, dict[str, list[float]]]] = {}
        keys = {(node, subtask) for point in points for node in point.work for subtask in point.work[node]}
        for node, subtask in sorted(keys):
            values = [_measured(point.work.get(node, {}).get(subtask, Work())) for point in points]
            series.setdefault(node, {})[str(subtask)] = {
                name: [value[name] for value in values] for name in _MEASURED
            }
        names = points[0].run if points else {}
        return {
            "times": [point.time for point in points],
            "run": {name: [point.run[name] for point in points] for name in names},
            "operators": series,
        }


_MEASURED = tuple(field.name for field in dataclasses.fields(Work))


def _measured(work: Work) -> dict[str, float]:
    return {name: getattr(work, name) for name in _MEASURED}


def _sum(subtasks: Mapping[int, Work]) -> Work:
    return sum(subtasks.values(), Work())


def _before(point: _Point, node: str, subtask: int) -> float:
    return point.work.get(node, {}).get(subtask, Work()).seconds


def _seconds(phases: Phases) -> float:
    return phases.wait + phases.plan + phases.run + phases.seal + phases.commit


def _delay(watermark: int | None, now: float) -> float | None:
    """How far event time is behind the clock; None before there is a watermark, and after all data."""
    if watermark is None or watermark == END_OF_TIME.time:
        return None
    return now - watermark / 1e9


def _slowest(busy: Mapping[str, Mapping[int, float]]) -> str | None:
    """The operator whose busiest subtask works most: it holds the others back."""
    shares = {node: max(subtasks.values(), default=0.0) for node, subtasks in busy.items()}
    node = max(shares, key=lambda node: shares[node], default=None)
    return node if node is not None and shares[node] > 0 else None


def _cumulated(counts: list[int]) -> list[tuple[str, int]]:
    """How many epochs took at most so long, by the bounds of the histogram."""
    bounds = [*map(str, BUCKETS), "+Inf"]
    return list(zip(bounds, itertools.accumulate(counts), strict=True))
