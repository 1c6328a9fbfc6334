"""What was measured of the growth of input, keys and cores, as series of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.nexmark.queries import QUERIES
from bench.nexmark.report import median_rate, memory, rate
from bench.nexmark.runs import Run

_NAMES = {"headrace": "Headrace", "spark": "Structured Streaming"}


@dataclass(frozen=True)
class Step:
    """The runs of one step, and how it compares with the first of its series."""

    name: str
    runs: Sequence[Run]
    cost: float
    """Of an event, as a multiple of that in the first step."""
    memory: float


@dataclass(frozen=True)
class Series:
    """Steps that differ in one thing."""

    name: str
    kind: str
    steps: Sequence[Step]


def series(runs: Sequence[Run]) -> Iterator[Series]:
    """All series that there are runs for."""
    counted = [run for run in runs if run.counts]
    for engine, query in dict.fromkeys((run.engine, run.query) for run in counted):
        own = [run for run in counted if (run.engine, run.query) == (engine, query)]
        name = f"{query}, {_NAMES[engine]}"
        full = max(run.cores for run in own)
        sizes = sorted({run.events for run in own if run.cores == full})
        if len(sizes) > 1:
            yield _series(
                name,
                "input",
                [
                    (f"{size:,} events", [run for run in own if (run.events, run.cores) == (size, full)])
                    for size in sizes
                ],
            )
        cores = sorted({run.cores for run in own})
        if len(cores) > 1:
            size = next(run.events for run in own if run.cores == cores[0])
            yield _series(
                name,
                "cores",
                [
                    (
                        f"{number} core{'s'[: number - 1]}",
                        [run for run in own if (run.events, run.cores) == (size, number)],
                    )
                    for number in cores
                ],
            )
    keys = sorted({QUERIES[run.query].data.keys for run in counted} - {0})
    if len(keys) > 1:
        yield _series(
            "count per key, Headrace",
            "keys",
            [
                (f"{number:,} keys", [run for run in counted if QUERIES[run.query].data.keys == number])
                for number in keys
            ],
        )


def _series(name: str, kind: str, steps: Sequence[tuple[str, Sequence[Run]]]) -> Series:
    first = steps[0][1]
    return Series(
        name,
        kind,
        [
            Step(step, some, median_rate(first) / median_rate(some), memory(some) / memory(first))
            for step, some in steps
        ],
    )


def growth_table(runs: Sequence[Run]) -> str:
    """A row for each step of each series."""
    lines = [
        "| query | step | events/s | cost of an event | memory | against the first |",
        "|---|---|---|---|---|---|",
    ]
    for line in series(runs):
        for number, step in enumerate(line.steps):
            cells = [
                "" if number else line.name,
                step.name,
                rate(step.runs),
                f"{step.cost:.2f}×",
                f"{memory(step.runs) / 1e9:.1f} GB",
                f"{step.memory:.2f}×",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    failed = [f"{run.query}, {run.engine}, {run.events:,} events" for run in runs if not run.counts]
    return "\n".join([*lines, *([f"\nNot done: {'; '.join(failed)}."] if failed else [])])
