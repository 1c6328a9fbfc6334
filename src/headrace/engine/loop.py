"""The epoch loop: plan, run, seal and commit one epoch after the other, whatever exchange runs the tasks."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TypeVar

from headrace.base.errors import (
    CorruptStateError,
    ExternalError,
    HeadraceError,
    InternalError,
    OutputClosedError,
)
from headrace.base.log_context import log_context
from headrace.base.retry import Backoff, with_retry
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.driver import EpochDriver
from headrace.engine.exchange import Exchange, ResidentExchange
from headrace.engine.offsets import EpochSize, Lag, OffsetPlanner
from headrace.engine.reports import EpochReport, Phases
from headrace.engine.rescaling import Rescaling
from headrace.engine.taps import Taps
from headrace.engine.task import SplitTask
from headrace.model.ahead import FollowedSource
from headrace.model.plan import Plan

T = TypeVar("T")

_log = logging.getLogger("headrace.engine")

QUESTION_RETRIES = 3
"""How often a source whose server does not answer is asked again."""
_POLL_SECONDS = 0.01
"""Seconds between two questions to sources that have nothing new."""
_AHEAD_POLL_SECONDS = 0.002
"""The same where a task that stays is given what they have at once."""
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
    before each epoch for a plan of the same shape whose operators have changed, and `rescaling` for another
    parallelism. `taps` says which rows are looked at. `stop` ends the run between two epochs, and a pause
    between two attempts at once. With `available_now` the run ends, and `exhausted` is set, when the sources
    have given what was there at its start. `resident` is the exchange, if its task stays between epochs.
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
        rescaling: Rescaling | None = None,
        taps: Taps | None = None,
        available_now: bool = False,
        resident: ResidentExchange | None = None,
    ) -> None:
        self._resident = resident
        # A task that follows its sources by itself says when it wants something.
        asks = resident is not None and any(
            not isinstance(source, FollowedSource) for source in driver.sources.values()
        )
        self._poll_seconds = _AHEAD_POLL_SECONDS if asks else _POLL_SECONDS
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
        self._rescaling = rescaling
        self._taps = taps or Taps()
        self._available_now = available_now
        self._stop_requested = self._immediate = False
        self._spent: dict[str, float] = {}
        """By phase: how many seconds of the current epoch went into it."""
        self._lag: Mapping[str, Lag] = {}
        self._load = 0.0
        self.exhausted = False

    def run(self) -> None:
        """Run epochs until `on_epoch` returns True or `stop` is set; raise the error of a failed epoch."""
        driver = self._driver
        if driver.job is None:
            raise InternalError("the driver was not opened")
        try:
            self._run(driver, driver.job)
        except HeadraceError as error:
            # A successor removes files that this run still reads, and moves on what sources read from. If the
            # state directory cannot be reached either, the first error says more.
            with suppress(ExternalError, OSError) if error.retry else nullcontext():
                driver.check_generation()
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
                    resident=self._resident,
                )
            )
            self._run_last_epoch()

    def _run_until_over(self, planner: OffsetPlanner) -> None:
        start = self._ask(planner.initial)
        idle, waiting_since = 0, time.perf_counter()
        while start is not None and (not self._stop.is_set() or self._is_ahead):
            if not self._is_ahead:
                self._rescale(planner)
            began = time.perf_counter()
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
            if end is None or tasks is None:
                return
            self._lag, self._load = planner.lag(end), planner.load
            self._spent = {"wait": began - waiting_since, "plan": time.perf_counter() - began}
            with log_context(epoch=self._driver.epoch + 1):
                is_over = self._is_over_after(tasks)
            if is_over:
                return
            start, waiting_since = end, time.perf_counter()

    def _rescale(self, planner: OffsetPlanner) -> None:
        """Change to the requested parallelism between two epochs."""
        wanted = None if self._rescaling is None else self._rescaling.take()
        if self._rescaling is None or wanted is None:
            return
        self._driver.rescale(wanted)
        stages = self._driver.stages
        planner.use(stages)
        self._retry(lambda: self._exchange.use(stages))
        self._rescaling.settle(wanted)

    def _is_over_after(self, tasks: list[SplitTask]) -> bool:
        """Run one epoch and commit it; returns whether it was the last that reads anything."""
        if self._resident is None:
            self._take_changes()
        try:
            report = self._retry(lambda: self._attempt(self._driver.begin(), tasks))
            self._stop_requested, self._immediate = report.stop_requested, report.immediate
            if not (report.finished or report.stop_requested or report.immediate):
                self._go_on()
            if not report.immediate:
                self._commit()
            self._taps.show(report.epoch, report.tapped)
            return self._on_epoch(self._measured(report)) or report.stop_requested
        except OutputClosedError:
            self._stop.set()
            return True

    def _take_changes(self) -> None:
        """From the next epoch on, run operators that have changed, and sample the rows that are looked at."""
        plan = None if self._refresh is None else self._refresh()
        if plan is not None:
            self._driver.replace_operators(plan)
        if self._driver.tap(self._taps.wanted()) or plan is not None:
            stages = self._driver.stages
            self._retry(lambda: self._exchange.use(stages))

    @property
    def _is_ahead(self) -> bool:
        return self._resident is not None and self._resident.is_ahead

    def _go_on(self) -> None:
        """Let a resident task handle new rows, from the end of the sealed epoch on."""
        checkpoint = self._driver.checkpoint
        if self._resident is None or checkpoint is None or self._stop.is_set():
            return
        self._take_changes()
        if self._rescaling is None or self._rescaling.take() is None:
            self._resident.go_on(checkpoint.epoch + 1, checkpoint.offsets["sources"])

    def _run_last_epoch(self) -> None:
        """Run a last epoch without input, in which operators with `handle_stop` learn that the run stops."""
        self._spent = {}
        report = None if self._immediate else self._retry(self._attempt_last)
        if report is not None:
            self._commit()
            self._on_epoch(self._measured(report))

    def _attempt_last(self) -> EpochReport | None:
        last = self._driver.begin_last(ending=self._stop_requested)
        return None if last is None else self._attempt(last[0], [last[1]])

    def _attempt(self, context: EpochContext, tasks: list[SplitTask]) -> EpochReport:
        with self._timed("run"):
            control = self._exchange.run(tasks, context)
        with self._timed("seal"):
            return self._driver.seal(context, control)

    def _commit(self) -> None:
        with self._timed("commit"):
            self._retry(lambda: self._driver.commit(self._exchange))

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._spent[phase] = self._spent.get(phase, 0.0) + time.perf_counter() - began

    def _measured(self, report: EpochReport) -> EpochReport:
        """The report, with what the loop has measured."""
        commits = {} if report.immediate else self._driver.commits
        _log.debug("epoch %d: %d rows in, %d out", report.epoch, report.rows_in, report.rows_out)
        return dataclasses.replace(
            report, phases=Phases(**self._spent), commits=commits, lag=self._lag, load=self._load
        )

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Query the sources, with retries while a server does not answer.

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
        """Run a step of an epoch, with retries after transient errors."""
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
        self._stop.wait(self._poll_seconds)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, HeadraceError) and error.retry
