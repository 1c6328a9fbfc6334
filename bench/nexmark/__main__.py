"""`python -m bench.nexmark`: the same questions to Headrace, to Structured Streaming and to DataFusion.

Engines take turns, so that whatever else the machine does meets all of them. Before anything is measured, all
engines have to give the same rows over fewer events. The runs of a query by all engines are kept in
`results.json`, in the place of its runs before, and become a page of the documentation with a chart.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from bench.nexmark.page import write_page
from bench.nexmark.queries import QUERIES
from bench.nexmark.report import table
from bench.nexmark.results import DATA, RESULTS, about, save
from bench.nexmark.runs import ENGINES, STORES, Run, can_run, differences, run


def main(argv: list[str] | None = None) -> int:
    """Compare the rows, measure, print the table and save it."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark", description=__doc__)
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"of {', '.join(QUERIES)}")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one; repeatable")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the events")
    parser.add_argument("--small", action="store_true", help="measure over the few events of the comparison")
    parser.add_argument("--no-check", action="store_true", help="do not compare the rows first")
    parser.add_argument("--check-only", action="store_true", help="compare the rows and measure nothing")
    parser.add_argument("--report", action="store_true", help="write the page from the results that are kept")
    options = parser.parse_args(argv)
    unknown = [name for name in options.queries if name not in QUERIES]
    if unknown:
        parser.error(f"no query {', '.join(unknown)}; there are {', '.join(QUERIES)}")
    if options.report:
        write_page()
        return 0
    queries = options.queries or list(QUERIES)
    engines = options.engine or list(ENGINES)
    wrong = [] if options.no_check else check(queries, engines, options.data)
    for line in wrong:
        print(line, file=sys.stderr)
    if options.check_only:
        return 1 if wrong else 0
    before = about()
    runs = _measure(queries, engines, options.data, repeat=options.repeat, small=options.small)
    print(table(runs))
    if not (options.engine or options.small or options.no_check or wrong):
        save("queries", runs, {**before, "repeat": options.repeat})
        write_page()
        print(f"wrote {RESULTS} and the page", file=sys.stderr)
    return 1 if wrong or any(run.failure for run in runs) else 0


def check(queries: list[str], engines: list[str], data: Path) -> list[str]:
    """The differences between engines over few events, and the queries that fail."""
    wrong: list[str] = []
    for query in queries:
        able = [engine for engine in engines if can_run(engine, query)]
        if set(STORES) <= set(able):
            able.remove(STORES[1])  # where state is kept makes no other rows
        events = QUERIES[query].data.make(data, QUERIES[query].small)
        differing = differences(query, events, able)
        print(f"{query}: {'differs' if differing else 'the same'} in {', '.join(able)}", file=sys.stderr)
        wrong += differing
    return wrong


def _measure(queries: list[str], engines: list[str], data: Path, *, repeat: int, small: bool) -> list[Run]:
    runs: list[Run] = []
    for _ in range(repeat):
        for query in queries:
            events = QUERIES[query].data.make(data, QUERIES[query].small if small else None)
            for engine in engines:
                if can_run(engine, query) and not _is_slower_store(engine, query, runs):
                    runs.append(run(engine, query, events))
                    print(runs[-1], file=sys.stderr)
    return runs


def _is_slower_store(engine: str, query: str, runs: list[Run]) -> bool:
    """Whether this state store of Structured Streaming was measured and is slower than the other."""
    rates: dict[str, list[float]] = {}
    for earlier in runs:
        if earlier.query == query and earlier.engine in STORES:
            rates.setdefault(earlier.engine, []).append(earlier.rate if earlier.counts else 0.0)
    if len(rates) <= 1 or engine not in rates:
        return False
    return engine != max(rates, key=lambda name: statistics.median(rates[name]))


if __name__ == "__main__":
    sys.exit(main())
