"""Lowers calls of table functions and of asynchronous functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.builder import Port
from headrace.model.fragments import plain_schema, quote
from headrace.operators.async_call import AsyncCall
from headrace.operators.table_function import TableFunctionCall
from headrace.sql.bind.logical import AsyncCalls, Expression, Relation, TableCall
from headrace.sql.lower.context import LATE, LoweredRelation, LoweringContext


def lower_table_call(context: LoweringContext, relation: TableCall) -> LoweredRelation:
    """Rows with the rows that a function makes of each."""
    # A row becomes several, so it does not go on to be told as late: that would be several times.
    source = replace(context.lower(relation.left), late_of=None)
    required = context.columns(relation)
    arguments = {f"{TIMESTAMP}:arg{index}": value for index, value in enumerate(relation.arguments)}
    rows = _with_arguments(context, relation, source, arguments)
    columns = {column: name for column, name in relation.prefix.items() if name in required}
    names = tuple(arguments)
    operator = TableFunctionCall(
        relation.function, names, columns=columns, outer=relation.kind == "left", drop=names
    )
    port = context.add(operator, [rows.ports], f"rows_{relation.function.name}")
    return _with_results(context, relation, rows, port, arguments, list(columns.values()))


def lower_async_calls(context: LoweringContext, relation: AsyncCalls) -> LoweredRelation:
    """Rows with the results of asynchronous functions."""
    source, required = context.lower(relation.left), context.columns(relation)
    arguments: dict[str, Expression] = {}
    calls: dict[str, tuple[str, ...]] = {}
    for output, values in relation.calls.items():
        if output in required:
            names = [f"{TIMESTAMP}:arg{len(arguments) + index}" for index in range(len(values))]
            arguments |= dict(zip(names, values, strict=True))
            calls[output] = tuple(names)
    rows = _with_arguments(context, relation, source, arguments)
    port = rows.ports[0]
    if calls:
        operator = AsyncCall(relation.function, calls, schema=rows.schema, drop=tuple(arguments))
        port = context.add(operator, [rows.ports], f"async_{relation.function.name}")
    return _with_results(context, relation, rows, port, arguments, list(calls))


def _hidden(relation: Relation, rows: LoweredRelation) -> list[str]:
    """The hidden columns that are carried with the rows of a relation."""
    retract = [RETRACT] if relation.updating else []
    return [TIMESTAMP, *retract, *([LATE] if rows.late_of is not None else [])]


def _with_arguments(
    context: LoweringContext,
    relation: TableCall | AsyncCalls,
    source: LoweredRelation,
    arguments: Mapping[str, Expression],
) -> LoweredRelation:
    columns = [name for name in context.columns(relation) if name in relation.left.columns.names]
    items = [quote(name) for name in [*columns, *_hidden(relation, source)]]
    items += [f"{value.text} AS {quote(name)}" for name, value in arguments.items()]
    return context.apply_sql(source.select(items))


def _with_results(
    context: LoweringContext,
    relation: Relation,
    rows: LoweredRelation,
    port: Port,
    arguments: Mapping[str, Expression],
    results: Sequence[str],
) -> LoweredRelation:
    fields = [field for field in rows.schema if field.name not in arguments]
    schema = plain_schema(pa.schema([*fields, *(relation.columns.field(name) for name in results)]))
    items = [quote(name) for name in [*context.columns(relation), *_hidden(relation, rows)]]
    return LoweredRelation((port,), schema, late_of=rows.late_of).select(items)
