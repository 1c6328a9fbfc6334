"""Polls the processes of running jobs for status and metrics, and keeps their last hour."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace.base.errors import ExternalError, UserError
from headrace.jobs.control import RunningPipeline, running_in
from headrace.server.children import Children
from headrace.server.history import APART_SECONDS, History, RunSample, Samples

_EVERY_SECONDS = 1.0
_ASKING_AT_ONCE = 8


class WatchedRun:
    """One run of a job: its socket and its last status."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.pipeline: RunningPipeline | None = None
        self.status: Mapping[str, Any] | None = None
        self.last_message = 0
        self.asked = 0.0
        self.asking: Future[None] | None = None


class Monitor:
    """Asks every running job once a second, several at a time, so that a slow one holds nobody up."""

    def __init__(
        self,
        children: Children,
        history: History,
        on_messages: Callable[[str, int, Sequence[Mapping[str, Any]]], None],
    ) -> None:
        self._children = children
        self._history = history
        self._on_messages = on_messages
        self._lock = threading.Lock()
        self._runs: dict[str, WatchedRun] = {}
        self._samples: dict[str, Samples] = {}
        self._saved = time.monotonic()
        self._pool = ThreadPoolExecutor(_ASKING_AT_ONCE, thread_name_prefix="headrace-monitor")

    def close(self) -> None:
        """Stop asking, and keep the last samples for the next server."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._save()

    def watch(self, runs: Mapping[str, int]) -> None:
        """Ask these jobs, by the numbers of their runs, if it is time."""
        now = time.monotonic()
        for job_id, run in runs.items():
            with self._lock:
                watched = self._runs.get(job_id)
                if watched is None or watched.run != run:
                    watched = self._runs[job_id] = WatchedRun(run)
            is_asking = watched.asking is not None and not watched.asking.done()
            if not is_asking and now - watched.asked >= _EVERY_SECONDS:
                watched.asked = now
                watched.asking = self._pool.submit(self._ask, job_id, watched)
        if now - self._saved >= APART_SECONDS:
            self._saved = now
            self._pool.submit(self._save)

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
            self._samples.pop(job_id, None)

    def status(self, job_id: str) -> Mapping[str, Any] | None:
        """The last status of the job's process; None if it has not answered yet."""
        watched = self._runs.get(job_id)
        return None if watched is None else watched.status

    def samples(self, job_id: str, seconds: float) -> list[RunSample]:
        """The samples of the job of the last seconds, the oldest first."""
        return self._samples_of(job_id).since((time.time() - seconds) * 1e6)

    def _samples_of(self, job_id: str) -> Samples:
        """The samples of a job; those of an earlier server at first."""
        samples = self._samples.get(job_id)
        if samples is None:
            earlier = self._history.load(job_id)
            with self._lock:
                samples = self._samples.setdefault(job_id, Samples(earlier))
        return samples

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
        self._samples_of(job_id).add(RunSample(time.time_ns() // 1000, watched.status))
        messages = self.ask(job_id, "messages", watched.last_message)
        if messages:
            self._on_messages(job_id, watched.run, messages)
            watched.last_message = messages[-1]["number"]

    def _save(self) -> None:
        """Keep the last sample of every job that has told something since the last time."""
        with self._lock:
            samples = {job_id: self._samples[job_id].last for job_id in self._runs if job_id in self._samples}
        now = time.time_ns() // 1000
        since = now - 2 * APART_SECONDS * 1e6
        self._history.save(
            [(job_id, last) for job_id, last in samples.items() if last is not None and last.time > since],
            now=now,
        )
