"""How much memory the processes of a run have, and how busy its Spark is: looked at every few seconds.

A thread of its own looks, and only once somebody has asked: Spark's Java may be suspended, and then an answer
takes as long as that lasts.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.exchanges.spark.usage import SparkUsage

EVERY = 5.0
"""Seconds between two looks."""
_RECENT_SECONDS = 60.0
"""Over how long it is measured how busy Spark is."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class UsageWatch:
    """Looks at the processes of a run and at its Spark, until it is closed.

    `spark` says how busy Spark is, or None while there is none; it may take long, and may fail.
    """

    def __init__(self, spark: Callable[[], SparkUsage | None]) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._busy: deque[tuple[float, float]] = deque()
        self._latest: dict[str, Any] = {"spark": None, "spark_url": None, "memory": {}}

    def latest(self) -> dict[str, Any]:
        """What was seen last: `spark` and its `spark_url` (None if not known), and `memory` by process."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._watch, name="headrace-usage", daemon=True)
                self._thread.start()
            return dict(self._latest)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.is_set():
            memory, spark = memory_by_process(), None
            with suppress(Exception):  # it starts, has ended, or starts again
                spark = self._spark()
            with self._lock:
                self._latest = {
                    "spark": None if spark is None else self._described(spark),
                    "spark_url": None if spark is None else spark.web_url,
                    "memory": memory,
                }
            self._closed.wait(EVERY)

    def _described(self, spark: SparkUsage) -> dict[str, float | None]:
        now = time.monotonic()
        if self._busy and self._busy[-1][1] > spark.task_seconds:
            self._busy.clear()  # it is another Spark
        self._busy.append((now, spark.task_seconds))
        while self._busy[0][0] < now - _RECENT_SECONDS:
            self._busy.popleft()
        since, before = self._busy[0]
        slots = (now - since) * spark.cores
        busy = (spark.task_seconds - before) / slots if slots > 0 else None
        return {
            "cores": spark.cores,
            "active_tasks": spark.active_tasks,
            "task_seconds": spark.task_seconds,
            "gc_seconds": spark.gc_seconds,
            "failed_tasks": spark.failed_tasks,
            "idle_ratio": None if busy is None else min(1.0, max(0.0, 1.0 - busy)),
        }


def memory_by_process() -> dict[str, int]:
    """The resident memory of this process and of those below it, in bytes: empty without `/proc`.

    `java` is Spark's, `workers` are the Python processes below it, `other` is everything else.
    """
    memory: dict[str, int] = {}
    own = resident_memory(os.getpid())
    if own is None:
        return memory
    memory["driver"] = own
    for pid, kind in _below(os.getpid(), "other"):
        size = resident_memory(pid)
        if size is not None:
            memory[kind] = memory.get(kind, 0) + size
    return memory


def _below(pid: int, kind: str) -> Iterator[tuple[int, str]]:
    for child in _children(pid):
        own = kind
        if kind == "other" and _name(child) == "java":
            own = "java"
        elif kind in {"java", "workers"}:
            own = "workers"
        yield child, own
        yield from _below(child, own)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += map(int, (task / "children").read_text().split())
    return children


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def resident_memory(pid: int) -> int | None:
    """The resident memory of a process in bytes; None without `/proc`, or if it is gone."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return None
