"""Lowers a dataflow to a plan: units share a runtime unless they need a task of their own.

Connectors, SQL steps, parallel units and processes without inputs are operators of the engine with a place of
their own in the plan. All other units are in runtimes. A unit is in the first runtime behind everything it
reads, so a dataflow of plain operators is one runtime and one stage; only what reads a SQL step or a parallel
unit that itself reads a runtime is in another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from headrace.base.errors import DataflowError
from headrace.base.problems import Problems, placed
from headrace.dataflow.document.model import Dataflow, Logs, Output, Timer, Unit
from headrace.dataflow.document.operator_file import read_operator
from headrace.dataflow.plan.steps import add_sink, add_sql, add_table, node_id
from headrace.dataflow.runtime.operator import DataflowRuntime, Feed, RuntimePort, RuntimeSpec, output_key
from headrace.dataflow.runtime.packing import PARTITION
from headrace.dataflow.runtime.partitions import Divide
from headrace.dataflow.runtime.receiver import ProcessSource
from headrace.dataflow.runtime.timers import ALIVE, TimerSource
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Function
from headrace.sql.embed import EmbeddedSql, PlannedStream

_ALIVE = Fraction(100_000_000)
"""Nanoseconds after which time passes for a dataflow in which nothing else happens."""

_SOURCES, _FIRST = -1.0, -0.5

T = TypeVar("T")


def lower_dataflow(
    dataflow: Dataflow,
    *,
    functions: Sequence[Function] = (),
    generation: int = 0,
    changed: Mapping[str, str] | None = None,
) -> PlanBuilder:
    """The plan of a dataflow, whose SQL may call `functions`; raises a DataflowError with every mistake.

    While it runs, operators can change: `generation` is then larger than before, and `changed` has the texts
    that they had.
    """
    return _Lowering(dataflow, functions, generation, changed or {}).lower()


class _Lowering:
    """The units of a dataflow on their way into a plan.

    The level of a runtime's units is its number. What stands apart has a level between two runtimes, and
    sources are before all.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        functions: Sequence[Function],
        generation: int,
        changed: Mapping[str, str],
    ) -> None:
        self.dataflow = dataflow
        self.generation = generation
        self.changed = changed
        self.builder = PlanBuilder(dataflow.name)
        self.sql = EmbeddedSql(self.builder, functions=functions)
        self.problems = Problems()
        self.units = dataflow.by_address
        self.level: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.failed: set[str] = set()
        self.unread: list[str] = []
        """Processes that are sources and that nobody reads."""
        self.timer: Port | None = None
        self.rows: dict[str, PlannedStream | tuple[Port, ...]] = {}
        """The rows of connectors and SQL steps, by address."""
        self.shown: set[str] = set()
        """Sources whose messages a runtime shows to whoever looks."""
        self.messages: dict[str, Port] = {}
        """The messages of processes that are sources, by address."""

    def lower(self) -> PlanBuilder:
        """Order the units, then add what each level has."""
        self._check_cycles()
        self.problems.raise_all()
        self._check_read()
        for unit in self.dataflow.units:
            if unit.kind == "python":
                self._read_text(unit)
        self._find_levels()
        runtimes = sorted({int(level) for level in self.level.values() if level == int(level) and level >= 0})
        self._add_timers(runtimes)
        self._add_apart(_SOURCES)
        self._add_apart(_FIRST)
        if not runtimes and self.unread:
            self._add_runtime((), self._runtime_id(0))
        for number in runtimes:
            members = self._members(number)
            if not any(read.address in self.failed for unit in members for read in self._reads(unit)):
                self._add_runtime(members, self._runtime_id(number))
            else:
                self.failed |= {unit.address for unit in members}
            self._add_apart(number + 0.5)
        self.problems.raise_all()
        return self.builder

    def _check_read(self) -> None:
        """Outputs of a process may have no reader; rows without a reader are an error."""
        read = {source.address for unit in self.dataflow.units for source in self._reads(unit)}
        for unit in self.dataflow.units:
            if unit.kind in {"connector", "sql"} and unit.outputs and unit.address not in read:
                name = f"{unit.address}/{unit.outputs[0]}"
                hint = f"let a node read it: `inputs: {{rows: {name}}}`"
                self.problems.add(placed(DataflowError, f"nothing reads `{name}`", unit.span, hint))
        self.unread = [
            unit.address
            for unit in self.dataflow.units
            if unit.kind == "process" and not unit.inputs and unit.address not in read
        ]

    # ------------------------------------------------------------------------------------ order

    def _reads(self, unit: Unit) -> Iterator[Unit]:
        for unit_input in unit.inputs:
            if isinstance(unit_input.source, Output):
                yield self.units[unit_input.source.unit]

    def _check_cycles(self) -> None:
        """A cycle may only go through units of one runtime: the engine's own operators are in a line."""
        for component in _components(self.dataflow.units, self._reads):
            loop = len(component) > 1 or component[0] in self._reads(component[0])
            for unit in component:
                if loop and needs_own_task(unit):
                    what = "asks for parallelism" if unit.parallelism else f"is a {unit.kind} node"
                    through = ", ".join(f"`{member.address}`" for member in component)
                    self.problems.add(
                        placed(
                            DataflowError,
                            f"`{unit.address}` {what} and is part of a cycle ({through})",
                            unit.span,
                            "a cycle can go through operators and processes of one runtime only",
                        )
                    )

    def _find_levels(self) -> None:
        self.level = {u.address: _SOURCES if needs_own_task(u) else 0.0 for u in self.dataflow.units}
        moved = True
        while moved:
            moved = False
            for unit in self.dataflow.units:
                level = self._level(unit)
                if level > self.level[unit.address]:
                    self.level[unit.address], moved = level, True

    def _level(self, unit: Unit) -> float:
        if not unit.inputs:
            return self.level[unit.address]
        before = max((self.level[read.address] for read in self._reads(unit)), default=_SOURCES)
        return math.floor(before) + 0.5 if needs_own_task(unit) else max(0.0, math.ceil(before))

    def _members(self, number: int) -> tuple[Unit, ...]:
        return tuple(
            u for u in self.dataflow.units if not needs_own_task(u) and self.level[u.address] == number
        )

    def _free(self, name: str) -> str:
        node_ids = {node_id(unit) for unit in self.dataflow.units}
        while name in node_ids:
            name += "_"
        return name

    def _runtime_id(self, number: int) -> str:
        return self._free("runtime" if number == 0 else f"runtime-{number}")

    # ---------------------------------------------------------------------------------- sources

    def _add_timers(self, runtimes: Iterable[int]) -> None:
        inputs = [unit_input.source for unit in self.dataflow.units for unit_input in unit.inputs]
        periods = {source.text: source.period for source in inputs if isinstance(source, Timer)}
        # A process sends and ends when it likes: an epoch has to come that notices.
        attends = min(periods.values(), default=math.inf) > _ALIVE and any(
            unit.kind == "process" and unit.inputs for unit in self.dataflow.units
        )
        waits = (attends or not periods) and any(
            self._passes_time(self._members(number)) for number in runtimes
        )
        if waits or attends:
            periods[ALIVE] = _ALIVE
        if periods:
            source = TimerSource(periods, attends=attends and not waits)
            self.timer = self.builder.add("source", source, (), id=self._free("timer"))

    def _needs_time(self, members: tuple[Unit, ...]) -> bool:
        """Whether units of a runtime can act without input."""
        return self._passes_time(members) or any(unit.kind == "process" for unit in members)

    def _passes_time(self, members: tuple[Unit, ...]) -> bool:
        """Whether something in a runtime happens because time passes."""
        return (
            self._loops(members)
            or any(not unit.inputs for unit in members)
            or any(unit_input.timeout is not None for unit in members for unit_input in unit.inputs)
            or all(isinstance(unit_input.source, Logs) for unit in members for unit_input in unit.inputs)
        )

    def _loops(self, members: tuple[Unit, ...]) -> bool:
        inside = {unit.address for unit in members}

        def reads(unit: Unit) -> Iterator[Unit]:
            return (read for read in self._reads(unit) if read.address in inside)

        return any(len(c) > 1 or c[0] in reads(c[0]) for c in _components(members, reads))

    def _add_apart(self, level: float) -> None:
        """Connectors, SQL steps and parallel units of one level, those that are read first."""
        waiting = [u for u in self.dataflow.units if needs_own_task(u) and self.level[u.address] == level]
        while waiting:
            ready = [u for u in waiting if not any(read in waiting for read in self._reads(u))]
            for unit in ready:
                if any(read.address in self.failed for read in self._reads(unit)):
                    self.failed.add(unit.address)  # what is wrong has been said
                    continue
                try:
                    self._add_one(unit)
                except DataflowError as error:
                    self.failed.add(unit.address)
                    self.problems.add(error)
                    for other in error.more:
                        self.problems.add(other)
                    error.more = ()
            waiting = [u for u in waiting if u not in ready]

    def _add_one(self, unit: Unit) -> None:
        if unit.kind == "connector" and not unit.inputs:
            self.rows[unit.address] = add_table(self.sql, unit)
        elif unit.kind == "connector":
            inputs = [
                self._rows_of(unit_input.source)
                for unit_input in unit.inputs
                if isinstance(unit_input.source, Output)
            ]
            ports = tuple(
                p for rows in inputs for p in (rows.ports if isinstance(rows, PlannedStream) else rows)
            )
            behind_runtime = any(not needs_own_task(read) for read in self._reads(unit))
            add_sink(self.builder, unit, ports, parallelism=1 if behind_runtime else None)
        elif unit.kind == "sql":
            outputs = {
                unit_input.id: unit_input.source
                for unit_input in unit.inputs
                if isinstance(unit_input.source, Output)
            }
            read = {name: self._rows_of(output) for name, output in outputs.items()}
            self.rows[unit.address] = add_sql(self.builder, self.sql, unit, read)
        elif unit.kind == "process":
            source = ProcessSource(
                unit, directory=self.dataflow.directory, descriptor=self.dataflow.descriptor
            )
            self.messages[unit.address] = self.builder.add("source", source, (), id=node_id(unit))
        else:
            self._add_runtime((unit,), node_id(unit))

    def _rows_of(self, output: Output) -> PlannedStream | tuple[Port, ...]:
        """An output as rows."""
        unit = self.units[output.unit]
        if unit.address in self.rows:
            return self.rows[unit.address]
        if unit.address in self.messages:
            raise placed(
                DataflowError,
                f"`{unit.address}` is a process and sends messages; rows are needed here",
                unit.span,
                "send them through an operator",
            )
        return (Port(self._runtime_of(unit), output=str(output)),)

    def _runtime_of(self, unit: Unit) -> str:
        return node_id(unit) if needs_own_task(unit) else self._runtime_id(int(self.level[unit.address]))

    # --------------------------------------------------------------------------------- runtimes

    def _add_runtime(self, members: tuple[Unit, ...], name: str) -> None:
        inside = {unit.address for unit in members}
        only = members[0] if members else None
        parallel = only.parallelism if only is not None and needs_own_task(only) else None
        sources = _unique(
            unit_input.source
            for unit in members
            for unit_input in unit.inputs
            if not isinstance(unit_input.source, Output) or unit_input.source.unit not in inside
        )
        feeds: list[Feed] = []
        inputs: list[tuple[Port, ...]] = []
        if self.timer is not None and (
            any(isinstance(source, Timer) for source in sources) or self._needs_time(members) or not sources
        ):
            feeds.append(Feed())
            inputs.append((self._divided(self.timer, only, parallel, f"{name}.timer"),))
        seen: set[str] = set()
        for source in sources:
            if not isinstance(source, Output):
                continue
            unit = self.units[source.unit]
            if unit.address in self.rows:
                rows = self.rows[unit.address]
                ports = rows.ports if isinstance(rows, PlannedStream) else rows
                feeds.append(Feed(rows=None if parallel else source, ends=source))
                inputs.append(
                    tuple(self._divided(p, only, parallel, f"{name}.{node_id(unit)}", source) for p in ports)
                )
            elif unit.address in self.messages:
                if unit.address not in seen:
                    feeds.append(Feed())
                    port = self.messages[unit.address]
                    inputs.append((self._divided(port, only, parallel, f"{name}.{node_id(unit)}"),))
                seen.add(unit.address)
            else:
                behind = self._runtime_of(unit)
                if behind not in seen:
                    keys = (PARTITION,) if parallel else ()
                    feeds.append(Feed())
                    inputs.append((Port(behind, "shuffle", keys, output=f"to {name}"),))
                seen.add(behind)
        unread: list[str] = []
        if only is None or not needs_own_task(only):
            # What nobody reads is received here, with what its process prints.
            for address in self.unread:
                feeds.append(Feed())
                inputs.append((self._divided(self.messages[address], None, None, name),))
            unread, self.unread = self.unread, []
        spec = RuntimeSpec(
            units=members,
            texts={address: self.texts.get(address, "") for address in inside},
            directory=self.dataflow.directory,
            descriptor=self.dataflow.descriptor,
            feeds=tuple(feeds),
            ports=tuple(self._ports(members)),
            sources=tuple(sources),
            senders={
                source: self.units[source.unit].parallelism or 1
                for source in sources
                if isinstance(source, Output) and self.units[source.unit].parallelism
            },
            exit_when_nodes_finish=self.dataflow.exit_when_nodes_finish,
            execution=self.dataflow.execution,
            stays_by_itself=all(_is_message_unit(unit) for unit in self.dataflow.units),
            loops=self._loops(members),
            parallel=parallel,
            partition_by=only.partition_by if only is not None and parallel else None,
            generation=self.generation,
            changed={address: text for address, text in self.changed.items() if address in inside},
            shows={} if parallel else self._shows(sources, unread),
        )
        role = "operator" if any(True for _ in self._readers(members)) else "sink"
        self.builder.add(role, DataflowRuntime(spec), inputs, id=name)  # type: ignore[arg-type]

    def _shows(self, sources: Iterable[Output | Timer | Logs], unread: Iterable[str]) -> dict[str, Output]:
        """The outputs of sources that no runtime before shows; of a process those too that nobody reads."""
        read = [source for source in sources if isinstance(source, Output)]
        new = {*unread, *(output.unit for output in read)} - self.shown
        outputs = [
            Output(unit, name) for unit in new & set(self.messages) for name in self.units[unit].outputs
        ]
        outputs += [output for output in read if output.unit in new & set(self.rows)]
        self.shown |= {output.unit for output in outputs}
        return {output_key(output): output for output in outputs}

    def _divided(
        self, port: Port, unit: Unit | None, parallel: int | None, name: str, rows: Output | None = None
    ) -> Port:
        """How a source's messages reach a runtime: all to its one subtask, or divided by key."""
        if unit is None or parallel is None:
            return replace(port, kind="shuffle", keys=())
        divide = Divide(
            by=unit.partition_by or "",
            partitions=parallel,
            rows=rows,
            key="" if rows is None else output_key(rows),
        )
        divided = self.builder.add("operator", divide, [(port,)], id=name)
        return replace(divided, kind="shuffle", keys=(PARTITION,))

    def _readers(self, members: tuple[Unit, ...]) -> Iterator[tuple[Output, Unit]]:
        """Who reads an output of a runtime outside of it."""
        inside = {unit.address for unit in members}
        for unit in self.dataflow.units:
            for unit_input in unit.inputs:
                if (
                    isinstance(unit_input.source, Output)
                    and unit_input.source.unit in inside
                    and unit.address not in inside
                ):
                    yield unit_input.source, unit

    def _ports(self, members: tuple[Unit, ...]) -> list[RuntimePort]:
        ports = []
        for output, reader in self._readers(members):
            if reader.kind in {"connector", "sql"}:
                ports.append(RuntimePort(output, str(output), "rows"))
            else:
                ports.append(
                    RuntimePort(
                        output,
                        f"to {self._runtime_of(reader)}",
                        "messages",
                        partitions=(reader.parallelism or 1) if needs_own_task(reader) else 1,
                        partition_by=reader.partition_by,
                    )
                )
        return _unique(ports)

    # ------------------------------------------------------------------------------------ files

    def _read_text(self, unit: Unit) -> None:
        """The text of an operator's file, if it can be one."""
        try:
            self.texts[unit.address] = read_operator(unit)
        except DataflowError as error:
            self.problems.add(error)


def _is_message_unit(unit: Unit) -> bool:
    """Whether a unit handles or sends messages one by one, or writes what others have sent."""
    if unit.kind == "connector":
        return bool(unit.inputs)
    return unit.kind != "sql" and (unit.parallelism or 1) == 1


def needs_own_task(unit: Unit) -> bool:
    """Whether a unit has a place of its own in the plan, outside of the runtimes."""
    return (
        unit.kind in {"connector", "sql"}
        or (unit.kind == "process" and not unit.inputs)
        or (unit.parallelism or 1) > 1
    )


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _components(units: Iterable[Unit], reads: Callable[[Unit], Iterable[Unit]]) -> list[list[Unit]]:
    """Units that read each other, directly or not: the strongly connected components (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[Unit] = []
    components: list[list[Unit]] = []

    def visit(unit: Unit) -> None:
        index[unit.address] = low[unit.address] = len(index)
        stack.append(unit)
        for other in reads(unit):
            if other.address not in index:
                visit(other)
                low[unit.address] = min(low[unit.address], low[other.address])
            elif any(other is waiting for waiting in stack):
                low[unit.address] = min(low[unit.address], index[other.address])
        if low[unit.address] == index[unit.address]:
            component: list[Unit] = []
            while not component or component[-1] is not unit:
                component.append(stack.pop())
            components.append(component)

    for unit in units:
        if unit.address not in index:
            visit(unit)
    return components
