"""The graph of a dataflow as a diagram: boxes, groups and arrows; also as Mermaid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.dataflow.document.model import Dataflow, Input, Logs, Output, Timer, Unit
from headrace.dataflow.document.units import source_text

Shape = Literal["source", "operator", "sink"]

_BRACKETS: Mapping[Shape, tuple[str, str]] = {
    "source": ("[\\", "/]"),
    "operator": ("[", "]"),
    "sink": ("[/", "\\]"),
}

_BUILT_IN_GROUPS = {"dora/timer": "timers", "dora/logs": "logs"}
"""The groups of what a document need not define; no node can be called so."""


@dataclass(frozen=True)
class Box:
    """One thing that runs, or where messages come from."""

    id: str
    label: str
    shape: Shape = "operator"
    detail: str = ""
    """A second line: what it runs."""
    group: str | None = None


@dataclass(frozen=True)
class Arrow:
    """What goes from one box to another."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Diagram:
    """Boxes in the order of the document, the groups they name with their labels, and arrows."""

    boxes: tuple[Box, ...]
    groups: Mapping[str, str]
    arrows: tuple[Arrow, ...]


def draw_dataflow(dataflow: Dataflow) -> Diagram:
    """The units of a dataflow: a group for each node with several operators, and one for the timers."""
    inputs = [(unit_input, unit) for unit in dataflow.units for unit_input in unit.inputs]
    built_ins = dict.fromkeys(
        unit_input.source for unit_input, _ in inputs if not isinstance(unit_input.source, Output)
    )
    boxes = [*map(_box, dataflow.units), *map(_built_in_box, built_ins)]
    groups = {box.group: _BUILT_IN_GROUPS.get(box.group, box.group) for box in boxes if box.group is not None}
    return Diagram(tuple(boxes), groups, tuple(_arrow(unit_input, unit) for unit_input, unit in inputs))


def _box(unit: Unit) -> Box:
    shape: Shape = "source" if not unit.inputs else "operator" if unit.outputs else "sink"
    copies = f" ×{unit.parallelism}" if (unit.parallelism or 1) > 1 else ""
    return Box(
        unit.address,
        (unit.operator or unit.node if unit.listed else unit.node) + copies,
        shape,
        what_runs(unit),
        unit.node if unit.listed else None,
    )


def describe(dataflow: Dataflow) -> dict[str, Any]:
    """The units of a dataflow as JSON has them."""
    return {
        "name": dataflow.name,
        "units": [
            {
                "address": unit.address,
                "kind": unit.kind,
                "runs": what_runs(unit),
                "inputs": {unit_input.id: source_text(unit_input.source) for unit_input in unit.inputs},
                "outputs": list(unit.outputs),
            }
            for unit in dataflow.units
        ],
    }


def what_runs(unit: Unit) -> str:
    """What a unit runs, in a word or two: its file, its connector, `SQL`."""
    if unit.kind == "connector":
        return f"connector {unit.connector}"
    if unit.kind == "sql":
        return "SQL"
    return unit.file.name if unit.file is not None else " ".join(unit.command[:2])


def _built_in_box(source: Timer | Logs) -> Box:
    text = source_text(source)
    if isinstance(source, Timer):
        return Box(text, text.removeprefix("dora/timer/"), "source", group="dora/timer")
    return Box(text, text.removeprefix("dora/"), "source", group="dora/logs")


def _arrow(unit_input: Input, unit: Unit) -> Arrow:
    if not isinstance(unit_input.source, Output):
        return Arrow(source_text(unit_input.source), unit.address, unit_input.id)
    label = (
        unit_input.id
        if unit_input.source.name == unit_input.id
        else f"{unit_input.source.name} as {unit_input.id}"
    )
    return Arrow(unit_input.source.unit, unit.address, label)


def mermaid_text(diagram: Diagram) -> str:
    """The diagram as a Mermaid flowchart, from top to bottom."""
    ids = _mermaid_ids([*(box.id for box in diagram.boxes), *diagram.groups])
    lines = ["flowchart TB"]
    lines += [f"  {_mermaid_box(box, ids)}" for box in diagram.boxes if box.group is None]
    for group, label in diagram.groups.items():
        lines.append(f'  subgraph {ids[group]}["{_escaped(label)}"]')
        lines += [f"    {_mermaid_box(box, ids)}" for box in diagram.boxes if box.group == group]
        lines.append("  end")
    for arrow in diagram.arrows:
        label = f'|"{_escaped(arrow.label)}"|' if arrow.label else ""
        lines.append(f"  {ids[arrow.source]} -->{label} {ids[arrow.target]}")
    return "\n".join(lines)


def _mermaid_box(box: Box, ids: Mapping[str, str]) -> str:
    left, right = _BRACKETS[box.shape]
    return f'{ids[box.id]}{left}"{_escaped(box.label)}"{right}'


def _mermaid_ids(names: Iterable[str]) -> dict[str, str]:
    """An id for each name that no other has; some words and signs mean something to Mermaid."""
    ids: dict[str, str] = {}
    for name in names:
        base = candidate = "n_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        number = 1
        while candidate in ids.values():
            number += 1
            candidate = f"{base}_{number}"
        ids[name] = candidate
    return ids


def _escaped(text: str) -> str:
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
