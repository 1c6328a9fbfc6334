"""Lowers calls of functions that are no mere expressions: those that make rows, and those that wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.builder import Port
from headrace.model.fragments import plain_schema, quote
from headrace.operators.async_call import AsyncCall
from headrace.operators.table_function import TableFunctionCall
from headrace.sql.bind.logical import AsyncCalls, Expression, Relation, TableCall
from headrace.sql.lower.flow import LATE, Flow

if TYPE_CHECKING:
    from headrace.sql.lower.lowering import Lowering


def lower_table_call(lowering: Lowering, relation: TableCall) -> Flow:
    """Rows with the rows that a function makes of each."""
    # A row becomes several, so it does not go on to be told as late: that would be several times.
    flow, names = replace(lowering.flow(relation.left), late_of=None), lowering.columns(relation)
    hidden = _hidden(relation, flow)
    given = {f"{TIMESTAMP}:arg{index}": value for index, value in enumerate(relation.arguments)}
    rows = _with_arguments(lowering, relation, flow, hidden, given)
    columns = {column: name for column, name in relation.prefix.items() if name in names}
    operator = TableFunctionCall(
        relation.function, tuple(given), columns=columns, outer=relation.kind == "left", drop=tuple(given)
    )
    port = lowering.add(operator, [rows.ports], f"rows_{relation.function.name}")
    return _called(lowering, relation, rows, port, given, list(columns.values()), hidden)


def lower_async_calls(lowering: Lowering, relation: AsyncCalls) -> Flow:
    """Rows with the answers of functions that are waited for."""
    flow, names = lowering.flow(relation.left), lowering.columns(relation)
    hidden = _hidden(relation, flow)
    given: dict[str, Expression] = {}
    calls: dict[str, tuple[str, ...]] = {}
    for output, arguments in relation.calls.items():
        if output in names:
            taken = [f"{TIMESTAMP}:arg{len(given) + index}" for index in range(len(arguments))]
            given |= dict(zip(taken, arguments, strict=True))
            calls[output] = tuple(taken)
    rows = _with_arguments(lowering, relation, flow, hidden, given)
    port = rows.ports[0]
    if calls:
        operator = AsyncCall(relation.function, calls, schema=rows.schema, drop=tuple(given))
        port = lowering.add(operator, [rows.ports], f"async_{relation.function.name}")
    return _called(lowering, relation, rows, port, given, list(calls), hidden)


def _hidden(relation: Relation, flow: Flow) -> list[str]:
    """The columns that ride along with the rows of a relation."""
    back = [RETRACT] if relation.updating else []
    return [TIMESTAMP, *back, *([LATE] if flow.late_of is not None else [])]


def _with_arguments(
    lowering: Lowering,
    relation: TableCall | AsyncCalls,
    flow: Flow,
    hidden: Sequence[str],
    given: dict[str, Expression],
) -> Flow:
    kept = [name for name in lowering.columns(relation) if name in relation.left.columns.names]
    items = [quote(name) for name in [*kept, *hidden]]
    items += [f"{value.text} AS {quote(name)}" for name, value in given.items()]
    return replace(lowering.mapped(flow, items), late_of=flow.late_of)


def _called(
    lowering: Lowering,
    relation: Relation,
    rows: Flow,
    port: Port,
    given: dict[str, Expression],
    added: Sequence[str],
    hidden: Sequence[str],
) -> Flow:
    fields = [one for one in rows.schema if one.name not in given]
    schema = plain_schema(pa.schema([*fields, *(relation.columns.field(name) for name in added)]))
    sql = f"SELECT {', '.join(quote(name) for name in [*lowering.columns(relation), *hidden])} FROM input"
    return Flow((port,), schema, sql, late_of=rows.late_of)
