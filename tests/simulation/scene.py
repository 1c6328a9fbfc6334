"""What a simulation is about: the rows of its sources, and the systems that its sinks write to.

The operators of a plan find them here: plans are made once per process, and every seed has its own scene.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.world import World

LATENESS = 8
"""Seconds by which the rows of a lane are out of order."""


@dataclass(frozen=True)
class Row:
    """A row of a source; `late` rows are behind the watermark when they come, unless an epoch holds both."""

    key: int
    second: int
    number: int
    late: bool


Lanes = dict[str, list[Row]]


@dataclass
class Table:
    """A table of a database with transactions, and its marks of committed epochs."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    marks: dict[tuple[str, str, int], str] = field(default_factory=dict)
    generation: int = 0


@dataclass
class Scene:
    """The outside of one simulation."""

    world: World
    sources: dict[str, Lanes]
    tables: dict[str, Table] = field(default_factory=dict)
    queues: dict[str, Counter[bytes]] = field(default_factory=dict)


_scenes: list[Scene] = []


def enter(scene: Scene) -> None:
    """Let the operators of this process use a scene."""
    _scenes[:] = [scene]


def scene() -> Scene:
    """The scene that operators use."""
    return _scenes[0]


def draw_lanes(order: random.Random, *, first: int, late: bool) -> Lanes:
    """The rows of a source, within the lateness; with `late`, some are far behind."""
    lanes: Lanes = {}
    number = first
    for lane in range(order.randint(1, 2)):
        front, rows = 0, []
        for _ in range(order.randint(4, 18)):
            front += order.randint(0, 8)
            second = max(0, front - order.randint(0, LATENESS))
            is_late = late and front > 40 and order.random() < 0.4
            if is_late:
                second = max(0, front - order.randint(30, 40))
            rows.append(Row(order.randint(0, 5), second, number, is_late))
            number += 1
        lanes[str(lane)] = rows
    return lanes
