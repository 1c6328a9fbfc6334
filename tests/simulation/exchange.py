"""An exchange that loses, repeats and reorders the attempts of tasks, and lets some of them run on."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from headrace.base.errors import InternalError, WorkerError
from headrace.engine.commits import CommitTask, run_commit
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.parts import PackedEpoch
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_subtasks
from headrace.exchanges.local import route
from tests.simulation.world import Actor, World

Attempt = Callable[[], Iterable[Envelope]]


class SimulatedExchange:
    """Runs the tasks of an epoch in the driver's actor, in an order that the seed chooses.

    An attempt may be lost after it ran, run twice, or run on beside the attempt that counts: then it is an
    actor of its own, which may write its files long after the epoch, and after its driver.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._stages: StagePlan | None = None

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._stages = stages

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        if self._stages is None:
            raise InternalError("the exchange has no stages to run")
        order, shipped = (
            self._world.random,
            pickle.dumps((self._stages, PackedEpoch.of(self._stages, context, tasks))),
        )
        stages, epoch = pickle.loads(shipped)
        name = f"e{context.epoch}"
        envelopes: list[Envelope] = []
        for index in order.sample(range(len(tasks)), len(tasks)):
            envelopes += self._task(f"{name}/split{index}", partial(run_split, stages, *epoch.split(index)))
        for stage in range(1, stages.depth + 1):
            width = stages.width(stage)
            arrived = route(envelopes, order.randint(1, width), order)
            envelopes = []
            for number in order.sample(range(len(arrived)), len(arrived)):
                subtasks = range(number, width, len(arrived))
                envelopes += self._task(
                    f"{name}/stage{stage}.{number}",
                    partial(run_subtasks, stages, stage, subtasks, epoch.context, arrived[number]),
                )
        return envelopes

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Let tasks publish their shares of an epoch."""
        stages, tasks = pickle.loads(pickle.dumps((self._stages, tasks)))
        envelopes: list[Envelope] = []
        for task in self._world.random.sample(tasks, len(tasks)):
            name = f"commit of e{task.epoch}/{task.operator_id}.{task.share}"
            envelopes += self._task(name, partial(run_commit, stages, job, task))
        return envelopes

    def _task(self, name: str, attempt: Attempt) -> list[Envelope]:
        world, rates = self._world, self._world.rates
        world.point(f"runs {name}")
        if world.chance(rates.task_late):
            world.tell(f"LATE attempt of {name}: runs on by itself")
            self._leave(name, attempt)
        if world.chance(rates.task_lost):
            list(attempt())
            world.tell(f"LOST attempt of {name}: runs again")
        output = list(attempt())
        if world.chance(rates.task_repeated):
            world.tell(f"REPEATED {name}: the second output counts")
            output = list(attempt())
        if world.chance(rates.epoch_failed):
            world.tell(f"FAILED epoch after {name}")
            raise WorkerError("an executor was lost")
        return output

    def _leave(self, name: str, attempt: Attempt) -> None:
        world = self._world
        driver = world.actor

        def run(actor: Actor) -> None:
            actor.faults = False
            for _ in attempt():
                pass

        late = world.spawn(f"late {name}", run)
        late.machine = "" if driver is None else driver.machine
        late.paused_until = world.steps + world.random.choice([0, 50, 300, 2000])

    def cancel(self) -> None:
        """Nobody asks for it: the run is told to stop between two epochs."""

    def check(self) -> None:
        """There is no other side that could be lost."""
