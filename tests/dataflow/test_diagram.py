"""The picture of a dataflow: whatever the graph, nothing covers anything else."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataflow.plan.diagram import Arrow, Box, Diagram, mermaid_text
from headrace.dataflow.plan.layout import CHARACTER, LINE, Area, Layout, Point, place

NEAR = 0.01


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


def overlap(one: Area, other: Area) -> bool:
    return (
        one.x + one.width > other.x + NEAR
        and other.x + other.width > one.x + NEAR
        and one.y + one.height > other.y + NEAR
        and other.y + other.height > one.y + NEAR
    )


def inside(inner: Area, outer: Area) -> bool:
    return (
        inner.x >= outer.x - NEAR
        and inner.y >= outer.y - NEAR
        and inner.x + inner.width <= outer.x + outer.width + NEAR
        and inner.y + inner.height <= outer.y + outer.height + NEAR
    )


def on_border(point: Point, area: Area) -> bool:
    across = area.x - NEAR <= point.x <= area.x + area.width + NEAR
    along = area.y - NEAR <= point.y <= area.y + area.height + NEAR
    sides = (
        point.x - area.x,
        point.x - area.x - area.width,
        point.y - area.y,
        point.y - area.y - area.height,
    )
    return across and along and min(map(abs, sides)) < NEAR


def labels(diagram: Diagram, layout: Layout) -> list[Area]:
    found = []
    for arrow, route in zip(diagram.arrows, layout.arrows, strict=True):
        assert (route.label is not None) == bool(arrow.label)
        if route.label is not None:
            width = len(arrow.label) * CHARACTER
            found.append(Area(route.label.x - width / 2, route.label.y - LINE / 2, width, LINE))
    return found


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_no_box_label_or_group_covers_another(diagram: Diagram) -> None:
    layout = place(diagram)
    whole = Area(0, 0, layout.width, layout.height)
    boxes, groups, texts = layout.boxes, layout.groups, labels(diagram, layout)
    assert boxes.keys() == {box.id for box in diagram.boxes}
    assert all(inside(area, whole) for area in (*boxes.values(), *groups.values(), *texts))
    for one, other in combinations([*boxes.values(), *texts], 2):
        assert not overlap(one, other)
    for one, other in combinations(groups.values(), 2):
        assert not overlap(one, other)
    for box in diagram.boxes:
        for name, area in groups.items():
            assert inside(boxes[box.id], area) if box.group == name else not overlap(boxes[box.id], area)


@settings(max_examples=150, deadline=None)
@given(diagrams())
def test_arrows_go_from_box_to_box_and_through_none(diagram: Diagram) -> None:
    layout = place(diagram)
    for arrow, route in zip(diagram.arrows, layout.arrows, strict=True):
        assert on_border(route.points[0], layout.boxes[arrow.source])
        assert on_border(route.points[-1], layout.boxes[arrow.target])
        for here, there in pairwise(route.points):
            left, right = sorted((here.x, there.x))
            top, bottom = sorted((here.y, there.y))
            line = Area(left, top, max(right - left, NEAR), max(bottom - top, NEAR))
            assert not any(overlap(line, area) for area in layout.boxes.values()), (arrow, here, there)


def test_a_box_is_below_what_it_reads() -> None:
    boxes = tuple(Box(name, name) for name in "cba")
    layout = place(Diagram(boxes, {}, (Arrow("a", "b", "x"), Arrow("b", "c", "x"), Arrow("a", "c", "x"))))
    assert layout.boxes["a"].y < layout.boxes["b"].y < layout.boxes["c"].y


def test_two_arrows_that_need_not_cross_do_not() -> None:
    boxes = tuple(Box(name, name) for name in "abcd")
    layout = place(Diagram(boxes, {}, (Arrow("a", "d"), Arrow("b", "c"))))
    assert (layout.boxes["a"].x < layout.boxes["b"].x) == (layout.boxes["d"].x < layout.boxes["c"].x)


def test_nothing_is_a_diagram_too() -> None:
    layout = place(Diagram((), {}, ()))
    assert (layout.boxes, layout.arrows) == ({}, ())


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
