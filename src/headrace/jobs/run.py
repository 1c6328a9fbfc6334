"""Runs a job and waits for its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.base.errors import InternalError
from headrace.engine.driver import Step
from headrace.jobs.execution import parallelism_of
from headrace.jobs.handle import start_job
from headrace.jobs.progress import Progress, RunResult
from headrace.jobs.settings import Settings
from headrace.model.plan import Plan

__all__ = ["parallelism_of", "run_job"]


def run_job(
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
) -> RunResult:
    """Run a plan on Spark until its sources end, a limit is reached or `stop` is set: see `start_job`.

    The epochs run in another thread: this one can be interrupted, and then the epoch at work is finished and
    committed before the interrupt goes on.
    """
    run = start_job(
        plan,
        settings,
        from_epoch=from_epoch,
        allow_drop=allow_drop,
        py_files=py_files,
        verbose=verbose,
        on_progress=on_progress,
        on_step=on_step,
        stop=stop,
        refresh=refresh,
    )
    try:
        result = run.await_termination()
    except BaseException:
        run.stop()
        raise
    if result is None:
        raise InternalError("the run is over and has no result")
    return result
