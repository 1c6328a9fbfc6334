"""The task of a resident pipeline: it keeps its operators, and handles inputs before an epoch is planned.

It runs the same tasks as any other exchange does, one after the other in one process. Between two epochs it
reads on what its sources have, by itself or range by range as the driver says, and gives it to the one
operator that handles rows ahead. When the next epoch is planned it says how far it has come, so the range
that is planned is what it has handled. What it has handled counts only if that very epoch comes next: in all
other cases, such as an epoch that is tried again, the operator begins at the checkpoint, and the range is
read again.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.base.errors import InternalError
from headrace.engine.chain import NoTables, load_operator, operator_version
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import BY_ORDER, Envelope, EnvelopeKind, batches_of
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask, run_split, run_stage
from headrace.model.ahead import Ahead, FollowedSource, Follower, HandlesAhead, Positions, ahead_node
from headrace.model.operator import Offset, OperatorContext, Split, TaskInfo
from headrace.model.plan import PlanNode

_STEP_SECONDS = 0.005
"""How long a task handles rows before it looks whether it is told something."""
_MOST = 1024


@dataclass(frozen=True)
class Extension:
    """How much further a source is to be read, before the epoch is planned."""

    splits: Sequence[Split]
    offset: Offset
    """Where they end."""


@dataclass(frozen=True)
class Onwards:
    """The epoch that a resident task begins before it is planned."""

    job_id: str
    epoch: int
    offsets: Mapping[str, Offset]
    anew: bool
    """Whether the run has only begun."""
    most: int | None
    """How many rows the epoch may take."""


class Resident:
    """Runs epochs, and what comes between them; the one who calls it decides when."""

    def __init__(self, *, now: Callable[[], float] = clock.time) -> None:
        self._now = now
        self._stages: StagePlan | None = None
        self._job: JobContext | None = None
        self._live: _Live | None = None

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._stages = stages
        self._live = None

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        stages = self._stages_in_use()
        self._job = context.job
        live, self._live = self._live, None
        if live is not None and live.is_of(tasks, context):
            live.ahead.hand_over()
        envelopes = [envelope for task in tasks for envelope in run_split(stages, context.job, task)]
        for stage in range(1, stages.depth + 1):
            arrived: list[list[Envelope]] = [[] for _ in range(stages.width(stage))]
            for envelope in envelopes:
                arrived[envelope.to % len(arrived)].append(envelope)
            envelopes = [
                envelope
                for subtask, mine in enumerate(arrived)
                for envelope in run_stage(stages, stage, subtask, context, mine)
            ]
        return envelopes

    def go_on(self, onwards: Onwards) -> bool:
        """Begin an epoch; False if that has to wait until it is planned."""
        stages, now = self._stages_in_use(), self._now()
        node = ahead_node(stages.plan)
        operator = None if node is None else load_operator(node)
        if node is None or not isinstance(operator, HandlesAhead) or self._job is None:
            return False
        inputs = stages.plan.inputs(node.id)
        read = {
            source.id: self._reader(stages, self._job, node.id, source, onwards, now)
            for source in stages.sources
        }
        ctx = OperatorContext(
            task_info=TaskInfo(
                job_id=onwards.job_id,
                operator_id=node.id,
                operator_name=node.operator,
                subtask=0,
                parallelism=1,
                key_range=(0, 2**64 - 1),
                epoch=onwards.epoch,
            ),
            tables=NoTables(node.id),
            time=now,
            version=operator_version(node),
        )
        ahead = operator.ahead(ctx, [edge.input for edge in inputs])
        self._live = None if ahead is None else _Live(ahead, read, onwards)
        return self._live is not None

    def _reader(
        self, stages: StagePlan, job: JobContext, target: str, node: PlanNode, onwards: Onwards, now: float
    ) -> _Followed | _Extended:
        source, offset = load_operator(node), onwards.offsets[node.id]
        if isinstance(source, FollowedSource):
            index = next(edge.input for edge in stages.plan.inputs(target) if edge.source == node.id)
            return _Followed(index, source.follow(offset, time=now, anew=onwards.anew))
        return _Extended(stages, job, target, node.id, offset, epoch=onwards.epoch)

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further; False, and nothing is, while what it was told before is not read yet."""
        return self._live is not None and self._live.extend(extensions)

    @property
    def pause(self) -> float | None:
        """Seconds until there is something to handle; None if only a call or the bell changes that."""
        if self._live is None or self._live.is_held:
            return None
        due = self._live.due
        return None if due is None else max(0.0, due - self._now())

    def fileno(self) -> int | None:
        """The bell: a file that can be read when something has happened besides rows."""
        return None if self._live is None or self._live.is_held else self._live.ahead.fileno()

    def step(self) -> None:
        """Handle what has come."""
        if self._live is not None and not self._live.is_held:
            self._live.step(self._now)

    @property
    def wants_cut(self) -> bool:
        """Whether the epoch should end now."""
        return self._live is not None and self._live.is_held

    def cut(self) -> Positions | None:
        """End the epoch: how far it has come. None, and it goes on, if it has handled nothing."""
        if self._live is None:
            raise InternalError("the task is in no epoch")
        while self._live.is_behind and not self._live.is_held:
            self._live.step(self._now)
        if not self._live.has_come_on:
            return None
        self._live.is_held = True
        return self._live.positions

    def _stages_in_use(self) -> StagePlan:
        if self._stages is None:
            raise InternalError("the task has no stages to run")
        return self._stages


class _Followed:
    """A source that the task reads on by itself."""

    is_behind = False

    def __init__(self, index: int, follower: Follower) -> None:
        self._index, self._follower = index, follower

    @property
    def offset(self) -> Offset:
        return self._follower.offset

    @property
    def rows(self) -> int:
        return self._follower.rows

    @property
    def has_moved(self) -> bool:
        return self._follower.rows > 0

    def due(self) -> float | None:
        return self._follower.due()

    def read(self, time: float, most: int) -> list[tuple[int, pa.RecordBatch]]:
        return [(self._index, batch) for batch in self._follower.read(time, most)]


class _Extended:
    """A source that is read range by range, with the operators behind it, as the driver says.

    A range that cannot be read counts as read: the epoch that has it says what is wrong.
    """

    def __init__(
        self, stages: StagePlan, job: JobContext, target: str, source: str, offset: Offset, *, epoch: int
    ) -> None:
        self._stages, self._job, self._source, self._epoch = stages, job, source, epoch
        self._inputs = {c.index: c.edge.input for c in stages.crossings if c.edge.target == target}
        self._next: Extension | None = None
        self.offset = offset
        self.rows = 0
        self.has_moved = False

    @property
    def is_behind(self) -> bool:
        return self._next is not None

    def extend(self, extension: Extension) -> None:
        self._next = extension

    def due(self) -> float | None:
        return 0.0 if self.is_behind else None

    def read(self, time: float, _most: int) -> list[tuple[int, pa.RecordBatch]]:
        extension, self._next = self._next, None
        if extension is None:
            return []
        self.offset, self.has_moved = extension.offset, True
        tasks = [
            SplitTask(index, self._epoch, time, self._source, split, None)
            for index, split in enumerate(extension.splits)
        ]
        envelopes = [envelope for task in tasks for envelope in run_split(self._stages, self._job, task)]
        if any(envelope.kind is EnvelopeKind.ERROR for envelope in envelopes):
            raise _UnreadableError
        arrived = [e for e in envelopes if e.kind is EnvelopeKind.DATA and e.edge in self._inputs]
        arrived.sort(key=BY_ORDER)
        batches = [(self._inputs[edge], batch) for edge, batch in batches_of(arrived)]
        self.rows += sum(batch.num_rows for _, batch in batches)
        return batches


class _UnreadableError(Exception):
    """A range of a source could not be read."""


class _Live:
    """An epoch that is not planned yet."""

    def __init__(self, ahead: Ahead, sources: Mapping[str, _Followed | _Extended], onwards: Onwards) -> None:
        self.ahead = ahead
        self.is_held = False
        """Whether it handles nothing more."""
        self._sources = sources
        self._onwards = onwards
        self._at_once = 1

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self._sources.values())

    @property
    def has_come_on(self) -> bool:
        """Whether there is something that the epoch would be for."""
        return self.is_held or any(source.has_moved for source in self._sources.values())

    @property
    def is_behind(self) -> bool:
        """Whether it has not read yet what it was told to read."""
        return any(source.is_behind for source in self._sources.values())

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further, unless it is behind or handles nothing more."""
        if self.is_held or self.is_behind:
            return False
        for name, extension in extensions.items():
            source = self._sources[name]
            if not isinstance(source, _Extended):
                raise InternalError(f"the source `{name}` is read by the task itself")
            source.extend(extension)
        return True

    @property
    def positions(self) -> Positions:
        return {name: source.offset for name, source in self._sources.items()}

    def is_of(self, tasks: Sequence[SplitTask], context: EpochContext) -> bool:
        """Whether this is the epoch that was planned, with the rows that have been handled."""
        signals = next(task.signals for task in tasks if task.signals is not None)
        planned = {name: signals["end"]["sources"][name] for name in self._sources}
        return context.epoch == self._onwards.epoch and planned == self.positions

    @property
    def due(self) -> float | None:
        if self.ahead.is_busy:
            return 0.0
        times = [time for source in self._sources.values() if (time := source.due()) is not None]
        return min(times, default=None)

    def step(self, now: Callable[[], float]) -> None:
        """Handle pending messages for a short time."""
        most = self._onwards.most
        left = self._at_once if most is None else min(self._at_once, most - self.rows)
        before, time, began = self.rows, now(), clock.monotonic()
        try:
            received = [pair for source in self._sources.values() for pair in source.read(time, left)]
            self.ahead.handle(received, now=time)
        except Exception:  # noqa: BLE001 - the epoch comes to the same, and says what it is
            self.is_held = True
            return
        count, seconds = self.rows - before, clock.monotonic() - began
        if count >= left:
            each = max(seconds / max(count, 1), 1e-6)
            self._at_once = max(1, min(int(_STEP_SECONDS / each), 2 * self._at_once, _MOST))
        self.is_held = self.ahead.wants_cut or (most is not None and self.rows >= most)
