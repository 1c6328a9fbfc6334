"""What the binder reads of the syntax of a query; the rest is refused, and nothing is left out in silence.

Expressions are not listed: they are written back for DataFusion with all their parts, which reads or refuses
them.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from headrace.sql.bind.context import BindContext

_QUERY = frozenset({"with_", "order", "limit", "offset"})

READ: Mapping[type[exp.Expr], frozenset[str]] = {
    exp.Select: _QUERY
    | {"expressions", "from_", "joins", "where", "group", "having", "windows", "distinct"}
    | {"operation_modifiers", "kind"},
    exp.Subquery: _QUERY | {"this", "alias", "joins"},
    exp.Union: _QUERY | {"this", "expression", "distinct"},
    exp.Except: _QUERY | {"this", "expression", "distinct"},
    exp.Intersect: _QUERY | {"this", "expression", "distinct"},
    exp.Values: frozenset({"expressions", "alias", "order", "limit", "offset"}),
    exp.With: frozenset({"expressions", "recursive"}),
    # MATERIALIZED says how to compute, not what.
    exp.CTE: frozenset({"this", "alias", "materialized"}),
    exp.Table: frozenset({"this", "alias", "db", "catalog", "joins"}),
    exp.TableAlias: frozenset({"this", "columns"}),
    exp.From: frozenset({"this"}),
    exp.Join: frozenset({"this", "on", "side", "kind", "using", "method"}),
    exp.Lateral: frozenset({"this", "alias"}),
    exp.Unnest: frozenset({"expressions", "alias"}),
    exp.Where: frozenset({"this"}),
    exp.Group: frozenset({"expressions", "all"}),
    exp.Having: frozenset({"this"}),
    exp.Order: frozenset({"this", "expressions"}),  # `this` in an aggregate: array_agg(x ORDER BY y)
    exp.Ordered: frozenset({"this", "desc", "nulls_first"}),
    exp.Limit: frozenset({"expression"}),
    exp.Offset: frozenset({"expression"}),
    exp.Fetch: frozenset({"direction", "count", "limit_options"}),
    exp.LimitOptions: frozenset({"rows"}),
    exp.Distinct: frozenset({"expressions", "on"}),
    exp.Star: frozenset({"except_", "replace", "rename"}),
    exp.Window: frozenset({"this", "partition_by", "order", "spec", "alias", "over"}),
    exp.WindowSpec: frozenset({"kind", "start", "start_side", "end", "end_side"}),
}
"""For each kind of node that a query is made of, the arguments that the binder reads or refuses itself."""

_NAMES = {
    "by_name": "UNION by the names of columns",
    "changes": "CHANGES",
    "connect": "CONNECT BY",
    "cross_apply": "CROSS APPLY",
    "cube": "CUBE",
    "for_": "FOR",
    "grouping_sets": "GROUPING SETS",
    "into": "SELECT INTO",
    "laterals": "LATERAL",
    "locks": "FOR UPDATE",
    "exclude": "EXCLUDE",
    "match": "MATCH_RECOGNIZE",
    "match_condition": "MATCH_CONDITION",
    "ordinality": "WITH ORDINALITY",
    "percent": "FETCH … PERCENT",
    "pivots": "PIVOT",
    "rollup": "ROLLUP",
    "rows_from": "ROWS FROM",
    "sample": "TABLESAMPLE",
    "system_time": "FOR SYSTEM_TIME",
    "totals": "WITH TOTALS",
    "version": "AT VERSION",
    "with_ties": "FETCH … WITH TIES",
}
"""How users write an argument, where that is not its name."""
_HINTS = {
    "by_name": "list the columns of both sides in the same order, and write UNION ALL",
    "cube": "write one query for each grouping",
    "grouping_sets": "write one query for each grouping",
    "qualify": "filter in an outer SELECT",
    "rollup": "write one query for each grouping",
}


def check_syntax(context: BindContext, query: exp.Expr) -> None:
    """Raise a ReportedError for the first part of a query that the binder does not read."""
    for node in query.walk():
        read = READ.get(type(node))
        if read is None:
            continue
        for argument, value in node.args.items():
            if value and argument not in read:
                is_ordinality = isinstance(node, exp.Unnest) and argument == "offset"
                key = "ordinality" if is_ordinality else argument
                name = _NAMES.get(key, argument.rstrip("_").replace("_", " ").upper())
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
