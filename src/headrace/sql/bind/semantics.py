"""Expressions that mean something else to PostgreSQL than to DataFusion because of their types, rewritten.

`respelling` knows only the syntax and comes before functions are bound.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.model.fragments import literal
from headrace.sql.bind.aggregate_forms import PERCENTILE, continuous_percentile
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.frames import MEAN, mean_of
from headrace.sql.bind.interval_literals import spelled_out
from headrace.sql.bind.json_forms import (
    COMPACT_JSON_VALUE,
    JSON_VALUE,
    is_json,
    json_value,
)
from headrace.sql.bind.postgres_calls import PostgresCalls, TypeOf, call_of, parse_expression
from headrace.sql.bind.respelling import COMPARISONS, REWRITTEN, is_number, mark_rewritten
from headrace.sql.bind.time_patterns import is_strftime, strftime_pattern, to_char
from headrace.sql.parse.dialect import to_sql
from headrace.sql.types import type_name

_TIMESTAMPS: Final = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ)
_CHECKED: Final = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}


_PLACEHOLDERS: Final = {
    JSON_VALUE: json_value,
    COMPACT_JSON_VALUE: json_value,
    PERCENTILE: continuous_percentile,
    MEAN: mean_of,
}
"""Calls that are replaced as soon as the types of their arguments are known."""


class Semantics:
    """Rewrites resolved expressions whose meaning depends on types."""

    def __init__(self, context: BindContext, type_of: TypeOf) -> None:
        self._context = context
        self._type_of = type_of
        self._calls = PostgresCalls(context, type_of)

    def apply(self, node: exp.Expr) -> exp.Expr:
        """A node with the meaning that PostgreSQL gives it; parts before what they are in."""
        for part in reversed(list(node.walk())):
            stands_for = _PLACEHOLDERS.get(part.name) if isinstance(part, exp.Anonymous) else None
            if stands_for is not None:
                replacement: exp.Expr | None = stands_for(self._context, part, self._type_of)
            elif part.meta.get(REWRITTEN):
                continue
            else:
                replacement = self._rewritten(part)
            if replacement is not None:
                replacement = mark_rewritten(replacement, part)
                if part is node:
                    return replacement
                part.replace(replacement)
        return node

    def _rewritten(self, node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Anonymous | exp.Filter | exp.Window):
            aggregate = self._decimal_mean(node) or self._of_intervals(node)
            if aggregate is not None:
                return aggregate
        if isinstance(node, exp.DPipe):
            return self._calls.json_arithmetic(node) or self._joined_texts(node)
        if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Div):
            return self._calls.json_arithmetic(node) or self._arithmetic(node)
        if isinstance(node, (*COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ)):
            sides = ("this", "expression")
            return self._calls.compared(node) or self._compared(node, sides)
        if isinstance(node, exp.Between):
            return self._compared(node, ("this", "low", "high"))
        if isinstance(node, exp.Cast):
            return self._cast(node)
        if isinstance(node, exp.Anonymous):
            return self._called(node)
        return self._calls.form(node)

    def _joined_texts(self, node: exp.DPipe) -> exp.Expr | None:
        """`text || value`, with the value as PostgreSQL writes it."""
        sides = {side: self._type_of(node.args[side]) for side in ("this", "expression")}
        copy = None
        for side, kind in sides.items():
            if kind is None or pa.types.is_list(kind) or pa.types.is_binary(kind):
                return None
            written = self._calls.written(node.args[side], kind)
            if written is not None:
                copy = copy or node.copy()
                copy.set(side, written)
        return copy

    # -------------------------------------------------------------------------------- arithmetic

    def _arithmetic(self, node: exp.Binary) -> exp.Expr | None:
        left, right = node.this, node.expression
        kinds = [self._type_of(side) for side in (left, right)]
        if kinds[0] is None or kinds[1] is None:
            return None
        if isinstance(node, exp.Mul | exp.Div) and any(map(_is_length, kinds)):
            return self._scaled_interval(node, kinds)
        if isinstance(node, exp.Add | exp.Sub) and any(map(pa.types.is_interval, kinds)):
            if any(map(_is_numeric, kinds)):
                names = " and ".join(type_name(kind) for kind in kinds if kind is not None)
                hint = "an INTERVAL has a unit: write INTERVAL '1 second' * 5"
                raise self._context.fail(f"{names} cannot be added or subtracted", node, hint)
            return self._date_and_interval(node, kinds)
        if isinstance(node, exp.Div):
            return _divided_decimals(node, kinds)
        if not all(map(pa.types.is_integer, kinds)):
            return None
        if left.is_number and right.is_number and len(left.name) + len(right.name) < 18:
            return None
        kind = self._type_of(node)
        if kind is None or not pa.types.is_integer(kind) or _has_room(node, kinds, kind):
            return None
        return call_of(f"checked__{_CHECKED[type(node)]}__{kind}", left, right)

    def _scaled_interval(self, node: exp.Binary, kinds: Sequence[pa.DataType | None]) -> exp.Expr | None:
        interval, number = (0, 1) if _is_length(kinds[0]) else (1, 0)
        sides = (node.this, node.expression)
        kind, length = kinds[number], self._calls.as_interval(sides[interval], kinds[interval])
        if not _is_numeric(kind) or (isinstance(node, exp.Div) and interval == 1):
            return None
        name = "interval__divide" if isinstance(node, exp.Div) else "interval__multiply"
        return call_of(name, length, parse_expression(f"CAST({to_sql(sides[number])} AS DOUBLE)"))

    def _date_and_interval(self, node: exp.Binary, kinds: Sequence[pa.DataType | None]) -> exp.Expr | None:
        """A date and an interval are a timestamp: an hour after a date is another instant."""
        for side, kind in zip(("this", "expression"), kinds, strict=True):
            if kind == pa.date32():
                copy = node.copy()
                instant = f"arrow_cast({to_sql(node.args[side])}, 'Timestamp(ns)')"
                copy.set(side, mark_rewritten(parse_expression(instant), node))
                return copy
        return None

    # ------------------------------------------------------------------------------- comparisons

    def _compared(self, node: exp.Expr, sides: Sequence[str]) -> exp.Expr | None:
        others = self._compared_intervals(node, sides) or self._compared_times(node, sides)
        return others or self._compared_structs(node, sides)

    def _compared_structs(self, node: exp.Expr, sides: Sequence[str]) -> exp.Expr | None:
        """A struct that is compared with a row, value by value."""
        kinds = {side: self._type_of(node.args[side]) for side in sides}
        structs = [
            kind
            for kind in kinds.values()
            if kind is not None and pa.types.is_struct(kind) and not _is_row_type(kind)
        ]
        copy = None
        for side, kind in kinds.items():
            if structs and kind is not None and _is_row_type(kind):
                if kind.num_fields != structs[0].num_fields:
                    hint = f"it has {structs[0].num_fields} fields"
                    message = f"a struct is compared with a row of {kind.num_fields} values"
                    raise self._context.fail(message, node, hint)
                copy = copy or node.copy()
                copy.set(side, _struct_of_row(node.args[side], kind, structs[0]))
        return copy

    def _compared_times(self, node: exp.Expr, sides: Sequence[str]) -> exp.Expr | None:
        """A time that is compared with one that is written out to the minute: `ts > '2026-01-01 10:00'`."""
        short = [side for side in sides if _is_short_time(node.args[side])]
        kinds = [self._type_of(node.args[side]) for side in sides if side not in short]
        if not short or not all(kind is not None and pa.types.is_timestamp(kind) for kind in kinds):
            return None
        copy = node.copy()
        for side in short:
            copy.set(side, exp.Literal.string(f"{node.args[side].name}:00"))
        return copy

    def _compared_intervals(self, node: exp.Expr, sides: Sequence[str]) -> exp.Expr | None:
        kinds = [self._type_of(node.args[side]) for side in sides]
        has_text = any(node.args[side].is_string for side in sides)
        if not any(_is_length(kind) and (has_text or not pa.types.is_duration(kind)) for kind in kinds):
            return None
        copy = node.copy()
        for side, kind in zip(sides, kinds, strict=True):
            value = node.args[side].copy()
            if value.is_string:
                text = spelled_out(value.name) or value.name
                value = exp.Interval(this=exp.Literal.string(text))
            elif kind is None or not (
                pa.types.is_interval(kind) or pa.types.is_duration(kind) or pa.types.is_null(kind)
            ):
                return None
            elif not pa.types.is_interval(kind):
                value = parse_expression(f"arrow_cast({to_sql(value)}, 'Interval(MonthDayNano)')")
            copy.set(side, mark_rewritten(call_of("interval__length", value), value))
        return copy

    # ------------------------------------------------------------------------------------- casts

    def _cast(self, node: exp.Cast) -> exp.Expr | None:
        target, value = node.to.this, node.this
        if target in exp.DataType.INTEGER_TYPES:
            kind = self._type_of(value)
            if kind is None or not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
                return None
            copy = node.copy()
            rounds_away = pa.types.is_decimal(kind) or is_number(value)
            copy.set("this", call_of("round" if rounds_away else "round__even", value))
            return copy
        if target == exp.DataType.Type.JSONB and not is_json(value) and self._type_of(value) == pa.string():
            return exp.cast(call_of("jsonb_text__string", value), "JSONB")
        if target in exp.DataType.TEXT_TYPES:
            if node.to.expressions:
                return self._cut(node)
            kind = self._type_of(value)
            return None if kind is None else self._calls.written(value, kind)
        if target in _TIMESTAMPS and _is_short_time(value):
            copy = node.copy()
            copy.set("this", exp.Literal.string(f"{value.name}:00"))
            return copy
        if target == exp.DataType.Type.STRUCT and node.to.expressions:
            return self._cast_row(node)
        return self._cast_bytes(node)

    def _cast_bytes(self, node: exp.Cast) -> exp.Expr | None:
        r"""`CAST('\x4a' AS BYTEA)`."""
        value = node.this
        is_bytes = node.to.this == exp.DataType.Type.VARBINARY
        if not is_bytes or not value.is_string or not value.name.startswith("\\x"):
            return None
        digits = value.name.removeprefix("\\x")
        if len(digits) % 2 or re.search(r"[^0-9a-fA-F]", digits):
            raise self._context.fail(
                f"`{value.name}` is not a BYTEA", node, "write pairs of hexadecimal digits"
            )
        return parse_expression(f"decode('{digits.lower()}', 'hex')")

    def _cast_row(self, node: exp.Cast) -> exp.Expr | None:
        """`CAST(row(1, 'a') AS STRUCT<x INT, y TEXT>)`: value by value; NULL is NULL."""
        kind, fields = self._type_of(node.this), node.to.expressions
        if kind is None or not _is_row_type(kind):
            return None
        if kind.num_fields != len(fields):
            message = f"a row of {kind.num_fields} values is cast to a struct of {len(fields)} fields"
            raise self._context.fail(message, node, "write a value for each field")
        text = to_sql(node.this)
        values = ", ".join(
            f"{literal(field.name)}, CAST(get_field({text}, 'f{at}') AS {to_sql(field.args['kind'])})"
            for at, field in enumerate(fields, 1)
        )
        return parse_expression(f"CASE WHEN ({text}) IS NOT NULL THEN named_struct({values}) END")

    def _cut(self, node: exp.Cast) -> exp.Expr:
        """`CAST(x AS VARCHAR(3))` keeps three characters."""
        length = node.to.expressions[0].this
        if not length.is_number or int(length.name) < 1:
            raise self._context.fail("the length of a text is a number", node, "such as VARCHAR(10)")
        plain = node.copy()
        plain.to.set("expressions", None)
        return call_of("left", self._cast(plain) or plain, length)

    # ------------------------------------------------------------------------------------- calls

    def _called(self, node: exp.Anonymous) -> exp.Expr | None:
        name, arguments = node.name.lower(), node.expressions
        if name == "round" and len(arguments) == 1 and not is_number(arguments[0]):
            kind = self._type_of(arguments[0])
            if kind is not None and pa.types.is_floating(kind):
                return call_of("round__even", arguments[0])
        if name == "nullif" and len(arguments) == 2:
            return self._null_struct(*arguments)
        if name == "to_char" and len(arguments) == 2:
            written = self._calls.number_or_interval_to_char(*arguments)
            if written is not None:
                return written
        if name in ("to_char", "date_format") and len(arguments) == 2 and arguments[1].is_string:
            pattern = arguments[1].name
            if name == "to_char" and not is_strftime(pattern):
                with self._context.planning(arguments[1]):
                    return parse_expression(to_char(to_sql(arguments[0]), pattern))
        if name in ("to_date", "to_timestamp") and len(arguments) == 2 and arguments[1].is_string:
            pattern = arguments[1].name
            if not is_strftime(pattern):
                with self._context.planning(arguments[1]):
                    strftime = strftime_pattern(pattern)
                if re.search("%[HI]", strftime) and "%M" not in strftime:
                    # Hours without minutes are not read otherwise.
                    text = parse_expression(f"({to_sql(arguments[0])}) || ' 00'")
                    return call_of(name, text, exp.Literal.string(f"{strftime} %M"))
                return call_of(name, arguments[0], exp.Literal.string(strftime))
        return self._calls.call(node)

    def _null_struct(self, value: exp.Expr, other: exp.Expr) -> exp.Expr | None:
        """`nullif` of structs: DataFusion leaves the fields of one that is NULL as they were."""
        kind = self._type_of(value)
        if kind is None or not pa.types.is_struct(kind):
            return None
        text = to_sql(value)
        return parse_expression(f"CASE WHEN ({text} = {to_sql(other)}) IS NOT TRUE THEN {text} END")

    def _of_intervals(self, node: exp.Expr) -> exp.Expr | None:
        """The shortest, longest or mean interval: DataFusion compares months before days."""
        call = node
        while isinstance(call, exp.Filter | exp.Window):
            call = call.this
        is_inner = isinstance(node.parent, exp.Filter | exp.Window) and node.parent.this is node
        if is_inner or not isinstance(call, exp.Anonymous) or len(call.expressions) != 1:
            return None
        name = call.name.lower()
        if name not in ("min", "max", "avg", "mean") or isinstance(call.expressions[0], exp.Distinct):
            return None
        kind = self._type_of(call.expressions[0])
        if kind is None or not pa.types.is_interval(kind):
            return None
        value = to_sql(call.expressions[0])
        if name in ("avg", "mean"):
            total, count = (
                to_sql(_with_call(node, parse_expression(f"{function}({value})")))
                for function in ("sum", "count")
            )
            return parse_expression(f"interval__divide({total}, CAST(nullif({count}, 0) AS DOUBLE))")
        if isinstance(node, exp.Window):
            hint = f"write {name} with GROUP BY in a subquery, and join it"
            raise self._context.fail(f"`{name}` of intervals takes no OVER", node, hint)
        order = "DESC" if name == "max" else "ASC"
        first = f"first_value({value} ORDER BY interval__length({value}) {order} NULLS LAST)"
        return _with_call(node, parse_expression(first))

    def _decimal_mean(self, node: exp.Expr) -> exp.Expr | None:
        """The mean of decimals from their sum and count: DataFusion cuts it off after a few digits."""
        call = node
        while isinstance(call, exp.Filter | exp.Window):
            call = call.this
        if not isinstance(call, exp.Anonymous) or call.name.lower() not in ("avg", "mean"):
            return None
        if isinstance(node.parent, exp.Filter | exp.Window) and node.parent.this is node:
            return None
        if len(call.expressions) != 1:
            return None
        argument = call.expressions[0]
        is_distinct = isinstance(argument, exp.Distinct) and len(argument.expressions) == 1
        value = argument.expressions[0] if is_distinct else argument
        kind = self._type_of(value)
        if kind is None or not pa.types.is_decimal(kind):
            return None
        text = to_sql(value)
        wide = f"arrow_cast({text}, 'Decimal128(38, {kind.scale})')"
        parts = []
        for function, summed in (("sum", wide), ("count", text)):
            part = parse_expression(f"{function}({'DISTINCT ' * is_distinct}{summed})")
            parts.append(_with_call(node, part))
        total = parse_expression(f"arrow_cast({to_sql(parts[0])}, 'Decimal128(38, {kind.scale})')")
        return call_of(f"decimal__mean__{kind.scale}", total, parts[1])


def _with_call(node: exp.Expr, call: exp.Expr) -> exp.Expr:
    """A copy of a call with its FILTER and OVER, with another call in its place."""
    copy = node.copy()
    inner = copy
    while isinstance(inner, exp.Filter | exp.Window):
        inner = inner.this
    if inner is copy:
        return call
    inner.replace(call)
    return copy


def _divided_decimals(node: exp.Div, kinds: Sequence[pa.DataType | None]) -> exp.Expr | None:
    """The quotient of decimals, or of a decimal and an integer: DataFusion cuts it off after a few digits."""
    decimals = [kind for kind in kinds if kind is not None and pa.types.is_decimal(kind)]
    others = [kind for kind in kinds if kind not in decimals]
    if not decimals or not all(map(pa.types.is_integer, others)):
        return None
    scale = max(kind.scale for kind in decimals)
    sides = [
        parse_expression(f"arrow_cast({to_sql(side)}, 'Decimal128(38, {scale})')")
        for side in (node.this, node.expression)
    ]
    return call_of(f"decimal__divide__{scale}", *sides)


def _is_short_time(node: exp.Expr) -> bool:
    """Whether it is a time that is written out without its seconds, which DataFusion does not read."""
    return node.is_string and re.fullmatch(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d", node.name.strip()) is not None


def _is_row_type(kind: pa.DataType | None) -> bool:
    """Whether it is the type of `row(…)`, whose fields are only numbered."""
    if kind is None or not pa.types.is_struct(kind):
        return False
    return [field.name for field in kind] == [f"f{at}" for at in range(1, kind.num_fields + 1)]


def _struct_of_row(node: exp.Expr, kind: pa.StructType, target: pa.StructType) -> exp.Expr:
    """A row with the names of a struct."""
    text = to_sql(node)
    values = ", ".join(
        f"{literal(field.name)}, CAST(get_field({text}, 'f{at}') AS {type_name(field.type)})"
        if kind.field(at - 1).type != field.type and not pa.types.is_nested(field.type)
        else f"{literal(field.name)}, get_field({text}, 'f{at}')"
        for at, field in enumerate(target, 1)
    )
    return parse_expression(f"CASE WHEN ({text}) IS NOT NULL THEN named_struct({values}) END")


def _is_length(kind: pa.DataType | None) -> bool:
    """Whether it is the type of an INTERVAL, or of the difference of two instants."""
    return kind is not None and (pa.types.is_interval(kind) or pa.types.is_duration(kind))


def _is_numeric(kind: pa.DataType | None) -> bool:
    return kind is not None and (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _has_room(node: exp.Binary, kinds: Sequence[pa.DataType | None], kind: pa.DataType) -> bool:
    """Whether no values of these types can leave the type of the result."""
    widths = []
    for side, its in zip((node.this, node.expression), kinds, strict=True):
        if its is None:
            return False
        widths.append(
            int(side.name).bit_length() if side.is_number and side.name.isdigit() else its.bit_width
        )
    bits = sum(widths) if isinstance(node, exp.Mul) else max(widths) + 1
    return bool(bits < kind.bit_width and pa.types.is_signed_integer(kind))
