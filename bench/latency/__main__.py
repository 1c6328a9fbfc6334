"""`python -m bench.latency`: how soon Headrace shows a result and its first row, beside hand-written Spark.

The source is a directory into which another process renames files of events as they are created. Both engines
have a source for that, and the events are paced by the clock and not by the reader. Spark's own `rate` source
makes its rows by whole seconds, which would be half a second of latency that is not the engine's; a Kafka
broker would take its share of two cores, and Spark's client for it is a package of its own.

Engines take turns, so that whatever else the machine does meets both. What was measured is kept in
`results.json` and becomes a page of the documentation if nothing was left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.latency.page import PAGE, Results, tables, write_page
from bench.latency.processes import ENGINES, RunFailedError
from bench.latency.runs import QUERIES, RATES, Run, run
from bench.latency.startup import first_row, phases

RESULTS = Path(__file__).parent / "results.json"
PARTS = ("start", "latency")


def main(given: list[str] | None = None) -> int:
    """Measure, print the tables and save them."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="only this one")
    parser.add_argument("--query", choices=QUERIES, help="only this one")
    parser.add_argument("--rate", type=int, choices=RATES, help="only this one")
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--seconds", type=int, default=20, help="seconds of events that are counted")
    parser.add_argument("--warm-up", type=int, default=12, help="seconds of events before those")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each query, rate and engine")
    parser.add_argument("--starts", type=int, default=5, help="starts of each engine")
    parser.add_argument("--report", action="store_true", help="write the page again from what was saved")
    options = parser.parse_args(given)
    if options.report:
        write_page(_load())
        return 0
    results = Results(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions=_versions(),
        cores=os.cpu_count() or 1,
        load_average=os.getloadavg()[0],
        seconds=options.seconds,
        warm_up=options.warm_up,
        repeat=options.repeat,
    )
    try:
        if options.part != "latency":
            _measure_starts(results, options)
        if options.part != "start":
            _measure_latency(results, options)
    except RunFailedError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        print(tables(results))
    if not (options.part or options.query or options.rate or options.engine):
        RESULTS.write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")
        write_page(results)
        print(f"wrote {RESULTS} and {PAGE}", file=sys.stderr)
    return 0


def _measure_starts(results: Results, options: argparse.Namespace) -> None:
    engines = [options.engine] if options.engine else list(ENGINES)
    for number in range(options.starts + 1):
        for engine in engines:
            seconds = first_row(engine)
            print(f"start, {engine}: {seconds:.2f} s", file=sys.stderr)
            if number:  # the first brings the files into memory
                results.starts.setdefault(engine, []).append(round(seconds, 3))
    results.phases = [(what, round(seconds, 3)) for what, seconds in phases()]


def _measure_latency(results: Results, options: argparse.Namespace) -> None:
    for _ in range(options.repeat):
        for query in [options.query] if options.query else QUERIES:
            for rate in [options.rate] if options.rate else RATES:
                for engine in [options.engine] if options.engine else ENGINES:
                    found = run(engine, query, rate, seconds=options.seconds, warm_up=options.warm_up)
                    results.runs.append(found)
                    print(f"{query}, {rate} per second, {engine}: {found.p50:,.0f} ms", file=sys.stderr)


def _versions() -> str:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("headrace", "pyspark", "datafusion", "pyarrow")
    )
    return f"{packages}, Python {platform.python_version()}"


def _load() -> Results:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    return Results(**{**saved, "runs": [Run(**one) for one in saved["runs"]]})


if __name__ == "__main__":
    sys.exit(main())
