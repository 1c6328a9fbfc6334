"""Runs a job and waits for its end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from headrace.base.errors import InternalError
from headrace.jobs.execution import parallelism_of
from headrace.jobs.handle import PipelineRun, start_job
from headrace.jobs.progress import RunResult

__all__ = ["await_result", "parallelism_of", "run_job"]

Parameters = ParamSpec("Parameters")


def await_result(run: PipelineRun) -> RunResult:
    """What a run has done when it is over; whatever interrupts the wait stops the run first.

    The epochs run in another thread: this one can be interrupted, and then the current epoch is finished and
    committed before the interrupt goes on.
    """
    try:
        result = run.await_termination()
    except BaseException:
        run.stop()
        raise
    if result is None:
        raise InternalError("the run is over and has no result")
    return result


def _awaited(start: Callable[Parameters, PipelineRun]) -> Callable[Parameters, RunResult]:
    @functools.wraps(start)
    def run(*args: Parameters.args, **options: Parameters.kwargs) -> RunResult:
        return await_result(start(*args, **options))

    return run


run_job = _awaited(start_job)
"""Run a plan until its sources end, a limit is reached or `stop` is set: see `start_job`."""
