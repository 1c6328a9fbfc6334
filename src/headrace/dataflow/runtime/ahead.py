"""A runtime that handles messages as they come, before the epoch that they belong to is planned."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.watermarks import Watermark
from headrace.dataflow.runtime.wakeups import Bell
from headrace.model.ahead import Ahead
from headrace.model.operator import TaskInfo

if TYPE_CHECKING:
    from headrace.dataflow.runtime.operator import DataflowRuntime, _Instance

LOOP_SECONDS = 0.005
"""How long messages may go round in a loop before others that have come get their turn."""
GATHERED_BYTES = 64 * 1024 * 1024
"""How much may wait for the end of the epoch to leave the runtime."""


class RuntimeAhead(Ahead):
    """The units of a runtime in an epoch that is not planned yet.

    What they send to other operators is gathered, and leaves with the epoch; so does what they print.
    """

    def __init__(self, runtime: DataflowRuntime, instance: _Instance, task: TaskInfo) -> None:
        self._runtime = runtime
        self._instance = instance
        self._epoch = task.epoch
        if instance.hears_processes and instance.bell is None:
            instance.bell = Bell(task.job_id)
        self._bytes = 0

    @property
    def wants_cut(self) -> bool:
        """Whether a unit has failed, all have ended, or much has been sent."""
        scheduler = self._instance.scheduler
        return (
            scheduler.failure is not None
            or scheduler.stop_all
            or (bool(self._runtime.spec.units) and scheduler.over)
            or self._bytes > GATHERED_BYTES
        )

    def handle(self, received: Sequence[tuple[int, pa.RecordBatch]], *, now: float) -> None:
        """Handle messages, and what processes have sent."""
        if self._instance.bell is not None:
            self._instance.bell.take()
        if self._runtime.spec.loops:
            self._instance.scheduler.until = clock.monotonic() + LOOP_SECONDS
        self._runtime.handle(received, self, now=now)

    @property
    def is_busy(self) -> bool:
        """Whether messages still go round."""
        return self._instance.scheduler.is_busy

    def collect(self, batch: pa.RecordBatch, output: str = "") -> None:
        """Keep what leaves the runtime."""
        self._instance.gathered.append((batch, output))
        self._bytes += batch.nbytes

    def broadcast_watermark(self, watermark: Watermark) -> None:
        """Nothing: watermarks belong to epochs."""

    def hand_over(self) -> None:
        """The epoch goes on with the units as they are."""
        self._instance.epoch = self._epoch - 1

    def fileno(self) -> int | None:
        """The bell that processes ring."""
        bell = self._instance.bell
        return None if bell is None else bell.fileno()
