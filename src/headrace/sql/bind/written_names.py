"""Names of unnamed columns as people write them: `sum(amount)`, and `city` for `address.city`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from headrace.sql.bind.relations import unique_names
from headrace.sql.bind.scope import identifier_name
from headrace.sql.parse.dialect import to_sql


def written_names(items: Sequence[exp.Expr]) -> list[str | None]:
    """The names of the items of a SELECT list; None for stars.

    An item without a name is called by its SQL, a field of a struct by its own name, unless another item has
    it. DataFusion would call them `sum(input.amount)`, `input.amount * Int64(2)` and `input.address[city]`.
    """
    names = [_short_name(item) for item in items]
    return [
        _text(item) if name is not None and names.count(name) > 1 and _reference(item) else name
        for item, name in zip(items, names, strict=True)
    ]


def result_names(query: exp.Expr, names: Sequence[str]) -> list[str]:
    """The names of the columns of a query's result; `names` are those that they have otherwise."""
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    if not isinstance(query, exp.Select):
        return list(names)
    written = written_names(query.expressions)
    stars = [index for index, item in enumerate(query.expressions) if item.is_star]
    if len(stars) == 1:
        before, after = written[: stars[0]], written[stars[0] + 1 :]
        written = [*before, *[None] * (len(names) - len(before) - len(after)), *after]
    if len(written) != len(names) or len(stars) > 1:
        return list(names)
    return unique_names([own or name for own, name in zip(written, names, strict=True)])


def _short_name(item: exp.Expr) -> str | None:
    if isinstance(item, exp.Alias):
        return identifier_name(item.args["alias"])
    if item.is_star:
        return None
    last = _reference(item)
    return _text(item) if last is None else identifier_name(last)


def _reference(item: exp.Expr) -> exp.Identifier | None:
    """The last name of a column, or of a field of one; None for anything else."""
    inner = item.unnest()
    last = inner.parts[-1] if isinstance(inner, exp.Column | exp.Dot) else None
    return last if isinstance(last, exp.Identifier) else None


def _text(item: exp.Expr) -> str:
    written = item.unnest().copy()
    for part in written.find_all(exp.Identifier):
        if re.fullmatch(r"[a-z_][a-z0-9_]*", part.name):
            part.set("quoted", False)
    return to_sql(written)
