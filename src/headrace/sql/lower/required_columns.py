"""Which columns of each relation anything reads, and which fields in them: the others are not carried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.sql.bind.logical import (
    PRESENCE,
    Aggregate,
    AsOfRelation,
    AsyncCalls,
    ClockFilter,
    ColumnPath,
    Expression,
    Item,
    Join,
    LookupJoinRelation,
    Map,
    Ordered,
    Relation,
    TableCall,
    WindowCalls,
    inputs_of,
)


@dataclass(frozen=True)
class RequiredColumns:
    """What is read of relations: columns or fields in them, and by how many others."""

    paths: dict[Relation, set[ColumnPath]] = field(default_factory=dict)
    readers: dict[Relation, int] = field(default_factory=dict)

    def columns(self, relation: Relation) -> set[str]:
        """The columns of a relation that are read."""
        return {path[0] for path in self.paths.get(relation, ())}


def find_required_columns(roots: Sequence[Relation]) -> RequiredColumns:
    """What `roots`, of which all columns are read, read of the relations they are made of."""
    result, order, seen = RequiredColumns(), list[Relation](), set[Relation]()

    def visit(relation: Relation) -> None:
        if relation in seen:
            return
        seen.add(relation)
        for source in inputs_of(relation):
            visit(source)
        order.append(relation)

    def require(relation: Relation, paths: set[ColumnPath]) -> None:
        names = set(relation.columns.names)
        result.paths.setdefault(relation, set()).update(path for path in paths if path[0] in names)
        result.readers[relation] = result.readers.get(relation, 0) + 1

    for root in roots:
        visit(root)
        require(root, _whole(root.columns.names))
    for relation in reversed(order):
        for source, paths in _required_of_inputs(relation, result.paths.setdefault(relation, set())):
            require(source, paths)
    return result


def _required_of_inputs(
    relation: Relation, required: set[ColumnPath]
) -> list[tuple[Relation, set[ColumnPath]]]:
    """What a relation reads of its inputs to give what is `required` of it."""
    if isinstance(relation, Map):
        by_name = _by_column(required)
        paths = {path for item in relation.items for path in _item_paths(item, by_name.get(item.name, set()))}
        return [(relation.input, paths | (relation.where.paths if relation.where else set()))]
    names = {path[0] for path in required}
    if isinstance(relation, Aggregate):
        paths = _read([item.value for item in relation.keys])
        paths |= _read(call.call for call in relation.calls if call.name in names)
        required |= _whole(item.name for item in relation.keys)
        return [(relation.input, paths)]
    carried = _whole(names)
    if isinstance(relation, ClockFilter):
        # Rows are told from each other by all columns that are carried, and shuffled by the key.
        required |= _whole(relation.key)
        bounds = [value for value in (relation.first, relation.until) if value is not None]
        return [(relation.input, carried | _whole(relation.key) | _read(bounds))]
    if isinstance(relation, Join | AsOfRelation):
        if isinstance(relation, Join) and relation.condition is not None:
            carried |= relation.condition.paths
        return [
            (relation.left, carried | _read(pair[0] for pair in relation.keys)),
            (relation.right, carried | _read(pair[1] for pair in relation.keys)),
        ]
    if isinstance(relation, LookupJoinRelation | TableCall | AsyncCalls):
        return [(relation.left, carried | _read(_arguments(relation, names)))]
    if isinstance(relation, WindowCalls):
        called = _read(item.value for item in (*relation.calls, *relation.partition))
        return [(relation.input, carried | called)]
    if isinstance(relation, Ordered):
        required |= _whole(relation.columns.names)
        return [(relation.input, _whole(relation.input.columns.names))]
    return [(source, carried) for source in inputs_of(relation)]


def _whole(names: Iterable[str]) -> set[ColumnPath]:
    return {(name,) for name in names}


def _read(values: Iterable[Expression]) -> set[ColumnPath]:
    return {path for value in values for path in value.paths}


def _by_column(paths: Iterable[ColumnPath]) -> dict[str, set[ColumnPath]]:
    """The paths that begin with each column."""
    grouped: dict[str, set[ColumnPath]] = {}
    for path in paths:
        grouped.setdefault(path[0], set()).add(path)
    return grouped


def _item_paths(item: Item, own: set[ColumnPath]) -> set[ColumnPath]:
    """What an expression of a Map has to read to give what is required of its result."""
    if own and item.value.is_column:
        return {(*item.value.columns, *path[1:]) for path in own}
    return item.value.paths if own or makes_rows(item) else set()


def _arguments(relation: LookupJoinRelation | TableCall | AsyncCalls, required: set[str]) -> list[Expression]:
    """What rows are looked up by, or functions are called with."""
    if isinstance(relation, LookupJoinRelation):
        return [relation.on]
    if isinstance(relation, TableCall):
        return list(relation.arguments)
    return [value for name, values in relation.calls.items() if name in required for value in values]


def makes_rows(item: Item) -> bool:
    """Whether a row becomes several by it."""
    return "unnest(" in item.value.text.lower()


def prune_columns(columns: Iterable[pa.Field], paths: Iterable[ColumnPath]) -> list[pa.Field]:
    """Columns with only those fields that `paths` name."""
    by_name = _by_column(paths)
    return [prune_fields(column, by_name.get(column.name, set())) for column in columns]


def prune_fields(column: pa.Field, paths: set[ColumnPath]) -> pa.Field:
    """A column with only those fields that `paths`, which begin with it, name."""
    inner = {path[1:] for path in paths if path[0] == column.name}
    if () in inner or not pa.types.is_struct(column.type):
        return column
    fields = list(column.type)
    read = [prune_fields(part, inner) for part in fields if any(path[0] == part.name for path in inner)]
    if not read and (PRESENCE,) in inner:
        # Whether there is a value is told by any field; a number is read quickest.
        read = [next((part for part in fields if pa.types.is_primitive(part.type)), fields[0])]
    return column.with_type(pa.struct(read)) if read else column
