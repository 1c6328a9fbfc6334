"""Places the boxes of a diagram in layers from top to bottom, and the arrows between them.

A box is below what it reads. The label of an arrow is inside the box that the arrow points to, so that no
text covers another. An arrow that spans several layers gets a place of its own in those it passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from headrace.dataflow.plan.diagram import Arrow, Box, Diagram

CHARACTER = 7.3
"""The width of a character, which is the same for all."""
LINE = 17.0
_PADDING = 14.0
_GAP = 26.0
_LAYER_GAP = 44.0
LOOP = _GAP / 2
"""How far an arrow from a box to itself goes to the right."""
_SWEEPS = 8


class Point(NamedTuple):
    """A place in the picture, from the top left."""

    x: float
    y: float


@dataclass(eq=False)
class Cell:
    """A place in a layer: of a box, or of an arrow that passes."""

    width: float = 0.0
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    above: list[Cell] = field(default_factory=list)
    below: list[Cell] = field(default_factory=list)
    floor: float = 0.0
    """The lower end of its layer."""
    text: float = 0.0
    """Of a box: how far below its top its text begins."""

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True)
class Route:
    """The points that an arrow passes, and where its label is."""

    points: tuple[Point, ...]
    label: Point


@dataclass(frozen=True)
class DiagramLayout:
    """Where everything is; `arrows` in the order of the diagram."""

    width: float
    height: float
    boxes: Mapping[str, Cell]
    arrows: tuple[Route, ...]


def lines_of(box: Box, diagram: Diagram) -> list[str]:
    """The text of a box: its label, and below it its group and what it runs."""
    detail = " · ".join(filter(None, (diagram.groups.get(box.group or ""), box.detail)))
    return [box.label, detail] if detail else [box.label]


def lay_out(diagram: Diagram) -> DiagramLayout:
    """Where every box, arrow and label is drawn."""
    rank = _ranks(diagram)
    ends = [_Ends.of(arrow, rank) for arrow in diagram.arrows]
    cells = {box.id: _cell(box, diagram, ends) for box in diagram.boxes}
    layers: list[list[Cell]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for box in diagram.boxes:
        layers[rank[box.id]].append(cells[box.id])
    chains = []
    for end in ends:
        passing = [Cell(width=_PADDING) for _ in range(rank[end.upper] + 1, rank[end.lower])]
        for layer, cell in enumerate(passing, start=rank[end.upper] + 1):
            layers[layer].append(cell)
        chains.append([cells[end.upper], *passing, cells[end.lower]])
        for upper, lower in pairwise(chains[-1]) if end.upper != end.lower else ():
            upper.below.append(lower)
            lower.above.append(upper)
    _arrange(layers)
    width = max((cell.x + cell.width + LOOP for layer in layers for cell in layer), default=0.0)
    height = max((cell.y + cell.height for layer in layers for cell in layer), default=0.0)
    return DiagramLayout(width, height, cells, tuple(_routes(ends, chains)))


@dataclass(frozen=True)
class _Ends:
    """An arrow by the box that is above and the box that is below; `up` if it points up."""

    arrow: Arrow
    upper: str
    lower: str
    up: bool

    @classmethod
    def of(cls, arrow: Arrow, rank: Mapping[str, int]) -> _Ends:
        up = rank[arrow.source] >= rank[arrow.target]
        ends = (arrow.target, arrow.source) if up else (arrow.source, arrow.target)
        return cls(arrow, *ends, up)

    def room(self, *, top: bool) -> float:
        """The width it takes at the top of the lower box, or at the bottom of the upper one."""
        return (len(self.arrow.label) * CHARACTER if top != self.up else 0) + _PADDING


def _ranks(diagram: Diagram) -> dict[str, int]:
    """The layer of each box: below what it reads, except for an arrow that closes a cycle."""
    sources: dict[str, set[str]] = {box.id: set() for box in diagram.boxes}
    for arrow in diagram.arrows:
        sources[arrow.target].add(arrow.source)
    waiting = list(sources)
    rank: dict[str, int] = {}
    while waiting:
        ready = next((name for name in waiting if sources[name] <= {*rank, name}), waiting[0])
        waiting.remove(ready)
        neighbours = {arrow.target for arrow in diagram.arrows if arrow.source == ready} | sources[ready]
        rank[ready] = max((rank[name] + 1 for name in neighbours if name in rank), default=0)
    return rank


def _cell(box: Box, diagram: Diagram, ends: Iterable[_Ends]) -> Cell:
    """A box that has room for its text, and for the labels of the arrows that point to it."""
    lines = lines_of(box, diagram)
    width = max(map(len, lines)) * CHARACTER + 2 * _PADDING
    labels = []
    for top in (True, False):
        side = [end for end in ends if box.id == (end.lower if top else end.upper)]
        width = max(width, sum(end.room(top=top) for end in side))
        labels.append(any(end.arrow.label and end.up != top for end in side))
    return Cell(width, (len(lines) + sum(labels)) * LINE + _PADDING, text=_PADDING / 2 + labels[0] * LINE)


def _arrange(layers: list[list[Cell]]) -> None:
    """Order the cells of each layer so that few arrows cross, and move them near what they connect."""
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(2 * _SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            wanted = {cell: _wanted(cell, cell.above if downwards else cell.below) for cell in layer}
            if sweep < _SWEEPS:
                layer.sort(key=wanted.__getitem__)
            _spread(layer, [wanted[cell] for cell in layer])
    left = min((cell.x for layer in layers for cell in layer), default=0.0)
    y = 0.0
    for layer in layers:
        height = max(cell.height for cell in layer)
        for cell in layer:
            cell.x, cell.y, cell.floor = cell.x - left, y, y + height
        y += height + _LAYER_GAP


def _wanted(cell: Cell, neighbours: list[Cell]) -> float:
    """Where the middle of a cell should be for straight arrows."""
    return sum(other.middle for other in neighbours) / len(neighbours) if neighbours else cell.middle


def _spread(layer: list[Cell], wanted: list[float]) -> None:
    """Move cells to where their middles should be, or as near as they fit side by side."""
    free, shift = -math.inf, 0.0
    for cell, middle in zip(layer, wanted, strict=True):
        cell.x = max(middle - cell.width / 2, free)
        free = cell.x + cell.width + _GAP
        shift += (cell.middle - middle) / len(layer)
    for cell in layer:
        cell.x -= shift


def _routes(ends: list[_Ends], chains: list[list[Cell]]) -> Iterator[Route]:
    bottoms, tops = _ports(ends, chains, top=False), _ports(ends, chains, top=True)
    for number, (end, (upper, *passing, lower)) in enumerate(zip(ends, chains, strict=True)):
        start, target = Point(bottoms[number], upper.y + upper.height), Point(tops[number], lower.y)
        label = Point(start.x, start.y - LINE * 0.7) if end.up else Point(target.x, target.y + LINE * 0.7)
        inner = (Point(cell.middle, y) for cell in passing for y in (cell.y, cell.floor))
        ways = dict.fromkeys((start, Point(start.x, upper.floor), *inner, target))
        points = _loop(upper) if upper is lower else tuple(ways)
        yield Route(points[::-1] if end.up else points, label)


def _loop(box: Cell) -> tuple[Point, ...]:
    """An arrow from a box to itself, on its right side."""
    right, high, low = box.x + box.width, box.y + box.height * 0.3, box.y + box.height * 0.7
    return Point(right, low), Point(right + LOOP, low), Point(right + LOOP, high), Point(right, high)


def _ports(ends: list[_Ends], chains: list[list[Cell]], *, top: bool) -> dict[int, float]:
    """Where arrows meet the top of the lower box, or the bottom of the upper one, side by side."""
    sides: dict[Cell, list[int]] = {}
    for number, chain in enumerate(chains):
        sides.setdefault(chain[-1 if top else 0], []).append(number)
    ports = {}
    for cell, numbers in sides.items():
        numbers.sort(key=lambda number: chains[number][-2 if top else 1].middle)
        rooms = [ends[number].room(top=top) for number in numbers]
        x = cell.middle - sum(rooms) / 2
        for number, room in zip(numbers, rooms, strict=True):
            ports[number] = x + room / 2
            x += room
    return ports
