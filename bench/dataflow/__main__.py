"""`python -m bench dataflow`: the same two operators in Headrace and in the released dora.

`make bench-peers` installs dora; without it Headrace runs alone, and nothing is kept. The engines take turns,
so that whatever else the machine does meets all of them. The runs are kept in `results.json`; when each
engine has run every load, they make a page of the documentation. The runs are short for the sake of dora: a
sender that is faster than its reader fills the queue, and then messages are dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from bench.dataflow.page import PAGE, table, write_page
from bench.dataflow.runs import ENGINES, EPOCHS, LOADS, RESIDENT, Run, RunFailedError, run
from bench.peers.__main__ import BUILD

RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Run every load in every engine, print the table and save it."""
    parser = argparse.ArgumentParser(prog="python -m bench dataflow", description=__doc__)
    installed = BUILD / "dora" if (BUILD / "dora").exists() else None
    parser.add_argument("--dora", type=Path, default=installed, help="another virtualenv with dora")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one; repeatable")
    parser.add_argument(
        "--load", choices=[load.name for load in LOADS], action="append", help="only this one"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    engines = [
        engine
        for engine in arguments.engine or ENGINES
        if arguments.dora is not None or engine in {RESIDENT, EPOCHS}
    ]
    loads = [load for load in LOADS if arguments.load is None or load.name in arguments.load]
    busy = os.getloadavg()[0]
    runs: list[Run] = []
    failed = False
    for _ in range(arguments.repeat):
        for load in loads:
            for engine in engines:
                try:
                    runs.append(run(engine, load, seconds=arguments.seconds, dora=arguments.dora))
                except RunFailedError as error:
                    failed = True
                    print(error, file=sys.stderr)
                else:
                    print(f"{load.name}, {engine}: {runs[-1].rate:,.0f} per second", file=sys.stderr)
    print(table(runs))
    if not arguments.engine and not arguments.load and not failed and arguments.dora:
        results = {"seconds": arguments.seconds, "load_average": busy, "runs": [asdict(run) for run in runs]}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        cores = os.cpu_count() or 1
        write_page(runs, seconds=arguments.seconds, repeat=arguments.repeat, cores=cores, load=busy)
        print(f"wrote {RESULTS} and {PAGE}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
