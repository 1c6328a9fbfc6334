"""The contract of resident execution: rows are handled as they come, before their epoch is planned.

A source that can be followed is read on by the task itself. Any other source is asked by the driver all the
time, which hands each range to the task. One operator handles what is read at once. When the epoch is
planned, the task says how far it has come: the range that is planned is the one that has been handled. The
same range can be read again, as any other: by a task that was lost and begins anew.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.base.execution import ExecutionMode
from headrace.model.operator import Offset, OperatorContext
from headrace.model.plan import Plan, PlanNode


class Follower(ABC):
    """Reads a source on from an offset, as its rows come."""

    rows: int = 0
    """How many rows it has read."""

    @property
    @abstractmethod
    def offset(self) -> Offset:
        """How far it has read."""

    @abstractmethod
    def due(self) -> float | None:
        """When the next rows come, by the wall clock in seconds; None if it is not known."""

    @abstractmethod
    def read(self, now: float, most: int) -> Sequence[pa.RecordBatch]:
        """The rows that are available now, at most `most`."""


class FollowedSource(ABC):
    """A source that a resident task can read on by itself."""

    @abstractmethod
    def follow(self, offset: Offset, *, time: float, anew: bool) -> Follower:
        """Read on from an offset; `anew` is true at the start of a run."""


class Ahead(ABC):
    """The one operator of a resident task that handles rows between two epochs."""

    @property
    @abstractmethod
    def wants_cut(self) -> bool:
        """Whether the epoch should end now: it has failed, it is over, or it holds much that must leave."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether there is more to handle at once."""

    @abstractmethod
    def handle(self, received: Sequence[tuple[int, pa.RecordBatch]], *, now: float) -> None:
        """Handle rows, each with the number of its input, and what happened besides."""

    @abstractmethod
    def hand_over(self) -> None:
        """The epoch delivers the same rows: the operator continues from here and skips them.

        An epoch that comes without this begins at the checkpoint before it.
        """

    @abstractmethod
    def fileno(self) -> int | None:
        """A file that can be read when something has happened besides rows; None if nothing can."""


class HandlesAhead(ABC):
    """An operator that can handle rows before their epoch is planned."""

    execution: ExecutionMode = "auto"
    """The execution mode that the pipeline declares."""
    stays_by_itself: bool = False
    """Whether the pipeline runs resident where nothing is declared: all that it reads are messages."""

    @abstractmethod
    def ahead(self, ctx: OperatorContext, inputs: Collection[int]) -> Ahead | None:
        """Begin an epoch before it is planned, with the rows of these inputs.

        None if this process does not have the operator as it was at the end of the epoch before.
        """


def ahead_node(plan: Plan) -> PlanNode | None:
    """The operator of a plan that handles rows ahead; the first if there are several."""
    return next((node for node in plan.nodes if isinstance(_load(node), HandlesAhead)), None)


def requested_mode(plan: Plan) -> ExecutionMode:
    """The execution mode that the pipeline declares."""
    node = ahead_node(plan)
    operator = None if node is None else _load(node)
    return operator.execution if isinstance(operator, HandlesAhead) else "auto"


def why_not_resident(plan: Plan) -> str | None:
    """Why a plan cannot run resident; None if it can."""
    node = ahead_node(plan)
    if node is None:
        return "only the operators and processes of a dataflow can stay in a task, and it has none"
    before = set[str]()
    for edge in plan.inputs(node.id):
        if not _is_read_in_one_task(plan, edge.source, before):
            return f"`{node.id}` reads `{edge.source}`, which runs in another task"
    for other in plan.nodes:
        if other is not node and isinstance(_load(other), HandlesAhead):
            return f"`{other.id}` has a task of its own: all its units have to be in one runtime"
        if other.role == "operator" and other is not node and other.tables:
            return f"`{other.id}` keeps state in tasks of its own: all its units have to be in one runtime"
        if other.role == "source" and other.id not in before:
            return f"no unit of its runtime reads the source `{other.id}`, directly or through SQL"
    return None


def _is_read_in_one_task(plan: Plan, name: str, seen: set[str]) -> bool:
    """Whether the rows of a node come from its sources without a shuffle; notes what is on the way."""
    seen.add(name)
    node = plan.by_id[name]
    return (node.role == "source" or node.stateless) and all(
        edge.kind == "forward" and _is_read_in_one_task(plan, edge.source, seen) for edge in plan.inputs(name)
    )


def is_resident(plan: Plan, setting: ExecutionMode, *, available_now: bool = False) -> bool:
    """Whether a plan has to run resident: by the setting, or else by what the pipeline declares.

    Raises a ConfigurationError that says why it cannot, if it has to.
    """
    mode = requested_mode(plan) if setting == "auto" else setting
    if mode != "resident":
        return False
    reason = why_not_resident(plan)
    if reason is None and available_now:
        reason = "a run with `available_now` reads what is there, and a task that stays waits for what comes"
    if reason is not None:
        raise ConfigurationError(
            f"`{plan.name}` cannot run resident: {reason}",
            hint="leave `execution: resident` out: its messages are then handled epoch by epoch",
        )
    return True


def may_stay(plan: Plan, setting: ExecutionMode, *, available_now: bool = False) -> bool:
    """Whether a plan for which no mode is asked runs resident where its tasks are on this machine."""
    node = ahead_node(plan)
    operator = None if node is None else _load(node)
    return (
        setting == "auto"
        and isinstance(operator, HandlesAhead)
        and operator.execution == "auto"
        and operator.stays_by_itself
        and not available_now
        and why_not_resident(plan) is None
    )


def _load(node: PlanNode) -> object:
    return pickle.loads(node.payload)  # noqa: S301 - made by this job's own driver


Positions = Mapping[str, Offset]
"""How far the sources of a resident task have been read, by node."""
