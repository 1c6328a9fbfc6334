"""Renders a plan as text, as a Mermaid graph or as JSON."""

from __future__ import annotations

import json

from headrace.base.durations import format_duration
from headrace.engine.stages import Chain, StagePlan
from headrace.model.plan import Edge, PlanNode


def explain_text(stages: StagePlan) -> str:
    """Stage by stage, chain by chain: operators, what they read and the state they keep."""
    plan = stages.plan
    count = "1 stage" if stages.depth == 0 else f"{stages.depth + 1} stages"
    lines = [f"pipeline {plan.name} · parallelism {stages.parallelism} · {count}"]
    for stage in range(stages.depth + 1):
        tasks = "one task per split" if stage == 0 else f"{stages.width(stage)} subtasks"
        lines.append(f"stage {stage} ({tasks})")
        for chain in stages.at(stage):
            lines.append(f"  chain {chain.index}" + (f" ×{chain.parallelism}" if stage else ""))
            lines.extend(_node_lines(stages, chain))
    return "\n".join(lines)


def _node_lines(stages: StagePlan, chain: Chain) -> list[str]:
    lines = []
    for node_id in chain.nodes:
        node = stages.plan.by_id[node_id]
        inputs = stages.plan.inputs(node_id)
        reads = "" if not inputs else " ← " + ", ".join(_edge_text(edge) for edge in inputs)
        shown = "" if node.display == node.id else f" {node.display}"
        lines.append(f"    {node.id}{shown}{reads}")
        lines += [f"      {name}: {text}" for name, text in node.config]
        for table in node.tables:
            detail: list[str] = [table.kind]
            if table.key:
                detail.append(f"key ({', '.join(table.key)})")
            if table.retention is not None:
                detail.append(f"retention {format_duration(table.retention)}")
            if table.version != 1:
                detail.append(f"version {table.version}")
            lines.append(f"      state {table.name}: {', '.join(detail)}")
    return lines


def _edge_text(edge: Edge) -> str:
    if edge.kind == "shuffle":
        return f"{edge.source} by ({', '.join(edge.keys)})"
    return edge.source if edge.kind == "forward" else f"{edge.source} to all"


def explain_mermaid(stages: StagePlan) -> str:
    """The plan as a Mermaid flowchart; a box around operators is a chain."""
    lines = ["flowchart LR"]
    seen: set[str] = set()
    for chain in stages.chains:
        lines.append(f'  subgraph c{chain.index}["stage {chain.stage}"]')
        for node_id in chain.nodes:
            if node_id not in seen:
                seen.add(node_id)
                lines.append(f"    {_mermaid_node(stages.plan.by_id[node_id])}")
        lines.append("  end")
    for edge in stages.plan.edges:
        label = f"|{_escape(', '.join(edge.keys) or 'all to one')}|" if edge.kind == "shuffle" else ""
        arrow = "==>" if edge.kind == "broadcast" else "-->"
        lines.append(f"  {_mermaid_id(edge.source)} {arrow}{label} {_mermaid_id(edge.target)}")
    return "\n".join(lines)


def _mermaid_node(node: PlanNode) -> str:
    text = _escape(node.id)
    for table in node.tables:
        text += f"<br/>state {_escape(table.name)}"
    shape = {"source": ("([", "])"), "operator": ("[", "]"), "sink": ("[[", "]]")}[node.role]
    return f'{_mermaid_id(node.id)}{shape[0]}"{text}"{shape[1]}'


def _mermaid_id(name: str) -> str:
    return "n_" + "".join(c if c.isalnum() else "_" for c in name)


def _escape(text: str) -> str:
    return text.replace('"', "#quot;").replace("|", "#124;")


def explain_json(stages: StagePlan, *, spark: str | None = None) -> str:
    """The plan and its stages as JSON, with Spark's own plan as a string if there is one."""
    shown = {} if spark is None else {"spark": spark}
    return json.dumps(stages.to_json() | shown, indent=2)
