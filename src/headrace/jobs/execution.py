"""One run of a job: resume the state, run epochs, return the result."""

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

from headrace.base.errors import ConfigurationError, HeadraceError, InternalError, UserError
from headrace.base.private import process_directory
from headrace.base.waits import Waits
from headrace.connectors.base import Connector
from headrace.engine.autoscale import AutoParallelism, Autoscaler
from headrace.engine.chain import load_operator
from headrace.engine.driver import EpochDriver, Step
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.rescaling import Rescaling
from headrace.engine.stages import cut_stages
from headrace.engine.taps import Taps
from headrace.exchanges.engine import EngineExchange, EngineTask, TaskEngine
from headrace.exchanges.local import LocalEngine
from headrace.exchanges.resident import ResidentTask, StayingExchange
from headrace.exchanges.spark.masters import cores_of
from headrace.exchanges.spark.open import has_ended, uses_connect, using
from headrace.exchanges.spark.preflight import Preflight
from headrace.exchanges.spark.session import SparkRequest, is_submitted, keep_log
from headrace.exchanges.spark.usage import SparkUsage
from headrace.jobs.progress import Reason, RunResult, Tally, collected_rows
from headrace.jobs.services import (
    ServiceWatch,
    WatchedExchange,
    WatchedResidentExchange,
    check_services,
    connectors_of,
)
from headrace.jobs.settings import Settings
from headrace.model.ahead import is_resident, may_stay
from headrace.model.operator import ArrowOperator
from headrace.model.plan import Plan
from headrace.state.cache import cache_directory
from headrace.state.lock import StateLock
from headrace.storage.open import open_storage

_log = logging.getLogger("headrace.run")

_LAST_WORDS = 5.0
"""Seconds that Spark's Java may need to end."""


@dataclass(frozen=True)
class JobOptions:
    """The arguments of a run besides its settings.

    `refresh` is asked before each epoch for a plan of the same shape whose operators have changed.
    """

    from_epoch: int | None = None
    allow_drop: bool = False
    py_files: Sequence[str] = ()
    verbose: bool = False
    on_step: Step | None = None
    refresh: Callable[[], Plan | None] | None = None


class Execution:
    """Runs a plan once, in the thread that calls it; a context manager that owns what it opened.

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
        self.rescaling = Rescaling(0)
        """Where another parallelism is asked for; 0 until it is known."""
        self.taps = Taps()
        """Where rows are looked at while it runs."""
        self._connectors: dict[str, Connector] = {}
        self._watch: ServiceWatch | None = None
        self._opened = ExitStack()
        self._request: SparkRequest | None = None
        """The Spark that is asked for; None to run in this process."""
        self._engine: TaskEngine | None = None
        self._driver: EpochDriver | None = None
        self._tally: Tally | None = None
        self._autoscaler: Autoscaler | None = None
        self._exhausted = False
        self._is_resident = False

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
        """The totals of the epochs so far; call `open` first."""
        if self._tally is None:
            raise InternalError("the job was not opened")
        return self._tally

    @property
    def _state_dir(self) -> str | None:
        return self._settings.state.dir

    def open(self) -> str:
        """Resume the job from its state directory, and return its id."""
        graces: dict[str, float] = {}
        for node in self._plan.nodes:
            operator = load_operator(node)
            operator.validate()
            if isinstance(operator, ArrowOperator) and operator.stop_grace is not None:
                graces[node.display] = operator.stop_grace
        self._connectors = connectors_of(self._plan)
        self._watch = self._opened.enter_context(ServiceWatch(self._connectors, self.waits, graces=graces))
        settings, options = self._settings, self._options
        run = settings.run
        self._is_resident = is_resident(self._plan, run.execution, available_now=run.available_now)
        storage = open_storage(self._state_dir or self._temporary_state_dir())
        storage.check_writable()
        logs = settings.log.dir or (None if self._state_dir is None else _log_dir(storage.local_path("")))
        is_asked = False
        if run.engine == "local":
            self._check_for_local()
        else:
            # A master that nobody asked for must not keep a run from a session that is there.
            master = settings.spark.master if "master" in settings.spark.model_fields_set else None
            self._request = SparkRequest(
                master, settings.spark.memory, settings.spark.conf, logs, options.verbose
            )
            is_connect = uses_connect(master)
            if is_connect:
                self._check_for_connect()
            # Only a cluster has to be asked how many cores it has.
            is_asked = is_connect or (master is None and is_submitted())
        self._opened.enter_context(StateLock(storage))
        fixed = settings.run.parallelism
        parallelism = parallelism_of(settings) if not is_asked else fixed if isinstance(fixed, int) else None
        if parallelism is None:
            parallelism = self._open_engine().cores
            if isinstance(fixed, AutoParallelism):
                parallelism = fixed.clamp(parallelism)
        self.rescaling.settle(parallelism)
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
        self._tally = Tally(
            job_id,
            self._driver.stages,
            first_epoch=self._driver.epoch + 1,
            max_epochs=settings.run.max_epochs,
        )
        return job_id

    def _check_for_connect(self) -> None:
        """Refuse what only a SparkContext can do."""
        if "memory" in self._settings.spark.model_fields_set:
            raise ConfigurationError(
                "`memory` is that of a Spark which is started here, and a Spark Connect server has its own",
                hint="leave it out; the server's memory is set where it is started",
            )
        if (node := self._needs_context()) is not None:
            raise ConfigurationError(
                f"`{node}` is a table of the connector `spark`, which needs a SparkContext, and Spark "
                "Connect has none",
                hint="read and write it with another connector (filesystem, delta, iceberg, kafka …), or "
                "run on the cluster's own master: spark://host:7077, yarn or k8s://https://host:6443",
            )

    def _check_for_local(self) -> None:
        """Refuse what cannot run without Spark."""
        if is_submitted():
            raise ConfigurationError(
                "spark-submit has started this process, and the engine `local` does not use its Spark",
                hint="leave `engine` out (HEADRACE__RUN__ENGINE, `[run] engine`), or do not use spark-submit",
            )
        if (node := self._needs_context()) is not None:
            raise ConfigurationError(
                f"`{node}` is a table of the connector `spark`, and the engine `local` has no Spark",
                hint="leave `engine` out, or read and write it with another connector (filesystem, delta, "
                "iceberg, kafka …)",
            )

    def _needs_context(self) -> str | None:
        """A node that works with a SparkContext, if there is one."""
        loaded = ((node.id, load_operator(node)) for node in self._plan.nodes)
        return next((name for name, o in loaded if isinstance(o, Connector) and o.needs_spark_context), None)

    def _open_engine(self) -> TaskEngine:
        """What runs the tasks of this run, opened when it is first needed and kept until its end."""
        if self._engine is None:
            request = self._request
            self._engine = LocalEngine() if request is None else self._opened.enter_context(using(request))
        return self._engine

    def spark_usage(self) -> SparkUsage | None:
        """The load of Spark, if it reports one; may be slow and may fail."""
        return None if self._engine is None else self._engine.usage()

    def _check_services(self) -> None:
        """Check that the external systems answer, unless there is nothing left to do."""
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
        """Run epochs until `on_epoch` returns True or the job is stopped.

        `on_epoch` adds the report of each epoch to the tally; `on_start` is called when its engine is there.
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
        driver, watch, run = self._driver, self._watch, self._settings.run
        if driver is None or watch is None:
            raise InternalError("the job was not opened")

        def on_retry(error: HeadraceError, attempt: int) -> None:
            self.tally.measured.count_retry()
            _log.warning("epoch %d, try %d failed: %s", driver.epoch + 1, attempt, error)

        with self.waits.active():
            engine = self._open_engine()
            if self._stop.is_set():
                return engine.log_file
            preflight = Preflight(driver.storage, driver.require_generation().path, self.waits)
            py_files = self._options.py_files
            watched: WatchedExchange
            stays_by_itself = may_stay(self._plan, run.execution, available_now=run.available_now)
            if self._is_resident or (stays_by_itself and engine.is_here):
                task = engine.resident_task(self._plan, py_files=py_files, preflight=preflight)
                exchange: EngineTask | EngineExchange = task
                watched = resident = self._staying(task, watch)
            else:
                exchange = engine.exchange(self._plan, py_files=py_files, preflight=preflight)
                watched, resident = WatchedExchange(exchange, watch), None
            loop = EpochLoop(
                driver,
                watched,
                size=EpochSize(target=run.epoch_target.total_seconds(), most=run.epoch_rows),
                on_epoch=lambda report: on_epoch(self._with_waits(self._rescaled(report, engine))),
                stop=self._stop,
                restarts=run.restarts,
                on_retry=on_retry,
                refresh=self._options.refresh,
                rescaling=self.rescaling,
                taps=self.taps,
                available_now=run.available_now,
                resident=resident,
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

    def _staying(self, task: ResidentTask, watch: ServiceWatch) -> WatchedResidentExchange:
        """The exchange with a task that stays, for as long as the execution."""
        run = self._settings.run
        if self._driver is None:
            raise InternalError("the job was not opened")
        self._opened.callback(task.close)
        exchange = StayingExchange(
            task,
            target=run.epoch_target.total_seconds(),
            most=run.epoch_rows,
            last=None if run.max_epochs is None else self._driver.epoch + run.max_epochs,
            stop=self._stop,
            now=self._driver.now,
        )
        return WatchedResidentExchange(exchange, watch)

    def _rescaled(self, report: EpochReport, engine: TaskEngine) -> EpochReport:
        """The report; requests another parallelism before if the load calls for it."""
        bounds = self._settings.run.parallelism
        if not isinstance(bounds, AutoParallelism):
            return report
        if self._autoscaler is None:
            self._autoscaler = Autoscaler(bounds, lambda: engine.cores, grows=engine.grows)
        decision = self._autoscaler.observe(
            report.parallelism, load=report.load, rows=report.rows_in, seconds=report.phases.busy
        )
        if decision is not None:
            _log.warning(
                "from %d subtasks to %d: %s", report.parallelism, decision.parallelism, decision.reason
            )
            self.rescaling.request(decision.parallelism)
        return report

    def _with_waits(self, report: EpochReport) -> EpochReport:
        """The report, with what was waited for since the last one."""
        return replace(report, errors=(*report.errors, *self.waits.take_over()))

    def _unless_told_to_end(self, work: Callable[[], str | None]) -> str | None:
        """Run `work`. If Spark's Java ended because the job is being stopped, its failure is no error.

        An epoch that was cut off in this way is not committed, and the next run begins with it.
        """
        try:
            return work()
        except Exception as error:
            is_stopping = self._stop.is_set() and not isinstance(error, UserError)
            if not is_stopping or self._request is None or not has_ended(self._request, within=_LAST_WORDS):
                raise
            return None


def parallelism_of(settings: Settings) -> int | None:
    """The number of subtasks of an operator: as set, or the number of cores of the engine, if it is known."""
    is_local = settings.run.engine == "local"
    parallelism, cores = settings.run.parallelism, 1 if is_local else cores_of(settings.spark.master)
    if isinstance(parallelism, AutoParallelism):
        return None if cores is None else parallelism.clamp(cores)
    return parallelism or cores


def _log_dir(state_dir: str | None) -> str | None:
    return None if state_dir is None else str(Path(state_dir) / "logs")
