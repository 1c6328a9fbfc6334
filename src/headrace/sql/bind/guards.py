"""Conditions of WHERE before a function of the user: it is called only for rows that pass them.

DataFusion computes all sides of an AND, and merges filters. What CASE chooses it computes for the rows that
reach it alone, unless the result is a BOOLEAN: then it takes the CASE apart. So the CASE has numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlglot import exp

_VOLATILE = {"random", "rand", "uuid"}


def guard(conditions: Sequence[exp.Expr], functions: Collection[str]) -> list[exp.Expr]:
    """The conditions, with those that call one of the functions joined into one behind all on their left."""
    calling = [place for place, one in enumerate(conditions) if _calls(one, functions)]
    if not calling or calling[-1] == 0:
        return list(conditions)
    made: exp.Expr = exp.Literal.number(1)
    for place in range(calling[-1], -1, -1):
        one = conditions[place]
        if place in calling or not _calls(one, _VOLATILE):  # whose second answer would be another
            made = exp.Case(ifs=[exp.If(this=one.copy(), true=made)], default=exp.Literal.number(0))
    plain = [one for place, one in enumerate(conditions) if place not in calling]
    return [*plain, exp.EQ(this=made, expression=exp.Literal.number(1))]


def _calls(node: exp.Expr, names: Collection[str]) -> bool:
    return any(_name(call) in names for call in node.find_all(exp.Func))


def _name(call: exp.Func) -> str:
    name: str = call.name if isinstance(call, exp.Anonymous) else call.sql_name()
    return name.lower()
