"""Joins: of two relations, with a lookup table, the rows that a function of the user gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExpressionError, suggest
from headrace.base.problems import Problems
from headrace.base.windows import Session
from headrace.functions.table import TableFunction
from headrace.model.fragments import quote
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.filters import all_of, push_filter
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.logical import (
    Expression,
    Item,
    Join,
    JoinKind,
    LookupJoinRelation,
    Relation,
    TableCall,
    Windowing,
    WindowPart,
)
from headrace.sql.bind.relations import column_item, lookup_of, make_map, renamed, where_map, window_part
from headrace.sql.bind.scope import Scope, ScopeTable, alias_of, as_expression, identifier_name
from headrace.sql.bind.time_bounds import find_time_bounds
from headrace.sql.problems import ReportedError
from headrace.sql.types import sql_type, type_name


@dataclass(frozen=True)
class JoinClause:
    """How two sides are joined: the kind, the resolved conditions, and where it is written."""

    kind: JoinKind
    conditions: Sequence[exp.Expr]
    node: exp.Join


def bind_join(tables: FromTables, left: Relation, right: Relation, clause: JoinClause) -> Join:
    """The pairs of rows that meet; the right side is the last table of FROM."""
    windowing = _common_windowing(left, right, clause.kind)
    joined = join_relations(tables.context, left, right, clause.kind, clause.conditions, windowing=windowing)
    tables.update_columns(joined)
    return joined


def join_relations(
    context: BindContext,
    left: Relation,
    right: Relation,
    kind: JoinKind,
    conditions: Sequence[exp.Expr],
    *,
    windowing: Windowing | None = None,
) -> Join:
    """A join by resolved conditions; with `windowing`, of rows in the same window."""
    keys, rest = split_conditions(context, left, right, conditions, windowed=windowing is not None)
    left, right, rest = _filter_sides(left, right, kind, rest)
    updating = left.updating or right.updating
    time_bounds = None
    if kind not in ("semi", "anti") and windowing is None and not updating:
        time_bounds = find_time_bounds(context, left, right, rest)
    fields = [pa.field(f.name, f.type, f.nullable or kind in ("right", "full")) for f in left.columns]
    if kind not in ("semi", "anti"):
        fields += [pa.field(f.name, f.type, f.nullable or kind in ("left", "full")) for f in right.columns]
    return Join(
        pa.schema(fields),
        updating=updating or (windowing is None and kind != "inner" and time_bounds is None),
        windowing=windowing,
        left=left,
        right=right,
        kind=kind,
        keys=tuple(keys),
        condition=as_expression(all_of(rest)) if rest else None,
        windowed=windowing is not None and not updating,
        time_bounds=time_bounds,
    )


def _common_windowing(left: Relation, right: Relation, kind: JoinKind) -> Windowing | None:
    """The windows of the result, if both sides are in the same: then only rows of one window meet."""
    windows = left.windowing, right.windowing
    if windows[0] is None or windows[1] is None or windows[0].kind != windows[1].kind:
        return None
    if isinstance(windows[0].kind, Session):
        return None
    columns: dict[str, WindowPart] = {}
    if kind in ("inner", "left"):
        columns.update(windows[0].columns)
    if kind in ("inner", "right"):
        columns.update(windows[1].columns)
    return Windowing(windows[0].kind, columns)


def split_conditions(
    context: BindContext,
    left: Relation,
    right: Relation,
    conditions: Sequence[exp.Expr],
    *,
    windowed: bool = False,
) -> tuple[list[tuple[Expression, Expression]], list[exp.Expr]]:
    """(the keys that both sides are compared by, the other conditions)."""
    keys, rest = [], []
    for condition in conditions:
        pair = _sides(condition, left, right) if isinstance(condition, exp.EQ | exp.NullSafeEQ) else None
        if pair is None:
            rest.append(condition)
            continue
        values = (as_expression(pair[0]), as_expression(pair[1]))
        if isinstance(condition, exp.NullSafeEQ):
            null_safe = _null_safe_key(context, values, left, right, condition)
            if null_safe is None:
                rest.append(condition)
            else:
                keys.append(null_safe)
            continue
        parts = [
            None if side.windowing is None else window_part(value, side.windowing)
            for value, side in zip(values, (left, right), strict=True)
        ]
        if not windowed or parts[0] is None or parts[0] != parts[1]:  # else implied: rows of one window meet
            keys.append(_as_common_type(context, values, left, right, condition))
    return keys, rest


def _null_safe_key(
    context: BindContext,
    values: tuple[Expression, Expression],
    left: Relation,
    right: Relation,
    node: exp.Expr,
) -> tuple[Expression, Expression] | None:
    """Both sides of IS NOT DISTINCT FROM as texts that are never NULL; None for types that have none."""
    first, second = _as_common_type(context, values, left, right, node)
    schema = pa.schema([*left.columns, *right.columns, pa.field(TIMESTAMP, pa.timestamp("ns"))])
    kind = context.planner.types([first.text], schema)[0].type
    # Floating-point numbers are left out: 0.0 and -0.0 are equal and have two texts.
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or kind == pa.binary():
        return None
    if pa.types.is_interval(kind) or pa.types.is_duration(kind):
        return None
    keys = [
        Expression(
            f"CASE WHEN ({value.text}) IS NULL THEN 'n' ELSE concat('v', CAST({value.text} AS TEXT)) END",
            value.columns,
        )
        for value in (first, second)
    ]
    return keys[0], keys[1]


def _filter_sides(
    left: Relation, right: Relation, kind: JoinKind, conditions: Sequence[exp.Expr]
) -> tuple[Relation, Relation, list[exp.Expr]]:
    """A condition on one side alone filters that side, unless an outer join keeps its rows in any case."""
    rest = []
    for condition in conditions:
        value = as_expression(condition)
        if kind in ("inner", "right", "semi") and value.columns and value.columns <= set(left.columns.names):
            left = push_filter(left, value) or where_map(left, value)
        elif kind in ("inner", "left", "semi", "anti") and (
            value.columns and value.columns <= set(right.columns.names)
        ):
            right = push_filter(right, value) or where_map(right, value)
        else:
            rest.append(condition)
    return left, right, rest


def _as_common_type(
    context: BindContext,
    values: tuple[Expression, Expression],
    left: Relation,
    right: Relation,
    node: exp.Expr,
) -> tuple[Expression, Expression]:
    """Both sides of an equality as one type, so that equal values meet."""
    planner = context.planner
    schema = pa.schema([*left.columns, *right.columns, pa.field(TIMESTAMP, pa.timestamp("ns"))])
    texts = [values[0].text, values[1].text, f"coalesce({values[0].text}, {values[1].text})"]
    own = [column.type for column in planner.types(texts[:2], schema)]
    try:
        common = planner.types(texts, schema)[2].type
    except ExpressionError as error:
        message = f"{type_name(own[0])} cannot be compared with {type_name(own[1])}"
        raise context.fail(message, node, "write CAST(… AS …) around one of them") from error
    first, second = (
        value if kind == common else Expression(f"CAST({value.text} AS {sql_type(common)})", value.columns)
        for value, kind in zip(values, own, strict=True)
    )
    return first, second


def _sides(node: exp.Expr, left: Relation, right: Relation) -> tuple[exp.Expr, exp.Expr] | None:
    """(left part, right part) of an equality between the two sides of a join."""
    a, b = as_expression(node.this).columns, as_expression(node.expression).columns
    names = (set(left.columns.names), set(right.columns.names))
    if a and b and a <= names[0] and b <= names[1]:
        return node.this, node.expression
    if a and b and a <= names[1] and b <= names[0]:
        return node.expression, node.this
    return None


def equalities_of_where(tables: FromTables, left: Relation, right: Relation) -> list[exp.Expr]:
    """Take the equalities between the two sides of a comma join out of WHERE."""
    quiet = Scope(replace(tables.context, problems=Problems()), tables.scope.tables)
    equalities: list[exp.Expr] = []
    rest = []
    for condition in tables.where:
        try:
            resolved = quiet.resolve(condition)
        except ReportedError:
            rest.append(condition)
            continue
        if isinstance(resolved, exp.EQ) and _sides(resolved, left, right) is not None:
            equalities.append(resolved)
        else:
            rest.append(condition)
    tables.where = rest
    return equalities


# ------------------------------------------------------------------------------------------------ USING


def common_columns(tables: FromTables, count: int) -> list[exp.Expr]:
    """The columns that a NATURAL join compares: those that the first `count` tables and the others share."""
    sides = (tables.scope.tables[:count], tables.scope.tables[count:])
    left, right = ([name for t in side for name in t.names if name not in t.merged] for side in sides)
    return [exp.to_identifier(name, quoted=True) for name in dict.fromkeys(left) if name in right]


def equalities_of_using(tables: FromTables, using: Sequence[exp.Expr]) -> list[exp.Expr]:
    """What USING compares: columns of the last table with those of the tables before it."""
    *earlier, last = tables.scope.tables
    equalities: list[exp.Expr] = []
    for node in using:
        column = exp.Column(this=node.copy())
        sides = [Scope(tables.context, side).resolve(column) for side in (earlier, [last])]
        equalities.append(exp.EQ(this=sides[0], expression=sides[1]))
    names = [identifier_name(node) for node in using]
    tables.scope.tables[-1] = replace(last, merged=last.merged | frozenset(names))
    tables.scope.first = list(dict.fromkeys([*names, *tables.scope.first]))
    return equalities


def merge_using(tables: FromTables, join: Join, names: Sequence[str]) -> Relation:
    """Let the names of USING stand for the right side in a right join, for the present side in a full one."""
    if join.kind not in ("right", "full"):
        return join
    *earlier, last = tables.scope.tables
    items = [column_item(name) for name in join.columns.names]
    fields = list(join.columns)
    windows: dict[str, WindowPart] = {}
    for name in names:
        index, owner = next(
            (index, table)
            for index, table in enumerate(earlier)
            if name in table.names and name not in table.merged
        )
        sides = (owner.column(name), last.column(name))
        column = sides[1]
        if join.kind == "full":
            text = f"coalesce({quote(sides[0].name)}, {quote(sides[1].name)})"
            kind = tables.context.planner.types([text], tables.scope.schema)[0]
            column = kind.with_name(f"{last.alias}:{name}")
            items.append(Item(column.name, Expression(text, frozenset(side.name for side in sides))))
            fields.append(column)
            if join.windowed and (part := _window_part_of(join, sides)) is not None:
                windows[column.name] = part
        earlier[index] = replace(owner, unqualified={**owner.unqualified, name: column})
        tables.scope.tables = [*earlier, last]
    if join.kind == "right":
        return join
    merged = make_map(join, items, pa.schema(fields))
    if merged.windowing is None:
        return merged
    windowing = Windowing(merged.windowing.kind, {**merged.windowing.columns, **windows})
    return replace(merged, windowing=windowing)


def _window_part_of(join: Join, sides: tuple[pa.Field, pa.Field]) -> WindowPart | None:
    """The part of the window that both sides of a windowed join hold in these columns."""
    parts = [
        None if side.windowing is None else side.windowing.columns.get(column.name)
        for side, column in zip((join.left, join.right), sides, strict=True)
    ]
    return parts[0] if parts[0] == parts[1] else None


# ------------------------------------------------------------------------- lookup tables, functions


def bind_lookup_join(tables: FromTables, left: Relation, right: Relation, clause: JoinClause) -> Relation:
    """A join whose right side is a lookup table."""
    context, kind, table = tables.context, clause.kind, lookup_of(right)
    if table is None or table.columns is None:
        raise AssertionError
    if kind not in ("inner", "left"):
        raise context.fail(
            f"a lookup table cannot be in a {kind.upper()} JOIN",
            clause.node,
            "JOIN and LEFT JOIN are possible",
        )
    if left.updating:
        raise context.fail(
            f"rows that may change cannot be joined with lookup table `{table.name}`",
            clause.node,
            "what was found when they came may not be found when they go; join it before the aggregate",
        )
    prefix = dict(zip(table.columns.names, right.columns.names, strict=True))
    key = right.columns.field(prefix[table.definition.primary_key[0]])
    values = [_compared_with(condition, key.name, right) for condition in clause.conditions]
    if len(values) != 1 or values[0] is None:
        raise context.fail(
            f"the join with lookup table `{table.name}` must compare its key, and nothing else",
            clause.node,
            f"write ON … = {key.name}; other conditions go to WHERE",
        )
    fields = [pa.field(f.name, f.type, f.nullable or kind == "left") for f in right.columns]
    joined = LookupJoinRelation(
        pa.schema([*left.columns, *fields]),
        windowing=left.windowing,
        left=left,
        table=table,
        prefix=prefix,
        kind=kind,
        on=_as_key(tables, values[0], key, left, clause.node),
    )
    tables.update_columns(joined)
    return joined


def _compared_with(node: exp.Expr, key: str, right: Relation) -> Expression | None:
    """What an equality compares the column `key` of a lookup table with, if that is all that it does."""
    if not isinstance(node, exp.EQ):
        return None
    sides = node.this.unnest(), node.expression.unnest()
    for side, other in (sides, sides[::-1]):
        value = as_expression(side)
        column = other.this if isinstance(other, exp.Cast) else other  # a number compared with a text
        if (
            isinstance(column, exp.Column)
            and column.name == key
            and value.columns.isdisjoint(right.columns.names)
        ):
            return value
    return None


def _as_key(
    tables: FromTables, value: Expression, key: pa.Field, left: Relation, node: exp.Expr
) -> Expression:
    """A value in the type of a key; what the key cannot hold equals none, and is null."""
    schema = pa.schema([*left.columns, pa.field(TIMESTAMP, pa.timestamp("ns")), key])
    texts = [value.text, f"coalesce({value.text}, {quote(key.name)})"]
    with tables.context.planning(node):
        own, common = (column.type for column in tables.context.planner.types(texts, schema))
    if own == key.type:
        return value
    target = sql_type(key.type)
    # A whole number has one text, and fits another width or equals no key.
    fits = pa.types.is_integer(own) and (pa.types.is_integer(key.type) or key.type == pa.string())
    if common != key.type and not fits:
        raise tables.context.fail(
            f"key `{key.name}` is {type_name(key.type)}, and is compared with {type_name(own)}",
            node,
            f"write CAST(… AS {target}) = {key.name}",
        )
    return Expression(f"TRY_CAST({value.text} AS {target})", value.columns)


def called_table(node: exp.Expr) -> exp.Anonymous | None:
    """The call that stands in FROM: `f(x)`, `LATERAL f(x)` or `TABLE(f(x))`."""
    call = node.this if isinstance(node, exp.Lateral | exp.Table) else None
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    return call if isinstance(call, exp.Anonymous) else None


def bind_table_call(
    tables: FromTables, left: Relation, join: exp.Join | None, node: exp.Expr, call: exp.Anonymous
) -> Relation:
    """`CROSS JOIN f(t.x) AS g (a, b)`: a row for each that a function of the user gives."""
    context = tables.context
    function = _table_function(context, call)
    clause = {} if join is None else join.args
    side, on = (clause.get("side") or "").upper(), clause.get("on")
    always = on is None or (isinstance(on, exp.Boolean) and on.this)
    if side not in ("", "LEFT") or not always or clause.get("using"):
        raise context.fail(
            f"the rows of `{function.name}` can only be joined with CROSS JOIN, or LEFT JOIN ON TRUE",
            node,
            f"write CROSS JOIN {function.name}(…), or LEFT JOIN {function.name}(…) ON TRUE",
        )
    arguments = tables.scope.call_arguments(call)
    alias = alias_of(node)[0] or function.name
    names = _column_names(context, node, function, alias)
    tables.check_alias(alias, node)
    if node.args.get("ordinality"):
        raise context.fail("WITH ORDINALITY of a function of the user", node, "let it give a number")
    fields = [pa.field(f"{alias}.{n}", f.type) for n, f in zip(names, function.columns, strict=True)]
    column_alias = function.columns.names[0] if function.single else None
    table = ScopeTable(alias, tuple(names), tuple(fields), column_alias=column_alias)
    tables.add(table, renamed(fields, names), join="" if join is None else "CROSS JOIN")
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
