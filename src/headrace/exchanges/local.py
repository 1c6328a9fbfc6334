"""The exchange within one process: no Spark, no Java; for tests, and for small inputs while one develops."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.base.errors import InternalError
from headrace.engine.commits import CommitTask, run_commit
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.parts import PackedEpoch
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_subtasks
from headrace.exchanges.py_files import import_here
from headrace.exchanges.resident import LocalTask
from headrace.exchanges.spark.preflight import Preflight
from headrace.model.plan import Plan

_TURN = threading.RLock()
"""Held by the current epoch: like a worker, this process runs one task at a time, of whatever pipeline."""


class LocalExchange:
    """Runs the tasks of an epoch one after the other in the calling thread.

    `seed` chooses how many subtasks a task runs, and the order in which tasks run and envelopes arrive, anew
    for each attempt at each epoch: like a cluster, it promises none of it. Stages and contexts are pickled,
    as a worker gets them.
    """

    log_file: str | None = None
    """There is no log besides that of this process."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._stages: StagePlan | None = None
        self._attempts: Counter[int] = Counter()

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._stages = stages

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        with _TURN:
            return self._run(tasks, context)

    def _run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        order = random.Random(self._seed + context.epoch + self._attempts[context.epoch])  # noqa: S311
        self._attempts[context.epoch] += 1
        stages = pickle.loads(pickle.dumps(self._stages))  # noqa: S301 - what a worker would get
        epoch: PackedEpoch = pickle.loads(pickle.dumps(PackedEpoch.of(stages, context, tasks)))  # noqa: S301
        splits = order.sample(range(len(tasks)), len(tasks))
        envelopes = [envelope for split in splits for envelope in run_split(stages, *epoch.split(split))]
        for stage in range(1, stages.depth + 1):
            width = stages.width(stage)
            arrived = route(envelopes, order.randint(1, width), order)
            envelopes = [
                envelope
                for number in order.sample(range(len(arrived)), len(arrived))
                for envelope in run_subtasks(
                    stages, stage, range(number, width, len(arrived)), epoch.context, arrived[number]
                )
            ]
        return envelopes

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Let tasks publish their shares of an epoch, one after the other in any order."""
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        order = random.Random(self._seed + tasks[0].epoch)  # noqa: S311
        stages, tasks = pickle.loads(pickle.dumps((self._stages, tasks)))  # noqa: S301 - as in `run`
        with _TURN:
            return [e for task in order.sample(tasks, len(tasks)) for e in run_commit(stages, job, task)]

    def check(self) -> None:
        """There is no other side that could be lost."""

    def cancel(self) -> None:
        """No effect: tasks run in the calling thread and check themselves whether the run is stopping."""


class LocalEngine:
    """Runs tasks in this process."""

    cores = 1
    grows = False
    is_here = True
    log_file: str | None = None

    def usage(self) -> None:
        """There are no executors that could tell."""

    def exchange(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> LocalExchange:
        """What runs the epochs of a plan here, with the code that is here."""
        import_here(py_files)
        return LocalExchange()

    def resident_task(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> LocalTask:
        """The same for a task that stays."""
        import_here(py_files)
        return LocalTask(now=time.time)


def route(envelopes: Iterable[Envelope], tasks: int, order: random.Random) -> list[list[Envelope]]:
    """What Spark's shuffle does: every envelope goes to the task of the subtask that its `to` names."""
    partitions: list[list[Envelope]] = [[] for _ in range(tasks)]
    for envelope in envelopes:
        partitions[envelope.to % tasks].append(envelope)
    for partition in partitions:
        order.shuffle(partition)
    return partitions
