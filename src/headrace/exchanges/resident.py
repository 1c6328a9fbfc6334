"""The exchange whose task stays: between epochs it handles inputs as they come."""

from __future__ import annotations

import pickle
import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from headrace.base.errors import HeadraceError, InternalError
from headrace.engine.commits import CommitTask, run_commit
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.resident import Extension, Onwards, Resident
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.model.ahead import Positions
from headrace.model.operator import Offset

_LOCAL_SECONDS = 0.05
"""How long messages may go round in a loop before a task in the calling thread returns."""


@runtime_checkable
class ResidentTask(Protocol):
    """A task that stays, wherever it runs: a `Resident` and the way to it.

    If it is lost, whatever is asked of it raises a HeadraceError whose `retry` is set, and the next epoch
    starts it again.
    """

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch; starts the task if it does not run."""

    def go_on(self, onwards: Onwards) -> bool:
        """Begin an epoch before it is planned; False if that cannot be."""

    def wants_cut(self) -> bool:
        """Whether the epoch should end now."""

    def cut(self) -> Positions | None:
        """End the epoch; None if it has handled nothing, and stays open."""

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further; False, and nothing is, while it is behind or the epoch should end."""

    def check(self) -> None:
        """Raise an error if no further epoch can run."""

    def cancel(self) -> None:
        """Cancel what runs, from another thread."""

    def close(self) -> None:
        """End the task."""


class StayingExchange:
    """Runs each epoch in a task that stays, and commits on the driver.

    A commit in tasks of its own would wait for cores: the task that stays may have the only one.

    An epoch ends when it is `target` seconds old or has `most` rows, when the task asks for it, and when the
    run is told to stop. None begins before it is planned after the epoch `last`.
    """

    def __init__(
        self,
        task: ResidentTask,
        *,
        target: float,
        stop: threading.Event,
        now: Callable[[], float],
        most: int | None = None,
        last: int | None = None,
    ) -> None:
        self._task = task
        self._target = target
        self._most, self._last = most, last
        self._stop = stop
        self._now = now
        self._stages: StagePlan | None = None
        self._job_id = ""
        self._anew = True
        self._since = 0.0
        self._positions: Positions | None = None
        """Where the epoch was cut that has not been run."""
        self._is_due = False
        """Whether somebody has asked for the end of the epoch."""
        self.is_ahead = False

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._stages = stages
        self._task.use(stages)

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        self.is_ahead, self._positions = False, None
        self._job_id = context.job.job_id
        return self._task.run(tasks, context)

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Commit the sinks of an epoch on the driver, one after the other, while the task runs on."""
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        return [
            envelope
            for task in tasks
            for envelope in run_commit(self._stages, job, task, where="on the driver")
        ]

    def go_on(self, epoch: int, offsets: Mapping[str, Offset]) -> None:
        """Begin an epoch, from the offsets at which the sealed one before it ended."""
        onwards = Onwards(self._job_id, epoch, dict(offsets), anew=self._anew, most=self._most)
        self._anew, self._since = False, self._now()
        if self._last is not None and epoch > self._last:
            return
        try:
            self.is_ahead = self._task.go_on(onwards)
        except HeadraceError as error:
            if not error.retry:
                raise
            # It is lost: the next epoch is planned without it, and starts it again.

    def look(self) -> Positions | None:
        """How far the epoch has come, if it should end now."""
        if self._positions is not None:
            return self._positions
        if not self.is_ahead:
            return {}
        try:
            is_due = self._task.wants_cut() or self._now() - self._since >= self._target
            if not is_due and not self._is_due and not self._stop.is_set():
                return None
            self._is_due = False
            self._positions = self._task.cut()
        except BaseException:
            self.is_ahead = False
            raise
        self._since = self._now()
        self.is_ahead = self._positions is None and not self._stop.is_set()
        return self._positions

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further; False, and nothing is, while the task is behind or the epoch should end."""
        try:
            return self._task.extend(extensions)
        except BaseException:
            self.is_ahead = False
            raise

    def end_soon(self) -> None:
        """End the epoch at the next look, though it is not due."""
        self._is_due = True

    def check(self) -> None:
        """Raise an error if no further epoch can run."""
        self._task.check()

    def cancel(self) -> None:
        """Cancel what runs, from another thread."""
        self._task.cancel()

    def close(self) -> None:
        """End the task."""
        self._task.close()


class LocalTask:
    """A resident task in the calling thread; it runs whenever it is polled.

    Stages and contexts are pickled, as a worker gets them.
    """

    log_file: str | None = None
    """There is no log besides that of this process."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._resident = Resident(now=now)

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._resident.use(pickle.loads(pickle.dumps(stages)))  # noqa: S301 - what a worker would get

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch."""
        return self._resident.run(tasks, pickle.loads(pickle.dumps(context)))  # noqa: S301 - as above

    def go_on(self, onwards: Onwards) -> bool:
        """Begin an epoch before it is planned."""
        return self._resident.go_on(onwards)

    def wants_cut(self) -> bool:
        """Handle what has come, and say whether the epoch should end now."""
        self._resident.step()
        until = clock.monotonic() + _LOCAL_SECONDS
        while self._resident.pause == 0.0 and clock.monotonic() < until:
            self._resident.step()
        return self._resident.wants_cut

    def cut(self) -> Positions | None:
        """End the epoch."""
        return self._resident.cut()

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further."""
        return self._resident.extend(pickle.loads(pickle.dumps(extensions)))  # noqa: S301 - as above

    def check(self) -> None:
        """There is no other side that could be lost."""

    def cancel(self) -> None:
        """No effect: the task runs in the calling thread."""

    def close(self) -> None:
        """Nothing is left behind."""
