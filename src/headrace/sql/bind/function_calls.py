"""Calls of the user's functions that are no mere expressions: those that give rows, and those that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import suggest
from headrace.functions.table import TableFunction
from headrace.model.fragments import quote
from headrace.sql.bind.calls import replace_parts
from headrace.sql.bind.logical import AsyncCalls, Relation, TableCall
from headrace.sql.bind.scope import Entry, as_expression, column_of, identifier_name
from headrace.sql.parse.dialect import to_sql

if TYPE_CHECKING:
    from headrace.sql.bind.binder import Binder
    from headrace.sql.bind.from_clause import FromClause


def called_table(node: exp.Expr) -> exp.Anonymous | None:
    """The call that stands in FROM: `f(x)`, `LATERAL f(x)` or `TABLE(f(x))`."""
    call = node.this if isinstance(node, exp.Lateral | exp.Table) else None
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    return call if isinstance(call, exp.Anonymous) else None


def bind_table_call(tables: FromClause, left: Relation, join: exp.Join, call: exp.Anonymous) -> Relation:
    """`CROSS JOIN f(t.x) AS g (a, b)`: a row for each that a function of the user gives."""
    binder, node = tables.binder, join.this
    function = _table_function(tables, call)
    side, on = (join.args.get("side") or "").upper(), join.args.get("on")
    always = on is None or (isinstance(on, exp.Boolean) and on.this)
    if side not in ("", "LEFT") or not always or join.args.get("using"):
        raise binder.fail(
            f"the rows of `{function.name}` belong to the row that they are made of",
            node,
            f"write CROSS JOIN {function.name}(…), or LEFT JOIN {function.name}(…) ON TRUE",
        )
    arguments = tables.scope.call_arguments(call)
    alias = node.args.get("alias")
    table = identifier_name(alias.this) if alias is not None and alias.this else function.name
    names = _column_names(binder, node, function, table)
    if any(entry.alias == table for entry in tables.scope.entries):
        raise binder.fail(f"two tables are called `{table}` here", node, "give one another name with AS")
    fields = [pa.field(f"{table}.{n}", f.type) for n, f in zip(names, function.columns, strict=True)]
    stub = f"s{len(tables.stubs)}"
    tables.stubs[stub] = pa.schema([f.with_name(n) for n, f in zip(names, fields, strict=True)])
    tables.stub_tables.append(f"CROSS JOIN {stub} AS {quote(table)}")
    only = function.columns.names[0] if function.single else None
    tables.scope.entries.append(Entry(table, tuple(names), tuple(fields), only=only))
    return TableCall(
        pa.schema([*left.columns, *fields]),
        updating=left.updating,
        windowing=left.windowing,
        left=left,
        function=function,
        arguments=arguments,
        prefix={f.name: column.name for f, column in zip(function.columns, fields, strict=True)},
        kind="left" if side else "inner",
    )


def _table_function(tables: FromClause, call: exp.Anonymous) -> TableFunction:
    known, name = tables.planner.table_functions, call.name.lower()
    if name not in known:
        hint = suggest(name, known) or "functions that give rows are written with @headrace.udtf"
        if name in tables.planner.names:
            hint = f"`{name}` gives values: call it in SELECT"
        raise tables.binder.fail(f"there is no function `{name}` that gives rows", call, hint)
    return known[name]


def _column_names(binder: Binder, node: exp.Expr, function: TableFunction, table: str) -> list[str]:
    """What the columns of a function's rows are called here."""
    alias = node.args.get("alias")
    given = [] if alias is None else [identifier_name(c) for c in alias.args.get("columns") or ()]
    if not given and function.single and alias is not None:
        given = [table]  # FROM t, words(t.text) AS word
    if len(given) > len(function.columns):
        raise binder.fail(f"{len(given)} names for {len(function.columns)} columns", node)
    names = [*given, *function.columns.names[len(given) :]]
    if len(set(names)) < len(names):
        raise binder.fail(f"two columns of `{table}` have one name", node)
    return names


class AsyncBinder:
    """Takes the calls of asynchronous functions out of expressions: rows wait for them before."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._functions = binder.planner.asynchronous
        self._known: dict[str, str] = {}
        """The text of a call → the column with its result."""

    def bind(self, relation: Relation, nodes: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """The relation with the results of the calls in some expressions, and these over its columns.

        Calls with window functions in their arguments are left.
        """
        while self._functions:
            nodes = [replace_parts(node, self._held) for node in nodes]
            calls = {to_sql(call): call for node in nodes for call in self._innermost(node)}
            if not calls:
                break
            relation = self._called(relation, calls)
        return relation, nodes

    def _held(self, part: exp.Expr) -> exp.Expr | None:
        name = self._known.get(to_sql(part)) if isinstance(part, exp.Anonymous) else None
        return None if name is None else column_of(name)

    def _innermost(self, node: exp.Expr) -> list[exp.Anonymous]:
        """The calls whose arguments are values that are there."""
        return [
            call
            for call in node.find_all(exp.Anonymous)
            if call.name.lower() in self._functions
            and not any(self._is_later(part) for one in call.expressions for part in one.walk())
        ]

    def _is_later(self, part: exp.Expr) -> bool:
        return isinstance(part, exp.Window) or (
            isinstance(part, exp.Anonymous) and part.name.lower() in self._functions
        )

    def _called(self, relation: Relation, calls: dict[str, exp.Anonymous]) -> Relation:
        name = next(iter(calls.values())).name.lower()
        function = self._functions[name]
        own = {text: call for text, call in calls.items() if call.name.lower() == name}
        if relation.updating:
            raise self._binder.fail(
                f"rows that may change cannot wait for `{name}`",
                next(iter(own.values())),
                "what it answered when they came may not be what it answers when they go; "
                "call it before the aggregate",
            )
        made = {}
        for text, call in own.items():
            column = f"{name}:{len(self._known)}"
            while column in relation.columns.names:
                column += "'"
            self._known[text] = column
            made[column] = tuple(as_expression(one) for one in call.expressions)
        fields = [pa.field(column, function.returns) for column in made]
        return AsyncCalls(
            pa.schema([*relation.columns, *fields]),
            windowing=relation.windowing,
            left=relation,
            function=function,
            calls=made,
        )
