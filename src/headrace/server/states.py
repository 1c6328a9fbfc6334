"""The states of a job, and what its user can do in each."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

JobState: TypeAlias = Literal[
    "Created",
    "Compiling",
    "Scheduling",
    "Running",
    "Rescaling",
    "Recovering",
    "Restarting",
    "CheckpointStopping",
    "Stopping",
    "Stopped",
    "Finishing",
    "Finished",
    "Failing",
    "Failed",
]
StopMode: TypeAlias = Literal["none", "checkpoint", "graceful", "immediate", "force"]

AT_REST: Final = frozenset({"Stopped", "Finished", "Failed"})
"""No process runs, and none will before somebody starts the pipeline."""
STOPPING: Final = frozenset({"CheckpointStopping", "Stopping"})
STOPPING_STATE: Final[dict[str, JobState]] = {
    "checkpoint": "CheckpointStopping",
    "graceful": "Stopping",
    "immediate": "Stopping",
    "force": "Stopping",
}
STRENGTH: Final = {"none": 0, "checkpoint": 1, "graceful": 1, "immediate": 2, "force": 3}
"""A stop that is under way can be made stronger."""


class Action(NamedTuple):
    """What a console offers to do with a pipeline."""

    stop: StopMode | None
    text: str
    in_progress: bool


_ACTIONS: Final[dict[str, Action]] = {
    "Created": Action("checkpoint", "Stop", in_progress=True),
    "Compiling": Action("checkpoint", "Stop", in_progress=True),
    "Scheduling": Action("checkpoint", "Stop", in_progress=True),
    "Running": Action("checkpoint", "Stop", in_progress=False),
    "Rescaling": Action("checkpoint", "Stop", in_progress=True),
    "Recovering": Action("checkpoint", "Stop", in_progress=True),
    "Restarting": Action("checkpoint", "Stop", in_progress=True),
    "CheckpointStopping": Action("immediate", "Force Stop", in_progress=True),
    "Stopping": Action("force", "Force Stop", in_progress=True),
    "Stopped": Action("none", "Start", in_progress=False),
    "Finishing": Action(None, "Finishing", in_progress=True),
    "Finished": Action("none", "Start", in_progress=False),
    "Failing": Action(None, "Failing", in_progress=True),
    "Failed": Action("none", "Start", in_progress=False),
}


def action_of(state: str) -> Action:
    """What can be done with a pipeline whose job is in a state."""
    return _ACTIONS[state]
