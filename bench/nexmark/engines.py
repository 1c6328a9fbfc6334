"""`python -m bench.nexmark.engines ENGINE QUERY …`: one run of a query, in a process of its own.

What it found is printed as one line of JSON. With `--rows FILE` the rows of the answer are written there, for
a comparison.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.nexmark.data import Events
from bench.nexmark.queries import QUERIES
from bench.nexmark.task import Task

_TIMES = 3
"""How often DataFusion runs a query; the first run is the warm-up."""


def headrace(task: Task) -> None:
    """Headrace on local Spark, as `headrace run` starts it."""
    import headrace as hr
    from bench.nexmark.running_count import running_count

    names: list[str] = []

    def sink(_: object = None) -> tuple[str, dict[str, str]]:
        names.append(f"rows{len(names)}")
        return ("memory", {"name": names[-1]}) if task.rows else ("blackhole", {})

    if task.name == "stateful":
        pipeline = running_count(task.events.folder, *sink())
    else:
        pipeline = hr.Pipeline.from_sql(task.query.program(task.events.folder), preview=sink)
    ended = 0.0

    def note(progress: hr.Progress) -> None:
        nonlocal ended
        now = time.perf_counter()
        task.batches.append((progress.rows_in, now - ended if ended else progress.seconds))
        ended = now

    events, files = task.events, len(list(task.events.folder.iterdir()))
    with tempfile.TemporaryDirectory() as state:
        result = pipeline.run(
            state,
            parallelism=task.cores,
            master=f"local[{task.cores}]",
            # As large as micro-batches, however long they take; without these as `headrace run` has them.
            epoch_rows=events.per_batch * events.count // files if events.per_batch else None,
            on_progress=note,
            options=hr.RunOptions(epoch_target=timedelta(minutes=1) if events.per_batch else None),
        )
    if task.rows:
        answers = [_remaining(result.rows[name]) for name in names]
        if task.name == "stateful":
            counts = answers[0].group_by("key").aggregate([("num", "max")])
            answers = [counts.rename_columns({"num_max": "num"})]
        write_rows(answers, task.rows)


def _remaining(table: pa.Table) -> pa.Table:
    """The rows that were not retracted."""
    from headrace.base.columns import RETRACT, TIMESTAMP

    columns = [name for name in table.column_names if name not in (TIMESTAMP, RETRACT)]
    if RETRACT not in table.column_names:
        return table.select(columns)
    change = pc.if_else(table[RETRACT].fill_null(False), -1, 1)
    left = table.select(columns).append_column("change", change)
    left = left.group_by(columns).aggregate([("change", "sum")])
    if left.num_rows and pc.min(left["change_sum"]).as_py() < 0:
        raise AssertionError("rows were taken back that had not been there")
    again = [at for at, times in enumerate(left["change_sum"].to_pylist()) for _ in range(times)]
    return left.select(columns).take(again)


def write_rows(answers: list[pa.Table], path: Path) -> None:
    """Write the rows; those of several sinks with the number of their sink."""
    if len(answers) > 1:
        answers = [
            table.append_column("sink", pa.repeat(number, table.num_rows))
            for number, table in enumerate(answers)
        ]
    pq.write_table(pa.concat_tables(answers), path)


def spark(task: Task, *, rocksdb: bool = False, literal: bool = False) -> None:
    """Structured Streaming."""
    from bench.nexmark.structured_streaming import run_streaming

    run_streaming(task, rocksdb=rocksdb, literal=literal)


def datafusion(task: Task) -> None:
    """DataFusion over all events at once."""
    from datafusion import SessionConfig, SessionContext

    context = SessionContext(SessionConfig().with_target_partitions(task.cores))
    for statement in task.query.setup(task.events.folder):
        context.sql(statement)
    if task.rows:
        write_rows([context.sql(text).to_arrow_table() for text in task.query.batch_statements], task.rows)
        return
    for _ in range(_TIMES):
        begun = time.perf_counter()
        for text in task.query.batch_statements:
            for _batch in context.sql(text).execute_stream():
                pass
        task.batches.append((task.events.count, time.perf_counter() - begun))


ENGINES: dict[str, Callable[[Task], None]] = {
    "headrace": headrace,
    "spark": spark,
    "spark rocksdb": lambda task: spark(task, rocksdb=True),
    "spark literal": lambda task: spark(task, literal=True),
    "datafusion": datafusion,
}


def main() -> int:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark.engines", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--per-batch", type=int, default=1, help="files in a micro-batch and in an epoch")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--limit", type=float, help="seconds after which the batches so far are reported")
    options = parser.parse_args()
    events = Events(options.folder, options.count, options.per_batch)
    task = Task(options.query, events, cores=options.cores, rows=options.rows)
    if options.limit:
        task.end_after(options.limit)
    ENGINES[options.engine](task)
    task.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
