"""Lowers filters by the clock."""

from __future__ import annotations

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.fragments import quote
from headrace.operators.temporal_filter import FROM, UNTIL, TemporalFilter
from headrace.sql.bind.logical import ClockFilter
from headrace.sql.lower.context import LoweredRelation, LoweringContext, shuffle

_NEVER = "arrow_cast(NULL, 'Timestamp(Nanosecond, None)')"
_ANY = f"{TIMESTAMP}:any"


def lower_clock_filter(context: LoweringContext, relation: ClockFilter) -> LoweredRelation:
    """Rows that enter and leave as time passes."""
    columns = context.columns(relation)
    keys = [name for name in relation.key if name in columns] or columns
    items = [quote(name) for name in columns]
    if not keys:
        keys = [_ANY]
        items.append(f"0 AS {quote(_ANY)}")
    items.append(quote(TIMESTAMP))
    for bound, name in ((relation.first, FROM), (relation.until, UNTIL)):
        items.append(f"{_NEVER if bound is None else bound.text} AS {quote(name)}")
    items += [quote(RETRACT)] if relation.input.updating else []
    rows = context.apply_sql(context.lower(relation.input).select(items))
    hidden = (FROM, UNTIL, RETRACT)
    operator = TemporalFilter(
        pa.schema([column for column in rows.schema if column.name not in hidden]),
        keys=keys,
        updating=relation.input.updating,
        leaves=relation.until is not None,
        tick=relation.tick,
    )
    port = context.add(operator, [shuffle(rows.ports, keys)], "clock")
    shown = [quote(name) for name in [*columns, TIMESTAMP, *([RETRACT] if relation.updating else [])]]
    return LoweredRelation((port,), operator.output).select(shown)
