"""Finds event times that cannot be right: mostly numbers that were read in another unit than they are in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from headrace.base.watermarks import format_instant
from headrace.engine.chain import load_operator
from headrace.model.plan import Plan
from headrace.operators.watermark import ExpressionWatermark

_AHEAD = 3653 * 86_400 * 10**9
_FIRST = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 10**9
_LAST = 2**63 - 2
"""What sources without a time to come announce."""
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TYPES = {"s": "TIMESTAMP(0)", "ms": "TIMESTAMP(3)", "us": "TIMESTAMP(6)", "ns": "TIMESTAMP"}
_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def implausible_times(plan: Plan, watermarks: Mapping[str, int], *, now: float) -> dict[str, str]:
    """Return a warning for each node whose event times cannot be right, of tables that declare a column.

    `watermarks` has what was read so far: node → event time in nanoseconds. `now` is in seconds.
    """
    warnings = {}
    for node, time in watermarks.items():
        if is_plausible(time, now=now):
            continue
        operator = load_operator(plan.by_id[node])
        if isinstance(operator, ExpressionWatermark) and operator.event_time is not None:
            column, unit = operator.event_time
            warnings[node] = describe_implausible(
                f"`{node.partition('.')[0]}` in column `{column}`", time, unit, now=now
            )
    return warnings


def is_plausible(time: int, *, now: float) -> bool:
    """Whether an event time is from 2000 on, and not more than ten years ahead."""
    return _FIRST <= time <= int(now) * 10**9 + _AHEAD or time >= _LAST


def describe_implausible(what: str, time: int, unit: str, *, now: float) -> str:
    """Return the warning for an event time that was read in a unit, with the type that reads it right."""
    number = time // _UNITS[unit]
    text = f"the event times of {what} are at {format_instant(time)}: "
    for other, factor in _UNITS.items():
        if other != unit and _FIRST <= number * factor <= int(now) * 10**9 + _AHEAD:
            return (
                f"{text}numbers in it are read as {_NAMES[unit]}, and would be plausible as {_NAMES[other]}: "
                f"declare it as {_TYPES[other]}"
            )
    return f"{text}{'before 2000' if time < _FIRST else 'more than ten years ahead'}"
