"""A plan as a small piece of HTML, for notebooks."""

from __future__ import annotations

import html

from headrace.engine.stages import StagePlan
from headrace.model.plan import Edge

_BOX = "border:1px solid #8888;border-radius:4px;padding:2px 8px;margin:4px 0"
_COLUMNS = "display:flex;gap:24px;align-items:flex-start;overflow-x:auto"


def stages_html(stages: StagePlan) -> str:
    """The stages of a plan side by side, with a box for each chain and what its operators read."""
    columns = "".join(_stage(stages, number) for number in range(stages.depth + 1))
    return f"<div><b>{html.escape(stages.plan.name)}</b><div style='{_COLUMNS}'>{columns}</div></div>"


def _stage(stages: StagePlan, number: int) -> str:
    boxes = []
    for chain in stages.at(number):
        lines = "".join(_node(stages, node_id) for node_id in chain.nodes)
        boxes.append(f"<div style='{_BOX}'>{lines}</div>")
    return f"<div><small>stage {number}</small>{''.join(boxes)}</div>"


def _node(stages: StagePlan, node_id: str) -> str:
    node = stages.plan.by_id[node_id]
    reads = ", ".join(_edge(edge) for edge in stages.plan.inputs(node_id))
    state = "".join(f" · state {table.name}" for table in node.tables)
    about = f"<small>{html.escape(f' ← {reads}' if reads else '')}{html.escape(state)}</small>"
    return f"<div title='{html.escape(node.display)}'><code>{html.escape(node_id)}</code>{about}</div>"


def _edge(edge: Edge) -> str:
    return f"{edge.source} by ({', '.join(edge.keys)})" if edge.kind == "shuffle" else edge.source
