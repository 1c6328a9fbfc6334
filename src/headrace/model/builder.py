"""Builds a plan node by node: operators as objects or by name, and the edges between them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.base.columns import RETRACT
from headrace.base.errors import PlanError
from headrace.base.options import Options
from headrace.base.secrets import Secrets
from headrace.model.operator import ArrowOperator, SourceOperator
from headrace.model.plan import Edge, EdgeKind, Plan, PlanNode, Role
from headrace.model.registry import registry
from headrace.state.config import TableConfig


@dataclass(frozen=True)
class Port:
    """Where rows come from, and how they reach the next operator."""

    node: str
    kind: EdgeKind = "forward"
    keys: tuple[str, ...] = ()
    output: str = ""
    """Which of the operator's outputs; by default the unnamed one."""


class PlanBuilder:
    """Builds the plan of a pipeline; the SQL, Python and YAML front ends all use it."""

    def __init__(self, name: str, *, secrets: Secrets | None = None) -> None:
        if not name or any(c in name for c in "/\\ \t\n"):
            raise PlanError(f"`{name}` cannot name a pipeline", hint="use letters, digits, `-`, `_` and `.`")
        self.name = name
        self._hide = (secrets or Secrets()).hide
        self._nodes: list[PlanNode] = []
        self._edges: list[Edge] = []
        self._claims: dict[str, PlanNode] = {}

    def add(
        self,
        role: Role,
        what: str | ArrowOperator | SourceOperator,
        inputs: Sequence[Sequence[Port]],
        *,
        id: str | None = None,  # noqa: A002 - the word the whole product uses
        options: Mapping[str, Any] | None = None,
        max_parallelism: int | None = None,
        details: Mapping[str, str] | None = None,
        derivation: str = "",
    ) -> Port:
        """Add an operator, as an object or by its registered name, downstream of its inputs.

        Each input is the ports whose rows it takes; several are a union. `max_parallelism` limits an operator
        that is to be chained to one with few subtasks. `details` are shown with the plan; `derivation` says
        what a query computes up to here.
        """
        operator, kind = _build(role, what, options or {})
        node = _node(role, operator, kind, self._new_id(kind, id))
        node = replace(node, max_parallelism=max_parallelism or node.max_parallelism)
        config = (*node.config, *(details or {}).items())
        masked = tuple((key, self._hide(text)) for key, text in config)
        node = replace(node, display=self._hide(node.display), config=masked, derivation=derivation)
        self._claim(node, operator.claims())
        self._nodes.append(node)
        for index, ports in enumerate(inputs):
            for port in ports:
                self._edges.append(
                    Edge(
                        source=port.node,
                        target=node.id,
                        kind=port.kind,
                        keys=port.keys,
                        input=index,
                        index=len(self._edges),
                        output=port.output,
                    )
                )
        return Port(node.id)

    def _claim(self, node: PlanNode, claims: Sequence[str]) -> None:
        """Refuse two sinks that write the same thing, and a sink that writes what is read."""
        for claim in claims:
            other = self._claims.get(claim)
            if other is None or (other.role == node.role == "source"):
                self._claims[claim] = node
            elif "source" in (other.role, node.role):
                raise PlanError(
                    f"`{other.id}` and `{node.id}` read and write {claim}",
                    hint="write to another file: rows would be lost while they are read",
                )
            else:
                raise PlanError(
                    f"`{other.id}` and `{node.id}` both write {claim}",
                    hint="give each sink its own, or bring the rows together with `union` before one sink",
                )

    def _new_id(self, kind: str, node_id: str | None) -> str:
        used = {node.id for node in self._nodes}
        if node_id is not None:
            if not node_id or any(not (c.isalnum() or c in "_-.") for c in node_id):
                raise PlanError(f"`{node_id}` cannot be an id", hint="use letters, digits, `-`, `_` and `.`")
            if node_id in used:
                raise PlanError(f"there is already an operator with the id `{node_id}`")
            return node_id
        base = "".join(c if c.isalnum() or c in "_-" else "_" for c in kind) or "operator"
        number = 1
        while f"{base}_{number}" in used:
            number += 1
        return f"{base}_{number}"

    @classmethod
    def of(cls, plan: Plan) -> PlanBuilder:
        """A builder with the nodes and edges of a plan, to add others."""
        builder = cls(plan.name)
        builder._nodes, builder._edges = list(plan.nodes), list(plan.edges)
        return builder

    def replace(self, node_id: str, what: ArrowOperator | SourceOperator) -> None:
        """Put another operator in the place of one; its id, its role and its edges stay."""
        index = next(index for index, node in enumerate(self._nodes) if node.id == node_id)
        self._nodes[index] = _node(self._nodes[index].role, what, what.name, node_id)

    def copy(self) -> PlanBuilder:
        """Another builder with everything that has been added so far."""
        duplicate = copy.copy(self)
        vars(duplicate).update(_nodes=list(self._nodes), _edges=list(self._edges), _claims=dict(self._claims))
        return duplicate

    def plan(self) -> Plan:
        """The plan of all operators added so far; raises a PlanError if it cannot run."""
        return Plan(name=self.name, nodes=tuple(self._nodes), edges=tuple(self._edges))


def _build(
    role: Role, what: str | ArrowOperator | SourceOperator, options: Mapping[str, Any]
) -> tuple[ArrowOperator | SourceOperator, str]:
    if isinstance(what, str):
        return registry.build(role, what, options), what
    expected = SourceOperator if role == "source" else ArrowOperator
    if isinstance(what, type):
        raise PlanError(
            f"`{what.__name__}` is a class; an object is needed", hint=f"write `{what.__name__}(...)`"
        )
    if not isinstance(what, expected):
        raise PlanError(
            f"{role}: expected a name or an object of {expected.__name__}, got {type(what).__name__} {what!r}"
        )
    if options:
        raise PlanError(
            f"options {', '.join(options)} were given with an object",
            hint="options go with a name; give an object its options when you make it",
        )
    return what, what.name


def _node(role: Role, operator: ArrowOperator | SourceOperator, kind: str, node_id: str) -> PlanNode:
    tick = None
    if isinstance(operator, ArrowOperator) and operator.tick_interval is not None:
        tick = operator.tick_interval.total_seconds()
        if tick <= 0:
            raise PlanError(f"the tick_interval of `{node_id}` must be greater than zero")
    arrow = operator if isinstance(operator, ArrowOperator) else None
    tables = () if arrow is None else _tables(arrow, node_id)
    if arrow is not None and (signature := arrow.state_signature()):
        tables = tuple(replace(table, state_signature=signature) for table in tables)
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise PlanError(f"operator `{node_id}` declares two tables of the same name: {names}")
    return PlanNode(
        id=node_id,
        role=role,
        operator=kind,
        display=operator.display(),
        config=() if arrow is None else tuple(arrow.details().items()),
        tables=tables,
        stateless=arrow is not None and arrow.stateless,
        max_parallelism=None if arrow is None else arrow.max_parallelism,
        tick=tick,
        ends=arrow is not None and arrow.ends_run,
        stops=arrow is not None and type(arrow).handle_stop is not ArrowOperator.handle_stop,
        emits_updates=_emits_updates(operator),
        payload=_pickle(operator, node_id),
    )


def _emits_updates(operator: ArrowOperator | SourceOperator) -> bool | None:
    """Whether rows of an operator may be taken back, by its schema or, of a source, by its options."""
    if isinstance(operator, SourceOperator):
        is_updating, options = getattr(operator, "is_updating", None), getattr(operator, "options", None)
        return (
            isinstance(options, Options)
            and is_updating is not None
            and bool(is_updating(options.model_dump(by_alias=True)))
        )
    output = getattr(operator, "output", None)
    return RETRACT in output.names if isinstance(output, pa.Schema) else None


def _tables(operator: ArrowOperator, node_id: str) -> tuple[TableConfig, ...]:
    declared = operator.tables()
    if isinstance(declared, list | tuple) and all(isinstance(table, TableConfig) for table in declared):
        return tuple(declared)
    raise PlanError(
        f"tables() of `{node_id}` must return a list of tables, got {declared!r}",
        hint="return [hr.keyed_table_config(...), ...], or leave tables() out",
    )


def _pickle(operator: object, node_id: str) -> bytes:
    try:
        payload: bytes = cloudpickle.dumps(operator)
    except Exception as error:
        culprit = ""
        for name, value in getattr(operator, "__dict__", {}).items():
            try:
                cloudpickle.dumps(value)
            except Exception:  # noqa: BLE001 - whatever pickling raises, this is the attribute
                culprit = f": its attribute `{name}` ({type(value).__name__}) cannot be pickled"
                break
        raise PlanError(
            f"operator `{node_id}` cannot be sent to the workers{culprit}",
            hint="make connections, locks, files and models in on_start, or through ctx.resource(...)",
        ) from error
    return payload
