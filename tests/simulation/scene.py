"""What a simulation is about: the rows of its sources, and the systems that its sinks write to.

The operators of a plan find them here: plans are made once per process, and every seed has its own scene.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
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
Rows = list[dict[str, Any]]


@dataclass
class Table:
    """A table of a database with transactions, and its marks of committed epochs."""

    rows: Rows = field(default_factory=list)
    marks: dict[tuple[str, str, int], str] = field(default_factory=dict)
    generation: int = 0

    def change(self, new: Rows, deleted: Rows, key: Sequence[str]) -> None:
        """Add rows, in place of those with the same key if there is one."""
        gone = {tuple(row[name] for name in key) for row in [*new, *deleted]} if key else set()
        self.rows = [row for row in self.rows if tuple(row[name] for name in key) not in gone] + new


@dataclass
class Broker:
    """A queue that forgets a message when it is acknowledged, and redelivers it until then."""

    rows: list[Row]
    acknowledged: set[int] = field(default_factory=set)

    def waiting(self, behind: int) -> list[int]:
        """The messages that a connection has not been sent yet, in order; it has those up to `behind`."""
        return [number for number in range(behind + 1, len(self.rows)) if number not in self.acknowledged]

    @property
    def is_empty(self) -> bool:
        return len(self.acknowledged) == len(self.rows)


@dataclass
class Scene:
    """The outside of one simulation."""

    world: World
    sources: dict[str, Lanes]
    tables: dict[str, Table] = field(default_factory=dict)
    queues: dict[str, Counter[bytes]] = field(default_factory=dict)
    brokers: dict[str, Broker] = field(default_factory=dict)

    def broker(self, node: str) -> Broker:
        """The broker that holds the rows of a source, of all its lanes."""
        rows = [row for lane in self.sources[node].values() for row in lane]
        return self.brokers.setdefault(node, Broker(rows))


_scenes: list[Scene] = []


def enter(scene: Scene) -> None:
    """Let the operators of this process use a scene."""
    _scenes[:] = [scene]


def scene() -> Scene:
    """The scene that operators use."""
    return _scenes[0]


def draw_lanes(order: random.Random, *, first: int, late: bool, most: int = 2) -> Lanes:
    """The rows of a source, within the lateness; with `late`, some are far behind."""
    lanes: Lanes = {}
    number = first
    for lane in range(order.randint(1, most)):
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
