"""Runs a pipeline in this process: the epoch loop that ships, over an exchange without Spark.

For tests: no JVM, hundreds of crash, replay and rescale cases per minute. Everything but the exchange is what
runs on Spark: the same loop, planner, tasks, envelopes, state, commits and retries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.api.pipeline import Pipeline
from headrace.base.errors import ConfigurationError, InternalError
from headrace.base.retry import Backoff
from headrace.engine.driver import EpochDriver, Step
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.stages import cut_stages
from headrace.exchanges.local import LocalExchange
from headrace.jobs.progress import Progress, Reason, RunResult, Tally, collected_rows
from headrace.model.plan import Plan
from headrace.storage.open import open_storage

_NO_PAUSE = Backoff(first=0.0, longest=0.0)


class CrashError(BaseException):
    """Raised by a test in the place of a crash; nothing in the engine may catch it."""


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, time: float = 1_700_000_000.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time += seconds


def run_in_process(
    pipeline: Pipeline,
    state_dir: str | Path,
    *,
    parallelism: int = 2,
    max_epochs: int | None = None,
    epoch_rows: int | None = None,
    keep_checkpoints: int = 10,
    compact_after: int = 8,
    from_epoch: int | None = None,
    allow_drop: bool = False,
    clock: Callable[[], float] | None = None,
    seed: int = 0,
    on_step: Step | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    restarts: int = 0,
    idle_epochs: int = 1000,
    idle_seconds: float = 0.01,
    stop: Callable[[], bool] | None = None,
    refresh: Callable[[], Plan | None] | None = None,
    available_now: bool = False,
) -> RunResult:
    """Run a pipeline until its sources end or `max_epochs` is reached.

    `seed` shuffles the order in which tasks run and envelopes arrive. `on_step(name, epoch)` is called at
    each step of an epoch and may raise `CrashError`. `restarts` is how often whatever a run on Spark tries
    again is tried again after an error that may pass: an epoch, its commit, a question to a source, the last
    epoch; there is no pause between attempts. A source that has nothing new is asked `idle_epochs` times,
    `idle_seconds` apart by a clock that is moved by hand. `stop` is asked between epochs whether the run
    should stop, and `refresh` whether the plan's operators have changed. `available_now` ends the run when
    what the sources have at its start is read.
    """
    if parallelism < 1:
        raise ConfigurationError(
            f"`parallelism` is {parallelism}", hint="write a number of subtasks, from 1 on"
        )
    now = clock or ManualClock()
    plan = pipeline.plan()
    driver = EpochDriver(
        cut_stages(plan, parallelism=parallelism),
        open_storage(str(state_dir)),
        keep_checkpoints=keep_checkpoints,
        compact_after=compact_after,
        now=now,
        step=on_step,
    )
    driver.open(from_epoch=from_epoch, allow_drop=allow_drop)
    if driver.job is None:
        raise InternalError("the driver was not opened")
    tally = Tally(driver.job.job_id, first_epoch=driver.epoch + 1, max_epochs=max_epochs)
    stopping = threading.Event()

    def ask_to_stop() -> None:
        if stop is not None and stop():
            stopping.set()

    def on_epoch(report: EpochReport) -> bool:
        progress = tally.add(report)
        if on_progress is not None:
            on_progress(progress)
        if tally.reason is None:
            ask_to_stop()
        return tally.reason is not None

    def wait(idle: int) -> None:
        if isinstance(now, ManualClock):
            now.advance(idle_seconds)
        else:
            time.sleep(idle_seconds)
        if idle > idle_epochs:
            stopping.set()
        else:
            ask_to_stop()

    already_finished = driver.finished
    reason: Reason = "stopped"
    if not already_finished or available_now:
        ask_to_stop()
        loop = EpochLoop(
            driver,
            LocalExchange(seed=seed),
            size=EpochSize(target=0.5, most=epoch_rows),
            on_epoch=on_epoch,
            stop=stopping,
            restarts=restarts,
            question_retries=restarts,
            backoff=_NO_PAUSE,
            wait=wait,
            refresh=refresh,
            available_now=available_now,
        )
        loop.run()
        reason = "available_now" if loop.exhausted else "stopped"
    return tally.result(
        tally.reason or ("finished" if already_finished else reason),
        rows=collected_rows(plan, driver.job.job_id),
        state_dir=str(state_dir),
    )
