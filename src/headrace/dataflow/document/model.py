"""A validated dataflow as data, with every name resolved.

`read_document` makes it; the rest of the package works with it and never sees YAML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from headrace.base.execution import ExecutionMode
from headrace.base.spans import Source, Span

UnitKind = Literal["python", "native", "process", "connector", "sql"]
QueuePolicy = Literal["backpressure", "drop_oldest"]
RestartPolicy = Literal["never", "on-failure", "always"]

DYNAMIC = "dynamic"
"""In the place of a program: a process that somebody starts by hand joins."""

QUEUE_SIZE = 10
"""Messages that wait at an input before its sender has to, unless the file says otherwise."""


def span_within(span: Span, offsets: Sequence[int], start: int, end: int) -> Span:
    """The place in a document of the characters from `start` to before `end` of a text.

    The text stands in the document at `span`, its characters at the `offsets`.
    """
    if not offsets:
        return span
    last = len(offsets) - 1
    first = offsets[max(0, min(start, last))]
    return Span(span.source, first, max(first, offsets[max(0, min(end - 1, last))]) + 1)


@dataclass(frozen=True)
class Timer:
    """`dora/timer/…`: a tick every `period` nanoseconds. `text` is the name in its coarsest exact unit."""

    period: Fraction
    text: str


@dataclass(frozen=True)
class Logs:
    """`dora/logs[/level[/node]]`: what operators print and log, from `level` up, of one node or of all."""

    level: str | None = None
    node: str | None = None


@dataclass(frozen=True)
class Output:
    """An output of a unit: the unit's address and the output's name."""

    unit: str
    name: str

    def __str__(self) -> str:
        return f"{self.unit}/{self.name}"


@dataclass(frozen=True)
class Input:
    """One input of a unit and where its messages come from."""

    id: str
    source: Timer | Output | Logs
    queue_size: int = QUEUE_SIZE
    queue_policy: QueuePolicy = "backpressure"
    timeout: float | None = None
    """`input_timeout`: seconds without a message after which the input counts as closed."""
    columns: Mapping[str, str] | None = None
    """`schema`: the columns of its record batches with their SQL types, for SQL steps."""
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Restart:
    """What to do when a unit fails: `restart_policy` and the keys around it, in seconds."""

    policy: RestartPolicy = "never"
    most: int = 0
    """`max_restarts`; 0 is without limit, as in dora."""
    delay: float = 0.0
    most_delay: float | None = None
    window: float | None = None

    def again(self, earlier: Sequence[float], now: float) -> tuple[list[float], float] | None:
        """The starts that count, this one too, and the delay before it; None if it has been often enough.

        Each delay is twice as long as the one before, up to `most_delay`.
        """
        recent = [at for at in earlier if self.window is None or now - at <= self.window]
        if self.policy == "never" or (self.most and len(recent) >= self.most):
            return None
        delay = self.delay * 2 ** len(recent)
        return [*recent, now], min(delay, self.most_delay or delay)


@dataclass(frozen=True)
class Unit:
    """What is scheduled: an operator, a process, a connector or a SQL step.

    A node with `operators:` is several units, every other node is one.
    """

    node: str
    kind: UnitKind
    operator: str | None = None
    """The id of the operator within its node; `op` for a single `operator:` without one."""
    listed: bool = False
    """Whether it is one of `operators:`, so that its address has the operator's id."""
    inputs: tuple[Input, ...] = ()
    outputs: tuple[str, ...] = ()
    file: Path | None = None
    """The Python file, the shared library (as the file on disk) or the program, absolute."""
    command: tuple[str, ...] = ()
    """Of a process: what to execute, with its arguments."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment of its node, the dataflow's own included; expanded."""
    python_env: Path | None = None
    """Of a process whose `build` calls Python: the virtual environment that `headrace build` makes for it."""
    connector: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of a connector: its options by name."""
    columns: Mapping[str, str] | None = None
    """Of a connector: its columns with their SQL types."""
    sql: str | None = None
    parallelism: int | None = None
    partition_by: str | None = None
    restart: Restart = field(default_factory=Restart)
    build: str | None = None
    send_stdout_as: str | None = None
    send_logs_as: str | None = None
    min_log_level: str | None = None
    finish_grace: float | None = None
    """Seconds that a process has to end after its inputs have."""
    health_timeout: float | None = None
    """Seconds that a process may be silent while it handles an event."""
    startup_timeout: float | None = None
    """Seconds that a process has to make its `Node` once there is an event for it."""
    span: Span | None = field(default=None, compare=False)
    sql_span: Span | None = field(default=None, compare=False)
    sql_offsets: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """Where each character of `sql` stands in the document, which has indentation besides."""

    @property
    def joins(self) -> bool:
        """Whether it is a process that somebody starts by hand: `path: dynamic`."""
        return self.command == (DYNAMIC,)

    def sql_span_of(self, start: int, end: int) -> Span | None:
        """The place in the document of the characters from `start` to before `end` of `sql`."""
        return None if self.sql_span is None else span_within(self.sql_span, self.sql_offsets, start, end)

    @property
    def address(self) -> str:
        """What people call it: `node`, or `node/operator` for one of several."""
        return f"{self.node}/{self.operator}" if self.listed else self.node

    @property
    def has_timer(self) -> bool:
        """Whether a timer keeps it alive when all other inputs have closed."""
        return any(isinstance(unit_input.source, Timer) for unit_input in self.inputs)


@dataclass(frozen=True)
class Dataflow:
    """A whole document."""

    name: str
    source: Source
    directory: Path
    """Where the document is: paths are relative to it, and operators run in it."""
    units: tuple[Unit, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    exit_when_nodes_finish: bool = False
    execution: ExecutionMode = "auto"
    descriptor: Mapping[str, Any] = field(default_factory=dict)
    """The document as plain values with `env` expanded, for `Operator.dataflow_descriptor`."""
    warnings: tuple[str, ...] = ()
    """What was accepted and has no effect here, or looks wrong and can run."""

    @property
    def by_address(self) -> Mapping[str, Unit]:
        return {unit.address: unit for unit in self.units}
