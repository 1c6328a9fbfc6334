"""What a column means beyond its Arrow type: JSON is text, and an instant is a time like a local one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from sqlglot import exp

Meaning = Literal["json", "jsonb", "instant"]
"""A column of type JSON, of JSONB, or a TIMESTAMP WITH TIME ZONE."""

Meanings = Mapping[int, Meaning]
"""By the position of a column; most columns mean what their type says."""

_MEANING: Final = "meaning"
_CHOOSING: Final = frozenset(
    {"any_value", "coalesce", "first_value", "greatest", "lag", "last_value", "lead", "least", "max", "min"}
    | {"nth_value", "nullif"}
)
"""Functions whose result is one of their arguments."""


def mark(node: exp.Expr, meaning: Meaning | None) -> None:
    """Say what a reference to a column means."""
    if meaning is not None:
        node.meta[_MEANING] = meaning


def marked(node: exp.Expr) -> Meaning | None:
    """What a value means by the columns that it is one of."""
    meanings = {value.meta.get(_MEANING) for value in chosen_values(node)}
    return meanings.pop() if len(meanings) == 1 else None


def copy_marks(origin: exp.Expr, node: exp.Expr) -> exp.Expr:
    """A node that was parsed from the text of another, with what the columns of that mean."""
    meanings = {
        column.sql(): column.meta[_MEANING]
        for column in origin.find_all(exp.Column)
        if _MEANING in column.meta
    }
    for column in node.find_all(exp.Column):
        mark(column, meanings.get(column.sql()))
    return node


def chosen_values(node: exp.Expr) -> Iterator[exp.Expr]:
    """The values that an expression chooses from."""
    node = node.unnest()
    if isinstance(node, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        yield from chosen_values(node.this)
    elif isinstance(node, exp.Anonymous) and node.name.lower() in _CHOOSING and node.expressions:
        yield from chosen_values(node.expressions[0])
    elif isinstance(node, exp.Order):
        yield from chosen_values(node.this)
    elif isinstance(node, exp.Case):
        branches = [branch.args["true"] for branch in node.args["ifs"]]
        default = node.args.get("default")
        for value in (*branches, *([] if default is None else [default])):
            if not isinstance(value, exp.Null):
                yield from chosen_values(value)
    else:
        yield node
