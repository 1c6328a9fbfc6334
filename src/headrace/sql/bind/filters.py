"""WHERE: pushes conditions below joins, limits window functions, keeps the order that users rely on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlglot import exp

from headrace.model.fragments import quote
from headrace.sql.bind.logical import (
    AsyncCalls,
    Expression,
    Join,
    LookupJoinRelation,
    Map,
    Relation,
    TableCall,
    WindowCalls,
)
from headrace.sql.bind.relations import where_map
from headrace.sql.bind.scope import as_expression
from headrace.sql.bind.volatile import RANDOM, call_name_of


def filter_rows(relation: Relation, conditions: Sequence[exp.Expr], functions: Collection[str]) -> Relation:
    """The rows that pass all of these resolved conditions; `functions` are those of the user."""
    remaining = []
    for condition in _short_circuit(conditions, functions):
        pushed = push_filter(relation, as_expression(condition))
        if pushed is None:
            remaining.append(condition)
        else:
            relation = pushed
    if not remaining:
        return relation
    return where_map(limit_ranks(relation, remaining), as_expression(all_of(remaining)))


def all_of(conditions: Sequence[exp.Expr]) -> exp.Expr:
    """Conditions joined by AND."""
    return conditions[0] if len(conditions) == 1 else exp.and_(*conditions, copy=False)


def push_filter(relation: Relation, where: Expression) -> Relation | None:
    """The relation with a condition below its joins, which then keep less; None if it must stay above."""
    if not isinstance(relation, Join | LookupJoinRelation | TableCall | AsyncCalls):
        return None
    kind = "inner" if isinstance(relation, AsyncCalls) else relation.kind
    if kind in ("inner", "left", "semi", "anti") and _reads_only(where, relation.left):
        return replace(relation, left=push_filter(relation.left, where) or where_map(relation.left, where))
    if (
        isinstance(relation, Join)
        and relation.kind in ("inner", "right")
        and _reads_only(where, relation.right)
    ):
        return replace(relation, right=push_filter(relation.right, where) or where_map(relation.right, where))
    if isinstance(relation, Join) and relation.kind == "inner" and not (relation.keys or relation.windowed):
        condition = where
        if relation.condition is not None:
            text = f"({relation.condition.text}) AND ({where.text})"
            condition = Expression(text, relation.condition.columns | where.columns)
        return replace(relation, condition=condition)  # of all pairs only these are made
    return None


def _reads_only(where: Expression, relation: Relation) -> bool:
    return bool(where.columns) and where.columns <= set(relation.columns.names)


def limit_ranks(relation: Relation, conditions: Sequence[exp.Expr]) -> Relation:
    """Tell the window functions below a filter such as `rn <= 3` how many rows of a partition matter."""
    if (
        not isinstance(relation, Map)
        or not isinstance(relation.input, WindowCalls)
        or relation.where is not None
    ):
        return relation
    over = relation.input
    called = {quote(item.name): item for item in over.calls}
    for condition in conditions:
        bound = _upper_bound(condition)
        if bound is None:
            continue
        column, count = bound
        source = next((item.value.text for item in relation.items if item.name == column), "")
        call = called.get(source)
        if call is None or not call.value.text.lower().startswith(("row_number()", "rank()", "dense_rank()")):
            continue
        limit = Expression(f"{source} <= {count}", frozenset([call.name]))
        rank = (call.name, count) if len(over.calls) == 1 else None
        return replace(relation, input=replace(over, limit=limit, rank=rank))
    return relation


def _upper_bound(node: exp.Expr) -> tuple[str, int] | None:
    """(column, n) of a condition that holds for no number above n."""
    left, right = node.args.get("this"), node.args.get("expression")
    kind: type[exp.Expr] = type(node)
    if isinstance(left, exp.Literal):
        left, right = right, left
        kind = exp.LT if kind is exp.GT else exp.LTE if kind is exp.GTE else kind
    if not isinstance(left, exp.Column) or not isinstance(right, exp.Literal) or not right.name.isdigit():
        return None
    count = int(right.name)
    if kind in (exp.LTE, exp.EQ):
        return left.name, count
    return (left.name, count - 1) if kind is exp.LT else None


def _short_circuit(conditions: Sequence[exp.Expr], functions: Collection[str]) -> list[exp.Expr]:
    """The conditions, with those that call one of the functions joined into one behind all on their left.

    A function of the user is called only for rows that pass the conditions before it. DataFusion computes
    all sides of an AND, and merges filters. What CASE chooses it computes for the rows that reach it alone,
    unless the result is a BOOLEAN: then it takes the CASE apart. So the CASE has numbers.
    """
    calling = [index for index, condition in enumerate(conditions) if _calls(condition, functions)]
    if not calling or calling[-1] == 0:
        return list(conditions)
    chain: exp.Expr = exp.Literal.number(1)
    for index in range(calling[-1], -1, -1):
        condition = conditions[index]
        if index in calling or not _calls(condition, RANDOM):  # whose second answer would be another
            chain = exp.Case(ifs=[exp.If(this=condition.copy(), true=chain)], default=exp.Literal.number(0))
    others = [condition for index, condition in enumerate(conditions) if index not in calling]
    return [*others, exp.EQ(this=chain, expression=exp.Literal.number(1))]


def _calls(node: exp.Expr, names: Collection[str]) -> bool:
    return any(call_name_of(call) in names for call in node.find_all(exp.Func))
