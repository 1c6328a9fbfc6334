"""Functions of Flink, Calcite, Spark and MySQL, in terms of PostgreSQL's."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.json_forms import parse_internal
from headrace.sql.parse.dialect import TIME_UNIT_CALLS, to_sql

_NANOSECONDS: Final = {
    "microsecond": 1_000, "millisecond": 1_000_000, "second": 10**9, "minute": 60 * 10**9,
    "hour": 3600 * 10**9, "day": 86_400 * 10**9, "week": 7 * 86_400 * 10**9,
}  # fmt: skip
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_FIELD: Final = "CAST(floor(date_part('{field}', {{0}})) AS BIGINT)"

_FORMS: Final[dict[tuple[str, int], str]] = {
    **{(name, 1): _FIELD.format(field=name) for name in ("year", "quarter", "month", "week", "day")},
    **{(name, 1): _FIELD.format(field=name) for name in ("hour", "minute", "second")},
    ("dayofmonth", 1): _FIELD.format(field="day"),
    ("dayofyear", 1): _FIELD.format(field="doy"),
    ("dayofweek", 1): f"({_FIELD.format(field='dow')} + 1)",
    ("date_add", 2): "({0} + {1})",
    ("date_sub", 2): "({0} - {1})",
    ("iff", 3): "CASE WHEN {0} THEN {1} ELSE {2} END",
    ("truncate", 1): "trunc({0})",
    ("truncate", 2): "trunc({0}, {1})",
    ("array_size", 1): "cardinality({0})",
    ("split", 2): "string_to_array({0}, {1})",
    ("is_nan", 1): "isnan({0})",
    ("is_inf", 1): "(abs({0}) = CAST('Infinity' AS DOUBLE))",
}
"""What a function with so many arguments means."""
_COUNTS: Final = {name: sorted({count for other, count in _FORMS if other == name}) for name, _ in _FORMS}


def foreign_call(context: BindContext, call: exp.Anonymous) -> exp.Expr | None:
    """What a function of another dialect means; None for all others, and for the user's own."""
    name = call.name.lower()
    if name in context.planner.user_functions:
        return None
    arguments = [f"({to_sql(argument)})" for argument in call.expressions]
    if name in TIME_UNIT_CALLS:
        return _with_unit(context, call, name, arguments)
    if name not in _COUNTS:
        return None
    form = _FORMS.get((name, len(arguments)))
    if form is None:
        counts = " or ".join(map(str, _COUNTS[name]))
        raise context.fail(f"`{name}` takes {counts} arguments, not {len(arguments)}", call)
    return parse_internal(form.format(*arguments))


def _with_unit(context: BindContext, call: exp.Anonymous, name: str, arguments: list[str]) -> exp.Expr:
    """`timestampadd(DAY, 2, ts)`, `timestampdiff(HOUR, ts, ts2)`, `floor(ts TO DAY)`."""
    unit_node, *rest = call.expressions
    unit = unit_node.name.lower()
    unit = unit.removeprefix("sql_tsi_").removesuffix("s")
    if unit not in _NANOSECONDS and unit not in _MONTHS:
        hint = f"the units are {', '.join([*_NANOSECONDS, *_MONTHS])}"
        raise context.fail(f"`{unit_node.name}` is not a unit of time", unit_node, hint)
    if len(rest) != TIME_UNIT_CALLS[name]:
        usage = {
            "timestampadd": "timestampadd(DAY, 2, ts)",
            "timestampdiff": "timestampdiff(DAY, ts, ts2)",
        }.get(name, f"{name}(ts TO DAY)")
        raise context.fail(f"`{name}` is called differently", call, f"write {usage}")
    values = arguments[1:]
    if name == "floor_to":
        return parse_internal(f"date_trunc('{unit}', {values[0]})")
    if name == "ceil_to":
        start = f"date_trunc('{unit}', {values[0]})"
        step = "3 months" if unit == "quarter" else f"1 {unit}"
        return parse_internal(
            f"CASE WHEN {start} = {values[0]} THEN {start} ELSE {start} + INTERVAL '{step}' END"
        )
    if name == "timestampadd":
        step = "3 months" if unit == "quarter" else f"1 {unit}"
        return parse_internal(f"({values[1]} + INTERVAL '{step}' * {values[0]})")
    start, end = values
    if unit in _MONTHS:
        age = f"age({end}, {start})"
        months = (
            f"(CAST(date_part('year', {age}) AS BIGINT) * 12 + CAST(date_part('month', {age}) AS BIGINT))"
        )
        return parse_internal(f"({months} / {_MONTHS[unit]})")
    instants = [f"arrow_cast(arrow_cast({value}, 'Timestamp(ns)'), 'Int64')" for value in (end, start)]
    return parse_internal(f"(({instants[0]} - {instants[1]}) / {_NANOSECONDS[unit]})")
