"""Merges equal relations of a query, so that what is written twice is computed once."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from headrace.sql.bind.logical import AsyncCalls, Expression, Relation, TableCall, Windowing, inputs_of

_VOLATILE = ("random", "uuid")
"""Functions that give something else at every call."""


def merge_common_subplans(
    roots: Iterable[Relation], *, functions: Collection[str] = ()
) -> Mapping[Relation, Relation]:
    """Each relation that `roots` are made of → the one that stands for all that are equal to it.

    What calls one of `functions`, those of the user, is computed wherever it is written. Relations of
    different roots stand for themselves: the state of a query has a name that no other query changes.
    """
    merged: dict[Relation, Relation] = {}
    calls = re.compile(rf"\b({'|'.join(map(re.escape, [*_VOLATILE, *functions]))})\"?\s*\(", re.IGNORECASE)

    def visit(relation: Relation, by_content: dict[Hashable, Relation]) -> Relation:
        if relation not in merged:
            inputs = {source: visit(source, by_content) for source in inputs_of(relation)}
            rebuilt = _with_inputs(relation, inputs)
            content = None if _calls_any(rebuilt, calls) else _content(rebuilt)
            merged[relation] = rebuilt if content is None else by_content.setdefault(content, rebuilt)
        return merged[relation]

    for root in roots:
        visit(root, {})
    return merged


def _with_inputs(relation: Relation, inputs: Mapping[Relation, Relation]) -> Relation:
    """The relation over other inputs; itself if these are its own."""
    changed: dict[str, Any] = {}
    for field in fields(relation):
        value = getattr(relation, field.name)
        if isinstance(value, Relation) and inputs[value] is not value:
            changed[field.name] = inputs[value]
        elif field.name == "inputs" and any(inputs[source] is not source for source in value):
            changed[field.name] = tuple(inputs[source] for source in value)
    return replace(relation, **changed) if changed else relation


def _calls_any(relation: Relation, calls: re.Pattern[str]) -> bool:
    """Whether it calls a function that is called wherever it is written."""
    if isinstance(relation, AsyncCalls | TableCall):
        return True
    return any(calls.search(text) for text in _texts(_values(relation)))


def _values(item: Any) -> list[Any]:
    """The values of a dataclass's fields."""
    return [getattr(item, field.name) for field in fields(item)]


def _texts(value: Any) -> Iterator[str]:
    """The expressions of a relation itself, not those of its inputs."""
    if isinstance(value, Expression):
        yield value.text
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif is_dataclass(value) and not isinstance(value, Relation):
        yield from _texts(_values(value))


def _content(relation: Relation) -> Hashable | None:
    """A relation as a value that is equal for equal relations; None if no other can be equal."""
    content = (type(relation), *map(_hashable, _values(relation)))
    try:
        hash(content)
    except TypeError:
        return None  # rows of a table, or whatever else cannot be compared
    return content


def _hashable(value: Any) -> Any:
    if isinstance(value, Windowing):
        return value.kind, _hashable(value.columns)
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    if isinstance(value, list):
        return tuple(value)
    return value
