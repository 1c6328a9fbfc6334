"""Lowers window functions and orders: numbers within groups, the best of them, ORDER BY with LIMIT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.fragments import Fragment, called_functions, quote
from headrace.operators.numbered import NumberedFragment
from headrace.operators.top_n import PartialTopN, Ranking, TopN
from headrace.operators.updating_fragment import UpdatingFragment
from headrace.operators.windowed_fragment import WindowedFragment
from headrace.sql.bind.logical import TIES, Ordered, WindowCalls
from headrace.sql.lower.flow import Flow, shuffle, without

if TYPE_CHECKING:
    from headrace.sql.lower.lowering import Lowering


def lower_window_calls(lowering: Lowering, relation: WindowCalls) -> Flow:
    """Rows with the values of window functions, or the first of each group."""
    source = relation.input
    names = lowering.columns(source)
    keys = tuple(f"{TIMESTAMP}:{item.name}" for item in relation.partition)
    items = [quote(name) for name in names]
    items += [f"{i.value.text} AS {quote(k)}" for i, k in zip(relation.partition, keys, strict=True)]
    items.append(quote(TIMESTAMP))
    if source.updating:
        items.append(quote(RETRACT))
    flow = lowering.mapped(lowering.flow(source), items)
    rows = without(flow.schema, RETRACT)
    ties = ", ".join(_tie_breakers(rows))
    calls = [f"{i.value.text.replace(quote(TIES), ties)} AS {quote(i.name)}" for i in relation.calls]
    columns = [quote(name) for name in lowering.columns(relation)] + [quote(TIMESTAMP)]
    kept = [quote(name) for name in rows.names]
    inner = f"SELECT {', '.join([*kept, *calls])} FROM input0"
    where = "" if relation.limit is None else f" WHERE {relation.limit.text}"
    inputs = [shuffle(flow.ports, keys)]
    if relation.by_instant:
        fragment = lowering.fragment(f"SELECT {', '.join(columns)} FROM ({inner}){where}", {"input0": rows})
        windowed = WindowedFragment(fragment, [keys])
        return lowering.result(relation, lowering.add(windowed, inputs, "over"))

    order = "" if relation.numbered is None else relation.numbered.replace(quote(TIES), ties)
    if order and relation.rank is not None and not source.updating:
        functions = called_functions(lowering.functions, [order])
        return _top_n(lowering, relation, flow, Ranking(rows, keys, order, relation.rank[1], functions))
    prune = None
    if relation.rank is not None and not source.updating:
        name, count = relation.rank
        prune = lowering.fragment(
            f"SELECT {', '.join(kept)} FROM ({inner}) WHERE {quote(name)} <= {count}", {"input0": rows}
        )
    sql = f"SELECT {', '.join(columns)} FROM ({inner}){where}"
    computed: Fragment | NumberedFragment = lowering.fragment(sql, {"input0": rows})
    if order:
        by = f"SELECT {', '.join(kept)} FROM input0 ORDER BY {', '.join([*map(quote, keys), order])}"
        number = pa.field(relation.calls[0].name, pa.uint64())
        result = lowering.fragment(
            f"SELECT {', '.join(columns)} FROM input0{where}", {"input0": rows.append(number)}
        )
        ordered = lowering.fragment(by, {"input0": rows})
        computed = NumberedFragment(sql, ordered, keys, number.name, result)
    operator = UpdatingFragment(computed, [keys], ttl=lowering.ttl, updating=(source.updating,), prune=prune)
    return lowering.result(relation, lowering.add(operator, inputs, "over"))


def _top_n(lowering: Lowering, relation: WindowCalls, flow: Flow, ranking: Ranking) -> Flow:
    partial = lowering.add(PartialTopN(ranking), [flow.ports], "partial")
    names = [*lowering.columns(relation), TIMESTAMP]
    operator = TopN(ranking, names, number=relation.calls[0].name, ttl=lowering.ttl)
    return lowering.result(relation, lowering.add(operator, [shuffle([partial], ranking.keys)], "over"))


def lower_ordered(lowering: Lowering, relation: Ordered) -> Flow:
    """Rows in an order, as many as are wanted."""
    source = relation.input
    flow = lowering.settle(lowering.flow(source))
    rows = without(flow.schema, RETRACT)
    order = ", ".join([*relation.order, *_tie_breakers(rows)])
    partition = f"PARTITION BY {quote(TIMESTAMP)} " if relation.by_instant else ""
    rank = quote(f"{TIMESTAMP}:rank")
    kept = [quote(name) for name in rows.names]
    inner = f"SELECT {', '.join(kept)}, row_number() OVER ({partition}ORDER BY {order}) AS {rank} FROM input0"
    last = None if relation.limit is None else relation.offset + relation.limit
    conditions = [f"{rank} > {relation.offset}"] if relation.offset else []
    conditions += [f"{rank} <= {last}"] if last is not None else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = [quote(name) for name in lowering.columns(relation)] + [quote(TIMESTAMP)]
    sql = f"SELECT {', '.join(columns)} FROM ({inner}){where} ORDER BY {quote(TIMESTAMP)}, {rank}"
    fragment = lowering.fragment(sql, {"input0": rows})
    inputs = [shuffle(flow.ports, ())]
    if relation.by_instant:
        windowed = WindowedFragment(fragment, [()])
        return lowering.result(relation, lowering.add(windowed, inputs, "order"))
    prune = None
    if not source.updating:
        kept_sql = f"SELECT {', '.join(kept)} FROM ({inner}) WHERE {rank} <= {last}"
        prune = lowering.fragment(kept_sql, {"input0": rows})
    operator = UpdatingFragment(fragment, [()], ttl=lowering.ttl, updating=(source.updating,), prune=prune)
    return lowering.result(relation, lowering.add(operator, inputs, "order"))


def _tie_breakers(rows: pa.Schema) -> list[str]:
    """Columns that put rows in one order where the user's order leaves it open."""
    return [
        quote(one.name)
        for one in rows
        if not (pa.types.is_nested(one.type) or pa.types.is_interval(one.type) or pa.types.is_null(one.type))
    ]
