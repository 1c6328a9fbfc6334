"""The loop that drives a job: one Spark job for each epoch, one epoch after the other."""

from __future__ import annotations

import contextlib
import threading
import time as clock
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkException

from headrace.base.errors import ExternalError, HeadraceError, InternalError, OutputClosedError, WorkerError
from headrace.connectors.spark import SparkSource
from headrace.engine.context import EpochContext
from headrace.engine.driver import EpochDriver
from headrace.engine.offsets import EpochSize, OffsetPlanner
from headrace.engine.reports import EpochReport
from headrace.engine.task import SplitTask
from headrace.exchanges.spark.rdd import SparkExchange
from headrace.exchanges.spark.session import is_lost, keep_log
from headrace.model.plan import Plan

T = TypeVar("T")

_TELLING = "Error: "
_BACKOFF = (0.2, 1.0, 5.0, 15.0)
_PAUSES = (0.2, 1.0, 5.0)
"""Seconds between attempts to ask a source whose server does not answer."""
_LOOK = 0.01
"""Seconds between two looks for something to read."""


class EpochLoop:
    """Runs epochs on Spark until there is a reason to end.

    They run in a thread of their own: the one that waits for them can be interrupted, and an epoch cannot.
    """

    def __init__(
        self,
        spark: SparkContext,
        driver: EpochDriver,
        *,
        size: EpochSize,
        restarts: int,
        log_file: str | None,
        on_epoch: Callable[[EpochReport], bool],
        on_retry: Callable[[HeadraceError, int], None],
        stop: threading.Event,
        refresh: Callable[[], Plan | None] | None = None,
    ) -> None:
        self._spark = spark
        self._driver = driver
        self._size = size
        self._restarts = restarts
        self._log_file = log_file
        self._on_epoch = on_epoch
        self._on_retry = on_retry
        self._stop = stop
        self._refresh = refresh
        self._exchange = SparkExchange(self._spark, driver.stages)
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._ending = self._cut_short = False

    def run(self) -> None:
        """Run until `on_epoch` says it is over or `stop` is set; raise what made an epoch fail."""
        epochs = threading.Thread(target=self._run_epochs, name="headrace-epochs", daemon=True)
        with contextlib.ExitStack() as beside:
            self._start_sources(beside)
            epochs.start()
            try:
                self._over.wait()
            finally:
                # Between epochs only: one that is at work comes to its end.
                self._over.set()
                epochs.join()
        if self._failure is not None:
            if isinstance(self._failure, HeadraceError):
                self._failure.log_file = self._log_file
                keep_log(self._log_file)
            raise self._failure

    def _start_sources(self, beside: contextlib.ExitStack) -> None:
        """Start the queries of sources that Spark reads by itself."""
        driver = self._driver
        offsets = {} if driver.checkpoint is None else driver.checkpoint.offsets["sources"]
        for name, source in driver.sources.items():
            if isinstance(source, SparkSource):
                beside.enter_context(source.running(driver.storage, name, offsets.get(name)))

    def _run_epochs(self) -> None:
        """One epoch after the other; whatever is raised is kept for the thread that waits."""
        try:
            with contextlib.closing(self._planner()) as planner:
                self._run_until_over(planner)
            self._run_last_epoch()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self._failure = error
        finally:
            self._over.set()

    def _run_until_over(self, planner: OffsetPlanner) -> None:
        start = self._asking(planner.initial)
        while start is not None and not (self._over.is_set() or self._stop.is_set()):
            end = self._asking(partial(planner.latest, start))
            if end == start:
                if is_lost():
                    hint = "start the pipeline again"
                    hint += "" if self._log_file is None else f"; Spark's log {self._log_file} may say why"
                    raise WorkerError("Spark's Java has ended", hint=hint)
                self._over.wait(_LOOK)
                continue
            tasks = None if end is None else self._asking(partial(planner.tasks, start, end))
            if tasks is None:
                return
            try:
                report = self._run_epoch(tasks)
                self._ending, self._cut_short = report.stop_requested, report.immediate
                if self._on_epoch(report) or self._ending:
                    return
            except OutputClosedError:
                self._stop.set()
                return
            start = end

    def _planner(self) -> OffsetPlanner:
        driver = self._driver
        if driver.job is None:
            raise InternalError("the driver was not opened")
        return OffsetPlanner(
            driver.stages,
            size=self._size,
            restored=None if driver.checkpoint is None else driver.checkpoint.offsets,
            epoch=driver.epoch,
            job=driver.job,
        )

    def _asking(self, question: Callable[[], T]) -> T | None:
        """Ask the sources something; a server that does not answer is asked again.

        None if the run was told to stop meanwhile.
        """
        for pause in (*_PAUSES, None):
            try:
                return question()
            except HeadraceError as error:
                if pause is None or not error.retry:
                    raise
                if self._stop.wait(pause):
                    return None
        raise InternalError("unreachable")

    def _run_last_epoch(self) -> None:
        """Tell the operators that want to know that the run stops, in an epoch that reads nothing."""
        report = None if self._cut_short else self._retrying(self._attempt_last)
        if report is not None:
            self._retrying(self._driver.commit)
            self._on_epoch(report)

    def _attempt_last(self) -> EpochReport | None:
        last = self._driver.begin_last(ending=self._ending)
        return None if last is None else self._attempt(last[0], [last[1]])

    def _run_epoch(self, tasks: list[SplitTask]) -> EpochReport:
        if self._refresh is not None and (plan := self._refresh()) is not None:
            self._driver.replace_operators(plan)
            self._exchange = SparkExchange(self._spark, self._driver.stages)
        report = self._retrying(lambda: self._attempt(self._driver.begin(), tasks))
        if not report.immediate:
            self._retrying(self._driver.commit)
        return report

    def _attempt(self, context: EpochContext, tasks: list[SplitTask]) -> EpochReport:
        try:
            control = self._exchange.run(tasks, context)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._translate(error) from error
        return self._driver.seal(context, control)

    def _retrying(self, action: Callable[[], T]) -> T:
        for attempt in range(self._restarts + 1):
            try:
                return action()
            except HeadraceError as error:
                if not error.retry or attempt == self._restarts or self._stop.is_set():
                    raise
                self._on_retry(error, attempt + 1)
                clock.sleep(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])
        raise InternalError("unreachable")

    def _translate(self, error: BaseException) -> HeadraceError:
        """What Spark says, as an error of ours that names the log with the rest."""
        if isinstance(error, HeadraceError):
            return error
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if _TELLING in line]
        message = (telling or lines or [type(error).__name__])[0][:500]
        hint = None if self._log_file is None else f"Spark's log is {self._log_file}"
        if isinstance(error, PySparkException) or "Py4J" in type(error).__name__:
            return WorkerError(f"Spark could not run the epoch: {message}", hint=hint)
        return ExternalError(f"{type(error).__name__}: {message}", hint=hint)
