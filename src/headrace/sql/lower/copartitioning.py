"""Co-partitioned joins: rows of windowed aggregates that are joined by their keys are shuffled once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.base.windows import Session
from headrace.sql.bind.logical import Aggregate, Expression, Join, Map, Relation, inputs_of


@dataclass(frozen=True)
class CoPartitioning:
    """Which aggregates are shuffled by some of their keys alone, and the joins that need no shuffle then."""

    keys: dict[Relation, tuple[str, ...]] = field(default_factory=dict)
    """Aggregate → the keys that its rows are shuffled by, where these are not all of its keys, in order."""
    joins: set[Relation] = field(default_factory=set)
    """The joins whose inputs are partitioned by the join's keys already."""


def find_copartitioning(roots: Iterable[Relation]) -> CoPartitioning:
    """Look for windowed joins of windowed aggregates by their keys.

    Groups that agree in all keys agree in some of them, so rows may be shuffled by those that are joined by.
    """
    result, seen = CoPartitioning(), set[Relation]()

    def visit(relation: Relation) -> None:
        if relation in seen:
            return
        seen.add(relation)
        for source in inputs_of(relation):
            visit(source)
        if isinstance(relation, Join) and relation.windowed and relation.keys:
            left = _grouped(relation.left, [pair[0] for pair in relation.keys])
            right = _grouped(relation.right, [pair[1] for pair in relation.keys])
            if left is None or right is None or not _can_share_shuffle(left, right):
                return
            # An aggregate that two joins read is shuffled for the first.
            if all(result.keys.get(aggregate, names) == names for aggregate, names in (left, right)):
                result.keys.update((left, right))
                result.joins.add(relation)

    for root in roots:
        visit(root)
    return result


def _grouped(relation: Relation, values: list[Expression]) -> tuple[Aggregate, tuple[str, ...]] | None:
    """The windowed aggregate that `relation` is made of row by row, and its keys that `values` are."""
    while all(value.is_column for value in values):
        names = tuple(name for value in values for name in value.columns)
        if isinstance(relation, Map):
            items = {item.name: item.value for item in relation.items}
            relation, values = relation.input, [items[name] for name in names]
            continue
        if not isinstance(relation, Aggregate) or relation.windowing is None:
            return None
        of_keys = set(names) <= {item.name for item in relation.keys}
        return (relation, names) if of_keys and not isinstance(relation.window, Session) else None
    return None


def _can_share_shuffle(
    left: tuple[Aggregate, tuple[str, ...]], right: tuple[Aggregate, tuple[str, ...]]
) -> bool:
    """Whether equal keys of both have the same hash, and no aggregate would need two shuffles."""
    kinds = [[side.columns.field(name).type for name in names] for side, names in (left, right)]
    return kinds[0] == kinds[1] and (left[0] is not right[0] or left[1] == right[1])
