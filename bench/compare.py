"""`python -m bench compare DIRECTORY`: this checkout against another one, in turns, as ratios.

DIRECTORY is a checkout of an earlier commit, such as one made by `git worktree add`. Both run with the
packages of this environment. A ratio above 1 means that this checkout is faster. The machine may do other
things meanwhile: they take turns, and the median of their ratios counts. The CPU time of all processes of
a run, its start included, stands beside the rate: other load changes it less.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    _adopt_orphans()
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


def _adopt_orphans() -> None:
    """Let this process wait for what the runs leave behind, so that its CPU time is counted (Linux only)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _cpu_seconds() -> float:
    """CPU time of all processes that have ended below this one."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(checkout: Path, query: str, data: Path) -> _Run:
    if query == _CHAIN:
        command = ["dataflow", "--engine", "headrace", "--load", LOADS[0].name]
    else:
        command = ["nexmark", query, "--engine", "headrace", "--no-check", "--data", str(data.absolute())]
    before = _cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "bench", *command, "--repeat", "1"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout.absolute() / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    match = _RATE.search(done.stderr)
    if match is None:
        raise SystemExit(f"{checkout}: `{query}` gave no rate\n{done.stderr[-2000:]}")
    return _Run(float(match[1].replace(",", "")), _cpu_seconds() - before)


if __name__ == "__main__":
    sys.exit(main())
