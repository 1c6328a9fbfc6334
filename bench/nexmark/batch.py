"""`python -m bench batch`: how close Headrace comes to DataFusion, which has all events at once.

Epochs are here as large as `headrace run` makes them by itself: about as long as `epoch_target` has it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.nexmark.data import Size
from bench.nexmark.goals import HEAVY, LIGHT
from bench.nexmark.page import write_page
from bench.nexmark.queries import QUERIES
from bench.nexmark.report import batch_table
from bench.nexmark.results import DATA, about, save
from bench.nexmark.runs import Run, run

SIZE = Size(160, 250_000, 0)


def main(given: list[str] | None = None) -> int:
    """Measure both in turns, print the table and save it."""
    parser = argparse.ArgumentParser(prog="python -m bench batch", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the events")
    options = parser.parse_args(given)
    before = about()
    runs: list[Run] = []
    for _ in range(options.repeat):
        for query in (*HEAVY, *LIGHT):
            for engine in ("headrace", "datafusion"):
                runs.append(run(engine, query, QUERIES[query].data.make(options.data, SIZE)))
                print(runs[-1], file=sys.stderr)
    print(batch_table(runs))
    save("batch", runs, {**before, "repeat": options.repeat})
    write_page()
    return 1 if any(one.failure for one in runs) else 0
