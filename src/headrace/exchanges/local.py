"""The exchange within one process: no Spark, no Java; for tests and for debugging."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.base.errors import InternalError
from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_stage


class LocalExchange:
    """Runs the tasks of an epoch one after the other in the calling thread.

    `seed` chooses the order in which tasks run and envelopes arrive, another one for each attempt at each
    epoch: like a cluster, it promises no order. Stages and contexts are pickled, as a worker gets them.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._stages: StagePlan | None = None
        self._attempts: Counter[int] = Counter()

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._stages = stages

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        order = random.Random(self._seed + context.epoch + self._attempts[context.epoch])  # noqa: S311
        self._attempts[context.epoch] += 1
        stages = pickle.loads(pickle.dumps(self._stages))  # noqa: S301 - what a worker would get
        context = pickle.loads(pickle.dumps(context))  # noqa: S301
        splits = order.sample(tasks, len(tasks))
        envelopes = [envelope for task in splits for envelope in run_split(stages, context.job, task)]
        for stage in range(1, stages.depth + 1):
            partitions = route(envelopes, stages.width(stage), order)
            subtasks = order.sample(range(len(partitions)), len(partitions))
            envelopes = [
                envelope
                for subtask in subtasks
                for envelope in run_stage(stages, stage, subtask, context, partitions[subtask])
            ]
        return envelopes

    def check(self) -> None:
        """There is no other side that could be lost."""

    def cancel(self) -> None:
        """Tasks run in the calling thread and end by themselves: they see that the run is told to stop."""


def route(envelopes: Iterable[Envelope], width: int, order: random.Random) -> list[list[Envelope]]:
    """What Spark's shuffle does: every envelope goes to the partition that its `to` names."""
    partitions: list[list[Envelope]] = [[] for _ in range(width)]
    for envelope in envelopes:
        partitions[envelope.to % width].append(envelope)
    for partition in partitions:
        order.shuffle(partition)
    return partitions
