"""A job on executors in other processes: run as a program by the cluster test.

    python -m tests.spark.cluster_job STATE OUT MODULE_DIR

The operator comes from a module in MODULE_DIR that no executor has on its path. After epoch 2 one executor
is killed.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import headrace as hr
from tests import flows


def executors() -> list[int]:
    """The processes of executors that descend from this process."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
            names[int(entry.name)] = command

    def descends(pid: int) -> bool:
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == os.getpid():
                return True
        return False

    return sorted(p for p, name in names.items() if "CoarseGrainedExecutorBackend" in name and descends(p))


def main() -> None:
    state, out, modules = sys.argv[1:4]
    sys.path.insert(0, modules)
    users = importlib.import_module("users_operators")
    pipeline = hr.Pipeline("cluster")
    rows = pipeline.source(flows.impulse(600)).map(flows.keyed(11)).apply(users.Double())
    rows.key_by("k").apply(flows.RunningCount()).sink(hr.SingleFileSink(path=out))
    killed: list[int] = []

    def on_progress(progress: hr.Progress) -> None:
        if progress.epoch == 2:
            found = executors()
            killed.extend(found[:1])
            for pid in found[:1]:
                os.kill(pid, signal.SIGKILL)

    result = pipeline.run(
        state,
        master="local-cluster[2,1,1024]",
        parallelism=3,
        epoch_rows=100,
        on_progress=on_progress,
        options=hr.RunOptions(memory="1g"),
    )
    sys.stdout.write(f"{result.reason} {result.epochs} {len(killed)}\n")


if __name__ == "__main__":
    main()
