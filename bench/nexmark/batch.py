"""`python -m bench batch`: how close Headrace comes to DataFusion, which has all events at once.

Epochs are here as large as `headrace run` makes them by itself: about as long as `epoch_target` has it.
"""

from __future__ import annotations

from bench.nexmark.data import Size
from bench.nexmark.goals import HEAVY, LIGHT
from bench.nexmark.report import batch_table
from bench.nexmark.steps import Step, measure

SIZE = Size(160, 250_000, 0)
STEPS = [Step(engine, query, SIZE) for query in (*HEAVY, *LIGHT) for engine in ("headrace", "datafusion")]


def main() -> int:
    """Measure both in turns, print the table and save it."""
    return measure("batch", STEPS, batch_table, repeat=3, about_it=__doc__)
