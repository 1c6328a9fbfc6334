"""The pipeline that the soak with faults runs as a process, once per life.

    python -m tests.soak.victim DIRECTORY PARALLELISM

It reads as many numbers as the file `target` says, and ends when that is final. A running count per key goes
to files and to SQLite, a count per key and window to one file.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace as hr
from tests import flows

KEYS = 7
STEP = flows.SECOND // 10
"""Event time from one number to the next."""
MOST = 2_000
"""Rows in an epoch at most."""


class Numbers(hr.SourceOperator):
    """The numbers from 0 to the target, which a file holds; it may grow until it is final."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def initial_offset(self, *, time: float) -> hr.Offset:
        return {"0": 0}

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        return {"0": min(read_target(self.target)[0], start["0"] + MOST)}

    def is_finished(self, offset: hr.Offset) -> bool:
        numbers, is_final = read_target(self.target)
        return is_final and offset["0"] >= numbers

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> Sequence[hr.Split]:
        bounds = np.linspace(start["0"], end["0"], parallelism + 1).astype(int).tolist()
        return [
            hr.Split("0", {"start": low, "end": high})
            for low, high in itertools.pairwise(bounds)
            if low < high
        ]

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        counter = np.arange(ctx.split.detail["start"], ctx.split.detail["end"], dtype=np.int64)
        times = pa.array(flows.T0 + counter * STEP).cast(pa.timestamp("ns"))
        collector.collect(pa.record_batch({"counter": pa.array(counter), "_timestamp": times}))
        return hr.Finish.GRACEFUL


def write_target(path: Path, numbers: int, *, is_final: bool) -> None:
    """Say how many numbers there are, in one step."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps([numbers, is_final]), encoding="ascii")
    part.rename(path)


def read_target(path: Path) -> tuple[int, bool]:
    """How many numbers there are, and whether that is all."""
    numbers, is_final = json.loads(path.read_text(encoding="ascii"))
    return numbers, is_final


def build(directory: Path) -> hr.Pipeline:
    """The pipeline, with its results in the folder `out`."""
    out = directory / "out"
    pipeline = hr.Pipeline("victim")
    rows = pipeline.source(Numbers(directory / "target"), id="numbers").watermark(lateness="2s")
    keyed = rows.map(flows.keyed(KEYS)).key_by("k")
    windows = keyed.apply(flows.TumblingCount(), id="windows")
    windows.sink(hr.SingleFileSink(path=str(out / "windows.jsonl")), id="windows-file")
    counts = keyed.apply(flows.RunningCount(), id="counts")
    counts.sink("filesystem", path=str(out / "counts"), format="json", id="counts-files")
    counts.sink("database", url=f"sqlite:///{out}/counts.db", table="counts", id="counts-database")
    return pipeline


def main() -> None:
    """Run until the source ends or a signal asks for a stop."""
    directory, parallelism = Path(sys.argv[1]), int(sys.argv[2])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def on_progress(progress: hr.Progress) -> None:
        (directory / "progress").write_text(f"{progress.epoch} {progress.total_in}", encoding="ascii")

    result = build(directory).run(
        directory / "disk" / "state",
        parallelism=parallelism,
        master=f"local[{parallelism}]",
        stop=stop,
        on_progress=on_progress,
        options=hr.RunOptions(log_dir=directory / "logs"),
    )
    sys.stdout.write(f"{result.reason} after epoch {result.last_epoch}\n")


if __name__ == "__main__":
    main()
