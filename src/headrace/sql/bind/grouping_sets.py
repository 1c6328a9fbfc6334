"""GROUPING SETS, ROLLUP and CUBE: which keys each grouping of a GROUP BY has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.parse.dialect import to_sql

MOST_SETS: Final = 64
"""How many groupings a GROUP BY has at most: each is an aggregation of its own."""

_NAMES: Final[dict[type[exp.Expr], str]] = {
    exp.GroupingSets: "GROUPING SETS",
    exp.Rollup: "ROLLUP",
    exp.Cube: "CUBE",
}


@dataclass(frozen=True)
class Grouping:
    """What a GROUP BY groups by."""

    keys: tuple[exp.Expr, ...] = ()
    sets: tuple[tuple[int, ...], ...] | None = None
    """The keys of each grouping, by their index; None for one grouping by all keys."""

    def __bool__(self) -> bool:
        return bool(self.keys) or self.sets is not None


ALL_ROWS: Final = Grouping()
"""No GROUP BY."""


def read_grouping(
    context: BindContext, clause: exp.Group, key_of: Callable[[exp.Expr], exp.Expr]
) -> Grouping:
    """The keys of a GROUP BY and its groupings; `key_of` says what a position or a name stands for."""
    element_sets = [_sets_of(context, node) for node in clause.expressions]
    count = 1
    for sets in element_sets:
        count *= len(sets)
    if count > MOST_SETS:
        hint = f"{MOST_SETS} at most: name those that are needed with GROUPING SETS"
        raise context.fail(f"GROUP BY has {count} groupings", clause.expressions[0], hint)
    keys: dict[str, int] = {}
    nodes: list[exp.Expr] = []
    indexed: list[tuple[int, ...]] = []
    for combination in itertools.product(*element_sets):
        indexes: dict[int, None] = {}
        for node in itertools.chain.from_iterable(combination):
            key = key_of(node)
            text = to_sql(key)
            if text not in keys:
                keys[text] = len(nodes)
                nodes.append(key)
            indexes[keys[text]] = None
        indexed.append(tuple(indexes))
    is_plain = not any(isinstance(node, tuple(_NAMES)) or _is_empty(node) for node in clause.expressions)
    if is_plain:
        return Grouping(tuple(nodes))
    if clause.args.get("all") is False:  # GROUP BY DISTINCT
        indexed = list({frozenset(indexes): indexes for indexes in indexed}.values())
    return Grouping(tuple(nodes), tuple(indexed))


def _sets_of(context: BindContext, node: exp.Expr) -> list[list[exp.Expr]]:
    """The sets of keys that one element of GROUP BY stands for."""
    if not isinstance(node, tuple(_NAMES)):
        return [_elements(node)]
    if not node.expressions:
        name = _NAMES[type(node)]
        raise context.fail(f"{name} needs at least one column", node, f"write GROUP BY {name} (a, b)")
    if isinstance(node, exp.GroupingSets):
        return [keys for part in node.expressions for keys in _sets_of(context, part)]
    parts = [_elements(part) for part in node.expressions]
    if isinstance(node, exp.Rollup):
        return [_joined(parts[:count]) for count in range(len(parts), -1, -1)]
    if 2 ** len(parts) > MOST_SETS:
        hint = f"{MOST_SETS} at most: name those that are needed with GROUPING SETS"
        raise context.fail(f"CUBE of {len(parts)} keys has {2 ** len(parts)} groupings", node, hint)
    return [
        _joined(subset)
        for count in range(len(parts), -1, -1)
        for subset in itertools.combinations(parts, count)
    ]


def _elements(node: exp.Expr) -> list[exp.Expr]:
    """The keys of `(a, b)`, `(a)`, `a` or `()`."""
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node.unnest()] if isinstance(node, exp.Paren) else [node]


def _joined(parts: Sequence[list[exp.Expr]]) -> list[exp.Expr]:
    return [node for part in parts for node in part]


def _is_empty(node: exp.Expr) -> bool:
    """Whether it is `()`: all rows in one group."""
    return isinstance(node, exp.Tuple) and not node.expressions
