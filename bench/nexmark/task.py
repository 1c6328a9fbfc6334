"""One run of a query in an engine: its input, and what it reports while it runs."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.nexmark.data import Events
from bench.nexmark.queries import QUERIES, Query

Batches = list[tuple[int, float]]
"""(events, seconds) of each micro-batch or epoch."""


@dataclass
class Task:
    """A query over some events; an engine puts in `batches` what it has done so far."""

    name: str
    events: Events
    cores: int = 2
    rows: Path | None = None
    """Where the result rows are written; without it they are discarded as cheaply as the engine can."""
    batches: Batches = field(default_factory=list)
    begun: float = field(default_factory=time.perf_counter)

    @property
    def query(self) -> Query:
        return QUERIES[self.name]

    def report(self, *, done: bool = True) -> None:
        """Print the measurements as one line of JSON."""
        seconds = time.perf_counter() - self.begun
        print(json.dumps({"batches": self.batches, "seconds": seconds, "done": done}), flush=True)

    def end_after(self, seconds: float) -> None:
        """Unless the run finishes before that time, report the batches so far and end the process."""
        timer = threading.Timer(seconds, self._give_up)
        timer.daemon = True
        timer.start()

    def _give_up(self) -> None:
        self.report(done=False)
        for child in psutil.Process().children(recursive=True):
            child.kill()
        os._exit(0)
