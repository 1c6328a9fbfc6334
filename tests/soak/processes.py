"""What the processes of a run use: read from the system, without a word to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROLES = ("driver", "java", "daemon", "worker")


@dataclass(frozen=True)
class Usage:
    """What the processes with one role use together."""

    processes: int = 0
    megabytes: float = 0.0
    descriptors: int = 0
    threads: int = 0


def family(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    """The processes of a run with their roles: the driver, its Java, Java's daemon, the daemon's workers."""
    driver = psutil.Process(pid)
    yield "driver", driver
    for java in _children(driver, "java"):
        yield "java", java
        for daemon in _children(java, "python"):
            yield "daemon", daemon
            for worker in _children(daemon, "python"):
                yield "worker", worker


def _children(process: psutil.Process, name: str) -> list[psutil.Process]:
    try:
        return [child for child in process.children() if name in child.name()]
    except psutil.NoSuchProcess:
        return []


def usage(pid: int) -> dict[str, Usage]:
    """What each role uses now."""
    used = dict.fromkeys(ROLES, Usage())
    for role, process in family(pid):
        try:
            memory, descriptors, threads = (
                process.memory_info().rss / 2**20,
                process.num_fds(),
                process.num_threads(),
            )
        except psutil.NoSuchProcess:
            continue
        sum_ = used[role]
        used[role] = Usage(
            sum_.processes + 1,
            sum_.megabytes + memory,
            sum_.descriptors + descriptors,
            sum_.threads + threads,
        )
    return used


def count_files(directory: Path, *, prefix: str = "") -> int:
    """How many files there are below a directory that may change meanwhile."""
    return sum(name.startswith(prefix) for _, _, names in os.walk(directory, onerror=None) for name in names)
