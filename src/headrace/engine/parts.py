"""Splits the context of an epoch among its tasks: each gets its part of the state and of the watermarks."""

from __future__ import annotations

import bisect
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.base.keys import key_range
from headrace.base.watermarks import Watermark
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.state.manager import saved_watermark
from headrace.state.metadata import OperatorCheckpointMetadata, SubtaskCheckpointMetadata


class Part(NamedTuple):
    """What differs between the tasks of a stage."""

    subtasks: Mapping[str, tuple[SubtaskCheckpointMetadata, ...]]
    """By operator, what of its saved state concerns the task."""
    outputs: Mapping[str, Mapping[int, Watermark]]


class EpochParts:
    """Divides the context of an epoch among its subtasks.

    A subtask gets the metadata of those that wrote files of its keys, whatever the parallelism was then, and
    of all that wrote to tables which every subtask sees.
    """

    def __init__(self, stages: StagePlan, context: EpochContext) -> None:
        self._stages = stages
        self._context = context
        empty = {name: replace(saved, subtasks=()) for name, saved in context.restored.items()}
        self.base = replace(context, restored=empty, outputs={})
        """What every task is told."""
        self._operators = {name: _SavedParts(saved) for name, saved in context.restored.items()}

    def of(self, stage: int, partition: int) -> Part:
        """The part of one task."""
        subtasks, outputs = {}, {}
        for chain in self._stages.at(stage):
            if partition >= chain.parallelism:
                continue
            for node in chain.nodes:
                if node in self._operators:
                    subtasks[node] = self._operators[node].within(*key_range(partition, chain.parallelism))
                marks = self._context.outputs.get(node, {})
                outputs[node] = {subtask: marks[subtask] for subtask in (partition, -1) if subtask in marks}
        return Part(subtasks, outputs)

    def context(self, stage: int, partition: int) -> EpochContext:
        """The context of one task."""
        return with_part(self.base, self.of(stage, partition))


def with_part(base: EpochContext, part: Part) -> EpochContext:
    """The context of a task: what all tasks share, and its part."""
    restored = {
        name: replace(base.restored[name], subtasks=subtasks) for name, subtasks in part.subtasks.items()
    }
    return replace(base, restored=restored, outputs=part.outputs)


class _SavedParts:
    """The saved state of one operator, by key."""

    def __init__(self, saved: OperatorCheckpointMetadata) -> None:
        self._global = [name for name, config in saved.table_configs.items() if config.kind == "global"]
        ranges = []
        everywhere = []
        for subtask in saved.subtasks:
            keyed = [
                file for name, files in subtask.tables.items() if name not in self._global for file in files
            ]
            if keyed:
                low, high = min(file.min_key for file in keyed), max(file.max_key for file in keyed)
                ranges.append((low, high, subtask))
            shared = {name: subtask.tables[name] for name in self._global if subtask.tables.get(name)}
            if shared:
                everywhere.append(replace(subtask, tables=shared, commit_data={}))
        ranges.sort(key=lambda each: each[:2])
        self._lows = [low for low, _, _ in ranges]
        self._highs = [high for _, high, _ in ranges]
        self._subtasks = [subtask for _, _, subtask in ranges]
        self._is_ordered = self._highs == sorted(self._highs)
        self._everywhere = everywhere
        # Whoever has no watermark of its own goes on from that of all.
        time = saved_watermark(saved)
        watermark = None if time is None else Watermark(time)
        self._mark = SubtaskCheckpointMetadata(saved.operator_id, -1, saved.epoch, watermark)

    def within(self, low: int, high: int) -> tuple[SubtaskCheckpointMetadata, ...]:
        """The metadata of subtasks with keys of a range, and of tables that every subtask has."""
        first = bisect.bisect_left(self._highs, low) if self._is_ordered else 0
        last = bisect.bisect_right(self._lows, high)
        subtasks = [self._mark, *self._everywhere]
        for index in range(first, last):
            subtask = self._subtasks[index]
            if self._highs[index] >= low:
                tables = {name: files for name, files in subtask.tables.items() if name not in self._global}
                subtasks.append(replace(subtask, tables=tables, commit_data={}))
        return tuple(subtasks)


@dataclass(frozen=True)
class PackedEpoch:
    """An epoch as all its tasks get it: each opens what concerns it, and does not look at the rest."""

    job: bytes
    tasks: Sequence[bytes]
    base: bytes
    parts: Sequence[Sequence[bytes]]
    """By stage, from the first one behind the splits on, and by partition."""

    @classmethod
    def of(cls, stages: StagePlan, context: EpochContext, tasks: Sequence[SplitTask]) -> PackedEpoch:
        """Pack an epoch."""
        parts = EpochParts(stages, context)
        return cls(
            job=pickle.dumps(context.job),
            tasks=[pickle.dumps(task) for task in tasks],
            base=pickle.dumps(parts.base),
            parts=[
                [pickle.dumps(parts.of(stage, partition)) for partition in range(stages.width(stage))]
                for stage in range(1, stages.depth + 1)
            ],
        )

    def split(self, index: int) -> tuple[JobContext, SplitTask]:
        """The part of the task that reads a split."""
        return pickle.loads(self.job), pickle.loads(self.tasks[index])  # noqa: S301 - made by this job's driver

    def context(self, stage: int, partition: int) -> EpochContext:
        """The part of a task of a later stage."""
        part: Part = pickle.loads(self.parts[stage - 1][partition])  # noqa: S301 - as above
        return with_part(pickle.loads(self.base), part)  # noqa: S301 - as above
