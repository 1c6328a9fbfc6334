"""A self-contained HTML page: a diagram, and below it the plans as text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import pairwise

from headrace.dataflow.plan.diagram import Box, Diagram
from headrace.dataflow.plan.layout import LINE, Cell, Point, Route, lay_out, lines_of

_EDGE = 16.0
_STYLE = """
:root { color-scheme: light dark; --line: #64748b; --text: #1e293b; --paper: #ffffff; --quote: #f1f5f9;
  --source: #dcfce7; --operator: #e0f2fe; --sink: #fef3c7; }
@media (prefers-color-scheme: dark) {
  :root { --line: #94a3b8; --text: #e2e8f0; --paper: #0f172a; --quote: #1e293b;
    --source: #14532d; --operator: #0c4a6e; --sink: #713f12; } }
body { margin: 2rem; background: var(--paper); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; }
svg { max-width: 100%; height: auto; }
svg text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: var(--text);
  text-anchor: middle; dominant-baseline: central; }
svg .detail { font-size: 10.5px; opacity: 0.75; }
svg .box { stroke: var(--line); }
svg .source { fill: var(--source); }
svg .operator { fill: var(--operator); }
svg .sink { fill: var(--sink); }
svg .arrow { fill: none; stroke: var(--line); stroke-width: 1.3; }
svg .label { font-size: 11px; font-style: italic; }
.head { fill: var(--line); }
pre { overflow-x: auto; background: var(--quote); padding: 0.8rem; border-radius: 6px; }
.key span { padding: 0.1rem 0.6rem; margin-right: 0.6rem; border: 1px solid var(--line); color: var(--text); }
"""
_ARROW_HEAD = """<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7"
  markerHeight="7" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>"""


def diagram_page(title: str, diagram: Diagram, texts: Mapping[str, str]) -> str:
    """The HTML page: the diagram, and each plan in a collapsed section."""
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
    layout = lay_out(diagram)
    width, height = layout.width + 2 * _EDGE, layout.height + 2 * _EDGE
    drawn = "\n".join(
        [
            *(_arrow(route) for route in layout.arrows),
            *(_box(box, layout.boxes[box.id], diagram) for box in diagram.boxes),
            *(
                _text(route.label, arrow.label, "label")
                for arrow, route in zip(diagram.arrows, layout.arrows, strict=True)
                if arrow.label
            ),
        ]
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"
  viewBox="{-_EDGE:g} {-_EDGE:g} {width:.1f} {height:.1f}" role="img">
{_ARROW_HEAD}
{drawn}
</svg>"""


def _box(box: Box, cell: Cell, diagram: Diagram) -> str:
    top = cell.y + cell.text + LINE / 2
    texts = [
        _text(Point(cell.middle, top + number * LINE), line, "detail" if number else "name")
        for number, line in enumerate(lines_of(box, diagram))
    ]
    return (
        f'<g><title>{escape(box.id)}</title><rect class="box {box.shape}" rx="6" x="{cell.x:.1f}"'
        f' y="{cell.y:.1f}" width="{cell.width:.1f}" height="{cell.height:.1f}"/>{"".join(texts)}</g>'
    )


def _arrow(route: Route) -> str:
    first = route.points[0]
    path = f"M{first.x:.1f} {first.y:.1f}"
    for here, there in pairwise(route.points):
        if here.x == there.x or here.y == there.y:
            path += f" L{there.x:.1f} {there.y:.1f}"
        else:
            # Upright at both ends, so that arrows leave boxes and arrive straight.
            half = (here.y + there.y) / 2
            path += f" C{here.x:.1f} {half:.1f} {there.x:.1f} {half:.1f} {there.x:.1f} {there.y:.1f}"
    return f'<path class="arrow" marker-end="url(#head)" d="{path}"/>'


def _text(at: Point, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{at.x:.1f}" y="{at.y:.1f}">{escape(text)}</text>'
