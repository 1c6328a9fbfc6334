"""A run that is killed: what the child process of tests/servers/killing.py does."""

from __future__ import annotations

import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from headrace import Pipeline
from headrace.connectors import base
from headrace.testing.in_process import run_in_process

NAME, EPOCH_ROWS = "numbers", 20
STOPPED, FAILED = "stopped", "failed"


def live(sql: str, state: Path, talk: Connection) -> None:
    """Run a pipeline until something is said, and tell each step of its epochs, and how it ended."""

    def on_step(step: str, epoch: int) -> None:
        talk.send((step.partition(":")[0], epoch))

    base._DRIVER_BYTES = -1  # what can be committed in tasks is, however little it is
    try:
        pipeline = Pipeline.from_sql(sql, name=NAME)
        # The other end is also readable when it is gone: nobody is left behind.
        run_in_process(
            pipeline,
            state,
            epoch_rows=EPOCH_ROWS,
            idle_epochs=10**9,
            clock=time.time,
            on_step=on_step,
            stop=talk.poll,
        )
    except Exception:  # noqa: BLE001 - the test shows it
        talk.send((FAILED, traceback.format_exc()))
    else:
        talk.send((STOPPED, 0))
