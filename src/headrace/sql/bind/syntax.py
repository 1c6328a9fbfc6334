"""What the binder reads of the syntax of a query; the rest is refused, and nothing is left out in silence.

Every kind of node is listed with the arguments that are read. A kind that is not listed is refused, and so is
an argument that is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlglot import exp

from headrace.sql.bind.context import BindContext

_QUERY = frozenset({"with_", "order", "limit", "offset"})

_CLAUSES: Mapping[type[exp.Expr], frozenset[str]] = {
    exp.Select: _QUERY
    | {"expressions", "from_", "joins", "where", "group", "having", "qualify", "windows", "distinct"}
    | {"operation_modifiers", "kind"},
    exp.Subquery: _QUERY | {"this", "alias", "joins"},
    exp.Union: _QUERY | {"this", "expression", "distinct"},
    exp.Except: _QUERY | {"this", "expression", "distinct"},
    exp.Intersect: _QUERY | {"this", "expression", "distinct"},
    exp.Values: frozenset({"expressions", "alias", "order", "limit", "offset"}),
    exp.With: frozenset({"expressions", "recursive"}),
    # MATERIALIZED says how to compute, not what.
    exp.CTE: frozenset({"this", "alias", "materialized"}),
    exp.Table: frozenset({"this", "alias", "db", "catalog", "joins", "ordinality", "version"}),
    exp.TableAlias: frozenset({"this", "columns"}),
    exp.From: frozenset({"this"}),
    exp.Join: frozenset({"this", "on", "side", "kind", "using", "method", "match_condition"}),
    exp.Version: frozenset({"this", "expression", "kind"}),
    exp.Lateral: frozenset({"this", "alias", "ordinality"}),
    exp.Unnest: frozenset({"expressions", "alias", "offset"}),
    exp.Where: frozenset({"this"}),
    exp.Group: frozenset({"expressions", "all"}),
    exp.GroupingSets: frozenset({"expressions"}),
    exp.Rollup: frozenset({"expressions"}),
    exp.Cube: frozenset({"expressions"}),
    exp.Having: frozenset({"this"}),
    exp.Qualify: frozenset({"this"}),
    exp.Order: frozenset({"this", "expressions"}),  # `this` in an aggregate: array_agg(x ORDER BY y)
    exp.Ordered: frozenset({"this", "desc", "nulls_first"}),
    exp.Limit: frozenset({"expression"}),
    exp.Offset: frozenset({"expression"}),
    exp.Fetch: frozenset({"direction", "count", "limit_options"}),
    exp.LimitOptions: frozenset({"rows", "with_ties"}),
    exp.Distinct: frozenset({"expressions", "on"}),
    exp.Star: frozenset({"except_", "replace", "rename"}),
    exp.Window: frozenset({"this", "partition_by", "order", "spec", "alias", "over"}),
    exp.WindowSpec: frozenset({"kind", "start", "start_side", "end", "end_side", "exclude"}),
}
"""What queries are made of."""

_UNARY = frozenset({"this"})
_BINARY = frozenset({"this", "expression"})

_EXPRESSIONS: Mapping[type[exp.Expr], frozenset[str]] = {
    # Values and names
    exp.Alias: frozenset({"this", "alias"}),
    exp.Boolean: _UNARY,
    exp.ByteString: _UNARY,  # E'…'
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Dot: _BINARY,
    exp.HexString: _UNARY,
    exp.Identifier: frozenset({"this", "quoted"}),
    # `fraction_in_string`: how it was written, `INTERVAL '1.5 hours'`
    exp.Interval: frozenset({"this", "unit", "fraction_in_string"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Null: frozenset(),
    exp.Var: _UNARY,
    # Types
    exp.Cast: frozenset({"this", "to"}),
    exp.ColumnDef: frozenset({"this", "kind"}),  # a field of STRUCT<a INT>
    exp.DataType: frozenset({"this", "expressions", "nested", "kind"}),
    exp.DataTypeParam: _UNARY,
    exp.TryCast: frozenset({"this", "to", "safe"}),
    # Operators
    exp.Abs: _UNARY,  # @ x
    exp.Add: _BINARY,
    exp.And: _BINARY,
    exp.AtTimeZone: frozenset({"this", "zone"}),
    exp.Between: frozenset({"this", "low", "high", "symmetric"}),
    exp.BitwiseAnd: _BINARY,
    exp.BitwiseLeftShift: _BINARY,
    exp.BitwiseNot: _UNARY,
    exp.BitwiseOr: _BINARY,
    exp.BitwiseRightShift: _BINARY,
    exp.BitwiseXor: _BINARY,
    exp.Cbrt: _UNARY,  # ||/ x
    exp.Div: _BINARY | {"typed"},  # that integers give an integer
    exp.DPipe: _BINARY,
    exp.EQ: _BINARY,
    exp.Escape: _BINARY,
    exp.GT: _BINARY,
    exp.GTE: _BINARY,
    exp.ILike: frozenset({"this", "expression", "negate"}),
    exp.JSONBContainsTopKey: _BINARY,  # ?
    exp.JSONBContainsAllTopKeys: _BINARY,  # ?&
    exp.JSONBContainsAnyTopKeys: _BINARY,  # ?|
    exp.JSONBDeleteAtPath: _BINARY,  # #-
    exp.JSONBExtract: _BINARY,  # #>
    exp.JSONBExtractScalar: _BINARY,  # #>>
    exp.In: frozenset({"this", "expressions", "query"}),
    exp.Is: frozenset({"this", "expression", "negate"}),
    exp.LT: _BINARY,
    exp.LTE: _BINARY,
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.Mod: _BINARY,
    exp.Mul: _BINARY,
    exp.NEQ: _BINARY,
    exp.Neg: _UNARY,
    exp.Not: _UNARY,
    exp.NullSafeEQ: _BINARY,
    exp.NullSafeNEQ: _BINARY,
    exp.Or: _BINARY,
    exp.Overlaps: _BINARY,
    exp.Paren: _UNARY,
    exp.Pow: _BINARY,  # ^
    exp.RegexpILike: _BINARY,
    exp.RegexpLike: _BINARY,
    exp.SimilarTo: _BINARY,
    exp.Sqrt: _UNARY,  # |/ x
    exp.StartsWith: _BINARY,  # ^@
    exp.Sub: _BINARY,
    # Lists, rows and structs
    exp.All: _UNARY,
    exp.Any: _UNARY,
    exp.Array: frozenset({"expressions"}),
    exp.ArrayContainedBy: _BINARY,  # <@
    exp.ArrayContainsAll: _BINARY,  # @>
    exp.ArrayOverlaps: _BINARY,  # &&
    exp.Bracket: frozenset({"this", "expressions", "offset"}),
    exp.PropertyEQ: _BINARY,  # a field of {'a': 1}
    exp.Slice: _BINARY,
    exp.Struct: frozenset({"expressions"}),
    exp.Tuple: frozenset({"expressions"}),
    # Calls
    exp.Anonymous: frozenset({"this", "expressions"}),
    exp.Collate: _BINARY,
    exp.IntervalSpan: _BINARY,
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.Concat: frozenset({"expressions", "safe", "coalesce"}),  # 'a' 'b'
    exp.Exists: _UNARY,
    exp.Extract: _BINARY,
    exp.Filter: _BINARY,
    exp.If: frozenset({"this", "true", "false"}),
    exp.IgnoreNulls: _UNARY,
    exp.Kwarg: _BINARY,
    exp.Overlay: frozenset({"this", "expression", "from_", "for_"}),
    exp.RespectNulls: _UNARY,
    exp.StrPosition: frozenset({"this", "substr"}),
    exp.Substring: frozenset({"this", "start", "length"}),
    exp.Trim: frozenset({"this", "expression", "position"}),
    exp.WithinGroup: _BINARY,
}
"""What expressions are made of. A call of any function is an `Anonymous`: the dialect translates none."""

READ: Mapping[type[exp.Expr], frozenset[str]] = {**_CLAUSES, **_EXPRESSIONS}
"""For each kind of node, the arguments that the binder reads or refuses itself."""

_NAMES = {
    "by_name": "UNION by the names of columns",
    "changes": "CHANGES",
    "connect": "CONNECT BY",
    "cross_apply": "CROSS APPLY",
    "cube": "WITH CUBE",
    "for_": "FOR",
    "grouping_sets": "GROUPING SETS behind the keys",
    "into": "SELECT INTO",
    "laterals": "LATERAL",
    "locks": "FOR UPDATE",
    "match": "MATCH_RECOGNIZE",
    "match_condition": "MATCH_CONDITION",
    "percent": "FETCH … PERCENT",
    "pivots": "PIVOT",
    "rollup": "WITH ROLLUP",
    "rows_from": "ROWS FROM",
    "sample": "TABLESAMPLE",
    "system_time": "FOR SYSTEM_TIME",
    "totals": "WITH TOTALS",
    "version": "AT VERSION",
}
"""How users write an argument, where that is not its name."""
_HINTS = {
    "by_name": "list the columns of both sides in the same order, and write UNION ALL",
    "cube": "write GROUP BY CUBE (a, b)",
    "grouping_sets": "write GROUP BY GROUPING SETS ((a, b), (a))",
    "rollup": "write GROUP BY ROLLUP (a, b)",
}


_KINDS: Mapping[type[exp.Expr], str] = {
    exp.BitString: "a bit string",
    exp.Comprehension: "a comprehension",
    exp.JSON: "IS JSON",
    exp.JSONBPathExists: "`@?`",
    exp.JSONCast: "`.:`",
    exp.Lambda: "a lambda",
    exp.MatchAgainst: "`@@`",
    exp.National: "a national string",
    exp.Operator: "OPERATOR(…)",
    exp.Parameter: "a parameter",
    exp.Placeholder: "a parameter",
    exp.PropertyEQ: "`:=`",
    exp.SessionParameter: "a parameter",
    exp.UnicodeString: "a string with U&",
    exp.Adjacent: "`-|-`",
    exp.ExtendsLeft: "`&<`",
    exp.ExtendsRight: "`&>`",
    exp.Distance: "`<->`",
}
"""How users write a kind of node, where that is not its name."""
_KIND_HINTS: Mapping[type[exp.Expr], str] = {
    exp.BitString: "write a number",
    exp.JSON: "jsonb_typeof(x) IS NOT NULL is true for JSON",
    exp.JSONBPathExists: "use cardinality(extract_json(json, '$.path')) > 0",
    exp.Parameter: "write the value",
    exp.Placeholder: "write the value",
    exp.UnicodeString: "write the character itself",
    exp.Variadic: "write the arguments one by one",
}


def _spelled(node: exp.Expr) -> str:
    """The name of a kind of node in the words of SQL: `XMLElement` is XML ELEMENT."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


def check_syntax(context: BindContext, query: exp.Expr) -> None:
    """Raise a ReportedError for the first part of a query that the binder does not read."""
    for node in query.walk():
        read = READ.get(type(node))
        is_assigned = isinstance(node, exp.PropertyEQ) and not isinstance(node.parent, exp.Struct)
        if read is None or is_assigned:
            name = _KINDS.get(type(node)) or _spelled(node)
            raise context.fail(
                f"{name} is not supported", _node_with_position(node, node), _KIND_HINTS.get(type(node))
            )
        if isinstance(node, exp.DataType) and node.this == exp.DataType.Type.MAP:
            raise context.fail("MAP is not a type", _node_with_position(node, node), "use STRUCT or JSON")
        for argument, value in node.args.items():
            if value and argument not in read:
                name = _NAMES.get(argument, argument.rstrip("_").replace("_", " ").upper())
                raise context.fail(
                    f"{name} is not supported", _node_with_position(value, node), _HINTS.get(argument)
                )


def _node_with_position(value: object, node: exp.Expr) -> exp.Expr:
    """Where an argument is written, as near as can be told: some nodes do not know their place."""
    part = value[0] if isinstance(value, list) else value
    written: exp.Expr | None = part if isinstance(part, exp.Expr) else node
    while written is not None and not any(child.meta for child in written.walk()):
        written = written.parent
    return node if written is None else written
