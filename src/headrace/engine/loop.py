"""The epoch loop: plan, run, seal and commit one epoch after the other, whatever exchange runs the tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headrace.base.errors import CorruptStateError, HeadraceError, InternalError, OutputClosedError
from headrace.base.retry import Backoff, with_retry
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.driver import EpochDriver
from headrace.engine.exchange import Exchange
from headrace.engine.offsets import EpochSize, OffsetPlanner
from headrace.engine.reports import EpochReport
from headrace.engine.task import SplitTask
from headrace.model.plan import Plan

T = TypeVar("T")

QUESTION_RETRIES = 3
"""How often a source whose server does not answer is asked again."""
_POLL_SECONDS = 0.01
"""Seconds between two questions to sources that have nothing new."""
_CHECK_SECONDS = 10.0
"""Seconds after which a run looks again whether another one has taken over, before it asks the sources. They
also pass while it is suspended."""
_EPOCH_BACKOFF = Backoff(first=0.2, factor=5.0, longest=15.0)
_QUESTION_BACKOFF = Backoff(first=0.2, factor=5.0, longest=5.0)


class EpochLoop:
    """Runs epochs until there is a reason to end, in the thread that calls `run`.

    `on_epoch` is told of every epoch that is past its commit, and returns whether the run is over.
    `restarts` is how often an epoch, its commit or the last epoch is tried again after an error that may
    pass; `on_retry(error, attempt)` is told before. `question_retries` is the same for questions to sources.
    `wait(n)` is called when the sources have nothing new for the n-th time in a row. `refresh` is asked
    before each epoch for a plan of the same shape whose operators have changed. `stop` ends the run between
    two epochs, and a pause between two attempts at once. With `available_now` the run ends, and `exhausted`
    is set, when the sources have given what was there at its start.
    """

    def __init__(
        self,
        driver: EpochDriver,
        exchange: Exchange,
        *,
        size: EpochSize,
        on_epoch: Callable[[EpochReport], bool],
        stop: threading.Event,
        restarts: int,
        question_retries: int = QUESTION_RETRIES,
        backoff: Backoff | None = None,
        on_retry: Callable[[HeadraceError, int], None] | None = None,
        wait: Callable[[int], None] | None = None,
        refresh: Callable[[], Plan | None] | None = None,
        available_now: bool = False,
    ) -> None:
        self._driver = driver
        self._exchange = exchange
        self._size = size
        self._on_epoch = on_epoch
        self._stop = stop
        self._restarts = restarts
        self._question_retries = question_retries
        self._epoch_backoff = backoff or _EPOCH_BACKOFF
        self._question_backoff = backoff or _QUESTION_BACKOFF
        self._on_retry = on_retry
        self._wait = wait or self._wait_for_stop
        self._refresh = refresh
        self._available_now = available_now
        self._stop_requested = self._immediate = False
        self.exhausted = False

    def run(self) -> None:
        """Run until `on_epoch` says it is over or `stop` is set; raise what made an epoch fail."""
        driver = self._driver
        if driver.job is None:
            raise InternalError("the driver was not opened")
        try:
            self._run(driver, driver.job)
        except HeadraceError as error:
            if not error.retry:
                driver.check_generation()  # a successor removes files that this run still reads
            if isinstance(error, CorruptStateError):
                raise driver.offer_last_good(error, driver.epoch) from error
            raise

    def _run(self, driver: EpochDriver, job: JobContext) -> None:
        self._exchange.use(driver.stages)
        with driver.sources.opened(driver.storage, job, epoch=driver.epoch, claim=driver.generation):
            self._run_until_over(
                OffsetPlanner(
                    driver.stages,
                    driver.sources,
                    size=self._size,
                    restored=None if driver.checkpoint is None else driver.checkpoint.offsets,
                    epoch=driver.epoch,
                    now=driver.now,
                    available_now=self._available_now,
                )
            )
            self._run_last_epoch()

    def _run_until_over(self, planner: OffsetPlanner) -> None:
        start = self._ask(planner.initial)
        idle = 0
        while start is not None and not self._stop.is_set():
            end = self._ask(partial(planner.latest, start))
            if end == start and self._available_now:
                self.exhausted = True
                return
            if end == start:
                self._retry(self._exchange.check)
                idle += 1
                self._wait(idle)
                continue
            idle = 0
            tasks = None if end is None else self._ask(partial(planner.tasks, start, end))
            if tasks is None or self._is_over_after(tasks):
                return
            start = end

    def _is_over_after(self, tasks: list[SplitTask]) -> bool:
        """Run one epoch and commit it; returns whether it was the last that reads anything."""
        if self._refresh is not None and (plan := self._refresh()) is not None:
            self._driver.replace_operators(plan)
            self._exchange.use(self._driver.stages)
        try:
            report = self._retry(lambda: self._attempt(self._driver.begin(), tasks))
            self._stop_requested, self._immediate = report.stop_requested, report.immediate
            if not report.immediate:
                self._retry(self._driver.commit)
            return self._on_epoch(report) or report.stop_requested
        except OutputClosedError:
            self._stop.set()
            return True

    def _run_last_epoch(self) -> None:
        """Tell the operators that want to know that the run stops, in an epoch that reads nothing."""
        report = None if self._immediate else self._retry(self._attempt_last)
        if report is not None:
            self._retry(self._driver.commit)
            self._on_epoch(report)

    def _attempt_last(self) -> EpochReport | None:
        last = self._driver.begin_last(ending=self._stop_requested)
        return None if last is None else self._attempt(last[0], [last[1]])

    def _attempt(self, context: EpochContext, tasks: list[SplitTask]) -> EpochReport:
        return self._driver.seal(context, self._exchange.run(tasks, context))

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Ask the sources something; a server that does not answer is asked again.

        None if the run was told to stop meanwhile. A source may change something outside when it is asked:
        one that creates a replication slot, or logs what it receives and acknowledges it.
        """

        def attempt() -> T:
            self._driver.check_generation(every=_CHECK_SECONDS)
            return question()

        try:
            return with_retry(
                attempt,
                is_transient=_is_transient,
                backoff=self._question_backoff,
                attempts=self._question_retries + 1,
                stop=self._stop,
                on_retry=self._tell_retry,
            )
        except HeadraceError as error:
            if error.retry and self._stop.is_set():
                return None
            raise

    def _retry(self, action: Callable[[], T]) -> T:
        """Do a step of an epoch, again after an error that may pass."""
        return with_retry(
            action,
            is_transient=_is_transient,
            backoff=self._epoch_backoff,
            attempts=self._restarts + 1,
            stop=self._stop,
            on_retry=self._tell_retry,
        )

    def _tell_retry(self, error: Exception, attempt: int) -> None:
        if self._on_retry is not None and isinstance(error, HeadraceError):
            self._on_retry(error, attempt)

    def _wait_for_stop(self, _idle: int) -> None:
        self._stop.wait(_POLL_SECONDS)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, HeadraceError) and error.retry
