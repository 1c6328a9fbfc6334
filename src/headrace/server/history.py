"""The last hour of every job: in memory, and some of it in the database, for the next server."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.server.database import ServerDatabase

KEPT_SECONDS = 3600
_CLOSE_SAMPLES = 330
"""So many samples are as close together as they were taken, one a second."""
APART_SECONDS = 15.0
"""Between two of the samples before those."""
_KEPT_COUNTERS = ("rows_in", "rows_out", "bytes_in", "bytes_out", "state_bytes")
_KEPT_PROGRESS = ("total_in", "total_out")


class RunSample:
    """Status and metrics of a run at one moment."""

    __slots__ = ("metrics", "progress", "time")

    def __init__(self, moment: int, status: Mapping[str, Any]) -> None:
        self.time = moment
        self.progress: Mapping[str, Any] = _only(_KEPT_PROGRESS, status["progress"] or {})
        self.metrics: Mapping[str, Mapping[str, float]] = {
            node: _only(_KEPT_COUNTERS, values) for node, values in status["metrics"].items()
        }

    @property
    def status(self) -> dict[str, Any]:
        """What a sample is made of again."""
        return {"progress": self.progress, "metrics": self.metrics}


def _only(names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of values for an hour."""
    return {name: values[name] for name in names if name in values}


class Samples:
    """What a job has told in the last hour: one a second at first, later some of them."""

    def __init__(self, earlier: Iterable[RunSample] = ()) -> None:
        self._close: deque[RunSample] = deque()
        self._apart: deque[RunSample] = deque(earlier, maxlen=int(KEPT_SECONDS / APART_SECONDS))

    def add(self, sample: RunSample) -> None:
        """Keep a sample, and forget others."""
        self._close.append(sample)
        if len(self._close) > _CLOSE_SAMPLES:
            before = self._close.popleft()
            if not self._apart or before.time - self._apart[-1].time >= APART_SECONDS * 1e6:
                self._apart.append(before)

    @property
    def last(self) -> RunSample | None:
        """The newest sample of this server; None before the first."""
        return self._close[-1] if self._close else None

    def since(self, time: float) -> list[RunSample]:
        """The samples from a time on, the oldest first."""
        return [sample for sample in (*self._apart, *self._close) if sample.time >= time]


class History:
    """The samples of the database: of each job one in every `APART_SECONDS`, for an hour."""

    def __init__(self, database: ServerDatabase) -> None:
        self._database = database

    def load(self, job_id: str) -> list[RunSample]:
        """What is kept of a job, the oldest first."""
        rows = self._database.all("SELECT time, status FROM samples WHERE job_id = ? ORDER BY time", job_id)
        return [RunSample(row["time"], json.loads(row["status"])) for row in rows]

    def save(self, samples: Sequence[tuple[str, RunSample]], *, now: int) -> None:
        """Keep samples of jobs that are still there, and remove those that are older than an hour."""
        with self._database.transaction():
            for job_id, sample in samples:
                self._database.change(
                    "INSERT OR REPLACE INTO samples (job_id, time, status) "
                    "SELECT id, ?, ? FROM jobs WHERE id = ?",
                    sample.time,
                    json.dumps(sample.status, separators=(",", ":")),
                    job_id,
                )
            self._database.change("DELETE FROM samples WHERE time < ?", now - KEPT_SECONDS * 1_000_000)
