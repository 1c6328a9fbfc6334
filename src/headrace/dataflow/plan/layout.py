"""Places the boxes of a diagram in layers from top to bottom, so that no box, label or arrow covers another.

The way of Sugiyama: arrows that close a circle are turned; each box goes below what it reads; arrows
get a place in every layer that they pass, and their labels one in the middle; the places of a layer are
ordered so that few arrows cross, and moved to where what they are connected to is. A group is laid out
first, and is one large box for the others then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from headrace.dataflow.plan.diagram import Arrow, Diagram

CHARACTER = 7.3
"""The width of a character of the labels, which are set in one width."""
LINE = 17.0
_MARGIN = 14.0
_BESIDE = 26.0
_BETWEEN = 20.0
_SWEEPS = 12


class Point(NamedTuple):
    """A place in the picture, from the top left."""

    x: float
    y: float


@dataclass(frozen=True)
class Area:
    """A rectangle by its top left corner."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, by: Point) -> Area:
        return Area(self.x + by.x, self.y + by.y, self.width, self.height)


@dataclass(frozen=True)
class Route:
    """The corners of an arrow, and the middle of its label."""

    points: tuple[Point, ...]
    label: Point | None = None

    def moved(self, by: Point) -> Route:
        label = None if self.label is None else _plus(self.label, by)
        return Route(tuple(_plus(point, by) for point in self.points), label)


@dataclass(frozen=True)
class Layout:
    """Where everything is; `arrows` in the order of the diagram."""

    width: float
    height: float
    boxes: Mapping[str, Area]
    groups: Mapping[str, Area]
    arrows: tuple[Route, ...]


def place(diagram: Diagram) -> Layout:
    """Find a place for everything."""
    home = {box.id: box.group or box.id for box in diagram.boxes}
    sizes = {
        box.id: (
            max(len(box.label), len(box.detail)) * CHARACTER + 2 * _MARGIN,
            (2 if box.detail else 1) * LINE + _MARGIN,
        )
        for box in diagram.boxes
    }
    numbered = list(enumerate(diagram.arrows))
    outer = [(number, arrow) for number, arrow in numbered if home[arrow.source] != home[arrow.target]]
    turned = _turned(dict.fromkeys(home.values()), {n: (home[a.source], home[a.target]) for n, a in outer})

    inside: dict[str, _Plane] = {}
    for group, label in diagram.groups.items():
        plane = _Plane(least=len(label) * CHARACTER)
        for box in diagram.boxes:
            if box.group == group:
                plane.add(box.id, *sizes[box.id])
        for number, arrow in numbered:
            if home[arrow.source] == home[arrow.target] == group:
                plane.connect(number, arrow)
            elif home[arrow.source] == group:
                plane.leave(number, arrow.source, below=number not in turned, turned=number in turned)
            elif home[arrow.target] == group:
                plane.leave(number, arrow.target, below=number in turned, turned=number in turned)
        plane.arrange()
        inside[group] = plane

    whole = _Plane()
    for name in dict.fromkeys(home.values()):
        if name in inside:
            whole.add(name, inside[name].width + 2 * _MARGIN, inside[name].height + LINE + 2 * _MARGIN)
        else:
            whole.add(name, *sizes[name])
    for number, arrow in outer:
        ends = Arrow(home[arrow.source], home[arrow.target], arrow.label)
        whole.connect(number, ends, _port(inside, ends.source, number), _port(inside, ends.target, number))
    for number, arrow in numbered:
        if arrow.source == arrow.target and home[arrow.source] == arrow.source:
            whole.connect(number, arrow)
    whole.arrange()
    return _joined(diagram, home, inside, whole)


def _port(inside: Mapping[str, _Plane], name: str, number: int) -> float | None:
    """Where an arrow reaches a group: how far right of its middle."""
    return None if name not in inside else inside[name].ports[number].x - inside[name].width / 2


def _joined(diagram: Diagram, home: Mapping[str, str], inside: Mapping[str, _Plane], whole: _Plane) -> Layout:
    groups = {name: whole.areas[name] for name in inside}
    corner = {name: Point(area.x + _MARGIN, area.y + LINE + _MARGIN) for name, area in groups.items()}
    boxes = {
        box.id: inside[box.group].areas[box.id].moved(corner[box.group]) if box.group else whole.areas[box.id]
        for box in diagram.boxes
    }
    routes = []
    for number, arrow in enumerate(diagram.arrows):
        parts = [
            inside[name].routes[number].moved(corner[name])
            for name in dict.fromkeys((home[arrow.source], home[arrow.target]))
            if name in inside
        ]
        if number in whole.routes:
            # From the source's group, across, into the target's: two parts, or one, around the middle.
            parts.insert(1 if home[arrow.source] in inside else 0, whole.routes[number])
        points = tuple(point for part in parts for point in part.points)
        routes.append(Route(points, next((part.label for part in parts if part.label is not None), None)))
    return Layout(whole.width, whole.height, boxes, groups, tuple(routes))


# --------------------------------------------------------------------------------- one plane


class _Link(NamedTuple):
    """How a cell is connected to one in the layer above or below."""

    cell: _Cell
    shift: float
    """How far right of that one's middle its own would have to be for a straight arrow."""
    at: float
    """How far right of its own middle the arrow is."""


@dataclass(eq=False)
class _Cell:
    """A place in a layer: of a box, of an arrow that passes, or of its label."""

    width: float
    height: float
    layer: int = 0
    beside: float = 0.0
    """Room on each of its sides, for arrows from a box to itself."""
    x: float = 0.0
    """Its middle."""
    above: list[_Link] = field(default_factory=list)
    below: list[_Link] = field(default_factory=list)
    weight: float = 1.0

    @property
    def room(self) -> float:
        return self.width + 2 * self.beside

    def wanted(self, links: Sequence[_Link]) -> float:
        """Where its middle would be for the straightest arrows."""
        return sum(link.cell.x + link.shift for link in links) / len(links) if links else self.x


@dataclass
class _Edge:
    """An arrow in one plane, from the upper cell to the lower one."""

    upper: str | None
    lower: str | None
    label: str = ""
    upper_shift: float | None = None
    lower_shift: float | None = None
    turned: bool = False
    cells: list[_Cell] = field(default_factory=list)

    @property
    def least(self) -> int:
        """How many layers it takes: one more if it has a label."""
        return 2 if self.label else 1


class _Plane:
    """Boxes and arrows of one level: those of a group, or groups and boxes of the whole diagram."""

    def __init__(self, *, least: float = 0.0) -> None:
        self.width = least
        self.height = 0.0
        self.areas: dict[str, Area] = {}
        self.routes: dict[int, Route] = {}
        self.ports: dict[int, Point] = {}
        """Where arrows that come from outside, or go there, reach the border."""
        self._cells: dict[str, _Cell] = {}
        self._edges: dict[int, _Edge] = {}
        self._loops: dict[str, dict[int, str]] = {}
        """The arrows from a box to itself, with their labels."""
        self._leaving: dict[int, tuple[_Cell, bool]] = {}
        self._layers: list[list[_Cell]] = []
        self._tops: list[float] = []

    def add(self, name: str, width: float, height: float) -> None:
        """A box, or a group that is one here."""
        self._cells[name] = _Cell(width, height)

    def connect(
        self,
        number: int,
        arrow: Arrow,
        source_shift: float | None = None,
        target_shift: float | None = None,
    ) -> None:
        """An arrow; shifts say how far right of the middle it begins and ends, where that is given."""
        if arrow.source == arrow.target:
            self._loops.setdefault(arrow.source, {})[number] = arrow.label
            self._cells[arrow.source].beside += _loop_width(arrow.label)
        else:
            self._edges[number] = _Edge(arrow.source, arrow.target, arrow.label, source_shift, target_shift)

    def leave(self, number: int, name: str, *, below: bool, turned: bool) -> None:
        """An arrow between a box and the border, the lower or the upper one; `turned` if it goes up."""
        upper, lower = (name, None) if below else (None, name)
        self._edges[number] = _Edge(upper, lower, turned=turned)

    def arrange(self) -> None:
        """Find the place of everything."""
        self._turn()
        self._find_layers()
        self._fill_layers()
        self._order()
        self._move()
        self._measure()

    def _turn(self) -> None:
        ends = {n: (e.upper, e.lower) for n, e in self._edges.items() if e.upper and e.lower}
        for number in _turned(self._cells, ends):
            edge = self._edges[number]
            edge.upper, edge.lower = edge.lower, edge.upper
            edge.upper_shift, edge.lower_shift = edge.lower_shift, edge.upper_shift
            edge.turned = True

    def _find_layers(self) -> None:
        """Each box below all that it reads, and no higher than it has to be above what reads it."""
        cells, edges = self._cells, self._edges.values()
        inner = [(cells[e.upper], cells[e.lower], e.least) for e in edges if e.upper and e.lower]
        from_border = [cells[e.lower] for e in edges if e.upper is None and e.lower]
        for cell in from_border:
            cell.layer = 1
        for _ in cells:
            for upper, lower, least in inner:
                lower.layer = max(lower.layer, upper.layer + least)
        for cell in cells.values():
            reads = any(lower is cell for _, lower, _ in inner) or cell in from_border
            readers = [lower.layer - least for upper, lower, least in inner if upper is cell]
            if readers and not reads:
                cell.layer = min(readers)

    def _fill_layers(self) -> None:
        """A cell for each arrow in every layer that it passes."""
        last = max((cell.layer for cell in self._cells.values()), default=0)
        last += any(edge.lower is None for edge in self._edges.values())
        for number, edge in self._edges.items():
            first = _Cell(0, 0) if edge.upper is None else self._cells[edge.upper]
            final = _Cell(0, 0, last) if edge.lower is None else self._cells[edge.lower]
            middle = (first.layer + final.layer) // 2
            between = [
                _Cell(len(edge.label) * CHARACTER, LINE, layer, weight=2.0)
                if edge.label and layer == middle
                else _Cell(6, 0, layer, weight=2.0)
                for layer in range(first.layer + 1, final.layer)
            ]
            edge.cells = [first, *between, final]
            for upper, lower in pairwise(edge.cells):
                begins = edge.upper_shift or 0.0 if upper is first else 0.0
                ends = edge.lower_shift or 0.0 if lower is final else 0.0
                upper.below.append(_Link(lower, ends - begins, begins))
                lower.above.append(_Link(upper, begins - ends, ends))
            if edge.upper is None or edge.lower is None:
                self._leaving[number] = (first if edge.upper is None else final, edge.lower is None)
        every = dict.fromkeys([*self._cells.values(), *(c for e in self._edges.values() for c in e.cells)])
        self._layers = [[cell for cell in every if cell.layer == layer] for layer in range(last + 1)]

    def _order(self) -> None:
        """Order the cells of each layer by what they are connected to; of all orders the best is kept."""
        for layer in self._layers:
            _pack(layer)
        best, fewest = [list(layer) for layer in self._layers], self._crossings()
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for layer in self._layers if down else reversed(self._layers):
                layer.sort(key=_by_above if down else _by_below)
                _pack(layer)
            if (crossings := self._crossings()) < fewest:
                best, fewest = [list(layer) for layer in self._layers], crossings
        self._layers = best
        for layer in self._layers:
            _pack(layer)

    def _crossings(self) -> int:
        count = 0
        for layer in self._layers:
            ends = [
                (cell.x + link.at, link.cell.x + link.shift + link.at)
                for cell in layer
                for link in cell.below
            ]
            count += sum(a < c and b > d for a, b in ends for c, d in ends)
        return count

    def _move(self) -> None:
        """Move cells to the middle of what they are connected to, as far as their neighbours let them."""
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for layer in self._layers if down else reversed(self._layers):
                wanted = [cell.wanted(cell.above + cell.below) for cell in layer]
                _settle(layer, wanted)
        left = min((cell.x - cell.room / 2 for layer in self._layers for cell in layer), default=0.0)
        right = max((cell.x + cell.room / 2 for layer in self._layers for cell in layer), default=0.0)
        self.width, spare = max(self.width, right - left), max(0.0, self.width - (right - left)) / 2
        for layer in self._layers:
            for cell in layer:
                cell.x += spare - left

    def _measure(self) -> None:
        tops, y = [], 0.0
        for layer in self._layers:
            tops.append(y)
            y += max((cell.height for cell in layer), default=0.0) + _BETWEEN
        self._tops, self.height = tops, max(0.0, y - _BETWEEN)
        for name, cell in self._cells.items():
            self.areas[name] = Area(cell.x - cell.width / 2, self._top(cell), cell.width, cell.height)
            self.routes |= _loops(self.areas[name], self._loops.get(name, {}))
        for number, edge in self._edges.items():
            self.routes[number] = self._route(edge)
        for number, (cell, below) in self._leaving.items():
            self.ports[number] = Point(cell.x, self.height if below else 0.0)

    def _bottom(self, layer: int) -> float:
        return self._tops[layer] + max(cell.height for cell in self._layers[layer])

    def _top(self, cell: _Cell) -> float:
        return (self._tops[cell.layer] + self._bottom(cell.layer) - cell.height) / 2

    def _route(self, edge: _Edge) -> Route:
        """Upright through each layer, so that all curves are between layers."""
        first, *between, final = edge.cells
        start, end = self._side(edge, first, below=True), self._side(edge, final, below=False)
        points = [Point(start, self._top(first) + first.height), Point(start, self._bottom(first.layer))]
        label = None
        for cell in between:
            top, bottom = self._tops[cell.layer], self._bottom(cell.layer)
            points += [Point(cell.x, top), Point(cell.x, bottom)]
            if cell.height:
                label = Point(cell.x, (top + bottom) / 2)
        points += [Point(end, self._tops[final.layer]), Point(end, self._top(final))]
        corners = tuple(dict.fromkeys(points))
        return Route(corners[::-1] if edge.turned else corners, label)

    def _side(self, edge: _Edge, cell: _Cell, *, below: bool) -> float:
        """How far right an arrow begins or ends; several share the side of a box."""
        shift = edge.upper_shift if below else edge.lower_shift
        if shift is not None or cell.width == 0:
            return cell.x + (shift or 0.0)
        next_to = {
            number: (other.cells[1] if below else other.cells[-2]).x
            for number, other in self._edges.items()
            if other.cells[0 if below else -1] is cell
        }
        order = sorted(next_to, key=lambda number: next_to[number])
        at = next(place for place, number in enumerate(order) if self._edges[number] is edge)
        room = min(cell.width * 0.8, 40.0 * (len(order) - 1))
        return cell.x + ((at / (len(order) - 1) - 0.5) * room if len(order) > 1 else 0.0)


def _by_above(cell: _Cell) -> float:
    return cell.wanted(cell.above)


def _by_below(cell: _Cell) -> float:
    return cell.wanted(cell.below)


def _plus(one: Point, other: Point) -> Point:
    return Point(one.x + other.x, one.y + other.y)


def _turned(names: Iterable[str], ends: Mapping[int, tuple[str, str]]) -> set[int]:
    """The arrows that close a circle when one goes along from the first name."""
    leaving: dict[str, list[int]] = {name: [] for name in names}
    for number, (source, _) in ends.items():
        leaving[source].append(number)
    done: set[str] = set()
    under_way: set[str] = set()
    turned: set[int] = set()

    def visit(name: str) -> None:
        under_way.add(name)
        for number in leaving[name]:
            target = ends[number][1]
            if target in under_way:
                turned.add(number)
            elif target not in done:
                visit(target)
        under_way.remove(name)
        done.add(name)

    reached = {target for _, target in ends.values()}
    for name in sorted(leaving, key=lambda name: name in reached):
        if name not in done:
            visit(name)
    return turned


def _pack(layer: Sequence[_Cell]) -> None:
    """Put the cells of a layer beside each other, around the middle of all layers."""
    x = -sum(cell.room + _BESIDE for cell in layer) / 2
    for cell in layer:
        cell.x = x + (cell.room + _BESIDE) / 2
        x += cell.room + _BESIDE


def _settle(layer: Sequence[_Cell], wanted: Sequence[float]) -> None:
    """Move each cell as near as can be to where it is wanted; none may come too near to its neighbour.

    The least sum of squares with the order kept: neighbours that want to pass each other become a block.
    """
    apart = [(left.room + right.room) / 2 + _BESIDE for left, right in pairwise(layer)]
    offsets = list(accumulate(apart, initial=0.0))[: len(layer)]
    blocks: list[tuple[float, float, int]] = []
    for cell, x, offset in zip(layer, wanted, offsets, strict=True):
        block = (x - offset, cell.weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            at, weight, count = blocks.pop()
            total = weight + block[1]
            block = ((at * weight + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    starts = [at for at, _, count in blocks for _ in range(count)]
    for cell, start, offset in zip(layer, starts, offsets, strict=True):
        cell.x = start + offset


def _loop_width(label: str) -> float:
    return _BESIDE + len(label) * CHARACTER


def _loops(area: Area, labels: Mapping[int, str]) -> dict[int, Route]:
    """Arrows from a box to itself: on its right side, each around those before it."""
    routes = {}
    right, middle = area.x + area.width, area.y + area.height / 2
    far = right
    for order, (number, label) in enumerate(labels.items(), start=1):
        half = area.height / 2 * (0.5 + 0.4 * order / len(labels))
        turn = far + _BESIDE / 2
        corners = (
            Point(right, middle - half),
            Point(turn, middle - half),
            Point(turn, middle + half),
            Point(right, middle + half),
        )
        at = Point(turn + 6 + len(label) * CHARACTER / 2, middle)
        routes[number] = Route(corners, at if label else None)
        far += _loop_width(label)
    return routes
