"""Converts Spark's failures of a job into Headrace errors with a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.base.errors import ExternalError, HeadraceError, WorkerError
from headrace.exchanges.spark.exits import describe_exit, hint_for_exit, worker_exit
from headrace.exchanges.spark.preflight import executor_problem
from headrace.exchanges.spark.workers import POSITION_OF

_TELLING = "Error: "
"""What a line of a Java stack trace has in it that says what went wrong."""
_WORKER_ENDED = "Python worker exited unexpectedly"
"""What Spark says when it waits for an answer of a worker that has ended."""
_POSITION = re.compile(rf"^.*{_WORKER_ENDED} \(crashed\): *(.*?) *\n{POSITION_OF} (\d+)\n", re.MULTILINE)
_CRASH = re.compile(r"^Fatal Python error: .*\n(?:(?!\tat |Extension modules).*\n){,30}", re.MULTILINE)
_EXIT_SECONDS = 5.0
"""How long the daemon of local workers may take to note an exit."""


def epoch_failure(
    error: Exception, *, is_spark: bool, see_log: str | None, local_workers: bool = True
) -> HeadraceError:
    """The error that made the job of an epoch fail; `is_spark` is whether Spark itself reported it.

    With `local_workers` the daemon that they are forks of has noted how they ended.
    """
    text = str(error)
    if _WORKER_ENDED in text:
        return _worker_ended(text, see_log, local_workers=local_workers)
    problem = executor_problem(text)
    if problem is not None:
        return problem
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING in line]
    message = (telling or lines or [type(error).__name__])[0][:500]
    if is_spark:
        return WorkerError(f"Spark could not run the epoch: {message}", hint=see_log)
    return ExternalError(f"{type(error).__name__}: {message}", hint=see_log)


def _worker_ended(text: str, see_log: str | None, *, local_workers: bool) -> HeadraceError:
    """The error for a Python worker that has ended: how, and in which operator."""
    position = _POSITION.search(text)
    is_noted = position is not None and local_workers
    code = worker_exit(int(position[2]), within=_EXIT_SECONDS) if position and is_noted else None
    crash = _CRASH.search(text)
    error = WorkerError(
        f"a Python worker {'ended without an answer' if code is None else describe_exit(code)}",
        where=None if position is None else position[1] or None,
        hint=joined([None if code is None else hint_for_exit(code), see_log]),
    )
    error.traceback_text = "" if crash is None else crash[0]
    return error


def joined(hints: Iterable[str | None]) -> str | None:
    """The hints that there are, as one."""
    return "; ".join(filter(None, hints)) or None
