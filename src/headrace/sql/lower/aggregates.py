"""Lowers GROUP BY: partial aggregates before the shuffle, merged after it, where every call allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import PlanError
from headrace.base.keys import hash_array
from headrace.base.windows import Instant, Session
from headrace.functions.aggregate import AccumulatorFunction
from headrace.functions.arithmetic import wide_sum
from headrace.model.builder import Port
from headrace.model.fragments import Function, called_functions, literal, plain_schema, plain_type, quote
from headrace.model.operator import ArrowOperator
from headrace.operators.aggregation import Aggregation, Distinct
from headrace.operators.session_aggregate import PartialSession, SessionAggregate
from headrace.operators.updating_aggregate import PartialUpdatingAggregate, UpdatingAggregate
from headrace.operators.window_aggregate import PartialAggregate, WindowAggregate
from headrace.sql.bind.catalog import CatalogTable
from headrace.sql.bind.logical import Aggregate, AggregateCall
from headrace.sql.bind.planning import Planner
from headrace.sql.lower.context import LATE, LoweredRelation, LoweringContext, shuffle

_SIGN = f"CASE WHEN {quote(RETRACT)} THEN -1 ELSE 1 END"
_SAME = ("min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")
"""Aggregates whose parts are merged by the aggregate itself."""


def lower_aggregate(context: LoweringContext, relation: Aggregate) -> LoweredRelation:
    """The groups of rows, in windows or updating."""
    rows = context.lower(relation.input)
    required = context.required.columns(relation)
    calls = [call for call in relation.calls if call.name in required]
    arguments = sorted({name for call in calls for name in call.call.columns if name != TIMESTAMP})
    keys = tuple(item.name for item in relation.keys)
    items = [f"{item.value.text} AS {quote(item.name)}" for item in relation.keys]
    items += [quote(name) for name in arguments if name not in keys]
    items += [quote(TIMESTAMP)] + ([quote(RETRACT)] if relation.input.updating else [])
    late_of = rows.late_of if relation.window is not None else None
    items += [quote(LATE)] if late_of is not None else []
    rows = context.apply_sql(replace(rows.select(items), late_of=late_of))
    aggregation = make_aggregation(
        calls,
        keys=keys,
        rows=rows.schema,
        planner=context.planner,
        functions=called_functions(context.planner.functions, [call.call.text for call in calls]),
        by=tuple(item.value.text for item in relation.keys),
        distinct=relation.windowing is None,
    )
    aggregation = replace(aggregation, routed=context.copartitioning.keys.get(relation))
    if relation.windowing is None:
        return _updating_aggregate(context, relation, aggregation, rows)
    return _windowed_aggregate(context, relation, aggregation, rows)


def _windowed_aggregate(
    context: LoweringContext, relation: Aggregate, aggregation: Aggregation, rows: LoweredRelation
) -> LoweredRelation:
    column, window, ports = relation.window_column, relation.window or Instant(), rows.ports
    late = None if rows.late_of is None else LATE
    in_parts = aggregation.in_parts and late is None
    partial: ArrowOperator | None
    operator: ArrowOperator
    if isinstance(window, Session):
        partial = PartialSession(aggregation, window.gap) if in_parts else None
        operator = SessionAggregate(aggregation, window.gap, window_column=column, late_column=late)
    else:
        partial = PartialAggregate(aggregation, window) if in_parts else None
        operator = WindowAggregate(aggregation, window, window_column=column, late_column=late)
    if partial is not None:
        ports = (context.add(partial, [ports], "partial"),)
    kind = type(window).__name__.lower()
    port = context.add(operator, [shuffle(ports, aggregation.route)], kind)
    return _groups(context, relation, port, rows.late_of)


def _updating_aggregate(
    context: LoweringContext, relation: Aggregate, aggregation: Aggregation, rows: LoweredRelation
) -> LoweredRelation:
    ports = rows.ports
    if aggregation.in_parts:
        ports = (context.add(PartialUpdatingAggregate(aggregation), [ports], "partial"),)
    operator = UpdatingAggregate(aggregation, ttl=context.ttl.results)
    return _groups(context, relation, context.add(operator, [shuffle(ports, aggregation.keys)], "aggregate"))


def _groups(
    context: LoweringContext, relation: Aggregate, port: Port, late_of: CatalogTable | None = None
) -> LoweredRelation:
    """The columns of groups that are read; late rows go their own way."""
    required = context.required.columns(relation)
    unused = {call.name for call in relation.calls if call.name not in required}
    schema = context.batch_schema(relation, [name for name in relation.columns.names if name not in unused])
    items = [quote(name) for name in [*context.columns(relation), TIMESTAMP]]
    if relation.updating:
        items.append(quote(RETRACT))
    where = ""
    if late_of is not None:
        if late_of.columns is None:
            raise AssertionError
        schema = plain_schema(schema.append(pa.field(LATE, pa.struct(list(late_of.columns)))))
        context.late.setdefault(late_of, []).append(LoweredRelation((port,), schema))
        where = f" WHERE {quote(LATE)} IS NULL"
    return LoweredRelation((port,), schema).select(items, where=where)


# ---------------------------------------------------------------------------------- partial aggregates


@dataclass(frozen=True)
class DecomposedCall:
    """An aggregate as partial results that can be merged: SELECT items with their aliases."""

    partial: tuple[str, ...]
    merge: tuple[str, ...]
    final: str
    distinct: Distinct | None = None


def make_aggregation(
    calls: Sequence[AggregateCall],
    *,
    keys: tuple[str, ...],
    rows: pa.Schema,
    planner: Planner,
    functions: tuple[Function, ...],
    by: tuple[str, ...] = (),
    distinct: bool = False,
) -> Aggregation:
    """The aggregation of some calls over `rows`, with partial results if every call has them.

    `distinct` says that counts of distinct values have partial results as well.
    """
    if not calls:
        whole, decomposed = _count_rows(updating=RETRACT in rows.names)
    else:
        orders = _struct_orders(calls, rows, planner)
        whole = [
            f"{_first_of(call, fields) if fields else _complete(call, rows, planner)} AS {quote(call.name)}"
            for call, fields in zip(calls, orders, strict=True)
        ]
        decomposed = [
            _distinct(call, rows, planner)
            if distinct and call.distinct is not None
            else _decompose(call, rows, planner, fields=fields)
            for call, fields in zip(calls, orders, strict=True)
        ]
    parts = [call for call in decomposed if call is not None]
    if len(parts) != len(decomposed):
        return Aggregation(rows, keys, tuple(whole), functions=functions, by=by)
    return Aggregation(
        rows,
        keys,
        tuple(whole),
        partial=tuple(item for part in parts for item in part.partial),
        merge=tuple(item for part in parts for item in part.merge),
        final=tuple(part.final for part in parts),
        functions=functions,
        by=by,
        distinct=tuple(part.distinct for part in parts if part.distinct is not None),
    )


def _count_rows(*, updating: bool) -> tuple[list[str], Sequence[DecomposedCall | None]]:
    """The number of rows of a group of DISTINCT, which has no aggregates of its own."""
    count, part = quote(f"{TIMESTAMP}:n"), quote(f"{TIMESTAMP}:p")
    partial = f"sum({_SIGN})" if updating else "count(*)"
    decomposed = DecomposedCall((f"{partial} AS {part}",), (f"sum({part}) AS {part}",), f"{part} AS {count}")
    return [f"count(*) AS {count}"], [decomposed]


def _complete(call: AggregateCall, rows: pa.Schema, planner: Planner) -> str:
    """The call over all rows of a group."""
    if call.function != "sum" or not call.plain or len(call.arguments) != 1:
        return call.call.text
    kind = planner.types([call.arguments[0]], rows)[0].type
    return f"{_total(call.arguments[0], kind, filtered=_filter(call))}"


def _total(value: str, kind: pa.DataType, *, filtered: str = "") -> str:
    """A sum; one of BIGINT raises where it would wrap."""
    if kind != pa.int64():
        return f"sum({value}){filtered}"
    return f"bigint__total({wide_sum(value)}{filtered})"


def _struct_orders(
    calls: Sequence[AggregateCall], rows: pa.Schema, planner: Planner
) -> Sequence[Sequence[str]]:
    """For each call the fields by which it compares structures, if any."""
    orders = [_compared_fields(call, rows, planner) for call in calls]
    if sum(map(bool, orders)) != 1 or not all(call.plain for call in calls):
        # DataFusion 55 fails where aggregates of one SELECT have two orders.
        return [() for _ in calls]
    return orders


def _distinct(call: AggregateCall, rows: pa.Schema, planner: Planner) -> DecomposedCall | None:
    """A count of distinct values of a type whose values are equal to state where they are to DataFusion."""
    if call.function != "count" or call.distinct is None:
        return None
    kind = plain_type(planner.types([call.distinct], rows)[0].type)
    # DataFusion counts 0.0 and -0.0 as two values, and state has them as one.
    if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
        return None
    try:
        hash_array(pa.array([], kind))
    except PlanError:
        return None
    part = _part(call)
    return DecomposedCall(
        (),
        (f"sum({part}) AS {part}",),
        f"{part} AS {quote(call.name)}",
        Distinct(f"{call.name}:p", call.distinct, call.filter),
    )


def _decompose(
    call: AggregateCall, rows: pa.Schema, planner: Planner, *, fields: Sequence[str]
) -> DecomposedCall | None:
    if not call.plain:
        return None
    function = planner.user_functions.get(call.function)
    if isinstance(function, AccumulatorFunction):
        return _accumulated(call, function, updating=RETRACT in rows.names)
    argument = call.arguments[0] if call.arguments else "*"
    name = call.function
    decomposers: dict[str, Callable[[], DecomposedCall | None]] = {
        "count": lambda: _count(call, argument, updating=RETRACT in rows.names),
        "sum": lambda: _sum(call, argument, rows, planner),
        "avg": lambda: _average(call, argument, rows, planner),
        "mean": lambda: _average(call, argument, rows, planner),
    }
    if name in _SAME and RETRACT not in rows.names:
        part = _part(call)
        partial, merged = f"{name}({argument}){_filter(call)}", f"{name}({part})"
        if fields:
            partial = _first_of(call, fields)
            merged = f"{_first(name, part, fields)} FILTER (WHERE {part} IS NOT NULL)"
        return DecomposedCall(
            (f"{partial} AS {part}",), (f"{merged} AS {part}",), f"{part} AS {quote(call.name)}"
        )
    if name not in decomposers or len(call.arguments) != 1:
        return None
    return decomposers[name]()


def _accumulated(
    call: AggregateCall, function: AccumulatorFunction, *, updating: bool
) -> DecomposedCall | None:
    """An accumulator of the user, if its states can be merged and rows be taken back where they may be."""
    if not function.merges or (updating and not function.retracts):
        return None
    part = _part(call)
    rows = function.part_of(call.arguments, quote(RETRACT) if updating else None)
    return DecomposedCall(
        (f"{rows}{_filter(call)} AS {part}",),
        (f"{function.merged(part)} AS {part}",),
        f"{function.result(part)} AS {quote(call.name)}",
    )


def _compared_fields(call: AggregateCall, rows: pa.Schema, planner: Planner) -> Sequence[str]:
    """The fields by which the least or greatest of structures is found; none for anything else."""
    if call.function not in {"min", "max"} or not call.plain or len(call.arguments) != 1:
        return ()
    kind = planner.types([call.arguments[0]], rows)[0].type
    if not pa.types.is_struct(kind) or any(pa.types.is_nested(field.type) for field in kind):
        return ()
    return [field.name for field in kind]


def _first_of(call: AggregateCall, fields: Sequence[str]) -> str:
    """The least or greatest of the structures that a call is given."""
    argument = call.arguments[0]
    passing = [f"({argument}) IS NOT NULL", *([f"({call.filter})"] if call.filter else [])]
    return f"{_first(call.function, argument, fields)} FILTER (WHERE {' AND '.join(passing)})"


def _first(name: str, value: str, fields: Sequence[str]) -> str:
    """The least or greatest of structures as the first in their order.

    DataFusion compares structures one by one, forty times slower. A field without a value comes last.
    """
    direction = "ASC" if name == "min" else "DESC"
    order = ", ".join(f"get_field({value}, {literal(field)}) {direction} NULLS LAST" for field in fields)
    return f"first_value({value} ORDER BY {order})"


def _part(call: AggregateCall) -> str:
    return quote(f"{call.name}:p")


def _filter(call: AggregateCall) -> str:
    return "" if call.filter is None else f" FILTER (WHERE {call.filter})"


def _counted(call: AggregateCall, argument: str, *, updating: bool) -> str:
    """The number of values, less retracted ones."""
    if not updating:
        return f"count({argument}){_filter(call)}"
    conditions = ([] if argument == "*" else [f"({argument}) IS NOT NULL"]) + (
        [] if call.filter is None else [f"({call.filter})"]
    )
    if not conditions:
        return f"sum({_SIGN})"
    return f"sum(CASE WHEN {' AND '.join(conditions)} THEN {_SIGN} ELSE 0 END)"


def _count(call: AggregateCall, argument: str, *, updating: bool) -> DecomposedCall:
    part = _part(call)
    return DecomposedCall(
        (f"{_counted(call, argument, updating=updating)} AS {part}",),
        (f"sum({part}) AS {part}",),
        f"{part} AS {quote(call.name)}",
    )


def _sum(call: AggregateCall, argument: str, rows: pa.Schema, planner: Planner) -> DecomposedCall | None:
    kind = planner.types([argument], rows)[0].type
    result = planner.schema(f"SELECT sum({argument}) AS s FROM input", {"input": rows}).field(0).type
    part, count, name = _part(call), quote(f"{call.name}:n"), quote(call.name)
    if pa.types.is_decimal(result):
        back = f"arrow_cast({{}}, 'Decimal128({result.precision}, {result.scale})')"
    elif pa.types.is_integer(result) or pa.types.is_floating(result):
        back = "{}"
    else:
        return None
    if RETRACT not in rows.names:
        merged = back.format(_total(part, result))
        summed = _total(argument, kind, filtered=_filter(call))
        return DecomposedCall((f"{summed} AS {part}",), (f"{merged} AS {part}",), f"{part} AS {name}")
    if pa.types.is_floating(kind):
        return None  # 0.1 + 0.2 - 0.2 is not 0.1: only the rows that are left give the right sum
    value = f"({argument}) * ({_SIGN})"
    if pa.types.is_unsigned_integer(result):
        value, back = f"CAST({argument} AS DECIMAL(20, 0)) * ({_SIGN})", "{}"
        result_back = f"arrow_cast({part}, 'UInt64')"
    else:
        result_back = part
    signed = f"sum({value}){_filter(call)}"
    if pa.types.is_decimal(result):
        signed, result_back = f"arrow_cast({signed}, 'Decimal128(38, {result.scale})')", back.format(part)
        merged = f"arrow_cast(sum({part}), 'Decimal128(38, {result.scale})')"
    elif pa.types.is_unsigned_integer(result):
        signed, merged = (
            f"arrow_cast({signed}, 'Decimal128(38, 0)')",
            f"arrow_cast(sum({part}), 'Decimal128(38, 0)')",
        )
    else:
        signed, merged = _total(value, kind, filtered=_filter(call)), _total(part, result)
    return DecomposedCall(
        (f"{signed} AS {part}", f"{_counted(call, argument, updating=True)} AS {count}"),
        (f"{merged} AS {part}", f"sum({count}) AS {count}"),
        f"CASE WHEN {count} > 0 THEN {result_back} END AS {name}",
    )


def _average(call: AggregateCall, argument: str, rows: pa.Schema, planner: Planner) -> DecomposedCall | None:
    kind = planner.types([argument], rows)[0].type
    updating = RETRACT in rows.names
    if not (pa.types.is_integer(kind) or (pa.types.is_floating(kind) and not updating)):
        return None
    part, count, name = _part(call), quote(f"{call.name}:n"), quote(call.name)
    value = f"arrow_cast({argument}, 'Float64')"  # a CAST would be a second `sum(argument)` for DataFusion
    if updating:
        value = f"{value} * ({_SIGN})"
    return DecomposedCall(
        (
            f"sum({value}){_filter(call)} AS {part}",
            f"{_counted(call, argument, updating=updating)} AS {count}",
        ),
        (f"sum({part}) AS {part}", f"sum({count}) AS {count}"),
        f"CASE WHEN {count} > 0 THEN {part} / CAST({count} AS DOUBLE) END AS {name}",
    )
