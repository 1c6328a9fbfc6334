"""A job that is killed: run as a program by the recovery tests, once per life.

    python victim.py STATE OUT PARALLELISM MASTER [STEP EPOCH]

With a step and an epoch the driver kills itself there with SIGKILL; the step `tasks` means in the middle of
the epoch's tasks, by a worker.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pyarrow as pa

import headrace as hr
from tests import flows
from tests.stepping import run_with_steps

ROWS = 400


class KillDriver(hr.ArrowOperator):
    """Passes rows on; in one epoch it kills the driver, as a machine that fails would."""

    def __init__(self, pid: int, epoch: int) -> None:
        self.pid = pid
        self.epoch = epoch

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        if ctx.task_info.epoch == self.epoch:
            os.kill(self.pid, signal.SIGKILL)
        collector.collect(batch)


def build(out: Path, killer: hr.ArrowOperator) -> hr.Pipeline:
    pipeline = hr.Pipeline("victim")
    rows = pipeline.source(flows.impulse(ROWS)).watermark(lateness="5s").map(flows.keyed(7))
    rows = rows.apply(killer, id="killer")
    windows = rows.key_by("k").apply(flows.TumblingCount(), id="windows")
    windows.sink(hr.SingleFileSink(path=str(out / "windows.jsonl")), id="windows-file")
    numbers = rows.key_by("k").apply(flows.RunningCount(), id="numbers")
    numbers.sink(hr.SingleFileSink(path=str(out / "numbers.jsonl")), id="numbers-file")
    return pipeline


def main() -> None:
    state, out, parallelism = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    master = sys.argv[4]
    step, epoch = (sys.argv[5], int(sys.argv[6])) if len(sys.argv) > 5 else ("", 0)

    def on_step(name: str, at: int) -> None:
        if (name, at) == (step, epoch):
            os.kill(os.getpid(), signal.SIGKILL)

    killer = KillDriver(os.getpid(), epoch if step == "tasks" else 0)
    pipeline = build(out, killer)
    result = run_with_steps(pipeline, state, on_step, parallelism=parallelism, epoch_rows=50, master=master)
    sys.stdout.write(f"{result.reason} {result.first_epoch} {result.last_epoch}\n")


if __name__ == "__main__":
    main()
