"""`python -m bench.nexmark`: the same questions to Headrace, to Structured Streaming and to DataFusion.

Engines take turns, so that whatever else the machine does meets all of them. Before anything is measured, all
engines have to give the same rows over fewer events. The runs are kept in `results.json`, and become a page
of the documentation with a chart when every query was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from bench.nexmark.data import Events, make_events
from bench.nexmark.queries import QUERIES
from bench.nexmark.report import PAGE, table, write_page
from bench.nexmark.runs import ENGINES, Run, RunFailedError, can_run, differences, run

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.json"


def main(given: list[str] | None = None) -> int:
    """Compare the rows, measure, print the table and save it."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark", description=__doc__)
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"of {', '.join(QUERIES)}")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one; repeatable")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--files", type=int, default=24, help="files of 100,000 events each")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--no-check", action="store_true", help="do not compare the rows first")
    options = parser.parse_args(given)
    unknown = [name for name in options.queries if name not in QUERIES]
    if unknown:
        parser.error(f"no query {', '.join(unknown)}; there are {', '.join(QUERIES)}")
    queries = options.queries or list(QUERIES)
    engines = options.engine or list(ENGINES)
    wrong = [] if options.no_check else _check(queries, engines, options.data)
    for line in wrong:
        print(line, file=sys.stderr)
    busy = os.getloadavg()[0]
    events = make_events(options.data, files=options.files, per_file=100_000)
    runs, failed = _measure(queries, engines, events, repeat=options.repeat)
    print(table(runs))
    if not (options.queries or options.engine or options.no_check or wrong or failed):
        found = {"load_average": busy, "runs": [asdict(one) for one in runs]}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        write_page(runs, repeat=options.repeat, load=busy)
        print(f"wrote {RESULTS} and {PAGE}", file=sys.stderr)
    return 1 if wrong or failed else 0


def _check(queries: list[str], engines: list[str], data: Path) -> list[str]:
    events = make_events(data, files=4, per_file=50_000)
    wrong: list[str] = []
    for query in queries:
        able = [engine for engine in engines if can_run(engine, query)]
        try:
            wrong += differences(query, events, able)
        except RunFailedError as error:
            wrong.append(str(error))
        else:
            print(f"{query}: compared {', '.join(able)}", file=sys.stderr)
    return wrong


def _measure(
    queries: list[str], engines: list[str], events: Events, *, repeat: int
) -> tuple[list[Run], bool]:
    runs: list[Run] = []
    failed = False
    for _ in range(repeat):
        for query in queries:
            for engine in engines:
                if not can_run(engine, query):
                    continue
                try:
                    runs.append(run(engine, query, events))
                except RunFailedError as error:
                    failed = True
                    print(error, file=sys.stderr)
                else:
                    print(f"{query}, {engine}: {runs[-1].rate:,.0f} events per second", file=sys.stderr)
    return runs, failed


if __name__ == "__main__":
    sys.exit(main())
