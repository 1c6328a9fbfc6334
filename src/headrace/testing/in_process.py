"""Runs a pipeline in this process: the real engine over an exchange without Spark.

For tests: no JVM, hundreds of crash, replay and rescale cases per minute. Everything but the exchange is what
runs on Spark: the same planner, tasks, envelopes, state and commits.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path

from headrace.api.pipeline import Pipeline
from headrace.base.errors import HeadraceError, InternalError
from headrace.engine.context import EpochContext
from headrace.engine.driver import EpochDriver, Step
from headrace.engine.envelope import Envelope
from headrace.engine.offsets import EpochSize, OffsetPlanner
from headrace.engine.reports import EpochReport
from headrace.engine.stages import StagePlan, cut_stages
from headrace.engine.task import SplitTask, run_split, run_stage
from headrace.jobs.progress import Progress, Reason, RunResult, Tally, collected_rows
from headrace.model.plan import Plan
from headrace.storage.open import open_storage


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
) -> RunResult:
    """Run a pipeline until its sources end or `max_epochs` is reached.

    `seed` shuffles the order in which tasks run and envelopes arrive. `on_step(name, epoch)` is called at
    each step of an epoch and may raise `CrashError`. A source that has nothing new is asked `idle_epochs`
    times, `idle_seconds` apart by a clock that is moved by hand. `stop` is asked between epochs whether the
    run should stop, and `refresh` whether the plan's operators have changed.
    """
    now = clock or ManualClock()
    stages = cut_stages(pipeline.plan(), parallelism=parallelism)
    storage = open_storage(str(state_dir))
    driver = EpochDriver(
        stages,
        storage,
        keep_checkpoints=keep_checkpoints,
        compact_after=compact_after,
        now=now,
        step=on_step,
    )
    driver.open(from_epoch=from_epoch, allow_drop=allow_drop)
    if driver.job is None:
        raise InternalError("the driver was not opened")
    job_id = driver.job.job_id
    tally = Tally(job_id, first_epoch=driver.epoch + 1, max_epochs=max_epochs)
    if driver.finished:
        return tally.result("finished", rows=collected_rows(stages.plan, job_id), state_dir=str(state_dir))
    planner = OffsetPlanner(
        stages,
        size=EpochSize(target=0.5, most=epoch_rows),
        restored=None if driver.checkpoint is None else driver.checkpoint.offsets,
        epoch=driver.epoch,
        job=driver.job,
        now=now,
    )
    start, idle = planner.initial(), 0
    reason: Reason | None = None
    try:
        while reason is None:
            if stop is not None and stop():
                reason = "stopped"
                break
            end = planner.latest(start)
            if end == start:
                idle += 1
                if isinstance(now, ManualClock):
                    now.advance(idle_seconds)
                else:
                    time.sleep(idle_seconds)
                if idle > idle_epochs:
                    reason = "stopped"
                continue
            idle = 0
            if refresh is not None and (changed := refresh()) is not None:
                driver.replace_operators(changed)
            report = _sealed(driver, planner.tasks(start, end), seed=seed, restarts=restarts)
            if not report.immediate:
                driver.commit()
            _tell(on_progress, tally.add(report))
            reason = tally.reason_to_end()
            if reason in {None, "max_epochs"} and report.stop_requested:
                reason = "finished"
            start = end
    finally:
        planner.close()
    last = None if reason == "immediate" else driver.begin_last(ending=reason == "finished")
    if last is not None:
        context, task = last
        report = driver.seal(context, run_epoch(driver.stages, context, [task], seed=seed))
        driver.commit()
        _tell(on_progress, tally.add(report))
    return tally.result(reason, rows=collected_rows(stages.plan, job_id), state_dir=str(state_dir))


def _tell(on_progress: Callable[[Progress], None] | None, progress: Progress) -> None:
    if on_progress is not None:
        on_progress(progress)


def _sealed(driver: EpochDriver, tasks: list[SplitTask], *, seed: int, restarts: int) -> EpochReport:
    for attempt in range(restarts + 1):
        context = driver.begin()
        try:
            control = run_epoch(driver.stages, context, tasks, seed=seed + context.epoch + attempt)
            return driver.seal(context, control)
        except HeadraceError as error:
            if not error.retry or attempt == restarts:
                raise
    raise InternalError("unreachable")


def run_epoch(
    stages: StagePlan, context: EpochContext, tasks: list[SplitTask], *, seed: int
) -> list[Envelope]:
    """Run the tasks of one epoch, in an order that `seed` chooses, and return what they report."""
    shuffle = random.Random(seed)  # noqa: S311 - a test's own order
    stages = pickle.loads(pickle.dumps(stages))  # noqa: S301 - what a worker would get
    context = pickle.loads(pickle.dumps(context))  # noqa: S301
    shuffle.shuffle(tasks)
    envelopes = [one for task in tasks for one in run_split(stages, context.job, task)]
    for stage in range(1, stages.depth + 1):
        partitions = _exchange(envelopes, stages.width(stage), shuffle)
        order = list(range(len(partitions)))
        shuffle.shuffle(order)
        envelopes = [
            one
            for partition in order
            for one in run_stage(stages, stage, partition, context, partitions[partition])
        ]
    return envelopes


def _exchange(envelopes: list[Envelope], width: int, shuffle: random.Random) -> list[list[Envelope]]:
    """What Spark's shuffle does: every envelope to the partition its `to` names."""
    partitions: list[list[Envelope]] = [[] for _ in range(width)]
    for envelope in envelopes:
        partitions[envelope.to % width].append(envelope)
    for partition in partitions:
        shuffle.shuffle(partition)
    return partitions
