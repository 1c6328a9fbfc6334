"""Commits of sinks that run in tasks: each publishes its share of what an epoch has prepared.

The driver decides: it makes the tasks when the epoch is past its commit point, and marks the epoch as
committed when all have reported. A share may be committed more than once, also twice at the same time: an
attempt that was thought to be lost may go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import HeadraceError, InternalError, ReplacedError
from headrace.base.position import move_to, position_label
from headrace.engine.chain import NoTables, load_operator, staging_path, wrap_failure
from headrace.engine.context import JobContext
from headrace.engine.envelope import Envelope, EnvelopeKind, EnvelopeWriter
from headrace.engine.stages import StagePlan
from headrace.engine.task import failed, failure_of
from headrace.model.operator import CommitData, OperatorContext, TaskInfo
from headrace.state.backend import ParquetBackend
from headrace.state.generation import Generation
from headrace.storage.base import Storage
from headrace.storage.open import open_storage


@dataclass(frozen=True)
class CommitTask:
    """The share of a sink in the commit of an epoch that one task publishes, and for which run."""

    index: int
    operator_id: str
    share: int
    shares: int
    epoch: int
    writer: int
    """The generation that has written the checkpoint of the epoch."""
    time: float
    data: CommitData
    generation: int
    run_id: str


@dataclass
class CommitClaim(Generation):
    """The claim of a run, for a task that commits: it ends when the driver has seen the epoch committed.

    Then another attempt has published the share, and the run may have gone on.
    """

    epoch: int = 0
    writer: int = 0

    def _check_now(self) -> None:
        super()._check_now()
        backend = ParquetBackend(self.storage)
        if backend.is_past(self.epoch, writer=self.writer, generation=self.number):
            raise ReplacedError(f"another attempt of this task has committed epoch {self.epoch}")


def commit_context(
    stages: StagePlan,
    job: JobContext,
    *,
    operator_id: str,
    epoch: int,
    now: float,
    storage: Storage,
    claim: Generation | None,
    share: int = 0,
    shares: int = 1,
) -> OperatorContext:
    """Return the context of a sink's commit."""
    return OperatorContext(
        task_info=TaskInfo(
            job_id=job.job_id,
            operator_id=operator_id,
            operator_name=stages.plan.by_id[operator_id].operator,
            subtask=share,
            parallelism=shares,
            key_range=(0, 2**64 - 1),
            epoch=epoch,
        ),
        tables=NoTables(operator_id),
        time=now,
        staging=staging_path(epoch, operator_id, share, "commit"),
        storage=storage,
        claim=claim,
    )


def run_commit(
    stages: StagePlan, job: JobContext, task: CommitTask, *, where: str = "in a task"
) -> Iterator[Envelope]:
    """Publish one share, unless another run has taken over; a failure travels to the driver."""
    writer = EnvelopeWriter(task.index)
    try:
        move_to(position_label(f"operator {task.operator_id}, commit of epoch {task.epoch}"))
        storage = open_storage(job.state_url)
        claim = CommitClaim(storage, task.generation, task.run_id, epoch=task.epoch, writer=task.writer)
        claim.check()
        context = commit_context(
            stages,
            job,
            operator_id=task.operator_id,
            epoch=task.epoch,
            now=task.time,
            storage=storage,
            claim=claim,
            share=task.share,
            shares=task.shares,
        )
        operator = load_operator(stages.plan.by_id[task.operator_id])
        began = time.perf_counter()
        operator.handle_commit(task.epoch, task.data, context)
        report = {"committed": task.index, "seconds": time.perf_counter() - began}
        writer.control(EnvelopeKind.MANIFEST, report)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the driver decides what a failure means
        failure = commit_failure(error, task.operator_id, task.epoch, share=task.share, where=where)
        writer = failed(failure, task.index, task.operator_id, task.epoch, 1)
    yield from writer.drain(everything=True)


def commit_failure(
    error: BaseException, operator_id: str, epoch: int, *, share: int = 0, where: str
) -> HeadraceError:
    """Return the error for a failed commit."""
    failure = wrap_failure(error, operator_id, share, epoch)
    if not isinstance(failure, ReplacedError):
        failure.where = f"operator {operator_id}, commit of epoch {epoch} {where}"
        saved = "the epoch is saved: the next run commits it first"
        if not failure.retry and epoch > 1:
            saved += (
                ". If that cannot be mended, leave the row out in the program, and go back to the checkpoint "
                f"before with --from-epoch {epoch - 1}"
            )
        failure.hint = saved if failure.hint is None else f"{failure.hint}; {saved}"
    return failure


def commit_seconds(tasks: Sequence[CommitTask], control: Iterable[Envelope]) -> dict[str, float]:
    """Return how many seconds each sink took, in the slowest of its tasks.

    Raises the failure of a task, or an InternalError if not all have reported.
    """
    seconds: dict[int, float] = {}
    failures: list[HeadraceError] = []
    for envelope in control:
        message: Mapping[str, Any] = envelope.message()
        if envelope.kind is EnvelopeKind.ERROR:
            failures.append(failure_of(message))
        else:
            seconds[message["committed"]] = message["seconds"]
    if failures:
        # That another run has taken over may be why others fail; what cannot be retried ends the run.
        raise min(failures, key=lambda error: (not isinstance(error, ReplacedError), error.retry, str(error)))
    if seconds.keys() != {task.index for task in tasks}:
        raise InternalError(f"a commit came back incomplete: {len(seconds)} of {len(tasks)} tasks reported")
    longest: dict[str, float] = {}
    for task in tasks:
        longest[task.operator_id] = max(longest.get(task.operator_id, 0.0), seconds[task.index])
    return longest
