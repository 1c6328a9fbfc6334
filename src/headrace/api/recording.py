"""Plans that record, and plans that replay what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigurationError, suggest
from headrace.connectors.blackhole import BlackholeSink
from headrace.connectors.memory import MemorySink
from headrace.connectors.preview import PreviewSink
from headrace.connectors.recording.files import RecordingReader
from headrace.connectors.recording.sink import Recorder
from headrace.connectors.recording.source import RecordedSource
from headrace.connectors.stdout import StdoutSink
from headrace.dataflow.document.model import Output
from headrace.dataflow.runtime.operator import DataflowRuntime, Feed, RuntimePort, RuntimeSpec
from headrace.engine.chain import load_operator
from headrace.model.builder import PlanBuilder, Port
from headrace.model.plan import Plan

RECORDER = "recorder"
SENT = "outputs of "
"""What the port is called that has all messages of the units of a runtime."""
WRITTEN = "rows to "
"""What the port is called that has the rows that a sink took."""
_RECORDED = "recorded"
_HARMLESS = (DataflowRuntime, StdoutSink, PreviewSink, MemorySink, BlackholeSink)
"""The sinks that a replay writes to without being told: they change nothing outside."""


def recording_plan(plan: Plan, directory: Path, *, program: Mapping[str, Any]) -> Plan:
    """The plan, with a sink that records what its sources read and what its operators send and write.

    `program` is what the recording says of the pipeline, for a replay without naming it again.
    """
    builder = PlanBuilder.of(plan)
    ports: dict[str, list[Port]] = {}
    for node in plan.nodes:
        operator = load_operator(node)
        if node.role == "source":
            outputs = dict.fromkeys(edge.output for edge in plan.outputs(node.id))
            for output in outputs:
                ports[source_port(node.id, output)] = [Port(node.id, "shuffle", output=output)]
        elif isinstance(operator, DataflowRuntime):
            spec, names = (
                operator.spec,
                [Output(u.address, name) for u in operator.spec.units for name in u.outputs],
            )
            if names:
                recorded = tuple(RuntimePort(output, _RECORDED, "messages") for output in names)
                builder.replace(node.id, DataflowRuntime(replace(spec, ports=(*spec.ports, *recorded))))
                ports[f"{SENT}{node.id}"] = [Port(node.id, "shuffle", output=_RECORDED)]
        elif node.role == "sink":
            ports[f"{WRITTEN}{node.id}"] = [
                Port(edge.source, "shuffle", output=edge.output) for edge in plan.inputs(node.id)
            ]
    is_dataflow = any(isinstance(load_operator(node), DataflowRuntime) for node in plan.nodes)
    header = {"pipeline": plan.name, "dataflow": is_dataflow, **program}
    recorder = Recorder(str(directory), tuple(ports), header)
    if RECORDER in plan.by_id:
        raise ConfigurationError(
            f"the pipeline has an operator called `{RECORDER}`, which is what the one that records is called",
            hint="give it another id",
        )
    builder.add("sink", recorder, list(ports.values()), id=RECORDER)
    return builder.plan()


def source_port(node: str, output: str) -> str:
    """What the port of a source is called."""
    return f"{node}#{output}" if output else node


def only_plan(
    plan: Plan, reader: RecordingReader, name: str, *, first: int, last: int
) -> tuple[Plan, frozenset[str]]:
    """The plan of one node of a dataflow alone, and the units that it has.

    All that the node reads comes from the recording: ticks, what processes sent, rows, and the messages of
    the units that are not there.
    """
    runtimes = {
        node.id: operator
        for node in plan.nodes
        if isinstance(operator := load_operator(node), DataflowRuntime) and operator.spec.parallel is None
    }
    names = sorted({unit.node for runtime in runtimes.values() for unit in runtime.spec.units})
    match = next(
        (
            (address, runtime.spec, units)
            for address, runtime in runtimes.items()
            if (units := tuple(u for u in runtime.spec.units if name in {u.node, u.address}))
        ),
        None,
    )
    if match is None:
        raise ConfigurationError(
            f"`{name}` cannot be replayed alone: it is no operator and no process with inputs of a dataflow",
            hint=suggest(name, names, listing="the dataflow has") if names else "leave --only out",
        )
    runtime, spec, units = match
    inside = frozenset(unit.address for unit in units)
    sources = dict.fromkeys(
        unit_input.source
        for unit in units
        for unit_input in unit.inputs
        if not isinstance(unit_input.source, Output) or unit_input.source.unit not in inside
    )
    builder, feeds, inputs = PlanBuilder(plan.name), list[Feed](), list[list[Port]]()
    added: dict[str, Port] = {}

    def read(port: str) -> Port:
        if port not in reader.ports:
            raise ConfigurationError(
                f"the recording has nothing of `{port}`, which `{name}` reads",
                hint=suggest(port, reader.ports, listing="it has"),
            )
        if port not in added:
            source = RecordedSource(str(reader.directory), {"": port}, first=first, last=last)
            added[port] = replace(
                builder.add("source", source, (), id=f"recorded_{len(added)}"), kind="shuffle"
            )
        return added[port]

    for index, feed in enumerate(spec.feeds):
        edges = [edge for edge in plan.inputs(runtime) if edge.input == index]
        if feed.ends is not None and feed.ends not in sources:
            continue
        origins = [
            f"{SENT}{edge.source}" if edge.source in runtimes else source_port(edge.source, edge.output)
            for edge in edges
        ]
        feeds.append(feed)
        inputs.append([read(port) for port in dict.fromkeys(origins)])
    if any(isinstance(source, Output) and source.unit in _addresses(spec) for source in sources):
        feeds.append(Feed())
        inputs.append([read(f"{SENT}{runtime}")])
    alone = replace(
        spec,
        units=units,
        feeds=tuple(feeds),
        ports=(),
        sources=tuple(sources),
        texts={address: text for address, text in spec.texts.items() if address in inside},
        shows={},
    )
    builder.add("sink", DataflowRuntime(alone), inputs, id=runtime)
    return builder.plan(), inside


def _addresses(spec: RuntimeSpec) -> set[str]:
    return {unit.address for unit in spec.units}


def replay_plan(
    plan: Plan, reader: RecordingReader, *, first: int, last: int, write_sinks: bool = False
) -> tuple[Plan, list[str]]:
    """The plan with what was recorded in the place of its sources, and the sinks that are not written.

    `first` and `last` are the numbers of the epochs. A source that was not recorded is an error.
    """
    builder, unwritten = PlanBuilder.of(plan), []
    for node in plan.nodes:
        if node.role == "source":
            outputs = dict.fromkeys(edge.output for edge in plan.outputs(node.id))
            ports = {output: source_port(node.id, output) for output in outputs}
            for port in ports.values():
                if port not in reader.ports:
                    raise ConfigurationError(
                        f"the recording has nothing of the source `{port}`",
                        hint=suggest(port, reader.ports, listing="it has"),
                    )
            source = RecordedSource(str(reader.directory), ports, first=first, last=last)
            builder.replace(node.id, source)
        elif node.role == "sink" and not write_sinks:
            operator = load_operator(node)
            if not isinstance(operator, _HARMLESS):
                builder.replace(node.id, BlackholeSink())
                unwritten.append(node.id)
    return builder.plan(), unwritten
