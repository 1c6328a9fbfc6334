"""The streaming query that drives a job: one micro-batch is one epoch."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time as clock
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import (
    ExternalError,
    HeadraceError,
    InternalError,
    OutputClosedError,
    WorkerError,
)
from headrace.plan import Plan
from headrace.runtime.driver import EpochDriver
from headrace.runtime.envelope import SPARK_SCHEMA
from headrace.runtime.offsets import EpochSize
from headrace.runtime.reports import EpochReport, nothing_read
from headrace.runtime.task import run_split
from headrace.spark.connector import SparkSource
from headrace.spark.exchange import SparkExchange
from headrace.spark.session import SETTINGS, keep_log
from headrace.spark.source import FORMAT, HeadraceDataSource, SourceJob

T = TypeVar("T")

_TELLING = "Error: "
_BACKOFF = (0.2, 1.0, 5.0, 15.0)
_SLOW_START, _STARTS = "Python worker failed to connect back", 4
"""Spark gives the process that plans epochs ten seconds to start; a busy machine needs another try."""


class StreamingLoop:
    """Runs epochs on Spark until there is a reason to end."""

    def __init__(
        self,
        spark: SparkSession,
        driver: EpochDriver,
        *,
        size: EpochSize,
        restarts: int,
        log_file: str | None,
        on_epoch: Callable[[EpochReport], bool],
        on_retry: Callable[[HeadraceError, int], None],
        stop: threading.Event,
        code: tuple[str, ...] = (),
        refresh: Callable[[], Plan | None] | None = None,
    ) -> None:
        # A session of our own, so that our settings do not change the user's.
        self._spark = spark.newSession()
        self._driver = driver
        self._size = size
        self._restarts = restarts
        self._log_file = log_file
        self._on_epoch = on_epoch
        self._on_retry = on_retry
        self._stop = stop
        self._code = code
        self._refresh = refresh
        self._exchange = SparkExchange(driver.stages)
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._busy = threading.Lock()
        self._ending = self._cut_short = False

    def run(self) -> None:
        """Run until `on_epoch` says it is over or `stop` is set; raise what made an epoch fail."""
        for name, value in SETTINGS.items():
            self._spark.conf.set(name, value)
        self._spark.dataSource.register(HeadraceDataSource)
        scratch = tempfile.mkdtemp(prefix="headrace-query-")
        try:
            with contextlib.ExitStack() as beside:
                self._start_sources(beside)
                for attempt in range(1, _STARTS + 1):
                    self._run_query(f"{scratch}/{attempt}")
                    if not self._started_slowly() or attempt == _STARTS or self._stop.is_set():
                        break
                    self._failure = None
                    self._done.clear()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if self._failure is None:
            try:
                self._run_last_epoch()
            except BaseException as error:  # noqa: BLE001 - raised below, with the log
                self._failure = error
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
                beside.enter_context(source.running(self._spark, driver.storage, name, offsets.get(name)))

    def _started_slowly(self) -> bool:
        return isinstance(self._failure, WorkerError) and _SLOW_START in self._failure.message

    def _run_query(self, scratch: str) -> None:
        query = (
            self._spark.readStream.format(FORMAT)
            .option("job", self._job().to_option())
            .load()
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", f"file://{scratch}")
            .start()
        )
        try:
            self._wait(query)
        finally:
            # Between epochs only: once the lock was free, no epoch is at work and none will begin.
            self._done.set()
            with self._busy:
                pass
            query.stop()

    def _job(self) -> SourceJob:
        driver = self._driver
        if driver.job is None:
            raise InternalError("the driver was not opened")
        return SourceJob(
            stages=driver.stages,
            job=driver.job,
            size=self._size,
            epoch=driver.epoch,
            restored=None if driver.checkpoint is None else driver.checkpoint.offsets,
            code=self._code,
        )

    def _wait(self, query: Any) -> None:
        while not self._done.wait(0.05):
            if self._stop.is_set() and self._busy.acquire(blocking=False):
                self._done.set()
                self._busy.release()
            elif not query.isActive:
                error = query.exception()
                if not self._done.is_set() and self._failure is None:
                    self._failure = self._translate(error or RuntimeError("the query ended by itself"))
                return

    def _on_batch(self, frame: DataFrame, _batch: int) -> None:
        """One epoch. Nothing is raised into Spark: the query is stopped from outside, between epochs."""
        with self._busy:
            if self._done.is_set():
                return
            try:
                report = self._run_epoch(frame)
                if report is None:
                    return
                self._ending, self._cut_short = report.stop_requested, report.immediate
                if self._on_epoch(report) or self._ending or self._stop.is_set():
                    self._done.set()
            except OutputClosedError:
                self._stop.set()
                self._done.set()
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                self._failure = error
                self._done.set()

    def _run_last_epoch(self) -> None:
        """Tell the operators that want to know that the run stops, in an epoch that reads nothing."""
        driver = self._driver
        last = None if self._cut_short else driver.begin_last(ending=self._ending)
        if last is not None:
            context, task = last
            envelopes = list(run_split(driver.stages, context.job, task))
            frame = self._spark.range(1).mapInArrow(lambda _: iter(envelopes), SPARK_SCHEMA)
            control = self._exchange.run(frame, context)
            report = driver.seal(context, control)
            self._retrying(driver.commit)
            self._on_epoch(report)

    def _run_epoch(self, frame: DataFrame) -> EpochReport | None:
        if self._refresh is not None and (plan := self._refresh()) is not None:
            self._driver.replace_operators(plan)
            self._exchange = SparkExchange(self._driver.stages)
        report = self._retrying(lambda: self._attempt(frame))
        if report is not None and not report.immediate:
            self._retrying(self._driver.commit)
        return report

    def _attempt(self, frame: DataFrame) -> EpochReport | None:
        context = self._driver.begin()
        try:
            control = self._exchange.run(frame, context)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._translate(error) from error
        return None if nothing_read(control) else self._driver.seal(context, control)

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
