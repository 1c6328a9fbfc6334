"""The boundary between the epoch loop and whatever runs its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask


class Exchange(Protocol):
    """Runs the tasks of an epoch, carries envelopes between its stages, and returns the control records.

    This is all that the epoch loop knows about the place where tasks run. Failures of that place are raised
    as a HeadraceError, whose `retry` says whether the epoch is tried again. Failures of a task are no
    failures of the exchange: they are among the control records.
    """

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on; called before the first one and after a reload."""

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch: the splits, then the stages behind them. Returns what they send to the driver."""

    def check(self) -> None:
        """Raise a WorkerError if the other side has ended; a later attempt may start it again."""

    def cancel(self) -> None:
        """End the tasks at work, from another thread: `run` then raises an ExternalError soon."""
