"""Does an epoch cost its own changes, or the state it changes?

A counter per key on local Spark: the state is filled with a number of keys, then every epoch updates the
same number of keys, chosen at random. Sizes run one after the other in one process and are compared with the
smallest.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

SIZES = (10_000, 1_000_000, 10_000_000)
DELTA = 10_000
EPOCHS = 24
FILL = 1_000_000
PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "state-growth.md"


class Keys(hr.SourceOperator):
    """First every key once, then epochs of random keys."""

    def __init__(self, keys: int) -> None:
        self.keys = keys
        self.fills = -(-keys // FILL)

    def initial_offset(self, *, time: float) -> hr.Offset:
        return {"0": 0}

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        return {"0": min(start["0"] + 1, self.fills + EPOCHS)}

    def is_finished(self, offset: hr.Offset) -> bool:
        return bool(offset["0"] >= self.fills + EPOCHS)

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> Sequence[hr.Split]:
        return [hr.Split("0", {"n": start["0"], "i": i, "of": parallelism}) for i in range(parallelism)]

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        n, i, of = (ctx.split.detail[name] for name in ("n", "i", "of"))
        if n < self.fills:
            keys = np.arange(n * FILL + i, min(self.keys, (n + 1) * FILL), of, dtype=np.int64)
        else:
            keys = np.random.default_rng([n, i]).integers(0, self.keys, DELTA // of)
        times = pa.array(np.zeros(len(keys), dtype=np.int64)).cast(pa.timestamp("ns"))
        collector.collect(pa.record_batch({"k": pa.array(keys), "_timestamp": times}))
        return hr.Finish.GRACEFUL


class Count(hr.ArrowOperator):
    """Counts rows per key."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        return [hr.keyed_table_config("counts", "rows per key", schema, key=["k"])]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        keys, counts = np.unique(batch.column("k").to_numpy(), return_counts=True)
        rows, _ = ctx.keyed_table("counts").get(pa.record_batch({"k": pa.array(keys)}))
        total = pc.add(rows.column("n").fill_null(0), pa.array(counts))
        ctx.keyed_table("counts").put(pa.record_batch({"k": pa.array(keys), "n": total}))


def measure(keys: int) -> tuple[list[float], list[int], int]:
    """Seconds and bytes written of every epoch after the state was filled, and the size of the state."""
    pipeline = hr.Pipeline("state-growth")
    source = Keys(keys)
    pipeline.source(source).key_by("k").apply(Count()).sink("blackhole")
    epochs: list[hr.Progress] = []
    with tempfile.TemporaryDirectory() as state:
        pipeline.run(state, parallelism=2, on_progress=epochs.append)
    steady = epochs[source.fills :]
    # The first epochs after the fill still open and map what the fill wrote.
    return [p.seconds for p in steady[4:]], [p.bytes_written for p in steady[4:]], epochs[-1].state_bytes


def main() -> None:
    """Measure every size and write the page."""
    measure(SIZES[0])  # so that no size pays for the start of Spark and its workers
    lines = []
    base = None
    for keys in SIZES:
        seconds, written, size = measure(keys)
        median = statistics.median(seconds)
        base = base or median
        line = (
            f"| {keys:,} | {size / 1e6:,.1f} MB | {median * 1000:,.0f} ms | {median / base:.2f}× "
            f"| {min(seconds) * 1000:,.0f} – {max(seconds) * 1000:,.0f} ms "
            f"| {statistics.median(written) / 1e3:,.0f} kB | {max(written) / 1e3:,.0f} kB |"
        )
        sys.stdout.write(line + "\n")
        lines.append(line)
    PAGE.write_text(
        f"""# Epoch time as state grows

A count per key on local Spark. Every epoch updates {DELTA:,} random keys, for any number of keys in the
state. Measured by `make bench` over {EPOCHS - 4} epochs per size, all sizes in one process; the ratio is
relative to the smallest size. An epoch includes Spark's own fixed cost.

| keys | state on disk | median epoch | ratio | range | bytes written (median) | (largest) |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}

The largest number of bytes is an epoch with compaction of state files.
{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, 2 subtasks.
""",
        encoding="utf-8",
    )
    sys.stdout.write(f"wrote {PAGE}\n")
