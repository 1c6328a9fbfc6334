"""A plan is cut into chains and stages.

A chain is a set of operators joined by forward edges: one task runs them by direct calls. Chains that
start at a source are stage 0 and hold only stateless operators behind it. Every other chain runs one
stage after the deepest chain it reads from, so the stages form one straight line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headrace.model.plan import Edge, Plan, PlanNode


@dataclass(frozen=True)
class Chain:
    """Operators that one task runs by direct calls, in topological order."""

    index: int
    stage: int
    parallelism: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Crossing:
    """An edge between two chains: its rows travel in envelopes."""

    index: int
    edge: Edge
    chain: int
    """The chain that receives."""
    stage: int
    parallelism: int


@dataclass(frozen=True)
class StagePlan:
    """A plan with its chains, its stages and the crossings between them, at one parallelism."""

    plan: Plan
    parallelism: int
    chains: tuple[Chain, ...]
    crossings: tuple[Crossing, ...]

    @cached_property
    def depth(self) -> int:
        """The number of the last stage; 0 when everything runs in the sources' tasks."""
        return max((chain.stage for chain in self.chains), default=0)

    @cached_property
    def _by_stage(self) -> Mapping[int, tuple[Chain, ...]]:
        return {
            stage: tuple(chain for chain in self.chains if chain.stage == stage)
            for stage in range(self.depth + 1)
        }

    @cached_property
    def _crossings_out(self) -> Mapping[str, tuple[Crossing, ...]]:
        return {
            node.id: tuple(c for c in self.crossings if c.edge.source == node.id) for node in self.plan.nodes
        }

    def at(self, stage: int) -> tuple[Chain, ...]:
        """The chains of one stage."""
        return self._by_stage[stage]

    def width(self, stage: int) -> int:
        """How many partitions a stage needs: enough for its own chains and the deeper ones."""
        return max(chain.parallelism for chain in self.chains if chain.stage >= stage)

    def width_after(self, stage: int) -> int:
        """How many partitions the next stage has; the driver is one."""
        return self.width(stage + 1) if stage < self.depth else 1

    def crossings_from(self, node_id: str) -> tuple[Crossing, ...]:
        """The crossings that leave a node."""
        return self._crossings_out[node_id]

    @cached_property
    def sources(self) -> tuple[PlanNode, ...]:
        return tuple(node for node in self.plan.nodes if node.role == "source")

    @cached_property
    def stage0(self) -> frozenset[str]:
        """The nodes that run in the tasks of the sources."""
        return frozenset(node for chain in self.at(0) for node in chain.nodes)

    @cached_property
    def _origins(self) -> Mapping[str, frozenset[str]]:
        """The sources whose rows reach each stage-0 node."""
        origins: dict[str, frozenset[str]] = {}
        for node in self.plan.nodes:
            if node.id in self.stage0:
                sources = {node.id} if node.role == "source" else set()
                for edge in self.plan.inputs(node.id):
                    sources |= origins[edge.source]
                origins[node.id] = frozenset(sources)
        return origins

    def origins(self, node_id: str) -> frozenset[str]:
        """The sources whose rows leave stage 0 through this node."""
        return self._origins[node_id]

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_json(),
            "parallelism": self.parallelism,
            "chains": [
                {
                    "index": chain.index,
                    "stage": chain.stage,
                    "parallelism": chain.parallelism,
                    "operators": list(chain.nodes),
                }
                for chain in self.chains
            ],
        }


def cut_stages(plan: Plan, *, parallelism: int) -> StagePlan:
    """Cut a plan into chains and stages for a run with this many subtasks."""
    in_source_chain: set[str] = set()
    for node in plan.nodes:
        inputs = plan.inputs(node.id)
        if node.role == "source" or (
            node.stateless
            and all(edge.kind == "forward" and edge.source in in_source_chain for edge in inputs)
        ):
            in_source_chain.add(node.id)

    # Stage 0: one chain per source with everything stateless behind it. A node behind two sources
    # (a union) is part of both chains: it keeps no state, so it can run in either task.
    members: list[list[str]] = []
    stages: list[int] = []
    widths: list[int] = []
    chain_of: dict[str, int] = {}
    for source in plan.nodes:
        if source.role != "source":
            continue
        reach = {source.id}
        for node in plan.nodes:
            if node.id in in_source_chain and any(e.source in reach for e in plan.inputs(node.id)):
                reach.add(node.id)
        members.append([node.id for node in plan.nodes if node.id in reach])
        stages.append(0)
        widths.append(parallelism)
        for node_id in reach:
            chain_of[node_id] = len(members) - 1

    for node in plan.nodes:
        if node.id in in_source_chain:
            continue
        width = min(parallelism, node.max_parallelism or parallelism)
        inputs = plan.inputs(node.id)
        upstream = sorted({chain_of[edge.source] for edge in inputs})
        first = upstream[0]
        if (
            stages[first] > 0
            and all(stages[chain] == stages[first] and widths[chain] == width for chain in upstream)
            and all(edge.kind == "forward" for edge in inputs)
        ):
            # Chains of one stage that lead to the same operator are one.
            for other in upstream[1:]:
                members[first] += members[other]
                members[other] = []
            members[first].append(node.id)
            chain_of |= dict.fromkeys(members[first], first)
        else:
            members.append([node.id])
            stages.append(1 + max(stages[chain] for chain in upstream))
            widths.append(width)
            chain_of[node.id] = len(members) - 1

    position = {node.id: number for number, node in enumerate(plan.nodes)}
    in_use = [number for number, nodes in enumerate(members) if nodes]
    chains = tuple(
        Chain(
            index=index,
            stage=stages[number],
            parallelism=widths[number],
            nodes=tuple(sorted(members[number], key=position.__getitem__)),
        )
        for index, number in enumerate(in_use)
    )
    index_of = {number: index for index, number in enumerate(in_use)}
    crossings: list[Crossing] = []
    for edge in plan.edges:
        if edge.target in in_source_chain or chain_of[edge.source] == chain_of[edge.target]:
            continue
        target = chains[index_of[chain_of[edge.target]]]
        crossings.append(
            Crossing(
                index=len(crossings),
                edge=edge,
                chain=target.index,
                stage=target.stage,
                parallelism=target.parallelism,
            )
        )
    return StagePlan(plan=plan, parallelism=parallelism, chains=chains, crossings=tuple(crossings))
