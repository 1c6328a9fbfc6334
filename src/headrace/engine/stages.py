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

from headrace.engine.taps import Tap
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
    taps: tuple[Tap, ...] = ()
    """The outputs of operators that tasks sample."""

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

    @cached_property
    def crossing_of(self) -> Mapping[Edge, int]:
        """The number of the crossing that an edge is."""
        return {crossing.edge: crossing.index for crossing in self.crossings}

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
    cut = _Cut(plan, parallelism)
    for node in plan.nodes:
        if node.role == "source":
            cut.add_source(node)
    for node in plan.nodes:
        if node.id not in cut.with_sources:
            cut.add(node)
    return cut.result()


class _Cut:
    """The chains of a plan while it is cut. Chains that have become part of another one are left empty."""

    def __init__(self, plan: Plan, parallelism: int) -> None:
        self._plan = plan
        self._parallelism = parallelism
        self._members: list[list[str]] = []
        self._stages: list[int] = []
        self._widths: list[int] = []
        self._chain_of: dict[str, int] = {}
        self.with_sources: set[str] = set()
        """Nodes that run in the tasks of sources: the sources, and what is stateless behind them."""
        for node in plan.nodes:
            if node.role == "source" or (
                node.stateless
                and all(
                    edge.kind == "forward" and edge.source in self.with_sources
                    for edge in plan.inputs(node.id)
                )
            ):
                self.with_sources.add(node.id)

    def add_source(self, source: PlanNode) -> None:
        """Add a chain of stage 0: a source with everything stateless behind it.

        A node behind two sources (a union) is part of both chains: it keeps no state, so it can run in either
        task.
        """
        reach = {source.id}
        for node in self._plan.nodes:
            if node.id in self.with_sources and any(e.source in reach for e in self._plan.inputs(node.id)):
                reach.add(node.id)
        self._open([node.id for node in self._plan.nodes if node.id in reach], 0, self._parallelism)

    def add(self, node: PlanNode) -> None:
        """Add a node behind the nodes before it: to their chain, if it can run there, or to a new one."""
        width = min(self._parallelism, node.max_parallelism or self._parallelism)
        inputs = self._plan.inputs(node.id)
        upstream = sorted({self._chain_of[edge.source] for edge in inputs})
        first = upstream[0]
        stages, widths = self._stages, self._widths
        if (
            stages[first] > 0
            and all(stages[chain] == stages[first] and widths[chain] == width for chain in upstream)
            and all(edge.kind == "forward" for edge in inputs)
        ):
            # Chains of one stage that lead to the same operator are one.
            for other in upstream[1:]:
                self._members[first] += self._members[other]
                self._members[other] = []
            self._members[first].append(node.id)
            self._chain_of |= dict.fromkeys(self._members[first], first)
        else:
            self._open([node.id], 1 + max(stages[chain] for chain in upstream), width)

    def _open(self, nodes: list[str], stage: int, width: int) -> None:
        self._chain_of |= dict.fromkeys(nodes, len(self._members))
        self._members.append(nodes)
        self._stages.append(stage)
        self._widths.append(width)

    def result(self) -> StagePlan:
        """The plan with its chains, and the edges between them."""
        position = {node.id: number for number, node in enumerate(self._plan.nodes)}
        in_use = [number for number, nodes in enumerate(self._members) if nodes]
        chains = tuple(
            Chain(
                index=index,
                stage=self._stages[number],
                parallelism=self._widths[number],
                nodes=tuple(sorted(self._members[number], key=position.__getitem__)),
            )
            for index, number in enumerate(in_use)
        )
        chain_at = dict(zip(in_use, chains, strict=True))
        crossings: list[Crossing] = []
        for edge in self._plan.edges:
            source, target = self._chain_of[edge.source], self._chain_of[edge.target]
            if edge.target in self.with_sources or source == target:
                continue
            receiver = chain_at[target]
            crossings.append(
                Crossing(
                    index=len(crossings),
                    edge=edge,
                    chain=receiver.index,
                    stage=receiver.stage,
                    parallelism=receiver.parallelism,
                )
            )
        return StagePlan(
            plan=self._plan, parallelism=self._parallelism, chains=chains, crossings=tuple(crossings)
        )
