"""Aggregates in parts that can be merged: partial results where rows are read, one result where they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import PlanError
from headrace.base.keys import hash_array
from headrace.functions.aggregate import AccumulatorFunction
from headrace.model.fragments import Function, literal, plain_type, quote
from headrace.operators.aggregation import Aggregation, Distinct
from headrace.sql.bind.logical import AggregateCall
from headrace.sql.bind.planning import Planner

_SIGN = f"CASE WHEN {quote(RETRACT)} THEN -1 ELSE 1 END"
_SAME = ("min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")
"""Aggregates whose parts are merged by the aggregate itself."""


@dataclass(frozen=True)
class Parts:
    """One aggregate in parts: SELECT items with their aliases."""

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
    """The aggregation of some calls over `rows`, in parts if every call can be.

    `distinct` says that counts of distinct values are in parts as well.
    """
    fields = [_compared(call, rows, planner) for call in calls]
    if sum(map(bool, fields)) != 1 or not all(call.plain for call in calls):
        # DataFusion 55 fails where aggregates of one SELECT have two orders.
        fields = [() for _ in calls]
    whole = [
        f"{_first_of(call, names) if names else call.call.text} AS {quote(call.name)}"
        for call, names in zip(calls, fields, strict=True)
    ]
    found = [
        _distinct(call, rows, planner)
        if distinct and call.distinct is not None
        else _decompose(call, rows, planner, fields=names)
        for call, names in zip(calls, fields, strict=True)
    ]
    parts = [one for one in found if one is not None]
    if not calls:  # DISTINCT: the keys are all there is
        counted, part = quote(f"{TIMESTAMP}:n"), quote(f"{TIMESTAMP}:p")
        sign = f"sum({_SIGN})" if RETRACT in rows.names else "count(*)"
        whole = [f"count(*) AS {counted}"]
        parts = [Parts((f"{sign} AS {part}",), (f"sum({part}) AS {part}",), f"{part} AS {counted}")]
    if len(parts) != max(len(calls), 1):
        return Aggregation(rows, keys, tuple(whole), functions=functions, by=by)
    return Aggregation(
        rows,
        keys,
        tuple(whole),
        partial=tuple(item for one in parts for item in one.partial),
        merge=tuple(item for one in parts for item in one.merge),
        final=tuple(one.final for one in parts),
        functions=functions,
        by=by,
        distinct=tuple(one.distinct for one in parts if one.distinct is not None),
    )


def _distinct(call: AggregateCall, rows: pa.Schema, planner: Planner) -> Parts | None:
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
    return Parts(
        (),
        (f"sum({part}) AS {part}",),
        f"{part} AS {quote(call.name)}",
        Distinct(f"{call.name}:p", call.distinct, call.filter),
    )


def _decompose(
    call: AggregateCall, rows: pa.Schema, planner: Planner, *, fields: Sequence[str]
) -> Parts | None:
    if not call.plain:
        return None
    function = planner.user_functions.get(call.function)
    if isinstance(function, AccumulatorFunction):
        return _accumulated(call, function, updating=RETRACT in rows.names)
    argument = call.arguments[0] if call.arguments else "*"
    name = call.function
    makers: dict[str, Callable[[], Parts | None]] = {
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
        return Parts((f"{partial} AS {part}",), (f"{merged} AS {part}",), f"{part} AS {quote(call.name)}")
    if name not in makers or len(call.arguments) != 1:
        return None
    return makers[name]()


def _accumulated(call: AggregateCall, function: AccumulatorFunction, *, updating: bool) -> Parts | None:
    """An accumulator of the user, if its states can be merged and rows be taken back where they may be."""
    if not function.merges or (updating and not function.retracts):
        return None
    part = _part(call)
    rows = function.part_of(call.arguments, quote(RETRACT) if updating else None)
    return Parts(
        (f"{rows}{_filter(call)} AS {part}",),
        (f"{function.merged(part)} AS {part}",),
        f"{function.result(part)} AS {quote(call.name)}",
    )


def _compared(call: AggregateCall, rows: pa.Schema, planner: Planner) -> Sequence[str]:
    """The fields by which the least or greatest of structures is found; none for anything else."""
    if call.function not in {"min", "max"} or not call.plain or len(call.arguments) != 1:
        return ()
    kind = planner.types([call.arguments[0]], rows)[0].type
    if not pa.types.is_struct(kind) or any(pa.types.is_nested(one.type) for one in kind):
        return ()
    return [one.name for one in kind]


def _first_of(call: AggregateCall, fields: Sequence[str]) -> str:
    """The least or greatest of the structures that a call is given."""
    argument = call.arguments[0]
    passing = [f"({argument}) IS NOT NULL", *([f"({call.filter})"] if call.filter else [])]
    return f"{_first(call.function, argument, fields)} FILTER (WHERE {' AND '.join(passing)})"


def _first(name: str, value: str, fields: Sequence[str]) -> str:
    """The least or greatest of structures as the first in their order.

    DataFusion compares structures one by one, forty times slower. A field without a value comes last.
    """
    way = "ASC" if name == "min" else "DESC"
    order = ", ".join(f"get_field({value}, {literal(one)}) {way} NULLS LAST" for one in fields)
    return f"first_value({value} ORDER BY {order})"


def _part(call: AggregateCall) -> str:
    return quote(f"{call.name}:p")


def _filter(call: AggregateCall) -> str:
    return "" if call.filter is None else f" FILTER (WHERE {call.filter})"


def _counted(call: AggregateCall, argument: str, *, updating: bool) -> str:
    """How many values there are, retracted ones taken away."""
    if not updating:
        return f"count({argument}){_filter(call)}"
    conditions = ([] if argument == "*" else [f"({argument}) IS NOT NULL"]) + (
        [] if call.filter is None else [f"({call.filter})"]
    )
    if not conditions:
        return f"sum({_SIGN})"
    return f"sum(CASE WHEN {' AND '.join(conditions)} THEN {_SIGN} ELSE 0 END)"


def _count(call: AggregateCall, argument: str, *, updating: bool) -> Parts:
    part = _part(call)
    return Parts(
        (f"{_counted(call, argument, updating=updating)} AS {part}",),
        (f"sum({part}) AS {part}",),
        f"{part} AS {quote(call.name)}",
    )


def _sum(call: AggregateCall, argument: str, rows: pa.Schema, planner: Planner) -> Parts | None:
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
        merged = back.format(f"sum({part})")
        return Parts(
            (f"sum({argument}){_filter(call)} AS {part}",), (f"{merged} AS {part}",), f"{part} AS {name}"
        )
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
        merged = f"sum({part})"
    return Parts(
        (f"{signed} AS {part}", f"{_counted(call, argument, updating=True)} AS {count}"),
        (f"{merged} AS {part}", f"sum({count}) AS {count}"),
        f"CASE WHEN {count} > 0 THEN {result_back} END AS {name}",
    )


def _average(call: AggregateCall, argument: str, rows: pa.Schema, planner: Planner) -> Parts | None:
    kind = planner.types([argument], rows)[0].type
    updating = RETRACT in rows.names
    if not (pa.types.is_integer(kind) or (pa.types.is_floating(kind) and not updating)):
        return None
    part, count, name = _part(call), quote(f"{call.name}:n"), quote(call.name)
    value = f"arrow_cast({argument}, 'Float64')"  # a CAST would be a second `sum(argument)` for DataFusion
    if updating:
        value = f"{value} * ({_SIGN})"
    return Parts(
        (
            f"sum({value}){_filter(call)} AS {part}",
            f"{_counted(call, argument, updating=updating)} AS {count}",
        ),
        (f"sum({part}) AS {part}", f"sum({count}) AS {count}"),
        f"CASE WHEN {count} > 0 THEN {part} / CAST({count} AS DOUBLE) END AS {name}",
    )
