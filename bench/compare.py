"""`python -m bench compare DIRECTORY`: this checkout against another one, in turns, as ratios.

DIRECTORY is a checkout of an earlier commit, such as one made by `git worktree add`. Both run with the
packages of this environment. A ratio above 1 means that this checkout is faster. The machine may do other
things meanwhile: they take turns, and the median of their ratios counts.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
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
    slower = False
    for query in options.queries:
        ratios = []
        for turn in range(options.repeat):
            order = [options.directory, _HERE] if turn % 2 == 0 else [_HERE, options.directory]
            rates = {checkout: _rate(checkout, query, options.data) for checkout in order}
            ratios.append(rates[_HERE] / rates[options.directory])
            print(f"{query}: {rates[_HERE]:,.0f} against {rates[options.directory]:,.0f}", file=sys.stderr)
        ratio = statistics.median(ratios)
        slower = slower or ratio < 0.97
        print(f"{query:10} {ratio:.2f}  ({', '.join(f'{each:.2f}' for each in ratios)})")
    return 1 if slower else 0


def _rate(checkout: Path, query: str, data: Path) -> float:
    """Events or messages per second of one run."""
    if query == _CHAIN:
        command = ["dataflow", "--engine", "headrace", "--load", LOADS[0].name]
    else:
        command = ["nexmark", query, "--engine", "headrace", "--no-check", "--data", str(data.absolute())]
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
    return float(match[1].replace(",", ""))


if __name__ == "__main__":
    sys.exit(main())
