"""The boundary between the epoch loop and whatever runs its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.engine.commits import CommitTask
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.resident import Extension
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.model.ahead import Positions
from headrace.model.operator import Offset


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

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Let tasks publish their shares of an epoch, in parallel. Returns what they send to the driver."""

    def check(self) -> None:
        """Raise a WorkerError if the other side has ended; a later attempt may start it again."""

    def cancel(self) -> None:
        """Cancel the running tasks, from another thread: what runs them then raises an ExternalError soon."""


class ResidentExchange(Exchange, Protocol):
    """An exchange whose task stays between epochs, and handles what comes before an epoch is planned."""

    @property
    def is_ahead(self) -> bool:
        """Whether the task handles inputs that belong to no epoch yet."""

    def go_on(self, epoch: int, offsets: Mapping[str, Offset]) -> None:
        """Begin an epoch, from the offsets at which the sealed one before it ended."""

    def look(self) -> Positions | None:
        """How far the epoch has come, if it should end now; what comes later waits for the next.

        None while it goes on. Without any position nothing is ahead: the sources are asked.
        """

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further; False, and nothing is, while the task is behind or the epoch should end."""

    def end_soon(self) -> None:
        """End the epoch at the next look, though it is not due."""
