"""Reads sources that log what they receive, as a run does."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa

from headrace.connectors.received import ReceivedSource
from headrace.model.operator import Limit, SourceContext
from headrace.storage.open import open_storage
from tests.support import ListCollector, task


def read_received(source: ReceivedSource, folder: Path, rows: int) -> float:
    """The rate of receiving, logging and reading rows in epochs of up to 20 000, in rows per second."""
    pa.array([""])  # the first array of a process imports pandas
    storage, seen, begun = open_storage(str(folder)), 0, time.perf_counter()
    source.open(storage, job_id="job", node="op")
    offset = source.initial_offset(time=0)
    while seen < rows:
        end = source.latest_offset(offset, Limit(20_000, 0), parallelism=1)
        for split in source.splits(offset, end, parallelism=1) if end != offset else ():
            collector = ListCollector()
            source.run(SourceContext(task(), split, storage=storage), collector)
            seen += sum(batch.num_rows for batch in collector.batches)
        offset = end
    seconds = time.perf_counter() - begun
    source.close()
    return rows / seconds
