"""Counts the work of a steady epoch: numbers that are the same on every machine, however busy it is.

`python -m tests.spark.work_counts` compares them with the baseline beside it; `--write` writes that anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import DataFrame, SessionContext
from pyspark import SparkContext

import headrace as hr
from headrace.engine import envelope
from headrace.exchanges.spark.session import stop_session
from headrace.state.cache import cache_directory
from headrace.testing.in_process import run_in_process
from tests.flows import RunningCount
from tests.stepping import run_with_steps

BASELINE = Path(__file__).with_suffix(".json")
WRITE = "python -m tests.spark.work_counts --write"

EPOCHS, EPOCH_ROWS = 3, 20_000
COUNTED = 2
"""The epoch that is counted: the first warms up, and the last ends what is open."""
CORES = PARALLELISM = 2
MANY = "python, 32 subtasks"

FILES, SEALED, SHUFFLED = "files written", "bytes sealed", "bytes shuffled"
TOLERANCE = {SEALED: 0.02, SHUFFLED: 0.02}
"""Other versions of Arrow need other bytes; and what is shuffled has the time of the epoch in it."""

Counts = dict[str, dict[str, int]]
"""Pipeline → what is counted → how often in the counted epoch."""

EVENTS = f"""
CREATE TABLE nexmark WITH (
    connector = 'nexmark', event_rate = 1000, message_count = {EPOCHS * EPOCH_ROWS},
    base_time = '2026-01-01T00:00:00', paced = false
);
CREATE VIEW bids AS
SELECT bid.auction AS auction, bid.bidder AS bidder, bid.price AS price, bid.datetime AS datetime
FROM nexmark WHERE bid IS NOT NULL;
CREATE VIEW auctions AS
SELECT auction.id AS id, auction.seller AS seller, auction.category AS category
FROM nexmark WHERE auction IS NOT NULL;
CREATE VIEW people AS
SELECT person.id AS id, person.name AS name
FROM nexmark WHERE person IS NOT NULL;
"""

QUERIES = {
    "projection": "SELECT auction, bidder, 0.908 * price AS price, datetime FROM bids",
    "tumble": """
        SELECT auction, count(*) AS num, tumble(interval '2 second') AS window
        FROM bids GROUP BY auction, window
    """,
    "hop": """
        SELECT auction, count(*) AS num, hop(interval '1 second', interval '10 second') AS window
        FROM bids GROUP BY auction, window
    """,
    "windowed join": """
        SELECT p.id AS id, p.name AS name
        FROM (SELECT id, name, tumble(interval '2 second') AS window FROM people GROUP BY id, name, window) p
        JOIN (SELECT seller, tumble(interval '2 second') AS window FROM auctions GROUP BY seller, window) a
            ON p.id = a.seller AND p.window = a.window
    """,
    "updating aggregate": "SELECT bidder, count(*) AS num, max(price) AS most FROM bids GROUP BY bidder",
    "updating join": """
        SELECT p.name AS name, a.id AS id, a.category AS category
        FROM auctions a JOIN people p ON a.seller = p.id
    """,
}
SINK = "CREATE TABLE files WITH (connector = 'filesystem', path = '{path}', format = 'parquet');"


def _query(name: str, folder: Path) -> hr.Pipeline:
    if name == "projection":
        sql = f"{EVENTS}{SINK.format(path=folder / 'out')}INSERT INTO files {QUERIES[name]};"
    else:
        sql = f"{EVENTS}{QUERIES[name]};"
    return hr.Pipeline.from_sql(sql, name=name.replace(" ", "-"), preview=lambda _: ("blackhole", {}))


def _python(_folder: Path) -> hr.Pipeline:
    """Two operators in Python with a shuffle before each."""

    def bidders(batch: pa.RecordBatch) -> pa.RecordBatch:
        bids = batch.column("bid").drop_null()
        return pa.record_batch({"k": bids.field("bidder"), "_timestamp": bids.field("datetime")})

    def tens(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch(
            {"k": pc.divide(batch.column("n"), 10), "_timestamp": batch.column("_timestamp")}
        )

    pipeline = hr.Pipeline("python")
    events = pipeline.source(
        "nexmark",
        event_rate=1000,
        message_count=EPOCHS * EPOCH_ROWS,
        base_time="2026-01-01T00:00:00",
        paced=False,
    )
    counted = events.map(bidders).key_by("k").apply(RunningCount(), id="bids").map(tens)
    counted.key_by("k").apply(RunningCount(), id="tens").sink("blackhole")
    return pipeline


PIPELINES: dict[str, Callable[[Path], hr.Pipeline]] = {
    **{name: partial(_query, name) for name in QUERIES},
    "python": _python,
    MANY: _python,
}
ON_SPARK = ("projection", "tumble", "windowed join", "python", MANY)
"""The others have no other shape on Spark, and each one takes seconds."""


def _parallelism(name: str) -> int:
    return 32 if name == MANY else PARALLELISM


def count_work(folder: Path) -> Counts:
    """Run every pipeline in this process and some of them on Spark, and count."""
    on_spark = count_on_spark(folder / "spark")
    return {
        name: on_spark.get(name, {}) | count_in_process(name, folder / "in-process" / name)
        for name in PIPELINES
    }


def count_on_spark(folder: Path) -> Counts:
    """Jobs, stages, tasks and what is shuffled, as Spark's event log tells them."""
    log = folder / "log"
    log.mkdir(parents=True)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    stop_session()  # where the log goes is a setting of a session
    try:
        for name in ON_SPARK:
            result = run_with_steps(
                PIPELINES[name](folder / name),
                folder / name / "state",
                partial(_label_jobs, name),
                master=f"local[{CORES}]",
                parallelism=_parallelism(name),
                epoch_rows=EPOCH_ROWS,
                epoch_target="1h",  # a machine that stalls must not make the epochs smaller
                spark_conf=conf,
            )
            _check_whole(name, result)
    finally:
        stop_session()
    (file,) = log.iterdir()
    return read_event_log(file)


LABEL = "work_counts.epoch"


def _label_jobs(name: str, step: str, epoch: int) -> None:
    if step == "begin":
        SparkContext.getOrCreate().setLocalProperty(LABEL, json.dumps([name, epoch]))


def read_event_log(file: Path) -> Counts:
    """What Spark did for each pipeline: in the epoch that is counted, and for none in particular."""
    pipelines: dict[str, Counter[str]] = defaultdict(Counter)
    stages: dict[int, Counter[str]] = {}
    name, epoch = "", COUNTED
    for line in file.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        match event["Event"]:
            case "SparkListenerJobStart":
                if label := event["Properties"].get(LABEL):
                    name, epoch = json.loads(label)
                counts = pipelines[name] if epoch == COUNTED or not label else Counter[str]()
                counts["jobs"] += 1
                stages |= dict.fromkeys(event["Stage IDs"], counts)
            case "SparkListenerStageCompleted":
                stages[event["Stage Info"]["Stage ID"]]["stages"] += 1
            case "SparkListenerTaskEnd":
                written = event["Task Metrics"]["Shuffle Write Metrics"]
                counts = stages[event["Stage ID"]]
                counts["tasks"] += 1
                counts["records shuffled"] += written["Shuffle Records Written"]
                counts[SHUFFLED] += written["Shuffle Bytes Written"]
    kinds = ("jobs", "stages", "tasks", "records shuffled", SHUFFLED)
    return {name: {what: counts[what] for what in kinds} for name, counts in pipelines.items()}


_COMPUTING = (
    "__arrow_c_stream__",
    "collect",
    "collect_partitioned",
    "count",
    "execute_stream",
    "execute_stream_partitioned",
    "to_arrow_table",
)
CALLS: dict[str, list[tuple[Any, str]]] = {
    SEALED: [(envelope, "seal")],
    "syncs to disk": [(os, "fsync"), (os, "fdatasync")],
    "queries parsed": [(SessionContext, "sql")],
    "queries planned": [(DataFrame, name) for name in (*_COMPUTING, "execution_plan")],
    "queries run": [*((DataFrame, name) for name in _COMPUTING), (SessionContext, "execute")],
}
"""What is counted by its calls. DataFusion plans a frame for each run; a plan is made once for all runs."""


def count_in_process(name: str, folder: Path) -> dict[str, int]:
    """Files, syncs, bytes and what DataFusion plans; without Spark all of it happens in this process."""
    folder.mkdir(parents=True)
    state = folder / "state"
    places = [folder, Path(cache_directory(str(state)))]
    counts: Counter[str] = Counter()
    at_end: dict[int, Counter[str]] = {}
    seen: set[Path] = set()

    def on_step(step: str, epoch: int) -> None:
        there = {path for place in places for path in place.rglob("*") if path.is_file()}
        counts[FILES] += len(there - seen)
        seen.update(there)
        if step == "committed":
            at_end[epoch] = counts.copy()

    with ExitStack() as stack:
        for what, calls in CALLS.items():
            for owner, function in calls:
                stack.enter_context(_counted(counts, what, owner, function))
        result = run_in_process(
            PIPELINES[name](folder),
            state,
            parallelism=_parallelism(name),
            epoch_rows=EPOCH_ROWS,
            on_step=on_step,
        )
    _check_whole(name, result)
    before, after = at_end[COUNTED - 1], at_end[COUNTED]
    return {what: after[what] - before[what] for what in (FILES, *CALLS)}


@contextmanager
def _counted(counts: Counter[str], what: str, owner: Any, function: str) -> Iterator[None]:
    original = getattr(owner, function)

    def counted(*args: Any, **options: Any) -> Any:
        returned = original(*args, **options)
        counts[what] += len(returned) if what == SEALED else 1
        return returned

    with patch.object(owner, function, counted):
        yield


def _check_whole(name: str, result: hr.RunResult) -> None:
    """A run of another number of epochs cannot be compared."""
    if (result.reason, result.epochs) != ("finished", EPOCHS):
        raise AssertionError(f"{name}: {result.reason} after {result.epochs} epochs, not {EPOCHS}")


@dataclass(frozen=True)
class Difference:
    """A count that is not what the baseline says; None where one of them has none."""

    pipeline: str
    what: str
    baseline: int | None
    found: int | None

    @property
    def verdict(self) -> str:
        if self.baseline is None:
            return "not in the baseline"
        if self.found is None:
            return "no longer counted"
        return "more work" if self.found > self.baseline else "better than the baseline: write it anew"


def compare(baseline: Counts, found: Counts) -> list[Difference]:
    """Every count that differs by more than its tolerance."""
    differences = []
    for pipeline in [*baseline, *(name for name in found if name not in baseline)]:
        before, now = baseline.get(pipeline, {}), found.get(pipeline, {})
        for what in [*before, *(name for name in now if name not in before)]:
            old, new = before.get(what), now.get(what)
            if old is None or new is None or abs(new - old) > old * TOLERANCE.get(what, 0):
                differences.append(Difference(pipeline, what, old, new))
    return differences


def report(differences: Sequence[Difference]) -> str:
    """The differences as a table, and what to do about them."""
    rows = [("pipeline", "count", "baseline", "found", "")]
    rows += [(d.pipeline, d.what, _shown(d.baseline), _shown(d.found), d.verdict) for d in differences]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}"
        for row in rows
    ]
    return "\n".join(
        [
            f"the work of an epoch of {EPOCH_ROWS:,} rows is not what {BASELINE.name} says:",
            *(f"  {line.rstrip()}" for line in lines),
            f"Where the change is meant, write the baseline anew with `{WRITE}`",
            "and say in the commit why the counts have changed; otherwise find what works more than before.",
        ]
    )


def _shown(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def read_baseline() -> Counts:
    counts: Counts = json.loads(BASELINE.read_text(encoding="utf-8"))
    return counts


def main() -> None:
    """Compare with the baseline, or write it anew."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.work_counts", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the baseline anew")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        found = count_work(Path(folder))
    if write:
        BASELINE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    elif differences := compare(read_baseline(), found):
        sys.exit(report(differences))


if __name__ == "__main__":
    main()
