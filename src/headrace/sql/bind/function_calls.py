"""Calls of the user's functions that are no mere expressions: those that give rows, and those that wait."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import suggest
from headrace.functions.table import TableFunction
from headrace.sql.bind.calls import replace_parts
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.logical import AsyncCalls, Expression, Relation, TableCall
from headrace.sql.bind.relations import renamed
from headrace.sql.bind.scope import ScopeTable, alias_of, as_expression, column_of
from headrace.sql.parse.dialect import to_sql


def called_table(node: exp.Expr) -> exp.Anonymous | None:
    """The call that stands in FROM: `f(x)`, `LATERAL f(x)` or `TABLE(f(x))`."""
    call = node.this if isinstance(node, exp.Lateral | exp.Table) else None
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    return call if isinstance(call, exp.Anonymous) else None


def bind_table_call(tables: FromTables, left: Relation, join: exp.Join, call: exp.Anonymous) -> Relation:
    """`CROSS JOIN f(t.x) AS g (a, b)`: a row for each that a function of the user gives."""
    context, node = tables.context, join.this
    function = _table_function(context, call)
    side, on = (join.args.get("side") or "").upper(), join.args.get("on")
    always = on is None or (isinstance(on, exp.Boolean) and on.this)
    if side not in ("", "LEFT") or not always or join.args.get("using"):
        raise context.fail(
            f"the rows of `{function.name}` belong to the row that they are made of",
            node,
            f"write CROSS JOIN {function.name}(…), or LEFT JOIN {function.name}(…) ON TRUE",
        )
    arguments = tables.scope.call_arguments(call)
    alias = alias_of(node)[0] or function.name
    names = _column_names(context, node, function, alias)
    tables.check_alias(alias, node)
    fields = [pa.field(f"{alias}.{n}", f.type) for n, f in zip(names, function.columns, strict=True)]
    column_alias = function.columns.names[0] if function.single else None
    table = ScopeTable(alias, tuple(names), tuple(fields), column_alias=column_alias)
    tables.add(table, renamed(fields, names), join="CROSS JOIN")
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


def _table_function(context: BindContext, call: exp.Anonymous) -> TableFunction:
    functions, name = context.planner.table_functions, call.name.lower()
    if name not in functions:
        hint = suggest(name, functions) or "functions that give rows are written with @headrace.udtf"
        if name in context.planner.names:
            hint = f"`{name}` gives values: call it in SELECT"
        raise context.fail(f"there is no function `{name}` that gives rows", call, hint)
    return functions[name]


def _column_names(context: BindContext, node: exp.Expr, function: TableFunction, table: str) -> list[str]:
    """What the columns of a function's rows are called here."""
    _, columns = alias_of(node)
    if not columns and function.single and node.args.get("alias") is not None:
        columns = [table]  # FROM t, words(t.text) AS word
    if len(columns) > len(function.columns):
        raise context.fail(f"{len(columns)} names for {len(function.columns)} columns", node)
    names = [*columns, *function.columns.names[len(columns) :]]
    if len(set(names)) < len(names):
        raise context.fail(f"two columns of `{table}` have one name", node)
    return names


class AsyncBinder:
    """Takes the calls of asynchronous functions out of expressions: rows wait for them before."""

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
