"""Run simulations: `--seed 7` replays one and prints its trace, `--seeds 1000` runs many.

python -m tests.simulation --seed 7
python -m tests.simulation --seeds 100000 --jobs 2
python -m tests.simulation --planted skip_fence     how many seeds it takes until a fault is found
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.planted import PLANTED
from tests.simulation.simulation import simulate, simulate_all

_CHUNK = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; returns 1 if a law was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="replay this seed and print its trace")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes run them")
    parser.add_argument(
        "--planted", choices=[*PLANTED, "all"], help="plant a fault, and end when it is found"
    )
    options = parser.parse_args(arguments)
    if options.planted:
        names = list(PLANTED) if options.planted == "all" else [options.planted]
        return max(find(name, first=options.first, seeds=options.seeds, seed=options.seed) for name in names)
    if options.seed is not None:
        return replay(options.seed)
    return run_many(range(options.first, options.first + options.seeds), jobs=options.jobs)


def replay(seed: int) -> int:
    """Run one seed and print what happened."""
    outcome = simulate(seed)
    print(outcome.report())
    return 1 if outcome.problems else 0


def find(name: str, *, first: int, seeds: int, seed: int | None) -> int:
    """Run seeds with a planted fault until one fails."""
    with PLANTED[name]():
        if seed is not None:
            return replay(seed)
        for number in range(first, first + seeds):
            if problems := simulate(number).problems:
                print(f"{name}: found after {number - first + 1} seeds: {problems[0][:160]}", flush=True)
                return 0
    print(f"{name}: not found in {seeds} seeds")
    return 1


def run_many(seeds: range, *, jobs: int) -> int:
    """Run seeds in several processes, and print those that fail."""
    faults: Counter[str] = Counter()
    failed, start = [], time.monotonic()
    chunks = [seeds[index : index + _CHUNK] for index in range(0, len(seeds), _CHUNK)]
    with contextlib.ExitStack() as stack:
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=get_context("spawn")))
            results = pool.map(simulate_all, chunks)
        else:
            results = map(simulate_all, chunks)
        for outcomes in results:
            for seed, problems, counted in outcomes:
                faults += counted
                if problems:
                    failed.append(seed)
                    print(f"seed {seed}: {problems[0][:300]}", flush=True)
    print(f"{len(seeds)} seeds in {time.monotonic() - start:.0f} s, {len(failed)} failed: {failed}")
    print("what happened:", ", ".join(f"{name} {count}" for name, count in faults.most_common()))
    if failed:
        print(f"replay the first: python -m tests.simulation --seed {failed[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
