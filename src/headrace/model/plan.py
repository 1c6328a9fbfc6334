"""The plan of a pipeline as data: nodes are operators, edges are the connections between them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from headrace.base.errors import PlanError
from headrace.state.config import TableConfig

Role = Literal["source", "operator", "sink"]
EdgeKind = Literal["forward", "shuffle", "broadcast"]


@dataclass(frozen=True)
class PlanNode:
    """One operator of a plan.

    `payload` is the pickled operator and takes no part in comparisons. `stateless` says that the operator
    keeps nothing between batches of different tasks, so it may run inside the task of a source.
    """

    id: str
    role: Role
    operator: str
    display: str
    config: tuple[tuple[str, str], ...] = ()
    tables: tuple[TableConfig, ...] = ()
    stateless: bool = False
    max_parallelism: int | None = None
    tick: float | None = None
    ends: bool = False
    """Whether it says when it is done: the run ends when all such operators are."""
    stops: bool = False
    """Whether it needs one more epoch when the run is asked to stop."""
    emits_updates: bool | None = None
    """Whether its rows may be taken back (`_retract`); None if nothing says so."""
    derivation: str = field(default="", compare=False, repr=False)
    """What a query computes up to this operator, from the streams and tables that it reads."""
    payload: bytes = field(default=b"", compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "role": self.role,
            "operator": self.operator,
            "display": self.display,
            "config": dict(self.config),
            "tables": [table.to_json() for table in self.tables],
            "stateless": self.stateless,
            "max_parallelism": self.max_parallelism,
        }


@dataclass(frozen=True)
class Edge:
    """Rows of `source` reach input number `input` of `target`."""

    source: str
    target: str
    kind: EdgeKind = "forward"
    keys: tuple[str, ...] = ()
    input: int = 0
    index: int = 0
    """The number of the edge in its plan: two edges between the same nodes are two edges."""
    output: str = ""
    """Which output of `source` it carries, for an operator that has several."""

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "kind": self.kind,
            "keys": list(self.keys),
            "input": self.input,
            **({"output": self.output} if self.output else {}),
        }


@dataclass(frozen=True)
class Plan:
    """A directed acyclic graph of operators."""

    name: str
    nodes: tuple[PlanNode, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise PlanError(f"pipeline `{self.name}` is empty", hint="start it with `pipeline.source(...)`")
        seen: set[str] = set()
        for node in self.nodes:
            if node.id in seen:
                raise PlanError(
                    f"two operators of pipeline `{self.name}` have the id `{node.id}`",
                    hint="ids name the state of an operator: give each its own",
                )
            seen.add(node.id)
        for node in self.nodes:
            if node.role == "source" and not self.outputs(node.id):
                raise PlanError(
                    f"nothing reads the source `{node.id}`",
                    hint="send it to a sink, for example with `.sink('stdout')`",
                )
        if not any(node.role == "sink" for node in self.nodes):
            raise PlanError(
                f"pipeline `{self.name}` has no sink",
                hint="end it with `.sink('stdout')`, `.sink('blackhole')` or another sink",
            )
        self._check_order()
        self._check_keys()

    def _check_order(self) -> None:
        placed: set[str] = set()
        for node in self.nodes:
            for edge in self.inputs(node.id):
                if edge.source not in placed:
                    raise PlanError(f"operator `{node.id}` reads `{edge.source}` before it exists")
            placed.add(node.id)

    def _check_keys(self) -> None:
        """Keyed state needs keyed input: otherwise the rows of a key would be in several subtasks."""
        keyed: set[str] = set()
        for node in self.nodes:
            if any(edge.kind == "shuffle" or edge.source in keyed for edge in self.inputs(node.id)):
                keyed.add(node.id)
                continue
            for table in node.tables:
                if table.key:
                    columns = ", ".join(f'"{column}"' for column in table.key)
                    raise PlanError(
                        f"`{node.id}` keeps table `{table.name}` by key, but its rows do not come by key",
                        hint=f"write `.key_by({columns})` before it",
                    )

    @cached_property
    def by_id(self) -> Mapping[str, PlanNode]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def _inputs(self) -> Mapping[str, tuple[Edge, ...]]:
        return {
            node.id: tuple(sorted((e for e in self.edges if e.target == node.id), key=lambda e: e.input))
            for node in self.nodes
        }

    @cached_property
    def _outputs(self) -> Mapping[str, tuple[Edge, ...]]:
        return {n.id: tuple(e for e in self.edges if e.source == n.id) for n in self.nodes}

    def inputs(self, node_id: str) -> tuple[Edge, ...]:
        """The edges into a node, by input index."""
        return self._inputs[node_id]

    def input_count(self, node_id: str) -> int:
        """The number of inputs of a node; a union is several edges into one input."""
        return 1 + max((edge.input for edge in self.inputs(node_id)), default=0)

    def outputs(self, node_id: str) -> tuple[Edge, ...]:
        """The edges out of a node."""
        return self._outputs[node_id]

    def routing(self, node_id: str) -> str:
        """How rows are routed to a node, input by input, as a string; a union counts as one input."""
        routes_by_input: dict[int, list[str]] = {}
        for edge in self.inputs(node_id):
            route = f"shuffle({', '.join(edge.keys)})" if edge.kind == "shuffle" else edge.kind
            routes = routes_by_input.setdefault(edge.input, [])
            if route not in routes:
                routes.append(route)
        return " | ".join(" + ".join(sorted(routes)) for _, routes in sorted(routes_by_input.items()))

    def fingerprint(self, node_id: str) -> str:
        """A hash of what a node's saved state depends on: its kind, its tables and the routing to it."""
        node = self.by_id[node_id]
        tables = [
            [
                table.name,
                table.kind,
                table.version,
                list(table.key),
                None if table.schema is None else [[f.name, str(f.type)] for f in table.schema],
                table.generational,
                table.order_by,
                list(table.route),
                table.state_signature,
            ]
            for table in sorted(node.tables, key=lambda table: table.name)
        ]
        shape = json.dumps([node.operator, self.routing(node_id), tables])
        return hashlib.sha256(shape.encode()).hexdigest()[:16]

    @cached_property
    def lineages(self) -> Mapping[str, str]:
        """For each node a hash of what its rows are computed from, whatever the ids of operators are."""
        lineages: dict[str, str] = {}
        origins: dict[str, set[str]] = {}
        """Of the nodes of queries: what the queries read."""
        for node in self.nodes:
            edges = self.inputs(node.id)
            if node.derivation:
                sources = [
                    {lineages[e.source]} if e.source not in origins else origins[e.source] for e in edges
                ]
                origins[node.id] = set().union(*sources)
                content: Any = [node.operator, node.derivation, sorted(origins[node.id])]
            else:
                inputs = [[e.input, e.kind, list(e.keys), e.output, lineages[e.source]] for e in edges]
                content = [node.operator, node.display, [list(item) for item in node.config], inputs]
            lineages[node.id] = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
        return lineages

    @cached_property
    def updating(self) -> frozenset[str]:
        """The nodes whose rows may be taken back; what nothing is known of passes on what it reads."""
        nodes: set[str] = set()
        for node in self.nodes:
            passes_on = not node.tables and any(edge.source in nodes for edge in self.inputs(node.id))
            if passes_on if node.emits_updates is None else node.emits_updates:
                nodes.add(node.id)
        return frozenset(nodes)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "nodes": [node.to_json() for node in self.nodes],
            "edges": [edge.to_json() for edge in self.edges],
        }
