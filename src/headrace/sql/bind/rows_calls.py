"""Functions in FROM whose rows are the elements of lists: `unnest`, `generate_series`, `jsonb_each`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.logical import Expression, Item, Relation
from headrace.sql.bind.meanings import Meaning
from headrace.sql.bind.relations import column_item, constants, make_map, renamed, select_columns, where_map
from headrace.sql.bind.row_functions import ROW_FUNCTIONS, list_of
from headrace.sql.bind.scope import ScopeTable, alias_of, as_expression, conjuncts, identifier_name

_ORDINALITY: Final = "ordinality"
_JSON_LISTS: Final = ("jsonb__elements", "jsonb__values")
"""Functions whose lists are of JSONB."""
_PADDING: Final = "rows:padding"
"""A list with as many elements as rows are to be made of a row: at least one in a LEFT JOIN."""


@dataclass(frozen=True)
class RowsCall:
    """A function in FROM: its lists, what they and their table are called."""

    table: str
    names: tuple[str, ...]
    lists: tuple[exp.Expr, ...]
    is_scalar: bool
    """Whether the name of the table alone stands for the value of its only column."""
    has_ordinality: bool


def read_rows_call(context: BindContext, node: exp.Expr) -> RowsCall | None:
    """The call of a function that gives rows, if that is what stands in FROM; not those of the user."""
    inner = node.this if isinstance(node, exp.Lateral) else node
    alias, columns = alias_of(node)
    if alias is None and not columns:
        alias, columns = alias_of(inner)
    ordinal = node.args.get("ordinality")
    if isinstance(inner, exp.Unnest):
        offset = inner.args.get("offset")
        if isinstance(offset, exp.Identifier):
            columns = [*columns, identifier_name(offset)]
        return _named_call(
            context,
            node,
            "unnest",
            [""] * len(inner.expressions),
            tuple(inner.expressions),
            alias,
            columns,
            ordinality=bool(offset or ordinal),
        )
    call = inner.this if isinstance(inner, exp.Table) else inner
    if not isinstance(call, exp.Anonymous):
        return None
    name = call.name.lower()
    function = ROW_FUNCTIONS.get(name)
    if function is None or name in context.planner.table_functions:
        return None
    if not function.least <= len(call.expressions) <= function.most:
        counts = " to ".join(dict.fromkeys([str(function.least), str(function.most)]))
        word = "argument" if counts == "1" else "arguments"
        raise context.fail(f"`{name}` takes {counts} {word}, not {len(call.expressions)}", call)
    lists = tuple(list_of(inner_name, call.expressions) for inner_name in function.lists.values())
    return _named_call(
        context,
        node,
        name,
        list(function.lists),
        lists,
        alias,
        columns,
        ordinality=bool(ordinal or inner.args.get("ordinality")),
    )


def _named_call(
    context: BindContext,
    node: exp.Expr,
    function: str,
    own_names: Sequence[str],
    lists: tuple[exp.Expr, ...],
    alias: str | None,
    columns: Sequence[str],
    *,
    ordinality: bool,
) -> RowsCall:
    is_single = len(lists) == 1
    names = [name or (alias if alias is not None and is_single else function) for name in own_names]
    names += [_ORDINALITY] if ordinality else []
    if len(columns) > len(names):
        raise context.fail(f"{len(columns)} names for {len(names)} columns", node)
    names = [*columns, *names[len(columns) :]]
    return RowsCall(alias or function, tuple(names), lists, is_single and not ordinality, ordinality)


def one_row() -> Relation:
    """A row without columns that users know: what functions stand beside that are first in FROM."""
    return constants(pa.table({"rows:one": pa.array([0], pa.int64())})).relation


def bind_rows_call(
    tables: FromTables, left: Relation, join: exp.Join | None, node: exp.Expr, call: RowsCall
) -> Relation:
    """`FROM t, unnest(t.list) AS u (x)`: each row with the rows that a function gives for it."""
    context = tables.context
    side = "" if join is None else (join.args.get("side") or "").upper()
    on = None if join is None else join.args.get("on")
    is_always = on is None or (isinstance(on, exp.Boolean) and bool(on.this))
    if side not in ("", "LEFT") or (side and not is_always) or (join is not None and join.args.get("using")):
        hint = f"write CROSS JOIN {call.table}(…), or LEFT JOIN {call.table}(…) ON TRUE"
        raise context.fail(
            f"the rows of `{call.table}` can only be joined with CROSS JOIN, or LEFT JOIN ON TRUE", node, hint
        )
    tables.check_alias(call.table, node)
    for value in call.lists:
        tables.scope.refuse_async(value)
    lists = [as_expression(tables.scope.resolve(value)) for value in call.lists]
    texts = [f"unnest({value.text})" for value in lists]
    used = frozenset().union(*(value.columns for value in lists))
    with context.planning(node):
        kinds = [field.type for field in context.planner.types(texts, tables.scope.schema)]
    elements = [Expression(text, value.columns) for text, value in zip(texts, lists, strict=True)]
    length = f"greatest({', '.join(f'coalesce(array_length({value.text}), 0)' for value in lists)}, 0)"
    if call.has_ordinality:
        elements.append(Expression(f"unnest(range(1, CAST({length} AS BIGINT) + 1))", used))
        kinds.append(pa.int64())
    columns = [f"{call.table}.{index}:{name}" for index, name in enumerate(call.names)]
    items = [column_item(field.name) for field in left.columns]
    items += [Item(column, value) for column, value in zip(columns, elements, strict=True)]
    fields = [pa.field(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    schema = pa.schema([*left.columns, *fields])
    if side:
        padding = Expression(f"unnest(range(0, greatest(CAST({length} AS BIGINT), 1)))", used)
        items.append(Item(_PADDING, padding))
        schema = schema.append(pa.field(_PADDING, pa.int64()))
    rows: Relation = make_map(left, items, schema)
    if side:
        rows = select_columns(rows, [name for name in schema.names if name != _PADDING])
    meanings: dict[str, Meaning] = {
        column: "jsonb"
        for column, value in zip(columns, call.lists, strict=False)
        if isinstance(value, exp.Anonymous) and value.name in _JSON_LISTS
    }
    table = ScopeTable(call.table, call.names, tuple(fields), is_scalar=call.is_scalar, meanings=meanings)
    stub = renamed(fields, call.names)
    tables.add(table, stub, join="" if join is None else "CROSS JOIN")
    if on is not None and not is_always:
        for condition in conjuncts(on):
            rows = where_map(rows, tables.scope.expression(condition))
    return rows


def bind_lateral_values(
    tables: FromTables, left: Relation, join: exp.Join, node: exp.Lateral, values: exp.Values
) -> Relation:
    """`LATERAL (VALUES (t.a), (t.b)) AS v (x)`: each row with some rows that are made of its columns."""
    rows = [list(row.expressions) if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    if len({len(row) for row in rows}) > 1:
        raise tables.context.fail("the rows of VALUES have different numbers of columns", values)
    alias, columns = alias_of(node)
    if alias is None:
        alias, columns = alias_of(values)
    lists = tuple(
        exp.Anonymous(this="make_array", expressions=[value.copy() for value in column])
        for column in zip(*rows, strict=True)
    )
    names = [*columns, *(f"column{index + 1}" for index in range(len(columns), len(lists)))]
    if len(names) > len(lists):
        raise tables.context.fail(f"{len(names)} names for {len(lists)} columns", node)
    table = alias or f"_{tables.next_stub}"
    call = RowsCall(table, tuple(names), lists, is_scalar=False, has_ordinality=False)
    return bind_rows_call(tables, left, join, node, call)
