"""Kills a server, the process of its pipeline, or both, again and again; then looks at every row.

After each kill the pipeline must be `Running` again by itself and write what was put into its source
meanwhile, each row once. The pause before a process is started again doubles with every kill, so many of them
take long.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.serving import Numbers, Server


def main(arguments: Sequence[str]) -> int:
    """Run the rounds that the arguments name; raises an AssertionError if a row is missing or there twice."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak server", description=__doc__)
    parser.add_argument("--server", type=int, default=20, metavar="N", help="kill the server so often")
    parser.add_argument(
        "--process", type=int, default=6, metavar="N", help="kill the pipeline's process so often"
    )
    parser.add_argument("--both", type=int, default=4, metavar="N", help="kill both so often")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        server = Server(Path(folder), "--master", "local[1]")
        try:
            numbers = Numbers(server, Path(folder))
            server.await_state(numbers.pipeline, "Running")
            numbers.await_all()
            _rounds("the server", asked.server, numbers, _kill_server)
            _rounds("the process", asked.process, numbers, _kill_process)
            _rounds("both", asked.both, numbers, _kill_both)
            server.patch(f"/pipelines/{numbers.pipeline}", {"stop": "checkpoint"})
            server.await_state(numbers.pipeline, "Stopped")
            numbers.await_all()
        finally:
            server.close()
    return 0


def _rounds(what: str, count: int, numbers: Numbers, kill: Callable[[Numbers], int]) -> None:
    """Kill so often, each time with rows that come meanwhile, and wait until all of them are written."""
    seconds = []
    for number in range(1, count + 1):
        began = time.monotonic()
        run = kill(numbers)
        job = numbers.server.await_state(numbers.pipeline, "Running", run=run)
        numbers.await_all()
        seconds.append(time.monotonic() - began)
        assert job["run_id"] == run, f"{what}, round {number}: run {job['run_id']} instead of {run}"
    if seconds:
        middle = sorted(seconds)[len(seconds) // 2]
        sys.stdout.write(
            f"{what}: killed {count} times, every row written once; {middle:.1f} s in the middle, "
            f"{max(seconds):.1f} s at most\n"
        )
        sys.stdout.flush()


def _run_of(numbers: Numbers) -> int:
    return int(numbers.server.job(numbers.pipeline)["run_id"])


def _kill_server(numbers: Numbers) -> int:
    run = _run_of(numbers)
    numbers.server.kill()
    numbers.give()
    numbers.server.start()
    return run


def _kill_process(numbers: Numbers) -> int:
    run = _run_of(numbers)
    numbers.give()
    os.kill(numbers.process, signal.SIGKILL)
    return run + 1


def _kill_both(numbers: Numbers) -> int:
    run, process = _run_of(numbers), numbers.process
    numbers.server.kill()
    numbers.give()
    os.kill(process, signal.SIGKILL)
    numbers.server.start()
    return run + 1
