"""Finds units that no event can ever reach."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import Output, Unit


def warn_of_idle_cycles(units: Iterable[Unit], findings: Findings) -> None:
    """Warn of operators that wait for each other's messages while nothing can send the first."""
    waiting = {unit.address: unit for unit in units if unit.inputs}
    _remove(waiting, {address for address, unit in waiting.items() if _starts(unit)}, units)
    cycle = _in_cycles(waiting)
    if not cycle:
        return
    first = next(iter(cycle.values()))
    if first.span is not None:
        names = ", ".join(f"`{address}`" for address in cycle)
        what = "waits for its own message" if len(cycle) == 1 else "wait for each other"
        findings.warn(
            f"nothing can start {names}: {'it' if len(cycle) == 1 else 'they'} {what}; "
            "give one of them a timer, or an input from outside of the cycle",
            first.span,
        )


def _starts(unit: Unit) -> bool:
    """Whether it can send without having received a message."""
    return unit.kind == "process" or any(
        not isinstance(unit_input.source, Output) or unit_input.timeout is not None
        for unit_input in unit.inputs
    )


def _remove(waiting: dict[str, Unit], started: set[str], units: Iterable[Unit]) -> None:
    """Remove the units that a message can reach."""
    started |= {unit.address for unit in units if not unit.inputs}
    while started:
        for address in started:
            waiting.pop(address, None)
        started = {address for address, unit in waiting.items() if not _reads(unit) <= waiting.keys()}


def _in_cycles(waiting: dict[str, Unit]) -> dict[str, Unit]:
    """The units whose output another one of them reads."""
    cycle = dict(waiting)
    while ends := [address for address in cycle if not any(address in _reads(u) for u in cycle.values())]:
        for address in ends:
            del cycle[address]
    return cycle


def _reads(unit: Unit) -> set[str]:
    return {unit_input.source.unit for unit_input in unit.inputs if isinstance(unit_input.source, Output)}
