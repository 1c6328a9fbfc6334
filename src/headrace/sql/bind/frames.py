"""Frames that DataFusion cannot compute: with EXCLUDE, and those that move, for some aggregates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.json_forms import parse_internal
from headrace.sql.bind.postgres_calls import TypeOf
from headrace.sql.parse.dialect import to_sql

MEAN: Final = "mean__of"
"""A call that stands for the mean of a sum and a count, until the type of the sum is known."""

_Part = tuple[str, float, float]
"""The kind of a frame, where it starts and where it ends, counted from the current row."""


def _first_known(combined: str) -> Callable[[str, str], str]:
    """Two results in one; what is NULL has no rows."""
    return lambda left, right: f"coalesce({combined.format(left, right)}, {left}, {right})"


_COMBINED: Final[dict[str, Callable[[str, str], str]]] = {
    "count": lambda left, right: f"({left} + {right})",
    "sum": _first_known("{0} + {1}"),
    "min": lambda left, right: f"least({left}, {right})",
    "max": lambda left, right: f"greatest({left}, {right})",
    "bool_and": _first_known("{0} AND {1}"),
    "every": _first_known("{0} AND {1}"),
    "bool_or": _first_known("{0} OR {1}"),
    "array_agg": _first_known("array_concat({0}, {1})"),
}
"""How the results over two parts of a frame are those over both."""
_BY_POSITION: Final = ("first_value", "last_value")
_NAMES: Final = (*_COMBINED, "avg", "string_agg", *_BY_POSITION)


def without_excluded(context: BindContext, node: exp.Window) -> exp.Expr | None:
    """A window function whose frame leaves out rows around the current one; None without EXCLUDE."""
    spec = node.args.get("spec")
    excluded = None if spec is None else spec.args.get("exclude")
    if spec is None or excluded is None:
        return None
    what = excluded.name.upper()
    parts = None if what == "NO OTHERS" else _parts(context, node, spec, what)
    if parts is None:
        return _over(node, spec.args.get("kind"), None)
    call = node.this.this if isinstance(node.this, exp.Filter) else node.this
    name = call.name.lower() if isinstance(call, exp.Anonymous) else to_sql(call)
    if name not in _NAMES or any(isinstance(argument, exp.Distinct) for argument in call.expressions):
        hint = f"aggregates with EXCLUDE are {', '.join(_NAMES)}, without DISTINCT"
        raise context.fail(f"`{name}` cannot be computed with EXCLUDE {what}", node, hint)
    if not parts:
        return exp.Literal.number(0) if name == "count" else _typed_null(node)
    return parse_internal(_combined(node, call, name, parts))


_NOT_MOVING: Final = (
    "any_value",
    "approx_distinct",
    "approx_median",
    "approx_percentile_cont",
    "bit_and",
    "bit_or",
)
"""Aggregates from whose result no row can be taken away."""


def over_moving_frame(context: BindContext, node: exp.Window) -> exp.Expr | None:
    """An aggregate over a frame that rows leave, by means of one that they can leave; None for all others."""
    spec = node.args.get("spec")
    call = node.this.this if isinstance(node.this, exp.Filter) else node.this
    if spec is None or not isinstance(call, exp.Anonymous) or not call.expressions:
        return None
    starts = _bound(spec.args.get("start"), spec.args.get("start_side"))
    if starts is not None and starts == -math.inf:
        return None
    name, value = call.name.lower(), call.expressions[0]
    if name in _NOT_MOVING or (name in ("avg", "mean") and isinstance(value, exp.Distinct)):
        hint = "write a frame that begins with UNBOUNDED PRECEDING"
        raise context.fail(f"`{name}` cannot be computed over a frame that moves", node, hint)
    text = to_sql(value)
    if name in ("bool_and", "every", "bool_or"):
        least = exp.Anonymous(
            this="max" if name == "bool_or" else "min", expressions=[parse_internal(f"CAST({text} AS INT)")]
        )
        return parse_internal(f"({to_sql(_over(node, None, None, least))} = 1)")
    if name != "string_agg" or len(call.expressions) != 2 or isinstance(value, exp.Distinct):
        return None
    passing = [f"({text}) IS NOT NULL"]
    if isinstance(node.this, exp.Filter):
        passing.append(f"({to_sql(node.this.expression.this)})")
    copy = node.copy()
    copy.set("this", parse_internal(f"array_agg({text}) FILTER (WHERE {' AND '.join(passing)})"))
    values = to_sql(copy)
    separator = to_sql(call.expressions[1])
    return parse_internal(
        f"CASE WHEN array_length({values}) > 0 THEN array_to_string({values}, {separator}) END"
    )


def mean_of(_: BindContext, node: exp.Expr, type_of: TypeOf) -> exp.Expr:
    """What a call of `MEAN` stands for."""
    total, count = node.expressions
    kind = type_of(total)
    if kind is not None and pa.types.is_decimal(kind):
        wide = f"arrow_cast({to_sql(total)}, 'Decimal128(38, {kind.scale})')"
        return parse_internal(f"decimal__mean__{kind.scale}({wide}, {to_sql(count)})")
    return parse_internal(f"(CAST({to_sql(total)} AS DOUBLE) / CAST(nullif({to_sql(count)}, 0) AS DOUBLE))")


def _combined(node: exp.Window, call: exp.Expr, name: str, parts: Sequence[_Part]) -> str:
    def over(function: str | None = None, *arguments: exp.Expr) -> list[str]:
        called = exp.Anonymous(this=function, expressions=[*arguments]) if function else call
        return [to_sql(_over(node, kind, (start, end), called)) for kind, start, end in parts]

    if name == "avg":
        total, count = (
            reduce(_COMBINED[function], over(function, *(value.copy() for value in call.expressions)))
            for function in ("sum", "count")
        )
        return f"{MEAN}({total}, {count})"
    if name == "string_agg":
        separator = to_sql(call.expressions[1]) if len(call.expressions) > 1 else "''"
        return reduce(_first_known(f"{{0}} || {separator} || {{1}}"), over())
    if name in _BY_POSITION:
        pairs = list(zip(over("count", exp.Star()), over(), strict=True))
        ordered = pairs if name == "first_value" else pairs[::-1]
        return "CASE " + " ".join(f"WHEN {count} > 0 THEN {value}" for count, value in ordered) + " END"
    return reduce(_COMBINED[name], over())


def _over(
    node: exp.Window, kind: str | None, bounds: tuple[float, float] | None, call: exp.Expr | None = None
) -> exp.Window:
    """The window function over another frame; over the same one without EXCLUDE if there are no bounds."""
    copy = node.copy()
    spec = copy.args["spec"]
    spec.set("exclude", None)
    if bounds is not None:
        spec.set("kind", kind)
        for end, bound in zip(("start", "end"), bounds, strict=True):
            value: str | exp.Expr = "CURRENT ROW"
            if bound:
                value = "UNBOUNDED" if math.isinf(bound) else exp.Literal.number(int(abs(bound)))
            spec.set(end, value)
            spec.set(f"{end}_side", None if bound == 0 else "PRECEDING" if bound < 0 else "FOLLOWING")
    if call is not None:
        inner = copy.this.this if isinstance(copy.this, exp.Filter) else copy.this
        inner.replace(call.copy())
    return copy


def _typed_null(node: exp.Window) -> exp.Expr:
    """NULL of the type of a function."""
    return exp.Case(ifs=[exp.If(this=exp.false(), true=_over(node, None, None))])


def _parts(context: BindContext, node: exp.Window, spec: exp.Expr, what: str) -> list[_Part] | None:
    """The frame without what is excluded; None if nothing in it is."""
    kind = (spec.args.get("kind") or "").upper()
    start = _bound(spec.args.get("start"), spec.args.get("start_side"))
    end = 0.0 if spec.args.get("end") is None else _bound(spec.args["end"], spec.args.get("end_side"))
    unit = "ROWS" if what == "CURRENT ROW" else "GROUPS"
    whole = (start, end) == (-math.inf, math.inf)
    peers = (start, end) in ((-math.inf, 0.0), (0.0, math.inf))
    if (
        start is None
        or end is None
        or not (kind == unit or whole or (peers and {kind, unit} == {"RANGE", "GROUPS"}))
    ):
        usage = "of a frame of ROWS leaves out the current row, of one of GROUPS a GROUP or TIES"
        raise context.fail(f"EXCLUDE {what} is not possible in this frame", node, f"EXCLUDE {usage}")
    if not start <= 0 <= end:
        return None
    parts: list[_Part] = []
    if start < 0:
        parts.append((unit, start, -1))
    if what == "TIES":
        parts.append(("ROWS", 0, 0))
    if end > 0:
        parts.append((unit, 1, end))
    return parts


def _bound(value: object, side: object) -> float | None:
    """A bound of a frame, counted from the current row; None if it is not written out."""
    if isinstance(value, exp.Expr):
        if not value.is_int:
            return None
        number: float = int(value.name)
    elif str(value).upper() == "CURRENT ROW":
        return 0.0
    else:
        number = math.inf
    return -number if str(side).upper() == "PRECEDING" else number
