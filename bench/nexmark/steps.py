"""A benchmark that is a list of runs: they are made in turns, shown as a table and saved under a name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.nexmark.data import Size
from bench.nexmark.page import write_page
from bench.nexmark.queries import QUERIES
from bench.nexmark.results import DATA, about, save
from bench.nexmark.runs import Run, run


@dataclass(frozen=True)
class Step:
    """A run of a query by an engine, over as many events as `size` says."""

    engine: str
    query: str
    size: Size | None = None
    cores: int = 2


def measure(
    name: str,
    steps: Sequence[Step],
    table: Callable[[Sequence[Run]], str],
    *,
    repeat: int,
    about_it: str | None,
) -> int:
    """Measure every step, print the table and save it; what the command line says comes first."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=about_it)
    parser.add_argument("--repeat", type=int, default=repeat)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the events")
    options = parser.parse_args()
    before = about()
    runs: list[Run] = []
    for _ in range(options.repeat):
        for step in steps:
            events = QUERIES[step.query].data.make(options.data, step.size)
            runs.append(run(step.engine, step.query, events, cores=step.cores))
            print(f"{runs[-1]}, {events.count:,} events, {step.cores} cores", file=sys.stderr)
    print(table(runs))
    save(name, runs, {**before, "repeat": options.repeat})
    write_page()
    return 1 if any(run.failure for run in runs) else 0
