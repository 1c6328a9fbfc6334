"""Finds the calls in an expression that are not computed row by row: aggregates, windows, OVER."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from headrace.sql.bind.logical import AggregateCall
from headrace.sql.bind.planning import WINDOWS
from headrace.sql.bind.scope import as_expression
from headrace.sql.parse.dialect import to_sql

_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def call_name(node: exp.Expr) -> str | None:
    """The lower-cased name of the function that a node calls."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else None


def is_window_call(node: exp.Expr) -> bool:
    """Whether it is tumble(…), hop(…) or session(…)."""
    return call_name(node) in WINDOWS


def is_aggregate(node: exp.Expr, names: frozenset[str]) -> bool:
    """Whether it is a call of an aggregate, with its FILTER and the like around it."""
    inner = node
    while isinstance(inner, _WRAPPERS):
        inner = inner.this
    return call_name(inner) in names


def find_aggregates(node: exp.Expr, names: frozenset[str]) -> Iterator[exp.Expr]:
    """The outermost aggregates of an expression; a function with OVER is no aggregate."""
    if isinstance(node, exp.Window):
        inner = node.this
        while isinstance(inner, _WRAPPERS):
            inner = inner.this
        for child in (*inner.iter_expressions(), *(c for c in node.iter_expressions() if c is not node.this)):
            yield from find_aggregates(child, names)
    elif is_aggregate(node, names):
        yield node
    elif not isinstance(node, exp.Query):
        for child in node.iter_expressions():
            yield from find_aggregates(child, names)


def find_over(node: exp.Expr) -> Iterator[exp.Window]:
    """The calls with OVER."""
    for part in node.find_all(exp.Window):
        if part.args.get("over"):
            yield part


def replace_parts(node: exp.Expr, replacement: Callable[[exp.Expr], exp.Expr | None]) -> exp.Expr:
    """A copy in which the outermost parts that have a replacement are replaced."""

    def visit(part: exp.Expr) -> exp.Expr:
        new = replacement(part)
        return part if new is None else new

    return node.copy().transform(visit)


def aggregate_call(node: exp.Expr, name: str) -> AggregateCall:
    """A resolved aggregate in its pieces."""
    filtered: str | None = None
    plain = True
    inner = node
    while isinstance(inner, _WRAPPERS):
        if isinstance(inner, exp.Filter):
            filtered = to_sql(inner.expression.this)
        else:
            plain = False
        inner = inner.this
    arguments = inner.expressions
    distinct = None
    if plain and len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        values = arguments[0].expressions
        if len(values) == 1 and not isinstance(values[0], exp.Order):
            distinct = to_sql(values[0])
    plain &= not any(isinstance(argument, exp.Distinct | exp.Order) for argument in arguments)
    return AggregateCall(
        name=name,
        function=inner.name.lower(),
        call=as_expression(node),
        arguments=tuple(to_sql(argument) for argument in arguments),
        filter=filtered,
        plain=plain,
        distinct=distinct,
    )
