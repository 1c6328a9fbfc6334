"""Relations of a query that say the same become one, so that what it says twice is computed once."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from headrace.sql.bind.logical import AsyncCalls, Expression, Relation, TableCall, Windowing, inputs_of

_DIFFER = ("random", "uuid")
"""Functions that give something else at every call."""


def share(roots: Iterable[Relation], *, functions: Collection[str] = ()) -> Mapping[Relation, Relation]:
    """Each relation that `roots` are made of → the one that stands for all that are like it.

    What calls one of `functions`, those of the user, is computed wherever it is written. Relations of
    different roots stand for themselves: the state of a query has a name that no other query changes.
    """
    stands: dict[Relation, Relation] = {}
    calls = re.compile(rf"\b({'|'.join(map(re.escape, [*_DIFFER, *functions]))})\"?\s*\(", re.IGNORECASE)

    def visit(relation: Relation, known: dict[Hashable, Relation]) -> Relation:
        if relation not in stands:
            made = _over(relation, {one: visit(one, known) for one in inputs_of(relation)})
            said = None if _is_called(made, calls) else _said(made)
            stands[relation] = made if said is None else known.setdefault(said, made)
        return stands[relation]

    for root in roots:
        visit(root, {})
    return stands


def _over(relation: Relation, inputs: Mapping[Relation, Relation]) -> Relation:
    """The relation over other inputs; itself if these are its own."""
    changed: dict[str, Any] = {}
    for one in fields(relation):
        value = getattr(relation, one.name)
        if isinstance(value, Relation) and inputs[value] is not value:
            changed[one.name] = inputs[value]
        elif one.name == "inputs" and any(inputs[each] is not each for each in value):
            changed[one.name] = tuple(inputs[each] for each in value)
    return replace(relation, **changed) if changed else relation


def _is_called(relation: Relation, calls: re.Pattern[str]) -> bool:
    """Whether it calls a function that is called wherever it is written."""
    if isinstance(relation, AsyncCalls | TableCall):
        return True
    values = [getattr(relation, one.name) for one in fields(relation)]
    return any(calls.search(text) for text in _texts(values))


def _texts(value: Any) -> Iterator[str]:
    """The expressions in what a relation says itself, not in what its inputs do."""
    if isinstance(value, Expression):
        yield value.text
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif is_dataclass(value) and not isinstance(value, Relation):
        yield from _texts([getattr(value, one.name) for one in fields(value)])


def _said(relation: Relation) -> Hashable | None:
    """What a relation says, equal for those that are alike; None if no other can be like it."""
    said = (type(relation), *(_plain(getattr(relation, one.name)) for one in fields(relation)))
    try:
        hash(said)
    except TypeError:
        return None  # rows of a table, or whatever else cannot be compared
    return said


def _plain(value: Any) -> Any:
    if isinstance(value, Windowing):
        return value.kind, _plain(value.columns)
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    if isinstance(value, list):
        return tuple(value)
    return value
