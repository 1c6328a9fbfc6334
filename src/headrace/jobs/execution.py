"""One life of a job on Spark: take up the state, run epochs, say what was done."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.base.errors import HeadraceError, InternalError, UserError
from headrace.base.private import process_directory
from headrace.base.waits import Waits
from headrace.connectors.base import Connector
from headrace.engine.chain import load_operator
from headrace.engine.driver import EpochDriver, Step
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.stages import cut_stages
from headrace.exchanges.spark.masters import cores_of
from headrace.exchanges.spark.preflight import check_executors
from headrace.exchanges.spark.rdd import RddExchange
from headrace.exchanges.spark.session import (
    SparkRequest,
    SparkRuntime,
    is_lost,
    keep_log,
    open_spark,
    using_spark,
)
from headrace.exchanges.spark.shipping import ship_code
from headrace.jobs.progress import Reason, RunResult, Tally, collected_rows
from headrace.jobs.services import ServiceWatch, WatchedExchange, check_services, connectors_of
from headrace.jobs.settings import Settings
from headrace.model.plan import Plan
from headrace.state.cache import cache_directory
from headrace.state.lock import StateLock
from headrace.storage.open import open_storage

_log = logging.getLogger("headrace")

_LAST_WORDS = 5.0
"""Seconds that Spark's Java may need to end."""


@dataclass(frozen=True)
class JobOptions:
    """What a run of a job is told besides its settings.

    `refresh` is asked before each epoch for a plan of the same shape whose operators have changed.
    """

    from_epoch: int | None = None
    allow_drop: bool = False
    py_files: Sequence[str] = ()
    verbose: bool = False
    on_step: Step | None = None
    refresh: Callable[[], Plan | None] | None = None


class Execution:
    """Runs a plan on Spark once, in the thread that calls it; a context manager that owns what it opened.

    `open` takes the state directory and finds the last checkpoint: whatever can be refused is refused there,
    before Spark starts, which takes seconds. `run` runs epochs until there is a reason to end. Without a
    state directory the state lives in a temporary one for as long as the execution.
    """

    def __init__(self, plan: Plan, settings: Settings, options: JobOptions, *, stop: threading.Event) -> None:
        self._plan = plan
        self._settings = settings
        self._options = options
        self._stop = stop
        self.waits = Waits(stop, _log.warning)
        self._connectors: dict[str, Connector] = {}
        self._watch: ServiceWatch | None = None
        self._opened = ExitStack()
        self._request: SparkRequest | None = None
        self._driver: EpochDriver | None = None
        self._tally: Tally | None = None
        self._exhausted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    @property
    def tally(self) -> Tally:
        """The epochs so far; `open` comes first."""
        if self._tally is None:
            raise InternalError("the job was not opened")
        return self._tally

    @property
    def _state_dir(self) -> str | None:
        return self._settings.state.dir

    def open(self) -> str:
        """Take up the job where its state directory says it is, and return its id."""
        for node in self._plan.nodes:
            load_operator(node).validate()
        self._connectors = connectors_of(self._plan)
        self._watch = self._opened.enter_context(ServiceWatch(self._connectors, self.waits))
        settings, options = self._settings, self._options
        storage = open_storage(self._state_dir or self._temporary_state_dir())
        storage.check_writable()
        logs = settings.log.dir or (None if self._state_dir is None else _log_dir(storage.local_path("")))
        # A master that nobody asked for must not keep a run from a session that is there.
        master = settings.spark.master if "master" in settings.spark.model_fields_set else None
        self._request = SparkRequest(
            master, settings.spark.memory, settings.spark.conf, logs, options.verbose
        )
        self._opened.enter_context(StateLock(storage))
        # Only a cluster has to be asked how many cores it has.
        parallelism = parallelism_of(settings)
        if parallelism is None:
            parallelism = self._opened.enter_context(using_spark(self._request)).cores
        self._driver = EpochDriver(
            cut_stages(self._plan, parallelism=parallelism),
            storage,
            keep_checkpoints=settings.state.keep_checkpoints,
            compact_after=settings.state.compact_after,
            step=options.on_step,
        )
        with self.waits.active():
            self._driver.open(
                from_epoch=options.from_epoch,
                allow_drop=options.allow_drop,
                before_claim=self._check_services,
            )
        if self._driver.job is None:
            raise InternalError("the driver was not opened")
        job_id = self._driver.job.job_id
        self._tally = Tally(job_id, first_epoch=self._driver.epoch + 1, max_epochs=settings.run.max_epochs)
        return job_id

    def _check_services(self) -> None:
        """Ask the outside systems whether they answer, unless there is nothing left to do."""
        if self._driver is None or self._driver.finished:
            return
        checkpoint = self._driver.checkpoint
        check_services(
            self._connectors,
            timeout=self._settings.run.start_timeout.total_seconds(),
            waits=self.waits,
            skip=() if checkpoint is None else checkpoint.offsets["ended"],
        )

    def _temporary_state_dir(self) -> str:
        directory = tempfile.mkdtemp(prefix="headrace-state-", dir=process_directory())
        self._opened.callback(shutil.rmtree, cache_directory(directory), ignore_errors=True)
        self._opened.callback(shutil.rmtree, directory, ignore_errors=True)
        return directory

    def run(self, *, on_start: Callable[[], None], on_epoch: Callable[[EpochReport], bool]) -> RunResult:
        """Run epochs until `on_epoch` says it is over or the job is told to stop.

        `on_epoch` adds the report of each epoch to the tally; `on_start` is called when Spark is there.
        """
        if self._driver is None or self._driver.job is None:
            raise InternalError("the job was not opened")
        if self._driver.finished and not self._settings.run.available_now:
            size = sum(file.bytes for file in self._driver.live_files())
            return self._result(finished=True, state_bytes=size)
        log_file = None
        if not self._stop.is_set():
            log_file = self._unless_told_to_end(lambda: self._run_epochs(on_start, on_epoch))
        return self._result(log_file=log_file)

    def _result(
        self, *, finished: bool = False, state_bytes: int = 0, log_file: str | None = None
    ) -> RunResult:
        return self.tally.result(
            self.tally.reason or self._other_reason(finished=finished),
            rows=collected_rows(self._plan, self.tally.job_id),
            state_bytes=state_bytes,
            state_dir=self._state_dir,
            log_file=log_file,
        )

    def _other_reason(self, *, finished: bool) -> Reason:
        """Why the run ended, if no epoch has given a reason."""
        if finished or (self._driver is not None and self._driver.finished):
            return "finished"
        return "available_now" if self._exhausted else "stopped"

    def _run_epochs(
        self, on_start: Callable[[], None], on_epoch: Callable[[EpochReport], bool]
    ) -> str | None:
        """Run until there is a reason to end; returns where Spark's log is."""
        driver, request, watch, run = self._driver, self._request, self._watch, self._settings.run
        if driver is None or request is None or watch is None:
            raise InternalError("the job was not opened")

        def on_retry(error: HeadraceError, attempt: int) -> None:
            _log.warning("epoch %d, try %d failed: %s", driver.epoch + 1, attempt, error)

        def reopen() -> SparkRuntime:
            runtime = open_spark(request)
            ship_code(runtime.spark, self._plan, self._options.py_files)
            return runtime

        with using_spark(request) as runtime, self.waits.active():
            if self._stop.is_set():
                return runtime.log_file
            ship_code(runtime.spark, self._plan, self._options.py_files)
            check_executors(runtime, driver.storage, self.waits)
            exchange = RddExchange(runtime, reopen=reopen)
            loop = EpochLoop(
                driver,
                WatchedExchange(exchange, watch),
                size=EpochSize(target=run.epoch_target.total_seconds(), most=run.epoch_rows),
                on_epoch=lambda report: on_epoch(self._with_waits(report)),
                stop=self._stop,
                restarts=run.restarts,
                on_retry=on_retry,
                refresh=self._options.refresh,
                available_now=run.available_now,
            )
            on_start()
            try:
                loop.run()
                self._exhausted = loop.exhausted
            except HeadraceError as error:
                error.log_file = exchange.log_file
                keep_log(exchange.log_file)
                raise
            return exchange.log_file

    def _with_waits(self, report: EpochReport) -> EpochReport:
        """The report, with what was waited for since the last one."""
        return replace(report, errors=(*report.errors, *self.waits.take_over()))

    def _unless_told_to_end(self, work: Callable[[], str | None]) -> str | None:
        """Do the work. Whoever asks for a stop may end Spark's Java too: then what fails is no error.

        An epoch that was cut off in this way is not committed, and the next run begins with it.
        """
        try:
            return work()
        except Exception as error:
            is_stopping = self._stop.is_set() and not isinstance(error, UserError)
            if not is_stopping or not is_lost(within=_LAST_WORDS):
                raise
            return None


def parallelism_of(settings: Settings) -> int | None:
    """How many subtasks an operator has: as set, or as many as the master says it has cores."""
    return settings.run.parallelism or cores_of(settings.spark.master)


def _log_dir(state_dir: str | None) -> str | None:
    return None if state_dir is None else str(Path(state_dir) / "logs")
