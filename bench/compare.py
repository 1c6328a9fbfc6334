"""`python -m bench compare DIRECTORY`: this checkout against another one, in turns, as ratios.

DIRECTORY is a checkout of an earlier commit, such as one made by `git worktree add`. Both run with the
packages of this environment. A ratio above 1 means that this checkout is faster. The machine may do other
things meanwhile: they take turns, and the median of their ratios counts. The CPU time of all processes of
a run, its start included, stands beside the rate: other load changes it less.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.dataflow.runs import LOADS
from bench.nexmark.results import DATA

_HERE = Path(__file__).parents[1]
_RATE = re.compile(r": ([\d,]+) (?:events )?per second")
_CHAIN = "dataflow"
QUERIES = ("q1", "q5", "q8", "q1 json", "stateful", _CHAIN)


def main() -> int:
    """Measure both checkouts and print a line for each query."""
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("directory", type=Path, help="the other checkout")
    parser.add_argument("queries", nargs="*", default=QUERIES, metavar="QUERY")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the events")
    options = parser.parse_args()
    slower = False
    for query in options.queries:
        rates, times = [], []
        for turn in range(options.repeat):
            order = [options.directory, _HERE] if turn % 2 == 0 else [_HERE, options.directory]
            runs = {checkout: _run(checkout, query, options.data) for checkout in order}
            ours, theirs = runs[_HERE], runs[options.directory]
            rates.append(ours.rate / theirs.rate)
            times.append(theirs.cpu_seconds / ours.cpu_seconds)
            print(f"{query}: {ours} against {theirs}", file=sys.stderr)
        slower = slower or statistics.median(rates) < 0.97
        print(f"{query:10} rate {_summary(rates)}  CPU {_summary(times)}", flush=True)
    return 1 if slower else 0


@dataclass(frozen=True)
class _Run:
    rate: float
    """Events or messages per second."""
    cpu_seconds: float
    """Of all its processes."""

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s with {self.cpu_seconds:.1f} s of CPU"


def _summary(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"


class _CpuTime(threading.Thread):
    """Adds up the CPU time of a process and of all below it, by a look every 50 ms.

    Counting what a process has waited for would miss most: Spark's daemon does not wait for its workers.
    """

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._used: dict[tuple[int, float], float] = {}

    @property
    def seconds(self) -> float:
        return sum(self._used.values())

    def run(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while self._process.is_running():
                for each in (self._process, *self._process.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        used = each.cpu_times()
                        self._used[each.pid, each.create_time()] = used.user + used.system
                time.sleep(0.05)


def _run(checkout: Path, query: str, data: Path) -> _Run:
    if query == _CHAIN:
        command = ["dataflow", "--engine", "headrace", "--load", LOADS[0].name]
    else:
        command = ["nexmark", query, "--engine", "headrace", "--no-check", "--data", str(data.absolute())]
    with subprocess.Popen(
        [sys.executable, "-m", "bench", *command, "--repeat", "1"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout.absolute() / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        cpu = _CpuTime(psutil.Process(run.pid))
        cpu.start()
        told = run.communicate()[1]
        cpu.join()
    match = _RATE.search(told)
    if match is None:
        raise SystemExit(f"{checkout}: `{query}` gave no rate\n{told[-2000:]}")
    return _Run(float(match[1].replace(",", "")), cpu.seconds)


if __name__ == "__main__":
    sys.exit(main())
