"""Read a sample of a source, for `connectors test` and to find columns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.base.private import process_directory
from headrace.formats.options import FormatOptions, implied_columns, infer_from
from headrace.model.operator import Limit, Metrics, SourceContext, TaskInfo
from headrace.storage.open import open_storage

SAMPLE_ROWS = 1000
"""The number of messages to infer columns from."""
SAMPLE_SECONDS = 5.0
"""How long to wait for them."""
QUIET_SECONDS = 0.5
"""How long to wait for more once some have arrived."""


def read_sample(
    source: Any, rows: int, seconds: float, *, quiet: float = 0.0
) -> tuple[list[pa.RecordBatch], list[str]]:
    """Return some rows of a source, and the errors of those that cannot be read.

    It ends with `rows` rows, after `seconds`, or `quiet` seconds after the last row.
    """
    sample = _Sample()
    with tempfile.TemporaryDirectory(prefix="headrace-", dir=process_directory()) as folder:
        storage = open_storage(folder)
        source.open(storage, job_id="sample", node="sample")
        try:
            ends = time.monotonic() + seconds
            at = source.initial_offset(time=time.time())
            while sample.rows < rows and time.monotonic() < ends and not source.is_finished(at):
                reached = source.latest_offset(
                    at, Limit(rows=rows - sample.rows, time=time.time()), parallelism=1
                )
                if reached == at:
                    time.sleep(min(0.05, max(0.0, ends - time.monotonic())))
                    continue
                for split in source.splits(at, reached, parallelism=1):
                    info = TaskInfo("sample", "sample", "sample", 0, 1, (0, 2**64 - 1), 1)
                    ctx = SourceContext(info, split, storage, Metrics(), sample.errors)
                    source.on_start(ctx)
                    source.run(ctx, sample)
                    source.on_close(ctx, sample)
                at = reached
                if sample.batches or sample.errors:
                    ends = min(ends, time.monotonic() + quiet)
        finally:
            source.close()
    return sample.batches, sample.errors


def message_columns(source: Any, *, where: str) -> pa.Schema:
    """Find the columns of messages: by their schema, or else from a sample."""
    options: FormatOptions = source.options
    implied = implied_columns(options)
    if implied is not None:
        return implied
    columns = pa.schema({"value": pa.binary()})
    plain = {"format": "raw_bytes", "columns": columns, "framing": None, "metadata": {}, "bad_data": "fail"}
    raw = type(source)(options.model_copy(update=plain))
    batches, _ = read_sample(raw.for_sampling(), SAMPLE_ROWS, SAMPLE_SECONDS, quiet=QUIET_SECONDS)
    messages: Sequence[bytes] = [
        value for batch in batches for value in batch.column("value").to_pylist() if value is not None
    ]
    return infer_from(options, messages[:SAMPLE_ROWS], where=where)


class _Sample:
    """A collector that stores rows and errors."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.errors: list[str] = []

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def collect(self, batch: pa.RecordBatch, output: str = "") -> None:
        """Store rows, and the errors of those that cannot be read."""
        if not output:
            self.batches.append(batch)
        else:
            self.errors += batch.column("error").to_pylist()

    def broadcast_watermark(self, watermark: Any) -> None:
        """Ignore the watermark."""
