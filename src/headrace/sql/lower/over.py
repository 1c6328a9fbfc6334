"""Lowers window functions, Top-N, and ORDER BY with LIMIT."""

from __future__ import annotations

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.fragments import Fragment, called_functions, quote
from headrace.operators.numbered import NumberedFragment
from headrace.operators.top_n import PartialTopN, Ranking, TopN
from headrace.operators.updating_fragment import UpdatingFragment
from headrace.operators.windowed_fragment import WindowedFragment
from headrace.sql.bind.logical import TIES, Ordered, WindowCalls
from headrace.sql.lower.context import LoweredRelation, LoweringContext, shuffle, without


def lower_window_calls(context: LoweringContext, relation: WindowCalls) -> LoweredRelation:
    """Rows with the values of window functions, or the first of each group."""
    source = relation.input
    keys = tuple(f"{TIMESTAMP}:{item.name}" for item in relation.partition)
    items = [quote(name) for name in context.columns(source)]
    items += [f"{i.value.text} AS {quote(k)}" for i, k in zip(relation.partition, keys, strict=True)]
    items.append(quote(TIMESTAMP))
    if source.updating:
        items.append(quote(RETRACT))
    lowered = context.apply_sql(context.lower(source).select(items))
    rows = without(lowered.schema, RETRACT)
    ties = ", ".join(_tie_breakers(rows))
    order = "" if relation.numbered is None else relation.numbered.replace(quote(TIES), ties)
    if order and relation.rank is not None and not source.updating and not relation.by_instant:
        functions = called_functions(context.planner.functions, [order])
        return _top_n(context, relation, lowered, Ranking(rows, keys, order, relation.rank[1], functions))
    calls = [f"{i.value.text.replace(quote(TIES), ties)} AS {quote(i.name)}" for i in relation.calls]
    columns = [quote(name) for name in rows.names]
    with_calls = f"SELECT {', '.join([*columns, *calls])} FROM input0"
    results = ", ".join(quote(name) for name in [*context.columns(relation), TIMESTAMP])
    where = "" if relation.limit is None else f" WHERE {relation.limit.text}"
    computed: Fragment | NumberedFragment
    computed = context.fragment(f"SELECT {results} FROM ({with_calls}){where}", {"input0": rows})
    inputs = [shuffle(lowered.ports, keys)]
    if relation.by_instant:
        windowed = WindowedFragment(computed, [keys])
        return context.result(relation, context.add(windowed, inputs, "over"))
    prune = None
    if relation.rank is not None and not source.updating:
        name, count = relation.rank
        sql = f"SELECT {', '.join(columns)} FROM ({with_calls}) WHERE {quote(name)} <= {count}"
        prune = context.fragment(sql, {"input0": rows})
    if order:
        by = ", ".join([*map(quote, keys), order])
        ordered = context.fragment(f"SELECT {', '.join(columns)} FROM input0 ORDER BY {by}", {"input0": rows})
        number = pa.field(relation.calls[0].name, pa.uint64())
        numbered = context.fragment(f"SELECT {results} FROM input0{where}", {"input0": rows.append(number)})
        computed = NumberedFragment(computed.sql, ordered, keys, number.name, numbered)
    operator = UpdatingFragment(
        computed, [keys], ttl=context.ttl.results, updating=(source.updating,), prune=prune
    )
    return context.result(relation, context.add(operator, inputs, "over"))


def _top_n(
    context: LoweringContext, relation: WindowCalls, rows: LoweredRelation, ranking: Ranking
) -> LoweredRelation:
    partial = context.add(PartialTopN(ranking), [rows.ports], "partial")
    names = [*context.columns(relation), TIMESTAMP]
    operator = TopN(ranking, names, number=relation.calls[0].name, ttl=context.ttl.results)
    return context.result(relation, context.add(operator, [shuffle([partial], ranking.keys)], "over"))


def lower_ordered(context: LoweringContext, relation: Ordered) -> LoweredRelation:
    """Rows in an order, as many as LIMIT says."""
    source = relation.input
    lowered = context.apply_sql(context.lower(source))
    rows = without(lowered.schema, RETRACT)
    order = ", ".join([*relation.order, *_tie_breakers(rows)])
    partition = f"PARTITION BY {quote(TIMESTAMP)} " if relation.by_instant else ""
    rank = quote(f"{TIMESTAMP}:rank")
    columns = ", ".join(map(quote, rows.names))
    ranked = f"SELECT {columns}, row_number() OVER ({partition}ORDER BY {order}) AS {rank}"
    last_rank = rank
    if relation.with_ties:
        last_rank = quote(f"{TIMESTAMP}:ties")
        ranked += f", rank() OVER ({partition}ORDER BY {', '.join(relation.order)}) AS {last_rank}"
    ranked += " FROM input0"
    last = None if relation.limit is None else relation.offset + relation.limit
    conditions = [f"{rank} > {relation.offset}"] if relation.offset else []
    conditions += [f"{last_rank} <= {last}"] if last is not None else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    results = ", ".join(quote(name) for name in [*context.columns(relation), TIMESTAMP])
    sql = f"SELECT {results} FROM ({ranked}){where} ORDER BY {quote(TIMESTAMP)}, {rank}"
    fragment = context.fragment(sql, {"input0": rows})
    inputs = [shuffle(lowered.ports, ())]
    if relation.by_instant:
        return context.result(relation, context.add(WindowedFragment(fragment, [()]), inputs, "order"))
    prune = None
    if not source.updating:
        sql = f"SELECT {columns} FROM ({ranked}) WHERE {last_rank} <= {last}"
        prune = context.fragment(sql, {"input0": rows})
    operator = UpdatingFragment(
        fragment, [()], ttl=context.ttl.results, updating=(source.updating,), prune=prune
    )
    return context.result(relation, context.add(operator, inputs, "order"))


def _tie_breakers(rows: pa.Schema) -> list[str]:
    """Columns that order rows which the user's order leaves equal."""
    unordered = (pa.types.is_nested, pa.types.is_interval, pa.types.is_null)
    return [quote(column.name) for column in rows if not any(test(column.type) for test in unordered)]
