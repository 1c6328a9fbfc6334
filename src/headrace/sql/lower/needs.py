"""Which columns of each relation anything reads, and which fields in them: the others are not carried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.sql.bind.logical import (
    PRESENCE,
    Aggregate,
    AsyncCalls,
    Expression,
    Item,
    Join,
    LookupJoin,
    Map,
    Ordered,
    Path,
    Relation,
    TableCall,
    WindowCalls,
    inputs_of,
)


@dataclass(frozen=True)
class Needs:
    """What is needed of relations: columns or fields in them, and by how many others."""

    paths: dict[Relation, set[Path]] = field(default_factory=dict)
    readers: dict[Relation, int] = field(default_factory=dict)

    def columns(self, relation: Relation) -> set[str]:
        """The columns of a relation that are needed."""
        return {path[0] for path in self.paths.get(relation, ())}


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

    def need(relation: Relation, paths: set[Path]) -> None:
        known = set(relation.columns.names)
        needs.paths.setdefault(relation, set()).update(path for path in paths if path[0] in known)
        needs.readers[relation] = needs.readers.get(relation, 0) + 1

    for root in roots:
        visit(root)
        need(root, _whole(root.columns.names))
    for relation in reversed(order):
        for one, paths in _required(relation, needs.paths.setdefault(relation, set())):
            need(one, paths)
    return needs


def _required(relation: Relation, needed: set[Path]) -> list[tuple[Relation, set[Path]]]:
    """What a relation needs of its inputs to give what is `needed` of it."""
    if isinstance(relation, Map):
        paths = {path for item in relation.items for path in _of_item(item, needed)}
        return [(relation.input, paths | (relation.where.paths if relation.where else set()))]
    names = {path[0] for path in needed}
    if isinstance(relation, Aggregate):
        paths = _read([item.value for item in relation.keys])
        paths |= _read(call.call for call in relation.calls if call.name in names)
        needed |= _whole(item.name for item in relation.keys)
        return [(relation.input, paths)]
    carried = _whole(names)
    if isinstance(relation, Join):
        carried |= relation.condition.paths if relation.condition else set()
        return [
            (relation.left, carried | _read(pair[0] for pair in relation.keys)),
            (relation.right, carried | _read(pair[1] for pair in relation.keys)),
        ]
    if isinstance(relation, LookupJoin | TableCall | AsyncCalls):
        return [(relation.left, carried | _read(_called_with(relation, names)))]
    if isinstance(relation, WindowCalls):
        called = _read(item.value for item in (*relation.calls, *relation.partition))
        return [(relation.input, carried | called)]
    if isinstance(relation, Ordered):
        needed |= _whole(relation.columns.names)
        return [(relation.input, _whole(relation.input.columns.names))]
    return [(one, carried) for one in inputs_of(relation)]


def _whole(names: Iterable[str]) -> set[Path]:
    return {(name,) for name in names}


def _read(values: Iterable[Expression]) -> set[Path]:
    return {path for value in values for path in value.paths}


def _of_item(item: Item, needed: set[Path]) -> set[Path]:
    """What an expression of a Map has to read to give what is needed of its result."""
    wanted = [path for path in needed if path[0] == item.name]
    if wanted and item.value.is_column:
        return {(*item.value.columns, *path[1:]) for path in wanted}
    return item.value.paths if wanted or makes_rows(item) else set()


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


def narrow(one: pa.Field, paths: set[Path]) -> pa.Field:
    """A column with only those fields that `paths`, which begin with it, name."""
    inner = {path[1:] for path in paths if path[0] == one.name}
    if () in inner or not pa.types.is_struct(one.type):
        return one
    fields = list(one.type)
    kept = [narrow(part, inner) for part in fields if any(path[0] == part.name for path in inner)]
    if not kept and (PRESENCE,) in inner:
        # Whether there is a value is told by any field; a number is read quickest.
        kept = [next((part for part in fields if pa.types.is_primitive(part.type)), fields[0])]
    return one.with_type(pa.struct(kept)) if kept else one
