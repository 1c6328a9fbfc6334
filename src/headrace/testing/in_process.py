"""Runs a pipeline in this process: the epoch loop that ships, over an exchange without Spark.

For tests: no JVM, hundreds of crash, replay and rescale cases per minute. Everything but the exchange is what
runs on Spark: the same loop, planner, tasks, envelopes, state, commits and retries.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.api.arguments import check_argument, check_callable, check_run_arguments
from headrace.api.pipeline import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.call_site import located
from headrace.base.errors import ConfigurationError, InternalError
from headrace.base.options import parse_options
from headrace.base.retry import Backoff
from headrace.dataflow.plan.reload import Reload
from headrace.engine.driver import EpochDriver, Step
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.rescaling import Rescaling
from headrace.engine.stages import cut_stages
from headrace.exchanges.local import LocalExchange
from headrace.exchanges.resident import LocalTask, StayingExchange
from headrace.jobs.progress import Progress, Reason, RunResult, Tally, collected_rows
from headrace.jobs.settings import RunSettings, StateSettings
from headrace.model.ahead import is_resident
from headrace.model.plan import Plan
from headrace.storage.open import open_storage

_NO_PAUSE = Backoff(first=0.0, longest=0.0)
_IDLE_SECONDS = 0.01
"""How long is waited for a source that has nothing new."""
_SETTINGS = ("available_now", "execution", "restarts", "keep_checkpoints", "compact_after")
"""The settings of `RunOptions` that do not concern Spark."""


class CrashError(BaseException):
    """Raised by a test to simulate a crash; nothing in the engine may catch it."""


class ManualClock:
    """A clock that moves only when a test moves it, or by `idle_seconds` when no source has anything new."""

    def __init__(self, time: float = 1_700_000_000.0, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self.time = time
        self.idle_seconds = idle_seconds

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time += seconds


@located
def run_in_process(
    pipeline: Pipeline | Plan,
    state_dir: str | Path,
    *,
    parallelism: int = 2,
    max_epochs: int | None = None,
    epoch_rows: int | None = None,
    from_epoch: int | None = None,
    allow_drop: bool = False,
    clock: Callable[[], float] | None = None,
    seed: int = 0,
    on_step: Step | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    idle_epochs: int = 1000,
    stop: Callable[[], bool] | None = None,
    rescale: Callable[[int], int | None] | None = None,
    watch: bool = False,
    options: RunOptions | None = None,
) -> RunResult:
    """Run a pipeline in this process until its sources end or `max_epochs` is reached.

    Args:
        pipeline: the pipeline, or its plan.
        state_dir: where checkpoints are kept.
        parallelism: how many subtasks an operator has.
        max_epochs: the maximum number of epochs.
        epoch_rows: the maximum number of rows that an epoch reads.
        from_epoch: go back to the checkpoint of this epoch.
        allow_drop: whether state of removed operators may be dropped.
        clock: the time in seconds; by default a `ManualClock`.
        seed: shuffles the order in which tasks run and envelopes arrive.
        on_step: called as `on_step(name, epoch)` at each step of an epoch; it may raise `CrashError`.
        on_progress: called after each epoch.
        idle_epochs: how often a source that has nothing new is asked, before the run is stopped.
        stop: asked between epochs whether the run should stop.
        rescale: asked after each epoch, with its number, how many subtasks an operator has from then on; None
            for as many as before.
        watch: reload the operators of a dataflow whose files change.
        options: `available_now`, `execution`, `restarts`, `keep_checkpoints` and `compact_after`, as for
            `pipeline.run`. Nothing is tried again unless `restarts` is set, without a pause between attempts.

    Returns:
        The summary of the run.

    Raises:
        HeadraceError: the run failed; a `UserError` if the program, a setting or the state has to change.

    >>> import headrace as hr, tempfile
    >>> pipeline = hr.Pipeline("numbers")
    >>> _ = pipeline.source("memory", rows=[{"n": 1}, {"n": 2}]).filter("n > 1").sink("memory", name="large")
    >>> run_in_process(pipeline, tempfile.mkdtemp()).rows["large"]["n"].to_pylist()
    [2]
    """
    check_run_arguments(state_dir, on_progress, from_epoch=from_epoch, allow_drop=allow_drop, watch=watch)
    for name, function in (("clock", clock), ("on_step", on_step), ("stop", stop), ("rescale", rescale)):
        check_callable(function, name, example=f"{name}=…")
    for name, number in (("parallelism", parallelism), ("seed", seed), ("idle_epochs", idle_epochs)):
        check_argument(number, name, (int,), "a whole number", example=f"{name}=3")
    run, state = _settings(
        options, {"parallelism": parallelism, "max_epochs": max_epochs, "epoch_rows": epoch_rows}
    )
    plan, reload = _plan_of(pipeline, watch=watch)
    now = ManualClock() if clock is None else clock
    driver = EpochDriver(
        cut_stages(plan, parallelism=parallelism),
        open_storage(str(state_dir)),
        keep_checkpoints=state.keep_checkpoints,
        compact_after=state.compact_after,
        now=now,
        step=on_step,
    )
    driver.open(from_epoch=from_epoch, allow_drop=allow_drop)
    if driver.job is None:
        raise InternalError("the driver was not opened")
    tally = Tally(driver.job.job_id, driver.stages, first_epoch=driver.epoch + 1, max_epochs=max_epochs)
    was_finished = driver.finished
    reason: Reason = "finished"
    if not was_finished or run.available_now:
        rescaling = Rescaling(parallelism)
        between = _BetweenEpochs(tally, now, idle_epochs=idle_epochs, on_progress=on_progress, stop=stop)
        between.ask_to_stop()
        resident = _resident_exchange(driver, run, between.stopping, now)
        loop = EpochLoop(
            driver,
            LocalExchange(seed=seed) if resident is None else resident,
            size=EpochSize(target=0.5, most=epoch_rows),
            on_epoch=_rescaled_after(between.on_epoch, rescaling, rescale),
            stop=between.stopping,
            restarts=run.restarts,
            question_retries=run.restarts,
            backoff=_NO_PAUSE,
            wait=between.wait,
            refresh=reload,
            rescaling=rescaling,
            available_now=run.available_now,
            resident=resident,
        )
        loop.run()
        if not was_finished:
            reason = "available_now" if loop.exhausted else "stopped"
    rows = collected_rows(plan, driver.job.job_id)
    return tally.result(tally.reason or reason, rows=rows, state_dir=str(state_dir))


def _plan_of(pipeline: Pipeline | Plan, *, watch: bool) -> tuple[Plan, Reload | None]:
    """The plan of a run, and what reloads its operators between epochs, for `watch`."""
    check_argument(
        pipeline, "pipeline", (Pipeline, Plan), "a pipeline", example="run_in_process(stream.pipeline, …)"
    )
    if isinstance(pipeline, Pipeline):
        return pipeline.plan(), pipeline._reload() if watch else None  # noqa: SLF001 - as `run` does
    if watch:
        raise ConfigurationError("`watch` takes a pipeline: the files of a plan are not known")
    return pipeline, None


def _resident_exchange(
    driver: EpochDriver, run: RunSettings, stop: threading.Event, now: Callable[[], float]
) -> StayingExchange | None:
    """What runs all epochs in one task that stays, if the plan or the settings ask for it."""
    if not is_resident(driver.stages.plan, run.execution, available_now=run.available_now):
        return None
    return StayingExchange(
        LocalTask(now=now),
        target=run.epoch_target.total_seconds(),
        most=run.epoch_rows,
        last=None if run.max_epochs is None else driver.epoch + run.max_epochs,
        stop=stop,
        now=now,
    )


def _rescaled_after(
    on_epoch: Callable[[EpochReport], bool],
    rescaling: Rescaling,
    rescale: Callable[[int], int | None] | None,
) -> Callable[[EpochReport], bool]:
    def counted(report: EpochReport) -> bool:
        is_over = on_epoch(report)
        wanted = None if rescale is None else rescale(report.epoch)
        if wanted is not None:
            rescaling.request(wanted)
        return is_over

    return counted


def _settings(options: RunOptions | None, run: Mapping[str, Any]) -> tuple[RunSettings, StateSettings]:
    """The settings of a run; unlike those of a run on Spark, they come from the arguments alone."""
    chosen = _check_options(options)
    values = {name: getattr(chosen, name) for name in _SETTINGS}
    chosen_values = {
        "restarts": 0,
        **{name: value for name, value in values.items() if value is not None},
        **run,
    }
    state: dict[str, Any] = {
        name: chosen_values.pop(name)
        for name in ("keep_checkpoints", "compact_after")
        if name in chosen_values
    }
    what = "run_in_process"
    return parse_options(RunSettings, chosen_values, what=what), parse_options(
        StateSettings, state, what=what
    )


def _check_options(options: RunOptions | None) -> RunOptions:
    """The options, without any that would have no effect."""
    chosen = RunOptions() if options is None else options
    if not isinstance(chosen, RunOptions):
        raise ConfigurationError(
            f"`options` takes hr.RunOptions(…), got {type(options).__name__}",
            hint="such as `options=hr.RunOptions(restarts=5)`",
        )
    for field in dataclasses.fields(chosen):
        if field.name not in _SETTINGS and getattr(chosen, field.name) != field.default:
            raise ConfigurationError(
                f"`{field.name}` has no effect on a run in this process",
                hint=f"leave it out; of RunOptions it takes {', '.join(_SETTINGS)}",
            )
    return chosen


class _BetweenEpochs:
    """The work between two epochs: count, report the progress, wait, check whether to stop."""

    def __init__(
        self,
        tally: Tally,
        now: Callable[[], float],
        *,
        idle_epochs: int,
        on_progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self._tally = tally
        self._now = now
        self._idle_epochs = idle_epochs
        self._on_progress = on_progress
        self._stop = stop
        self.stopping = threading.Event()

    def ask_to_stop(self) -> None:
        """End the run if `stop()` returns True."""
        if self._stop is not None and self._stop():
            self.stopping.set()

    def on_epoch(self, report: EpochReport) -> bool:
        """Count an epoch; return whether the run is over."""
        progress = self._tally.add(report)
        if self._on_progress is not None:
            self._on_progress(progress)
        if self._tally.reason is None:
            self.ask_to_stop()
        return self._tally.reason is not None

    def wait(self, idle: int) -> None:
        """Let time pass before the sources are polled for the `idle`-th time in a row."""
        if isinstance(self._now, ManualClock):
            self._now.advance(self._now.idle_seconds)
        else:
            time.sleep(_IDLE_SECONDS)
        if idle > self._idle_epochs:
            self.stopping.set()
        else:
            self.ask_to_stop()
