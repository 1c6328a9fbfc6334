"""The graph of a plan as the REST API has it."""

from __future__ import annotations

from typing import Any

from headrace.engine.stages import cut_stages
from headrace.model.plan import Edge, Plan, PlanNode


def graph_of(plan: Plan, *, parallelism: int) -> dict[str, Any]:
    """Nodes with numbers, and edges between them; `id`, `stage` and `chain` are Headrace's own."""
    stages = cut_stages(plan, parallelism=parallelism)
    chains = {node: chain for chain in stages.chains for node in chain.nodes}
    numbers = {node.id: number for number, node in enumerate(plan.nodes)}
    nodes = [
        {
            "node_id": numbers[node.id],
            "operator": node.operator,
            "description": _description(node),
            "parallelism": chains[node.id].parallelism if chains[node.id].stage else parallelism,
            "id": node.id,
            "stage": chains[node.id].stage,
            "chain": chains[node.id].index,
        }
        for node in plan.nodes
    ]
    edges = [
        {
            "src_id": numbers[edge.source],
            "dest_id": numbers[edge.target],
            "key_type": ", ".join(edge.keys),
            "value_type": "updates" if edge.source in plan.updating else "rows",
            "edge_type": _edge_type(edge),
        }
        for edge in plan.edges
    ]
    return {"nodes": nodes, "edges": edges}


def _description(node: PlanNode) -> str:
    text = node.id if node.display == node.id else f"{node.id}: {node.display}"
    return f"{text} (sink)" if node.role == "sink" and "sink" not in text.lower() else text


def _edge_type(edge: Edge) -> str:
    return {"forward": "Forward", "shuffle": "Shuffle", "broadcast": "Broadcast"}[edge.kind]
