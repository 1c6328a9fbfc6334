"""Functions that give another value at each call: what they make of a row cannot be taken back."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from headrace.model.fragments import EPOCH_CLOCK
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Relation
from headrace.sql.parse.dialect import copy_position

CLOCK = {"now", "proctime", "current_timestamp", "current_date", "current_time", "today", EPOCH_CLOCK}
"""Functions of the time of the epoch."""
RANDOM = {"random", "rand", "uuid"}


WRITTEN = "written"
"""The key in the `meta` of a call of the epoch's clock under which the name stands that the user wrote."""


def epoch_clock(call: exp.Anonymous, name: str) -> exp.Expr:
    """A function of the clock in terms of the time of the epoch."""
    clock = exp.Anonymous(this=EPOCH_CLOCK, expressions=[])
    copy_position(call, clock)
    clock.meta[WRITTEN] = name
    kinds = {"current_date": "date", "today": "date", "current_time": "time"}
    return exp.cast(clock, kinds[name]) if name in kinds else clock


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
                name = call.meta.get(WRITTEN, name)
                hint = "call it in a subquery over rows that are only added"
                if name not in RANDOM:
                    hint = f"in WHERE rows leave as time passes: ts > now() - INTERVAL '1 hour'; or {hint}"
                raise context.fail(f"`{name}` gives another value when a row is taken back", call, hint)
