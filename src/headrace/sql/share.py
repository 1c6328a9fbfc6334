"""Relations that say the same become one, so that what a query says twice is computed once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from headrace.sql.logical import Relation, Windowing, inputs_of

_DIFFERS = re.compile(r"\b(random|uuid)\s*\(", re.IGNORECASE)
"""Functions that give something else at every call."""


def share(roots: Iterable[Relation]) -> Mapping[Relation, Relation]:
    """Each relation that `roots` are made of → the one that stands for all that are like it."""
    stands: dict[Relation, Relation] = {}
    known: dict[Hashable, Relation] = {}

    def visit(relation: Relation) -> Relation:
        if relation not in stands:
            made = _over(relation, {one: visit(one) for one in inputs_of(relation)})
            said = _said(made)
            stands[relation] = made if said is None else known.setdefault(said, made)
        return stands[relation]

    for root in roots:
        visit(root)
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


def _said(relation: Relation) -> Hashable | None:
    """What a relation says, equal for those that are alike; None if no other can be like it."""
    said = (type(relation), *(_plain(getattr(relation, one.name)) for one in fields(relation)))
    try:
        hash(said)
    except TypeError:
        return None  # rows of a table, or whatever else cannot be compared
    return None if _DIFFERS.search(repr(said)) else said


def _plain(value: Any) -> Any:
    if isinstance(value, Windowing):
        return value.kind, _plain(value.columns)
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    if isinstance(value, list):
        return tuple(value)
    return value
