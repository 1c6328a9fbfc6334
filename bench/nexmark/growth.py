"""`python -m bench growth`: does an event cost the same, whatever else there is?

The same queries over more input, with more keys in the state, and on one core and on two. Each step is
compared with the first of its kind, in the same engine.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.nexmark.data import Size
from bench.nexmark.page import write_page
from bench.nexmark.queries import QUERIES
from bench.nexmark.results import DATA, about, save
from bench.nexmark.runs import Run, run
from bench.nexmark.series import growth_table

INPUT = tuple(Size(files, 250_000, 2) for files in (10, 40, 160))
"""×1, ×4 and ×16, in epochs of half a million events."""


@dataclass(frozen=True)
class Step:
    """A run of one kind of growth."""

    engine: str
    query: str
    size: Size | None = None
    cores: int = 2


STEPS = (
    *(Step("headrace", query, size) for query in ("q1", "q12") for size in INPUT),
    *(Step("spark", "q12", size) for size in INPUT),
    *(Step("headrace", query) for query in ("keys10k", "keys1m", "keys10m")),
    Step("headrace", "q5", INPUT[1]),
    *(Step("headrace", query, INPUT[1], cores=1) for query in ("q1", "q5", "q12")),
)


def main(given: list[str] | None = None) -> int:
    """Measure every step, print the table and save it."""
    parser = argparse.ArgumentParser(prog="python -m bench growth", description=__doc__)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the events")
    options = parser.parse_args(given)
    before = about()
    runs: list[Run] = []
    for _ in range(options.repeat):
        for step in STEPS:
            events = QUERIES[step.query].data.make(options.data, step.size)
            runs.append(run(step.engine, step.query, events, cores=step.cores))
            print(f"{runs[-1]}, {events.count:,} events, {step.cores} cores", file=sys.stderr)
    print(growth_table(runs))
    save("growth", runs, {**before, "repeat": options.repeat})
    write_page()
    return 1 if any(one.failure for one in runs) else 0
