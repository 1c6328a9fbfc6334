"""Polls the processes of running jobs for status and metrics, and keeps the last minutes of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace.base.errors import ExternalError, UserError
from headrace.jobs.control import RunningPipeline, running_in
from headrace.server.children import Children

KEPT_SECONDS = 3600
_EVERY_SECONDS = 1.0
_CLOSE_SAMPLES = 330
"""So many samples are as close together as they were taken, one a second."""
_APART_SECONDS = 15.0
"""Between two of the samples before those."""
_KEPT_COUNTERS = ("rows_in", "rows_out", "bytes_in", "bytes_out", "state_bytes")
_KEPT_PROGRESS = ("total_in", "total_out")
_ASKING_AT_ONCE = 8


class RunSample:
    """Status and metrics of a run at one moment."""

    __slots__ = ("metrics", "progress", "time")

    def __init__(self, moment: int, status: Mapping[str, Any]) -> None:
        self.time = moment
        self.progress: Mapping[str, Any] = _only(_KEPT_PROGRESS, status["progress"] or {})
        self.metrics: Mapping[str, Mapping[str, float]] = {
            node: _only(_KEPT_COUNTERS, values) for node, values in status["metrics"].items()
        }


def _only(names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of values for an hour."""
    return {name: values[name] for name in names if name in values}


class Samples:
    """What a job has told in the last hour: one a second at first, later some of them."""

    def __init__(self) -> None:
        self._close: deque[RunSample] = deque()
        self._apart: deque[RunSample] = deque(maxlen=int(KEPT_SECONDS / _APART_SECONDS))

    def add(self, sample: RunSample) -> None:
        """Keep a sample, and forget others."""
        self._close.append(sample)
        if len(self._close) > _CLOSE_SAMPLES:
            before = self._close.popleft()
            if not self._apart or before.time - self._apart[-1].time >= _APART_SECONDS * 1e6:
                self._apart.append(before)

    def since(self, time: float) -> list[RunSample]:
        """The samples from a time on, the oldest first."""
        return [sample for sample in (*self._apart, *self._close) if sample.time >= time]


class WatchedRun:
    """One run of a job: its socket, its last status, the samples of its last hour."""

    def __init__(self, run: int, samples: Samples) -> None:
        self.run = run
        self.pipeline: RunningPipeline | None = None
        self.status: Mapping[str, Any] | None = None
        self.samples = samples
        self.last_message = 0
        self.asked = 0.0
        self.asking: Future[None] | None = None


class Monitor:
    """Asks every running job once a second, several at a time, so that a slow one holds nobody up."""

    def __init__(
        self, children: Children, on_messages: Callable[[str, int, Sequence[Mapping[str, Any]]], None]
    ) -> None:
        self._children = children
        self._on_messages = on_messages
        self._lock = threading.Lock()
        self._runs: dict[str, WatchedRun] = {}
        self._pool = ThreadPoolExecutor(_ASKING_AT_ONCE, thread_name_prefix="headrace-monitor")

    def close(self) -> None:
        """Stop asking."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def watch(self, runs: Mapping[str, int]) -> None:
        """Ask these jobs, by the numbers of their runs, if it is time."""
        now = time.monotonic()
        for job_id, run in runs.items():
            with self._lock:
                watched = self._runs.get(job_id)
                if watched is None or watched.run != run:
                    samples = Samples() if watched is None else watched.samples
                    watched = self._runs[job_id] = WatchedRun(run, samples)
            is_asking = watched.asking is not None and not watched.asking.done()
            if not is_asking and now - watched.asked >= _EVERY_SECONDS:
                watched.asked = now
                watched.asking = self._pool.submit(self._ask, job_id, watched)

    def forget(self, job_id: str) -> None:
        """A run is over; what it told stays for those who look at its last minutes."""
        with self._lock:
            watched = self._runs.get(job_id)
            if watched is not None:
                watched.status = watched.pipeline = None

    def remove(self, job_id: str) -> None:
        """Forget a job and its samples."""
        with self._lock:
            self._runs.pop(job_id, None)

    def status(self, job_id: str) -> Mapping[str, Any] | None:
        """The last status of the job's process; None if it has not answered yet."""
        watched = self._runs.get(job_id)
        return None if watched is None else watched.status

    def samples(self, job_id: str, seconds: float) -> list[RunSample]:
        """The samples of the job of the last seconds, the oldest first."""
        watched = self._runs.get(job_id)
        if watched is None:
            return []
        return watched.samples.since((time.time() - seconds) * 1e6)

    def ask(self, job_id: str, question: str, *arguments: Any) -> Any:
        """Ask the process of a job; None if it does not answer."""
        watched = self._runs.get(job_id)
        if watched is None or watched.pipeline is None:
            return None
        try:
            return watched.pipeline.ask(question, *arguments)
        except (OSError, ValueError):  # it has just ended, perhaps in the middle of its answer
            return None

    def ask_to_rescale(self, job_id: str, parallelism: int) -> bool:
        """Ask a run to go on with another parallelism; returns whether it can do that while it runs."""
        try:
            self.ask(job_id, "rescale", parallelism)
        except (ExternalError, UserError):
            return False
        return True

    def _ask(self, job_id: str, watched: WatchedRun) -> None:
        if watched.pipeline is None:
            pid = self._children.pid(job_id, watched.run)
            watched.pipeline = None if pid is None else running_in(pid)
        else:
            watched.pipeline = watched.pipeline.ask_again()
        if watched.pipeline is None:
            return
        watched.status = watched.pipeline.status
        watched.samples.add(RunSample(time.time_ns() // 1000, watched.status))
        messages = self.ask(job_id, "messages", watched.last_message)
        if messages:
            self._on_messages(job_id, watched.run, messages)
            watched.last_message = messages[-1]["number"]
