"""The rows of the messages, and rates of processing them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.model.operator import ArrowOperator
from tests.support import SinkDriver

COLUMNS = {"n": "int64", "text": "string"}


def make_rows(count: int) -> pa.RecordBatch:
    """Rows of a number and a short string."""
    return pa.record_batch({"n": list(range(count)), "text": [f"row {n}" for n in range(count)]})


def make_values(count: int) -> list[bytes]:
    """The same as JSON."""
    return [json.dumps(row).encode() for row in make_rows(count).to_pylist()]


def rate(action: Callable[[], Any], rows: int) -> float:
    """The rate of an action in rows per second."""
    begun = time.perf_counter()
    action()
    return rows / (time.perf_counter() - begun)


def sink_rate(make: Callable[[], ArrowOperator], rows: Sequence[pa.RecordBatch], folder: Path) -> float:
    """The rate of a sink in rows per second, in one epoch."""
    driver = SinkDriver(make, folder)
    return rate(lambda: driver.run(1, rows), sum(batch.num_rows for batch in rows))
