"""`python -m bench growth`: does an event cost the same, whatever else there is?

The same queries over more input, with more keys in the state, and on one core and on two. Each step is
compared with the first of its kind, in the same engine.
"""

from __future__ import annotations

from bench.nexmark.data import Size
from bench.nexmark.series import growth_table
from bench.nexmark.steps import Step, measure

INPUT = tuple(Size(files, 250_000, 2) for files in (10, 40, 160))
"""×1, ×4 and ×16, in epochs of half a million events."""


STEPS = (
    *(Step("headrace", query, size) for query in ("q1", "q12") for size in INPUT),
    *(Step("spark", "q12", size) for size in INPUT),
    *(Step("headrace", query) for query in ("keys10k", "keys1m", "keys10m")),
    Step("headrace", "q5", INPUT[1]),
    *(Step("headrace", query, INPUT[1], cores=1) for query in ("q1", "q5", "q12")),
)


def main() -> int:
    """Measure every step, print the table and save it."""
    return measure("growth", STEPS, growth_table, repeat=1, about_it=__doc__)
