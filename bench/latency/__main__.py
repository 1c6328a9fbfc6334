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
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.latency.page import PAGE, Results, tables, write_page
from bench.latency.processes import ENGINES, HEADRACE, RunFailedError
from bench.latency.runs import QUERIES, RATES, Run, run
from bench.latency.startup import first_row, phases

RESULTS = Path(__file__).parent / "results.json"
PARTS = ("start", "latency")


def main(argv: list[str] | None = None) -> int:
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
    options = parser.parse_args(argv)
    if options.report:
        write_page(_load())
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended first
    results = Results(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions=_versions(),
        cores=os.cpu_count() or 1,
        load_average=os.getloadavg()[0],
        seconds=options.seconds,
        warm_up=options.warm_up,
        repeat=options.repeat,
    )
    failed = _measure(results, options)
    print(tables(results))
    for error in failed:
        print(error, file=sys.stderr)
    if not (failed or options.part or options.query or options.rate or options.engine):
        RESULTS.write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")
        write_page(results)
        print(f"wrote {RESULTS} and {PAGE}", file=sys.stderr)
    return 1 if failed else 0


def _measure(results: Results, options: argparse.Namespace) -> list[RunFailedError]:
    """Add everything that was asked for to the results; returns what went wrong."""
    failed: list[RunFailedError] = []

    def attempt(action: Callable[[], None]) -> None:
        try:
            action()
        except RunFailedError as error:
            failed.append(error)

    engines = [options.engine] if options.engine else list(ENGINES)
    for number in range(options.starts + 1) if options.part != "latency" else ():
        for engine in engines:
            # The first start brings the files into memory.
            attempt(partial(_start, results, engine, counted=number > 0))
    if options.part != "latency" and HEADRACE in engines:
        attempt(lambda: results.phases.extend((what, round(time, 3)) for what, time in phases()))
    for _ in range(options.repeat if options.part != "start" else 0):
        for query in [options.query] if options.query else QUERIES:
            for rate in [options.rate] if options.rate else RATES:
                for engine in engines:
                    attempt(partial(_run, results, engine, query, rate))
    return failed


def _start(results: Results, engine: str, *, counted: bool) -> None:
    seconds = first_row(engine)
    print(f"start, {engine}: {seconds:.2f} s", file=sys.stderr)
    if counted:
        results.starts.setdefault(engine, []).append(round(seconds, 3))


def _run(results: Results, engine: str, query: str, rate: int) -> None:
    measured = run(engine, query, rate, seconds=results.seconds, warm_up=results.warm_up)
    print(f"{query}, {rate:,} events per second, {engine}: p50 {measured.p50:,.0f} ms", file=sys.stderr)
    results.runs.append(measured)


def _versions() -> str:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("headrace", "pyspark", "datafusion", "pyarrow")
    )
    return f"{packages}, Python {platform.python_version()}"


def _load() -> Results:
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    return Results(**{**saved, "runs": [Run(**run) for run in saved["runs"]]})


if __name__ == "__main__":
    sys.exit(main())
