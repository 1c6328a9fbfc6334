"""Calls that are not computed row by row: aggregates, windows, OVER, asynchronous functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import AggregateCall, AsyncCalls, Expression, Relation
from headrace.sql.bind.planning import WINDOWS
from headrace.sql.bind.scope import as_expression, column_of
from headrace.sql.parse.dialect import to_sql

_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def call_name(node: exp.Expr) -> str | None:
    """The lower-cased name of the function that a node calls."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else None


def is_window_call(node: exp.Expr) -> bool:
    """Whether it is tumble(…), hop(…), cumulate(…) or session(…)."""
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


class AsyncBinder:
    """Moves the calls of asynchronous functions out of expressions, to a step before them."""

    def __init__(self, context: BindContext) -> None:
        self._context = context
        self._functions = context.planner.asynchronous
        self._columns: dict[str, str] = {}
        """The text of a call → the column with its result."""

    def bind(self, relation: Relation, nodes: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """The relation with the results of the calls in some expressions, and these over its columns.

        Calls with window functions in their arguments are left.
        """
        while self._functions:
            nodes = [replace_parts(node, self._result_column) for node in nodes]
            calls = {to_sql(call): call for node in nodes for call in self._innermost(node)}
            if not calls:
                break
            relation = self._add_calls(relation, calls)
        return relation, nodes

    def calls_any(self, node: exp.Expr) -> bool:
        """Whether an expression calls an asynchronous function."""
        return any(call.name.lower() in self._functions for call in node.find_all(exp.Anonymous))

    def _result_column(self, part: exp.Expr) -> exp.Expr | None:
        name = self._columns.get(to_sql(part)) if isinstance(part, exp.Anonymous) else None
        return None if name is None else column_of(name)

    def _innermost(self, node: exp.Expr) -> list[exp.Anonymous]:
        """The calls whose arguments have neither asynchronous calls nor window functions in them."""
        return [
            call
            for call in node.find_all(exp.Anonymous)
            if call.name.lower() in self._functions
            and not any(
                self.calls_any(argument) or argument.find(exp.Window) is not None
                for argument in call.expressions
            )
        ]

    def _add_calls(self, relation: Relation, calls: dict[str, exp.Anonymous]) -> Relation:
        name = next(iter(calls.values())).name.lower()
        function = self._functions[name]
        own = {text: call for text, call in calls.items() if call.name.lower() == name}
        if relation.updating:
            raise self._context.fail(
                f"rows that may change cannot wait for `{name}`",
                next(iter(own.values())),
                "what it answered when they came may not be what it answers when they go; "
                "call it before the aggregate",
            )
        arguments: dict[str, tuple[Expression, ...]] = {}
        for text, call in own.items():
            column = f"{name}:{len(self._columns)}"
            while column in relation.columns.names:
                column += "'"
            self._columns[text] = column
            arguments[column] = tuple(as_expression(argument) for argument in call.expressions)
        fields = [pa.field(column, function.returns) for column in arguments]
        return AsyncCalls(
            pa.schema([*relation.columns, *fields]),
            windowing=relation.windowing,
            left=relation,
            function=function,
            calls=arguments,
        )
