"""Functions that give another value at each call: what they make of a row cannot be taken back."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Relation

CLOCK = {"now", "current_timestamp", "current_date", "current_time", "today"}
RANDOM = {"random", "rand", "uuid"}


def call_name_of(call: exp.Func) -> str:
    """The name of a function that is called, lower-cased."""
    name: str = call.name if isinstance(call, exp.Anonymous) else call.sql_name()
    return name.lower()


def refuse_volatile(context: BindContext, relation: Relation, nodes: Iterable[exp.Expr]) -> None:
    """Refuse calls of the clock and of random numbers over rows that may be taken back.

    When a row is taken back, the function would give another value than when it came: the row that is taken
    back would be one that was never there, or a filter would let only one of both pass.
    """
    if not relation.updating:
        return
    for node in nodes:
        for call in node.find_all(exp.Func):
            name = call_name_of(call)
            if name in CLOCK | RANDOM:
                hint = "call it in a subquery over rows that are only added"
                if name in CLOCK:
                    hint = f"rows do not leave as time passes: use a window of event time, or {hint}"
                raise context.fail(f"`{name}` gives another value when a row is taken back", call, hint)
