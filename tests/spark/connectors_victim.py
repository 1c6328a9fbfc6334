"""A pipeline of SQL that kills its own driver: run as a program, once per life.

    python -m tests.spark.connectors_victim FILE STATE PARALLELISM STEP EPOCHS

The driver dies with SIGKILL when it comes past the step in the so-manieth epoch of this life.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import headrace as hr
from headrace.connectors import base
from tests.stepping import run_with_steps

NAME = "connectors"
EPOCH_ROWS = 300


def main() -> None:
    file, state, parallelism, step, epochs = sys.argv[1:]
    seen: set[int] = set()

    def on_step(name: str, epoch: int) -> None:
        if name == "begin":
            seen.add(epoch)
        if name == step and len(seen) >= int(epochs):
            os.kill(os.getpid(), signal.SIGKILL)

    base._DRIVER_BYTES = -1  # what can be committed in tasks is, however little it is
    pipeline = hr.Pipeline.from_sql(Path(file).read_text(), name=NAME)
    run_with_steps(pipeline, state, on_step, parallelism=int(parallelism), epoch_rows=EPOCH_ROWS)


if __name__ == "__main__":
    main()
