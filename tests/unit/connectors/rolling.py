"""Pipelines into sinks whose files span epochs, with a clock that moves with each epoch, and crashes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.jobs.progress import RunResult
from headrace.testing.in_process import CrashError, ManualClock, run_in_process

ROWS = 120
STEPS = ["begin", "tasks_done", "operators_written", "metadata_written", "sink_committed:out", "committed"]
"""The steps of an epoch; the sink is called `out`."""


def pipeline(sink: str, **options: Any) -> hr.Pipeline:
    """Numbered rows in three partitions, into a sink."""
    made = hr.Pipeline("rolling")
    rows = [{"n": i, "k": f"k{i % 3}", "_timestamp": i * 10**9} for i in range(ROWS)]
    made.source("memory", rows=rows, id="rows").sink(sink, id="out", **options)
    return made


def ticking(clock: ManualClock, seconds: float, then: Callable[[str, int], None] | None = None) -> Any:
    """A step that lets time pass with every epoch."""

    def step(name: str, epoch: int) -> None:
        if name == "begin":
            clock.advance(seconds)
        if then is not None:
            then(name, epoch)

    return step


def run(made: hr.Pipeline, state: Path, clock: ManualClock, then: Any = None, **options: Any) -> RunResult:
    """Run with a second between epochs, ten rows each."""
    return run_in_process(
        made, state, clock=clock, on_step=ticking(clock, 1.0, then), **{"epoch_rows": 10, **options}
    )


def run_into_crash(made: hr.Pipeline, state: Path, clock: ManualClock, step: str, at: int) -> bool:
    """Run until a step of an epoch, and end there as if killed; whether it came that far."""

    def crash(name: str, epoch: int) -> None:
        if (name, epoch) == (step, at):
            raise CrashError

    try:
        run(made, state, clock, crash)
    except CrashError:
        return True
    return False


class CrashAfter:
    """Ends a run as if killed, at one of the calls of functions that it wraps: before it, or after it."""

    def __init__(self, calls: float) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._seen = 0

    def wrap(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which counts; a half call is one whose effect was made and never reported."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._seen += 1
                number = self._seen
            if number == self._calls:
                raise CrashError
            result = inner(*args, **kwargs)
            if number == self._calls + 0.5:
                raise CrashError
            return result

        return call
