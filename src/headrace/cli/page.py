"""A diagram as a page of HTML that needs nothing else: the picture, and below it the texts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import pairwise

from headrace.dataflow.plan.diagram import Box, Diagram
from headrace.dataflow.plan.layout import LINE, Area, Layout, Point, Route, place

_SLANT = 10.0
_EDGE = 16.0
_STYLE = """
:root { color-scheme: light dark; --line: #64748b; --text: #1e293b; --paper: #ffffff; --group: #f1f5f9;
  --source: #dcfce7; --operator: #e0f2fe; --sink: #fef3c7; }
@media (prefers-color-scheme: dark) {
  :root { --line: #94a3b8; --text: #e2e8f0; --paper: #0f172a; --group: #1e293b;
    --source: #14532d; --operator: #0c4a6e; --sink: #713f12; } }
body { margin: 2rem; background: var(--paper); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; }
svg { max-width: 100%; height: auto; }
svg text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: var(--text);
  text-anchor: middle; dominant-baseline: central; }
svg .detail { font-size: 10.5px; opacity: 0.75; }
svg .group { fill: var(--group); stroke: var(--line); stroke-dasharray: 4 3; }
svg .box { stroke: var(--line); }
svg .source { fill: var(--source); }
svg .operator { fill: var(--operator); }
svg .sink { fill: var(--sink); }
svg .arrow { fill: none; stroke: var(--line); stroke-width: 1.3; }
svg .label { font-size: 11px; stroke: var(--paper); stroke-width: 4px; paint-order: stroke; }
svg .group-name { font-size: 10.5px; text-anchor: start; opacity: 0.75; }
.head { fill: var(--line); }
pre { overflow-x: auto; background: var(--group); padding: 0.8rem; border-radius: 6px; }
.key span { padding: 0.1rem 0.6rem; margin-right: 0.6rem; border: 1px solid var(--line); color: var(--text); }
"""
_ARROW_HEAD = """<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7"
  markerHeight="7" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>"""


def diagram_page(title: str, diagram: Diagram, texts: Mapping[str, str]) -> str:
    """A whole page: the diagram, and each text below its name, folded."""
    folded = "\n".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
        for name, text in texts.items()
    )
    shapes = [
        shape for shape in ("source", "operator", "sink") if any(b.shape == shape for b in diagram.boxes)
    ]
    key = "".join(f'<span style="background: var(--{shape})">{shape}</span>' for shape in shapes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="key">{key}</p>
{svg_text(diagram)}
{folded}
</body>
</html>
"""


def svg_text(diagram: Diagram) -> str:
    """The diagram as an SVG element."""
    layout = place(diagram)
    width, height = layout.width + 2 * _EDGE, layout.height + 2 * _EDGE
    parts = [
        *_groups(diagram, layout),
        *(_arrow(route) for route in layout.arrows),
        *(_box(box, layout.boxes[box.id]) for box in diagram.boxes),
    ]
    for arrow, route in zip(diagram.arrows, layout.arrows, strict=True):
        if route.label is not None:
            parts.append(_text(route.label, arrow.label, "label"))
    drawn = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"
  viewBox="{-_EDGE:g} {-_EDGE:g} {width:.1f} {height:.1f}" role="img">
{_ARROW_HEAD}
{drawn}
</svg>"""


def _groups(diagram: Diagram, layout: Layout) -> list[str]:
    parts = []
    for name, label in diagram.groups.items():
        area = layout.groups[name]
        parts.append(
            f'<rect class="group" rx="8" x="{area.x:.1f}" y="{area.y:.1f}"'
            f' width="{area.width:.1f}" height="{area.height:.1f}"/>'
        )
        parts.append(_text(Point(area.x + 8, area.y + LINE * 0.7), label, "group-name"))
    return parts


def _box(box: Box, area: Area) -> str:
    middle = Point(area.x + area.width / 2, area.y + area.height / 2)
    shape = f'<polygon class="box {box.shape}" points="{_corners(box, area)}"/>'
    title = f"<title>{escape(box.id)}</title>"
    if not box.detail:
        return f"<g>{title}{shape}{_text(middle, box.label)}</g>"
    label = _text(Point(middle.x, middle.y - LINE / 2), box.label)
    detail = _text(Point(middle.x, middle.y + LINE / 2), box.detail, "detail")
    return f"<g>{title}{shape}{label}{detail}</g>"


def _corners(box: Box, area: Area) -> str:
    """A source is wide above, a sink is wide below, all else is straight."""
    above = _SLANT if box.shape == "sink" else 0.0
    below = _SLANT if box.shape == "source" else 0.0
    left, right, top, bottom = area.x, area.x + area.width, area.y, area.y + area.height
    corners = [(left + above, top), (right - above, top), (right - below, bottom), (left + below, bottom)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _arrow(route: Route) -> str:
    first = route.points[0]
    path = f"M{first.x:.1f} {first.y:.1f}"
    for here, there in pairwise(route.points):
        if here.x == there.x or here.y == there.y:
            path += f" L{there.x:.1f} {there.y:.1f}"
        else:
            # Upright at both ends, so that arrows leave boxes, pass labels and arrive straight.
            half = (here.y + there.y) / 2
            path += f" C{here.x:.1f} {half:.1f} {there.x:.1f} {half:.1f} {there.x:.1f} {there.y:.1f}"
    return f'<path class="arrow" marker-end="url(#head)" d="{path}"/>'


def _text(at: Point, text: str, kind: str = "name") -> str:
    return f'<text class="{kind}" x="{at.x:.1f}" y="{at.y:.1f}">{escape(text)}</text>'
