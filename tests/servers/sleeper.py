"""A run that is suspended: what the child processes of test_takeover.py do.

    python -m tests.servers.sleeper STATE OUT OBJECTS [STEP EPOCH]

With a step and an epoch it suspends itself there with SIGSTOP, until somebody sends a SIGCONT.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.testing.in_process import run_in_process

ROWS, EPOCH_ROWS, KEPT = 200, 25, 2
EACH_EPOCH: dict[str, Any] = {"rolling_policy.interval": 0}
CREATED: dict[str, Any] = {"sink.create_table": True}


class SleepInCommit(hr.ArrowOperator):
    """A sink that suspends the driver when it commits an epoch."""

    def __init__(self, epoch: int | None) -> None:
        self.epoch = epoch

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        ctx.insert_committing_data("rows", b"1")

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: hr.OperatorContext
    ) -> None:
        if epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGSTOP)


def build(out: str, objects: str, first: hr.ArrowOperator | None = None) -> hr.Pipeline:
    """Numbers that go to a file, to files in an object store and to a database, after the `first` sink."""
    pipeline = hr.Pipeline("numbers")
    numbers = pipeline.source("memory", rows=[{"n": n} for n in range(ROWS)], id="source")
    if first is not None:
        numbers.sink(first, id="first")
    numbers.sink("single_file", path=f"{out}/numbers.json", format="json", id="file")
    numbers.sink("filesystem", path=objects, format="json", id="objects", **EACH_EPOCH)
    numbers.sink("database", url=f"sqlite:///{out}/numbers.db", table="numbers", id="database", **CREATED)
    return pipeline


def main() -> None:
    state, out, objects = sys.argv[1:4]
    asleep = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 4 else None

    def on_step(step: str, epoch: int) -> None:
        if (step, epoch) == asleep:
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        run_in_process(
            build(out, objects),
            state,
            parallelism=1,
            epoch_rows=EPOCH_ROWS,
            options=hr.RunOptions(keep_checkpoints=KEPT),
            on_step=on_step,
        )
    except hr.HeadraceError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
