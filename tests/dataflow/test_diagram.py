"""The picture of a dataflow: whatever the graph, everything is in it and nothing covers anything else."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.page import diagram_page, svg_text
from headrace.dataflow.plan.diagram import Arrow, Box, Diagram, mermaid_text

SVG = "{http://www.w3.org/2000/svg}"
CHARACTER, LINE = 7.3, 17.0
NEAR = 0.2
"""Places are written with one decimal."""


class Area(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Area) -> bool:
        return (
            self.right > other.left + NEAR
            and other.right > self.left + NEAR
            and self.bottom > other.top + NEAR
            and other.bottom > self.top + NEAR
        )

    def contains(self, other: Area) -> bool:
        return (
            other.left >= self.left - NEAR
            and other.top >= self.top - NEAR
            and other.right <= self.right + NEAR
            and other.bottom <= self.bottom + NEAR
        )

    def has_on_border(self, x: float, y: float) -> bool:
        sides = (x - self.left, x - self.right, y - self.top, y - self.bottom)
        return self.contains(Area(x, y, x, y)) and min(map(abs, sides)) < NEAR


class Picture:
    """What somebody sees who opens the page."""

    def __init__(self, diagram: Diagram) -> None:
        svg = ET.fromstring(svg_text(diagram))
        left, top, width, height = map(float, svg.attrib["viewBox"].split())
        self.whole = Area(left, top, left + width, top + height)
        self.boxes: dict[str, Area] = {}
        for group in svg.iter(f"{SVG}g"):
            rectangle = group.find(f"{SVG}rect")
            assert rectangle is not None
            x, y, width, height = (float(rectangle.attrib[name]) for name in ("x", "y", "width", "height"))
            self.boxes[group.findtext(f"{SVG}title") or ""] = Area(x, y, x + width, y + height)
        self.texts = [(text.text or "", self._area(text)) for text in svg.iter(f"{SVG}text")]
        self.paths = [
            [
                (float(x), float(y))
                for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)(?= [LC]|$)", path.attrib["d"])
            ]
            for path in svg.iter(f"{SVG}path")
            if path.attrib["class"] == "arrow"
        ]

    @staticmethod
    def _area(text: ET.Element) -> Area:
        x, y, half = float(text.attrib["x"]), float(text.attrib["y"]), len(text.text or "") * CHARACTER / 2
        return Area(x - half, y - LINE / 2, x + half, y + LINE / 2)


@st.composite
def diagrams(draw: st.DrawFn) -> Diagram:
    """Any boxes in any groups with any arrows: circles, loops, several arrows between two boxes."""
    number = draw(st.integers(min_value=1, max_value=9))
    groups = draw(st.lists(st.sampled_from(["", "", "g", "h"]), min_size=number, max_size=number))
    boxes = tuple(
        Box(f"b{at}", "b" * draw(st.integers(min_value=1, max_value=12)), group=group or None)
        for at, group in enumerate(groups)
    )
    ends = st.sampled_from([box.id for box in boxes])
    arrows = draw(
        st.lists(st.builds(Arrow, ends, ends, st.sampled_from(["", "out", "out as in"])), max_size=14)
    )
    return Diagram(boxes, {name: name for name in ("g", "h") if name in groups}, tuple(arrows))


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_every_box_and_label_is_in_the_picture_and_covers_no_other(diagram: Diagram) -> None:
    picture = Picture(diagram)
    assert picture.boxes.keys() == {box.id for box in diagram.boxes}
    labels = [
        *(box.label for box in diagram.boxes),
        *(arrow.label for arrow in diagram.arrows if arrow.label),
    ]
    assert not Counter(labels) - Counter(text for text, _ in picture.texts)
    areas = [area for _, area in picture.texts]
    assert all(picture.whole.contains(area) for area in (*picture.boxes.values(), *areas))
    for one, other in (*combinations(picture.boxes.values(), 2), *combinations(areas, 2)):
        assert not one.overlaps(other)
    for area in areas:
        assert sum(box.contains(area) for box in picture.boxes.values()) == 1


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_every_arrow_goes_from_its_source_to_its_target_and_through_no_box(diagram: Diagram) -> None:
    picture = Picture(diagram)
    for arrow, path in zip(diagram.arrows, picture.paths, strict=True):
        assert picture.boxes[arrow.source].has_on_border(*path[0])
        assert picture.boxes[arrow.target].has_on_border(*path[-1])
        for (x, y), (next_x, next_y) in pairwise(path):
            way = Area(min(x, next_x), min(y, next_y), max(x, next_x), max(y, next_y))
            assert not any(way.overlaps(box) for box in picture.boxes.values()), (arrow, way)


def test_a_label_is_in_the_box_that_its_arrow_points_to() -> None:
    boxes = tuple(Box(name, name) for name in "ab")
    picture = Picture(
        Diagram(boxes, {}, (Arrow("a", "b", "go"), Arrow("b", "a", "back"), Arrow("b", "b", "x")))
    )
    owners = {
        text: name
        for text, area in picture.texts
        for name, box in picture.boxes.items()
        if box.contains(area)
    }
    assert owners == {"a": "a", "b": "b", "go": "b", "back": "a", "x": "b"}


def test_a_box_is_below_what_it_reads() -> None:
    boxes = tuple(Box(name, name) for name in "cba")
    arrows = (Arrow("a", "b", "x"), Arrow("b", "c", "x"), Arrow("a", "c", "x"))
    picture = Picture(Diagram(boxes, {}, arrows))
    assert picture.boxes["a"].bottom < picture.boxes["b"].top
    assert picture.boxes["b"].bottom < picture.boxes["c"].top


def test_two_arrows_that_need_not_cross_do_not() -> None:
    boxes = tuple(Box(name, name) for name in "abcd")
    areas = Picture(Diagram(boxes, {}, (Arrow("a", "d"), Arrow("b", "c")))).boxes
    assert (areas["a"].left < areas["b"].left) == (areas["d"].left < areas["c"].left)


def test_nothing_is_a_diagram_too() -> None:
    picture = Picture(Diagram((), {}, ()))
    assert (picture.boxes, picture.paths) == ({}, [])


def test_a_box_says_its_group_and_names_are_escaped() -> None:
    box = Box("n/<b>", "<b>", detail='"x" & y.py', group="n")
    page = diagram_page("a < b", Diagram((box,), {"n": "n"}, ()), {"Plan": "<script>"})
    assert "n · &quot;x&quot; &amp; y.py" in page
    assert "<b>" not in page
    assert "<script" not in page
    assert "<h1>a &lt; b</h1>" in page


def test_names_that_mean_something_to_mermaid_or_look_alike_stay_apart() -> None:
    boxes = (Box("end", "end"), Box("a-b", 'a "quoted" <b>'), Box("a.b", "a.b"), Box("ä", "ä#1"))
    text = mermaid_text(Diagram(boxes, {}, (Arrow("a-b", "a.b", "x|y"), Arrow("end", "ä"))))
    assert text.splitlines() == [
        "flowchart TB",
        '  n_end["end"]',
        '  n_a_b["a #quot;quoted#quot; #lt;b#gt;"]',
        '  n_a_b_2["a.b"]',
        '  n__["ä#35;1"]',
        '  n_a_b -->|"x|y"| n_a_b_2',
        "  n_end --> n__",
    ]
