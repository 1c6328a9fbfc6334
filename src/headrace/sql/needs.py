"""Which columns of each relation anything reads: the others are neither read nor carried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.sql.logical import (
    Aggregate,
    AsyncCalls,
    Expression,
    Item,
    Join,
    LookupJoin,
    Map,
    Ordered,
    Relation,
    TableCall,
    WindowCalls,
    inputs_of,
)


@dataclass(frozen=True)
class Needs:
    """What is needed of relations: their columns, and by how many others."""

    columns: dict[Relation, set[str]] = field(default_factory=dict)
    readers: dict[Relation, int] = field(default_factory=dict)


def find_needs(roots: Sequence[Relation]) -> Needs:
    """What `roots`, of which all columns are needed, need of the relations they are made of."""
    needs, order, seen = Needs(), list[Relation](), set[Relation]()

    def visit(relation: Relation) -> None:
        if relation in seen:
            return
        seen.add(relation)
        for one in inputs_of(relation):
            visit(one)
        order.append(relation)

    def need(relation: Relation, names: set[str]) -> None:
        needs.columns.setdefault(relation, set()).update(names & set(relation.columns.names))
        needs.readers[relation] = needs.readers.get(relation, 0) + 1

    for root in roots:
        visit(root)
        need(root, set(root.columns.names))
    for relation in reversed(order):
        for one, names in _required(relation, needs.columns.setdefault(relation, set())):
            need(one, names)
    return needs


def _required(relation: Relation, needed: set[str]) -> list[tuple[Relation, set[str]]]:
    """What a relation needs of its inputs to give the columns `needed`."""
    if isinstance(relation, Map):
        names = {n for item in relation.items if item.name in needed for n in item.value.columns}
        names |= {n for item in relation.items if makes_rows(item) for n in item.value.columns}
        return [(relation.input, names | (relation.where.columns if relation.where else frozenset()))]
    if isinstance(relation, Aggregate):
        names = {n for item in relation.keys for n in item.value.columns}
        names |= {n for call in relation.calls if call.name in needed for n in call.call.columns}
        needed |= {item.name for item in relation.keys}
        return [(relation.input, names)]
    if isinstance(relation, Join):
        names = set(needed) | (relation.condition.columns if relation.condition else frozenset())
        return [
            (relation.left, names | {n for pair in relation.keys for n in pair[0].columns}),
            (relation.right, names | {n for pair in relation.keys for n in pair[1].columns}),
        ]
    if isinstance(relation, LookupJoin | TableCall | AsyncCalls):
        return [(relation.left, needed.union(*(value.columns for value in _called_with(relation, needed))))]
    if isinstance(relation, WindowCalls):
        names = set(needed)
        for item in (*relation.calls, *relation.partition):
            names |= item.value.columns
        return [(relation.input, names)]
    if isinstance(relation, Ordered):
        needed |= set(relation.columns.names)
        return [(relation.input, set(relation.input.columns.names))]
    return [(one, set(needed)) for one in inputs_of(relation)]


def _called_with(relation: LookupJoin | TableCall | AsyncCalls, needed: set[str]) -> list[Expression]:
    """What rows are looked up by, or functions are called with."""
    if isinstance(relation, LookupJoin):
        return [relation.on]
    if isinstance(relation, TableCall):
        return list(relation.arguments)
    return [value for name, values in relation.calls.items() if name in needed for value in values]


def makes_rows(item: Item) -> bool:
    """Whether a row becomes several by it."""
    return "unnest(" in item.value.text.lower()
