"""Writes and reads rows in epochs, as a run does with one task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.connectors._rows import rate
from headrace.model.operator import ArrowOperator, Limit, SourceContext, SourceOperator
from tests.support import ListCollector, SinkDriver, task

ROWS, EPOCHS, BATCH = 2_000_000, 8, 50_000


def table(rows: int = ROWS) -> pa.Table:
    """Rows of a number, a short string and a time."""
    numbers = pa.array(range(rows), pa.int64())
    texts = pa.array([f"customer {n % 5000}" for n in range(rows)])
    return pa.table({"n": numbers, "text": texts, "_timestamp": numbers.cast(pa.timestamp("ns"))})


def per_second(action: Callable[[], Any], rows: int = ROWS) -> float:
    """The rate of an action in rows per second."""
    return rate(action, rows)


def write(make: Callable[[], ArrowOperator], rows: pa.Table, state: Path) -> None:
    """Write rows in epochs; those of the first seven wait for the last."""
    driver, share = SinkDriver(make, state, job=str(state)), rows.num_rows // EPOCHS
    for epoch in range(EPOCHS):
        batches = rows.slice(epoch * share, share).to_batches(max_chunksize=BATCH)
        if epoch < EPOCHS - 1:
            driver.run(epoch + 1, batches)
            continue
        ending = SinkDriver(lambda: _ending(make), state, job=str(state))
        ending.saved = driver.saved
        ending.run(epoch + 1, batches)


def _ending(make: Callable[[], ArrowOperator]) -> ArrowOperator:
    sink: Any = make()
    sink._ending = True  # noqa: SLF001 - as in the last epoch of a run
    operator: ArrowOperator = sink
    return operator


def read(source: SourceOperator, rows: int = ROWS) -> int:
    """Read all rows of a source, in epochs."""
    offset, seen = source.initial_offset(time=0.0), 0
    while not source.is_finished(offset):
        end = source.latest_offset(offset, Limit(rows // EPOCHS, 0.0), parallelism=1)
        for split in source.splits(offset, end, parallelism=1):
            collector = ListCollector()
            source.run(SourceContext(task(), split), collector)
            seen += sum(batch.num_rows for batch in collector.batches)
        offset = end
    return seen
