"""One run of a query over events as they happen, and the time from each event to its result."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bench.latency.feed import KEYS, write_events
from bench.latency.processes import SPARK, RunFailedError, command, output_of, running

QUERIES = ("stateless", "windowed")
RATES = (1_000, 50_000)
_LOOK = 0.005
"""Seconds between two polls for visible results."""
_EARLY = 0.25
"""Seconds between the single events before the engine has started."""
_START, _GRACE, _QUIET = 90.0, 30.0, 4.0
"""Seconds to wait for the first result, and after the last one."""


@dataclass(frozen=True)
class Run:
    """The latencies of one run, in milliseconds."""

    engine: str
    query: str
    rate: int
    p50: float
    p95: float
    p99: float
    results: int
    """How many rows were measured."""
    commits: int
    """How often new results became visible."""


def run(engine: str, query: str, rate: int, *, seconds: int, warm_up: int) -> Run:
    """Feed the query for `warm_up` and `seconds`, and measure the events of the latter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        seen: dict[str, float] = {}
        with running(command(engine, query, folder), folder) as process:
            look = _looker(engine, folder, seen)

            def watch(until: Callable[[], bool]) -> None:
                while process.poll() is None and not until():
                    look()
                    time.sleep(_LOOK)

            _trickle(folder, watch, seen)
            begin, total = float(int(time.time()) + 2), warm_up + seconds
            feeder = [sys.executable, "-m", "bench.latency.feed", str(folder), str(begin), str(rate)]
            with subprocess.Popen([*feeder, str(total)]):
                watch(lambda: time.time() >= begin + total)
            ended = time.time()
            watch(lambda: time.time() > max([ended, *seen.values()]) + _QUIET or time.time() > ended + _GRACE)
            if not seen or process.poll() is not None:
                raise RunFailedError(f"{engine}, {query}: it ended early and said\n{output_of(folder)}")
        results = _results(engine, folder, seen)
        return _measure(engine, query, rate, results, begin=begin + warm_up, end=begin + total)


def _trickle(folder: Path, watch: Callable[[Callable[[], bool]], None], seen: dict[str, float]) -> None:
    """Write single events until there is a result: then the engine has started."""
    begin, number = time.time(), 0

    def started() -> bool:
        nonlocal number
        now = time.time()
        if now > begin + number * _EARLY:
            number += 1
            write_events(folder, f"early-{number:06}", now, 1, 0, 1)
        return bool(seen) or now > begin + _START

    watch(started)


def _looker(engine: str, folder: Path, seen: dict[str, float]) -> Callable[[], None]:
    """Adds names that have become visible to `seen`, with the time.

    In Headrace a file is visible when it has its name. A file of Spark's sink counts when the log of the sink
    lists it: readers leave out what it does not list, and a repeated micro-batch would write it again.
    """
    directory = folder / "out" / "_spark_metadata" if engine == SPARK else folder / "out"
    changed = 0.0

    def look() -> None:
        nonlocal changed
        try:
            now, modified = time.time(), directory.stat().st_mtime
            if modified == changed and now - modified > 10 * _LOOK:
                return
            changed = modified
            for entry in directory.iterdir():
                if not entry.name.startswith((".", "_")):
                    seen.setdefault(entry.name, now)
        except FileNotFoundError:
            pass  # nothing is visible yet

    return look


def _files(engine: str, folder: Path, seen: dict[str, float]) -> Iterator[tuple[Path, float]]:
    """The files with results, and when they became visible."""
    if engine != SPARK:
        yield from ((folder / "out" / name, at) for name, at in seen.items())
        return
    listed = set()
    for name, at in sorted(seen.items(), key=lambda item: int(item[0].split(".")[0])):
        # An entry of the log that is called `.compact` lists all files before it again.
        for line in (folder / "out" / "_spark_metadata" / name).read_text(encoding="utf-8").splitlines()[1:]:
            path = urlparse(json.loads(line)["path"]).path
            if path not in listed:
                listed.add(path)
                yield Path(path), at


def _results(engine: str, folder: Path, seen: dict[str, float]) -> pa.Table:
    """All results, with the column `seen`: when they became visible, in microseconds."""
    schema = pa.schema([(name, pa.int64()) for name in ("id", "key", "n", "created")])
    parse = pyarrow.json.ParseOptions(explicit_schema=schema)
    tables = [schema.append(pa.field("seen", pa.int64())).empty_table()]
    for path, at in _files(engine, folder, seen):
        if path.stat().st_size:
            table = pyarrow.json.read_json(path, parse_options=parse).select(schema.names)
            tables.append(table.append_column("seen", pa.repeat(round(at * 1e6), table.num_rows)))
    return pa.concat_tables(tables)


def _measure(engine: str, query: str, rate: int, results: pa.Table, *, begin: float, end: float) -> Run:
    """The latencies of what was created, or of windows that ended, between the two times."""
    created = pc.divide(results["created"], 1e6)
    chosen = results.filter(pc.and_(pc.greater(created, begin), pc.less(created, end)))
    if query == "stateless":
        # Half of the keys; the event at the very beginning is left out.
        right = rate * (end - begin) / 2 - 1
        distinct = chosen["id"].unique()
        complete = len(distinct) == chosen.num_rows == right
    else:
        right = (end - begin - 1) * KEYS
        distinct = chosen.group_by(["key", "created"]).aggregate([])
        counted = pc.sum(chosen["n"]).as_py()
        complete = len(distinct) == chosen.num_rows == right and counted == rate * (end - begin - 1)
    if not complete:
        raise RunFailedError(
            f"{engine}, {query} at {rate} per second: {chosen.num_rows} results, {len(distinct)} different, "
            f"instead of {right:.0f}"
        )
    waited = pc.divide(pc.subtract(chosen["seen"], chosen["created"]), 1e3).to_numpy()
    p50, p95, p99 = (round(float(percentile), 1) for percentile in np.percentile(waited, (50, 95, 99)))
    # The files of one commit may be seen in two looks.
    commits = 1 + int(np.sum(np.diff(np.unique(chosen["seen"].to_numpy())) > 4e6 * _LOOK))
    return Run(engine, query, rate, p50, p95, p99, results=chosen.num_rows, commits=commits)
