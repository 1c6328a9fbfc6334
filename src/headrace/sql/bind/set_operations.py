"""UNION, EXCEPT and INTERSECT, with and without ALL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from sqlglot import exp

from headrace.model.fragments import quote
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Aggregate, AggregateCall, Expression, Item, Relation
from headrace.sql.bind.meanings import Meanings
from headrace.sql.bind.relations import (
    BoundQuery,
    cast_columns,
    column_item,
    distinct_rows,
    make_map,
    renamed,
    select_columns,
    stub_schema,
    union_rows,
    unique_names,
    where_map,
)

_SIDE = "set:left"
"""The column that says whether a row is of the left side."""
_COPIES = "set:copies"


def bind_set_operation(
    context: BindContext, query: exp.SetOperation, bind_query: Callable[[exp.Expr], BoundQuery]
) -> BoundQuery:
    """The rows of a set operation; `bind_query` binds its sides."""
    nodes = _operands(query)
    sides = [bind_query(node) for node in nodes]
    kind = type(query).__name__.upper()
    schema = _common_columns(context, kind, sides, nodes)
    inputs = [cast_columns(side.relation, schema) for side in sides]
    rows: Relation
    if isinstance(query, exp.Union):
        rows = union_rows(inputs)
        rows = distinct_rows(rows) if query.args.get("distinct") else rows
        return BoundQuery(rows, sides[0].names, _common_meanings(sides))
    rows = _counted(inputs, distinct=bool(query.args.get("distinct")))
    copies = _copies(query)
    if query.args.get("distinct"):
        rows = where_map(rows, Expression(f"{copies.text} > 0", copies.columns))
    else:
        repeated = Expression(f"unnest(range(0, {copies.text}))", copies.columns)
        items = [*(column_item(name) for name in schema.names), Item(_COPIES, repeated)]
        rows = make_map(rows, items, pa.schema([*schema, pa.field(_COPIES, pa.int64())]))
    return BoundQuery(select_columns(rows, schema.names), sides[0].names, _common_meanings(sides))


def _common_meanings(sides: Sequence[BoundQuery]) -> Meanings:
    """What columns mean on all sides."""
    first, *others = (side.meanings for side in sides)
    return {at: its for at, its in first.items() if all(other.get(at) == its for other in others)}


def _operands(query: exp.SetOperation) -> list[exp.Expr]:
    """The sides; a chain of UNION ALL, or of UNION, is one operation of many sides."""
    operands, node = [], query
    while True:
        operands.append(node.expression)
        left = node.this
        is_chain = isinstance(query, exp.Union) and type(left) is type(query)
        if not is_chain or {name for name, value in left.args.items() if value} - _CHAINED:
            break
        if bool(left.args.get("distinct")) != bool(query.args.get("distinct")):
            break
        node = left
    return [left, *reversed(operands)]


_CHAINED = {"this", "expression", "distinct"}


def _common_columns(
    context: BindContext, kind: str, sides: Sequence[BoundQuery], nodes: Sequence[exp.Expr]
) -> pa.Schema:
    """The columns of the result: the names of the first side, in types that hold the values of all."""
    first, *others = sides
    schema = stub_schema(first)
    for side, node in zip(others, nodes[1:], strict=True):
        if len(side.names) != len(first.names):
            raise context.fail(
                f"{kind} of {len(first.names)} and {len(side.names)} columns",
                node,
                "both sides need the same number",
            )
        own = stub_schema(side)
        if [(f.type, f.nullable) for f in own] == [(f.type, f.nullable) for f in schema]:
            continue
        with context.planning(node):
            sql = "SELECT * FROM s0 UNION ALL SELECT * FROM s1"
            schema = renamed(context.planner.schema(sql, {"s0": schema, "s1": own}), schema.names)
    return renamed(schema, unique_names(first.names))


def _counted(inputs: Sequence[Relation], *, distinct: bool) -> Relation:
    """Each different row once, with the number of times that it is on the left and on the right."""
    schema = inputs[0].columns
    marked = [
        make_map(
            relation,
            [*(column_item(name) for name in schema.names), Item(_SIDE, Expression(text))],
            schema.append(pa.field(_SIDE, pa.bool_(), nullable=False)),
        )
        for relation, text in zip(inputs, ("TRUE", "FALSE"), strict=True)
    ]
    rows: Relation = union_rows(marked)
    if distinct:
        rows = distinct_rows(rows)  # what is there twice changes nothing
    windowing = rows.windowing
    by_instant = windowing is not None and bool(windowing.columns)
    calls = [
        AggregateCall(
            name=name,
            function="count",
            call=Expression(f"count(*) FILTER (WHERE {condition})", frozenset([_SIDE])),
            arguments=("*",),
            filter=condition,
        )
        for name, condition in (("set:n", quote(_SIDE)), ("set:m", f"NOT {quote(_SIDE)}"))
    ]
    counts = [pa.field(call.name, pa.int64(), nullable=False) for call in calls]
    return Aggregate(
        pa.schema([*schema, *counts]),
        updating=not by_instant,
        windowing=windowing if by_instant else None,
        key=() if by_instant else tuple(schema.names),
        input=rows,
        keys=tuple(column_item(name) for name in schema.names),
        calls=tuple(calls),
        by_instant=by_instant,
    )


def _copies(query: exp.SetOperation) -> Expression:
    """How many times a row is in the result of EXCEPT ALL or INTERSECT ALL; without ALL, whether it is."""
    columns = frozenset(["set:n", "set:m"])
    left, right = quote("set:n"), quote("set:m")
    if isinstance(query, exp.Intersect):
        return Expression(f"least({left}, {right})", columns)
    if query.args.get("distinct"):
        return Expression(f"CASE WHEN {right} = 0 THEN {left} ELSE 0 END", columns)
    return Expression(f"greatest({left} - {right}, 0)", columns)
