"""The information that every task of an epoch receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.base.watermarks import Watermark
from headrace.state.metadata import OperatorCheckpointMetadata


@dataclass(frozen=True)
class JobContext:
    """What stays the same for all epochs of a run."""

    job_id: str
    state_url: str
    started: float
    """When the job began its first life, in seconds: ticks are counted from here."""
    compact_after: int = 8


@dataclass(frozen=True)
class EpochContext:
    """What a task needs to know about the epoch it works for, besides its input.

    `lanes` and `outputs` are where event time stood at the end of the epoch before: per node and source
    lane, and per node and subtask. `inputs` is the merged watermark each operator had seen.
    """

    job: JobContext
    epoch: int
    min_epoch: int
    time: float
    previous_time: float | None
    restored: Mapping[str, OperatorCheckpointMetadata] = field(default_factory=dict)
    lanes: Mapping[str, Mapping[str, Watermark]] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[int, Watermark]] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    """The sources that had ended before this epoch."""
    stopping: Literal["pause", "end"] | None = None
    """Why this is the last epoch of the run: its user, or an operator, asked it to stop."""
