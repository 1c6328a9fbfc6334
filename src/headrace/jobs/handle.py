"""The handle of a running pipeline: how far it is, how it ended, and a way to stop it."""

from __future__ import annotations

import atexit
import dataclasses
import html
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

from headrace.base.call_site import call_site
from headrace.base.errors import InternalError, UserError
from headrace.base.start_guard import check_start_allowed
from headrace.base.waits import Wait
from headrace.engine.driver import Step
from headrace.engine.reports import EpochReport
from headrace.jobs.control import ControlSocket
from headrace.jobs.execution import Execution, JobOptions
from headrace.jobs.metrics_server import MetricsServer
from headrace.jobs.progress import Progress, RunResult, Tally
from headrace.jobs.settings import Settings
from headrace.jobs.tapping import look_at_rows
from headrace.jobs.usage import UsageWatch
from headrace.model.plan import Plan

_log = logging.getLogger("headrace.run")

RunState = Literal["starting", "running", "stopping", "finished", "stopped", "failed"]
"""Where a run is: on its way up, at work, told to stop; or over: all was read, it was stopped, it failed."""

RECENT_EPOCHS = 100
"""How many epochs a handle remembers."""
_EXIT_SECONDS = 5.0
"""How long a process that ends waits for the epochs of its pipelines."""


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, with a message.

    Attributes:
        state: `starting`, `running`, `stopping`, `finished`, `stopped` or `failed`.
        message: an explanation.

    >>> import headrace as hr
    >>> status = hr.RunStatus("stopping", "the current epoch is finished and committed")
    >>> status.is_active
    True
    """

    state: RunState
    message: str

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended."""
        return self.state in {"starting", "running", "stopping"}


class PipelineRun:
    """The handle of a pipeline that runs in the background, returned by `pipeline.start()`.

    It is thread-safe. As a context manager it stops the run at the end of the block.

    >>> import headrace as hr
    >>> pipeline = hr.Pipeline("clicks")
    >>> pipeline.source("impulse", event_rate=10).sink("blackhole")
    Stream(impulse_1: counter BIGINT, subtask_index BIGINT)
    >>> run = pipeline.start(state_dir="state/clicks")  # doctest: +SKIP
    >>> run  # doctest: +SKIP
    <PipelineRun clicks (clicks-5f3a9c): running>
    >>> run.await_termination(timeout=5)  # doctest: +SKIP
    >>> run.last_progress.rows_in, run.metrics["blackhole_1"]["rows"]  # doctest: +SKIP
    (10, 50.0)
    >>> run.metrics_snapshot()["phase_seconds"]["commit"]  # doctest: +SKIP
    0.21
    >>> run.stop()  # doctest: +SKIP
    >>> run.status.state, run.exception()  # doctest: +SKIP
    ('stopped', None)
    >>> with pipeline.start(state_dir="state/clicks") as run:  # doctest: +SKIP
    ...     run.await_termination(timeout=60)
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        options: JobOptions,
        *,
        on_progress: Callable[[Progress], None] | None,
        stop: threading.Event,
        questions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._questions = questions
        self._plan = plan
        self._name = plan.name
        self._started = time.time()
        self._state_dir = settings.state.dir
        self._metrics_at = settings.metrics
        self._on_progress = on_progress
        self._stop = stop
        self._execution = Execution(plan, settings, options, stop=stop)
        self._usage = UsageWatch(self._execution.spark_usage)
        self._lock = threading.Lock()
        self._opened = threading.Event()
        # Waited for instead of the thread: an interrupted `join` takes a thread at work for one that is over.
        self._over = threading.Event()
        self._recent: deque[Progress] = deque(maxlen=RECENT_EPOCHS)
        self._tally: Tally | None = None
        self._uses_spark = settings.run.engine == "spark"
        self._engine_ready = False
        self._job_id = ""
        self._result: RunResult | None = None
        self._failure: BaseException | None = None
        self._failure_was_raised = False
        self._thread = threading.Thread(target=self._run, name=f"headrace-run-{plan.name}", daemon=True)

    # ------------------------------------------------------------------------------- the background

    def _start(self) -> None:
        """Start the thread, and return when the state is resumed; errors until then are raised here."""
        _ACTIVE.add(self)
        self._thread.start()
        try:
            self._opened.wait()
        except BaseException:
            self.stop()
            raise
        if self._failure is not None and not self._job_id:
            raise self._failure

    def _run(self) -> None:
        try:
            with (
                self._execution as execution,
                ControlSocket(
                    self._describe,
                    self._stop.set,
                    self._measure,
                    self._execution.rescaling.request,
                    questions={"tap": self._tap, **self._questions},
                ),
                self._metrics_server(),
            ):
                job_id = execution.open()
                with self._lock:
                    self._job_id, self._tally = job_id, execution.tally
                self._opened.set()
                result = execution.run(on_start=self._note_start, on_epoch=self._add)
            with self._lock:
                self._result = result
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the run
            with self._lock:
                self._failure = error
        finally:
            self._usage.close()
            self._over.set()
            self._opened.set()
            self._execution.rescaling.close()

    def _metrics_server(self) -> AbstractContextManager[object]:
        port, host = self._metrics_at.port, self._metrics_at.host
        if port is None:
            return nullcontext()
        server = MetricsServer(
            host, port, snapshot=lambda: self._measure(history=False), state=lambda: self.status.state
        )
        _log.info("metrics are served at http://%s/metrics", server.address)
        self._usage.latest()  # from now on it looks, so that the first scrape finds something
        return server

    def _note_start(self) -> None:
        with self._lock:
            self._engine_ready = True

    def _add(self, report: EpochReport) -> bool:
        with self._lock:
            if self._tally is None:
                raise InternalError("the job was not opened")
            progress = self._tally.add(report)
            is_over = self._tally.reason is not None
            self._recent.append(progress)
        if self._on_progress is not None:
            self._on_progress(progress)
        return is_over

    def _tap(self, operator: str, target: str | None, where: str, after: int) -> list[dict[str, Any]]:
        """Rows that an operator sends on, for whoever asks through the socket."""
        return look_at_rows(
            self._execution.taps, self._plan, operator, target=target, where=where, after=after
        )

    def _describe(self) -> dict[str, Any]:
        """What the run answers through its socket."""
        status, last = self.status, self.last_progress
        progress = None if last is None else dataclasses.asdict(last)
        return {
            "name": self.name,
            "job": self.id,
            "pid": os.getpid(),
            "started": self._started,
            "state": status.state,
            "message": status.message,
            "state_dir": self._state_dir,
            "parallelism": self.parallelism,
            "progress": progress,
            "metrics": {node: dict(values) for node, values in self.metrics.items()},
            "lag": self._lag(),
        }

    def _lag(self) -> dict[str, float]:
        """What is left unread, by its unit."""
        with self._lock:
            return {} if self._tally is None else self._tally.measured.lag()

    # ------------------------------------------------------------------------------- for its user

    @property
    def id(self) -> str:
        """The id of the job; it stays the same over all runs on one state directory."""
        return self._job_id

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self._name

    @property
    def is_active(self) -> bool:
        """Whether the run has not ended."""
        return not self._over.is_set()

    @property
    def status(self) -> RunStatus:
        """The state of the run, with a message."""
        # Asked before the outcome is looked at: a run that is over has left one.
        is_active = self.is_active
        with self._lock:
            result, failure = self._result, self._failure
            last, engine_ready = (self._recent[-1] if self._recent else None), self._engine_ready
        if not is_active and failure is not None:
            return RunStatus("failed", str(failure) or type(failure).__name__)
        if not is_active and result is not None:
            return RunStatus(_outcome(result), _summary(result))
        if self._stop.is_set():
            return RunStatus("stopping", "the current epoch is finished and committed")
        if waits := self.waiting_for:
            return RunStatus("running" if engine_ready else "starting", str(waits[0]))
        if last is not None:
            return RunStatus("running", _progress_line(last))
        if engine_ready:
            return RunStatus("running", "the first epoch has not been committed")
        return RunStatus("starting", f"{'Spark' if self._uses_spark else 'it'} is being started")

    @property
    def parallelism(self) -> int:
        """The number of subtasks of an operator, from the next epoch on."""
        return self._execution.rescaling.parallelism

    @property
    def waiting_for(self) -> Sequence[Wait]:
        """The unavailable servers that the run waits for, the longest wait first."""
        return self._execution.waits.current if self.is_active else ()

    @property
    def last_progress(self) -> Progress | None:
        """The last committed epoch; None before the first."""
        with self._lock:
            return self._recent[-1] if self._recent else None

    @property
    def recent_progress(self) -> list[Progress]:
        """The last 100 committed epochs, the oldest first."""
        with self._lock:
            return list(self._recent)

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The counters of every source and operator by their ids, summed over the epochs of this run.

        Besides its own counters an operator has `rows_in`, `rows_out`, `bytes_in`, `bytes_out` and `seconds`
        of work; with state `state_rows` and `state_bytes`; a sink `commits` and `commit_seconds`.
        """
        with self._lock:
            return {} if self._tally is None else self._tally.measured.operators()

    def metrics_snapshot(self) -> dict[str, Any]:
        """All metrics of the run, with the history of the last ten minutes, as plain data.

        Returns:
            The totals of the run, of every operator and subtask, and their history: see
            docs/how-to/monitor.md. Empty until the state is restored.
        """
        return self._measure()

    def _measure(self, history: bool = True) -> dict[str, Any]:
        with self._lock:
            tally = self._tally
        if tally is None:
            return {}
        return {
            "state": self.status.state,
            "waiting_servers": len(self.waiting_for),
            **self._usage.latest(),
            **tally.measured.snapshot(history=history),
        }

    @property
    def result(self) -> RunResult | None:
        """The summary of the run, once it has ended without an error."""
        return None if self.is_active else self._result

    def exception(self) -> BaseException | None:
        """The error that ended the run.

        Returns:
            The error; None if the run is active or ended without an error.
        """
        return None if self.is_active else self._failure

    def await_termination(self, timeout: float | None = None) -> RunResult | None:
        """Wait until the run ends; return its summary, or raise the error that ended it.

        Args:
            timeout: the maximum number of seconds to wait; None for no limit.

        Returns:
            The summary of the run; None if it has not ended by then.

        Raises:
            HeadraceError: the error that ended the run, as returned by `exception()`.
            UserError: `timeout` is not a number.
        """
        _check_timeout(timeout, example="await_termination(60)")
        if not self._over.wait(timeout):
            return None
        if self._failure is not None:
            self._failure_was_raised = True
            raise self._failure
        return self._result

    def rescale(self, parallelism: int, *, timeout: float | None = None) -> bool:
        """Change the number of subtasks between two epochs, without a restart.

        No row is lost or processed twice: each new subtask takes over the state of its keys. If there are
        several pending requests, the last one counts.

        Args:
            parallelism: how many subtasks an operator has from then on.
            timeout: how many seconds to wait until it is in effect; 0 not to wait, None for no limit.

        Returns:
            Whether it is in effect: False after `timeout` seconds, or if the run ended before.

        Raises:
            UserError: `parallelism` is not a whole number greater than zero, or `timeout` is not a number.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline("clicks")
        >>> pipeline.source("impulse", event_rate=10).sink("blackhole")
        Stream(impulse_1: counter BIGINT, subtask_index BIGINT)
        >>> run = pipeline.start(parallelism=2)  # doctest: +SKIP
        >>> run.rescale(4)  # doctest: +SKIP
        True
        """
        _check_timeout(timeout, example="rescale(4, timeout=60)")
        self._execution.rescaling.request(parallelism)
        waits = threading.current_thread() is not self._thread
        return self._execution.rescaling.wait(parallelism, timeout if waits else 0.0)

    def stop(self, *, wait: bool = True) -> None:
        """Finish and commit the current epoch, then stop.

        If the run fails meanwhile, nothing is raised here: see `exception()`.

        Args:
            wait: whether to wait until the run has stopped.
        """
        if not self.is_active:
            return
        self._stop.set()
        if wait and threading.current_thread() is not self._thread:
            self._over.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the run; a failure that was not raised before is raised here."""
        self.stop()
        if error is None and self._failure is not None and not self._failure_was_raised:
            self._failure_was_raised = True
            raise self._failure

    def __repr__(self) -> str:
        return f"<PipelineRun {self.name} ({self.id}): {self.status.state}>"

    def _repr_html_(self) -> str:
        status = self.status
        name, state, line = (html.escape(text) for text in (self.name, status.state, status.message))
        return f"<div><b>{name}</b> <i>{state}</i>: <span style='white-space: pre-wrap'>{line}</span></div>"


def start_job(
    plan: Plan,
    settings: Settings,
    *,
    from_epoch: int | None = None,
    allow_drop: bool = False,
    py_files: Sequence[str] = (),
    verbose: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_step: Step | None = None,
    stop: threading.Event | None = None,
    refresh: Callable[[], Plan | None] | None = None,
    questions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> PipelineRun:
    """Start a plan, and return its handle as soon as its state is resumed.

    What is wrong with the plan, the settings or the state directory is raised here; what fails later is
    raised by `await_termination`. The run ends when its sources end, a limit is reached, the handle stops it
    or `stop` is set. `on_progress` is called in the thread of the run. `refresh` is asked before each epoch
    for a plan of the same shape whose operators have changed. Without a state directory the state lives in a
    temporary one for as long as the run. `questions` are what its control socket answers besides its own.
    """
    check_start_allowed()
    if from_epoch is not None and settings.state.dir is None:
        raise UserError(
            "only a run with a state directory can go back to an epoch, and this one has none",
            hint="name it: `state_dir`, on the command line `--state-dir DIR`",
            where=call_site(),
        )
    options = JobOptions(
        from_epoch=from_epoch,
        allow_drop=allow_drop,
        py_files=py_files,
        verbose=verbose,
        on_step=on_step,
        refresh=refresh,
    )
    run = PipelineRun(
        plan,
        settings,
        options,
        on_progress=on_progress,
        stop=stop or threading.Event(),
        questions=questions,
    )
    run._start()  # noqa: SLF001 - a handle is started once, by the function that makes it
    return run


_ACTIVE: weakref.WeakSet[PipelineRun] = weakref.WeakSet()


def _stop_all() -> None:
    """At the end of the process: commit the current epochs before Spark ends."""
    active = [run for run in list(_ACTIVE) if run.is_active]
    for run in active:
        run.stop(wait=False)
    for run in active:
        run._over.wait(_EXIT_SECONDS)  # noqa: SLF001 - what failed no longer matters


atexit.register(_stop_all)  # after the one of Spark's module, so it is called before it


def _check_timeout(timeout: object, *, example: str) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise UserError(
            f"`timeout` takes seconds, got {type(timeout).__name__} {timeout!r}",
            hint=f"such as `{example}`",
            where=call_site(),
        )


def _outcome(result: RunResult) -> Literal["finished", "stopped"]:
    return "finished" if result.reason == "finished" else "stopped"


def _summary(result: RunResult) -> str:
    return (
        f"{result.reason} after {result.epochs} epochs: {result.rows_in:,} rows in, {result.rows_out:,} out"
    )


def _progress_line(progress: Progress) -> str:
    return (
        f"epoch {progress.epoch}: {progress.rows_per_second:,.0f} rows/s, "
        f"{progress.total_in:,} rows in, {progress.total_out:,} out"
    )
