"""Expressions that mean something else to PostgreSQL than to DataFusion, written so that both agree.

`respell` knows only the syntax and comes before functions are bound; `Semantics` knows the types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.bind.time_patterns import is_strftime, strftime_pattern, to_char
from headrace.sql.parse.dialect import HeadraceDialect, copy_position, to_sql

_REWRITTEN: Final = "rewritten"
"""The mark of a node that has its meaning already."""

_RENAMED: Final = {
    "ceiling": "ceil", "sign": "signum", "char_length": "character_length", "pow": "power",
    "jsonb_array_length": "json_length", "json_array_length": "json_length",
    "jsonb_object_keys": "json_object_keys",
}  # fmt: skip

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_CHECKED: Final = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}
_UNITS: Final = (
    "microsecond",
    "millisecond",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
)
_EXTRACTED: Final = (*_UNITS, "nanosecond", "dow", "doy", "epoch", "isodow", "isoyear")

TypeOf = Callable[[exp.Expr], pa.DataType | None]


def parse_expression(text: str) -> exp.Expr:
    """An expression of our own making."""
    return exp.maybe_parse(text, dialect=HeadraceDialect)


def is_rewritten(node: exp.Expr) -> bool:
    """Whether any part of an expression is not as the user wrote it."""
    return any(part.meta.get(_REWRITTEN) for part in node.walk())


def _mark(node: exp.Expr, origin: exp.Expr) -> exp.Expr:
    node.meta[_REWRITTEN] = True
    copy_position(next((part for part in origin.walk() if "start" in part.meta), None), node)
    return node


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def _paren(node: exp.Expr) -> exp.Paren:
    return exp.Paren(this=node)


# ------------------------------------------------------------------------------------------- by syntax


def respell(context: BindContext, node: exp.Expr) -> exp.Expr:
    """A copy with names and forms of PostgreSQL that DataFusion spells differently."""

    def visit(part: exp.Expr) -> exp.Expr:
        if part.meta.get(_REWRITTEN):
            return part
        replacement = _respelled(context, part)
        return part if replacement is None else _mark(replacement, part)

    return node.transform(visit)


def _respelled(context: BindContext, node: exp.Expr) -> exp.Expr | None:
    if isinstance(node, exp.Anonymous):
        return _respelled_call(context, node)
    if isinstance(node, exp.Window):
        return _shifted(context, node)
    if isinstance(node, exp.Escape):
        return _escaped(context, node)
    if isinstance(node, exp.SimilarTo):
        return _similar(context, node.this, node.expression, None)
    if isinstance(node, exp.Between) and node.args.get("symmetric"):
        low, high = node.args["low"], node.args["high"]
        sides = [
            exp.Between(this=node.this.copy(), low=first.copy(), high=second.copy())
            for first, second in ((low, high), (high, low))
        ]
        return _paren(_joined(exp.Or, [_paren(side) for side in sides]))
    if isinstance(node, exp.BitwiseNot):
        return _paren(exp.Sub(this=exp.Neg(this=_paren(node.this.copy())), expression=exp.Literal.number(1)))
    return _respelled_rows(context, node)


def _respelled_rows(context: BindContext, node: exp.Expr) -> exp.Expr | None:
    if isinstance(node, exp.In) and _row(node.this) is not None and not node.args.get("query"):
        choices = []
        for choice in node.expressions:
            rows = _row_sides(context, node, node.this, choice)
            if rows is None:
                raise context.fail(
                    "a row is compared with a single value", choice, "write (a, b) IN ((1, 2))"
                )
            choices.append(_paren(_compare_rows(exp.EQ, *rows)))
        return _paren(_joined(exp.Or, choices))
    if not isinstance(node, (*_COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ)):
        return None
    rows = _row_sides(context, node, node.this, node.expression)
    if rows is None:
        return None
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        joined = exp.And if isinstance(node, exp.NullSafeEQ) else exp.Or
        return _paren(_joined(joined, [_pair(type(node), *pair) for pair in zip(*rows, strict=True)]))
    return _paren(_compare_rows(type(node), *rows))


def _respelled_call(context: BindContext, node: exp.Anonymous) -> exp.Expr | None:
    name, arguments = node.name.lower(), node.expressions
    if name in _RENAMED:
        return _call(_RENAMED[name], *arguments)
    if name in ("mod", "div") and len(arguments) != 2:
        raise context.fail(f"`{name}` takes 2 arguments, not {len(arguments)}", node, f"{name}(a, b)")
    if name == "mod":
        return _paren(exp.Mod(this=_paren(arguments[0].copy()), expression=_paren(arguments[1].copy())))
    if name == "div":
        return _call(
            "trunc", exp.Div(this=_paren(arguments[0].copy()), expression=_paren(arguments[1].copy()))
        )
    if name in ("num_nulls", "num_nonnulls") and arguments:
        condition = "IS NULL" if name == "num_nulls" else "IS NOT NULL"
        cases = [
            parse_expression(f"CASE WHEN ({to_sql(argument)}) {condition} THEN 1 ELSE 0 END")
            for argument in arguments
        ]
        return _paren(_joined(exp.Add, [_mark(case, node) for case in cases]))
    if name == "date_trunc" and arguments and arguments[0].is_string:
        unit = arguments[0].name.lower().removesuffix("s")
        if unit not in _UNITS:
            raise context.fail(
                f"date_trunc knows no `{arguments[0].name}`", arguments[0], f"it knows {', '.join(_UNITS)}"
            )
        return _call(name, exp.Literal.string(unit), *arguments[1:])
    if name == "string_agg" and arguments and isinstance(arguments[0], exp.Distinct):
        return _distinct_texts(context, node, arguments[0].expressions)
    if name == "date_part" and arguments and arguments[0].is_string:
        _check_field(context, arguments[0])
    if name == "convert_from":
        if len(arguments) != 2 or arguments[1].name.upper().replace("-", "") != "UTF8":
            raise context.fail("convert_from takes bytes and 'UTF8'", node, "convert_from(b, 'UTF8')")
        return _call("arrow_cast", arguments[0], exp.Literal.string("Utf8"))
    return None


def _distinct_texts(context: BindContext, node: exp.Anonymous, arguments: list[exp.Expr]) -> exp.Expr:
    """Distinct texts in their order, as PostgreSQL gives them: a set has no order that a replay repeats."""
    if len(arguments) != 2:
        raise context.fail("`string_agg` takes a text and a separator", node, "string_agg(DISTINCT x, ',')")
    if isinstance(node.parent, exp.Filter | exp.Window):
        hint = "write the order: string_agg(DISTINCT x, ',' ORDER BY x)"
        raise context.fail("distinct texts have no order of their own here", node, hint)
    text, separator = map(to_sql, arguments)
    values = f"array_agg(DISTINCT {text}) FILTER (WHERE ({text}) IS NOT NULL)"
    return parse_expression(f"array_to_string(array_sort({values}), {separator})")


def _shifted(context: BindContext, node: exp.Window) -> exp.Expr | None:
    """Lag and lead by an offset that is not a number."""
    call = node.this.this if isinstance(node.this, exp.IgnoreNulls | exp.RespectNulls) else node.this
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in ("lag", "lead"):
        return None
    if len(call.expressions) < 2 or _is_number(call.expressions[1]):
        return None
    value, offset = call.expressions[:2]
    if isinstance(offset.unnest(), exp.Null):
        return parse_expression(f"CASE WHEN FALSE THEN {to_sql(value)} END")
    raise context.fail(
        f"the offset of `{call.name.lower()}` is a number", offset, f"such as {call.name.lower()}(x, 2)"
    )


def _check_field(context: BindContext, field: exp.Expr) -> None:
    name = field.name.lower()
    if name not in _EXTRACTED and name.removesuffix("s") not in _EXTRACTED:
        raise context.fail(
            f"`{field.name}` cannot be extracted", field, f"what can is {', '.join(_EXTRACTED)}"
        )


def _row(node: exp.Expr) -> list[exp.Expr] | None:
    node = node.unnest()
    if isinstance(node, exp.Tuple) or (isinstance(node, exp.Anonymous) and node.name.lower() == "row"):
        return list(node.expressions)
    return None


def _row_sides(
    context: BindContext, node: exp.Expr, left: exp.Expr, right: exp.Expr
) -> tuple[list[exp.Expr], list[exp.Expr]] | None:
    rows = _row(left), _row(right)
    if rows[0] is None or rows[1] is None:
        return None
    if len(rows[0]) != len(rows[1]):
        raise context.fail(f"a row of {len(rows[0])} values is compared with one of {len(rows[1])}", node)
    return rows[0], rows[1]


def _pair(kind: type[exp.Expr], left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return _paren(kind(this=_paren(left.copy()), expression=_paren(right.copy())))


def _joined(kind: type[exp.Expr], parts: Sequence[exp.Expr]) -> exp.Expr:
    return reduce(lambda left, right: kind(this=left, expression=right), parts)


def _compare_rows(kind: type[exp.Expr], left: Sequence[exp.Expr], right: Sequence[exp.Expr]) -> exp.Expr:
    """Rows are compared value by value, in three-valued logic."""
    pairs = list(zip(left, right, strict=True))
    if kind is exp.EQ:
        return _joined(exp.And, [_pair(exp.EQ, *pair) for pair in pairs])
    if kind is exp.NEQ:
        return _joined(exp.Or, [_pair(exp.NEQ, *pair) for pair in pairs])
    strict = exp.LT if kind in (exp.LT, exp.LTE) else exp.GT
    comparison = _pair(kind, *pairs[-1])
    for pair in reversed(pairs[:-1]):
        rest = exp.And(this=_pair(exp.EQ, *pair), expression=_paren(comparison))
        comparison = exp.Or(this=_pair(strict, *pair), expression=_paren(rest))
    return comparison


def _escaped(context: BindContext, node: exp.Escape) -> exp.Expr | None:
    """LIKE with another escape character than the backslash."""
    like, escape = node.this, node.expression
    if not escape.is_string or len(escape.name) > 1:
        raise context.fail("ESCAPE takes one character", escape, "such as ESCAPE '#'")
    if isinstance(like, exp.SimilarTo):
        return _similar(context, like.this, like.expression, escape.name)
    if escape.name == "\\":
        plain: exp.Expr = like.copy()
        return plain
    if not like.expression.is_string:
        hint = "escape with a backslash, which needs no ESCAPE"
        raise context.fail("ESCAPE needs a pattern that is written out", like.expression, hint)
    pattern, result, index = like.expression.name, "", 0
    while index < len(pattern):
        character = pattern[index]
        if character == escape.name and escape.name:
            index += 1
            if index == len(pattern):
                raise context.fail("the pattern ends with its escape character", like.expression)
            result += ("\\" if pattern[index] in "%_\\" else "") + pattern[index]
        else:
            result += "\\\\" if character == "\\" else character
        index += 1
    copy: exp.Expr = like.copy()
    copy.set("expression", exp.Literal.string(result))
    return copy


def _similar(context: BindContext, value: exp.Expr, pattern: exp.Expr, escape: str | None) -> exp.Expr:
    """SIMILAR TO as a regular expression for the whole string."""
    if not pattern.is_string:
        hint = "write a regular expression with `~`"
        raise context.fail("SIMILAR TO needs a pattern that is written out", pattern, hint)
    regex = _similar_regex(pattern.name, "\\" if escape is None else escape)
    if regex is None:
        raise context.fail("the pattern ends with its escape character", pattern)
    return exp.RegexpLike(this=_paren(value.copy()), expression=exp.Literal.string(regex))


def _similar_regex(pattern: str, escape: str) -> str | None:
    r"""The regular expression of SQL's, which has `%` and `_` and matches the whole string.

    >>> _similar_regex("a%(b|c)_.", "!")
    '(?s)^(?:a.*(?:b|c).\\.)$'
    """
    result, index, in_class = "", 0, False
    while index < len(pattern):
        character = pattern[index]
        if character == escape and escape:
            index += 1
            if index == len(pattern):
                return None
            result += re.escape(pattern[index])
        elif in_class:
            in_class = character != "]"
            result += "\\\\" if character == "\\" else character
        elif character == "[":
            in_class = True
            result += character
        else:
            result += {"%": ".*", "_": ".", "(": "(?:", ".": "\\.", "^": "\\^", "$": "\\$", "\\": "\\\\"}.get(
                character, character
            )
        index += 1
    return f"(?s)^(?:{result})$"


# ------------------------------------------------------------------------------------------- by types


class Semantics:
    """Rewrites resolved expressions whose meaning depends on types."""

    def __init__(self, context: BindContext, type_of: TypeOf) -> None:
        self._context = context
        self._type_of = type_of

    def apply(self, node: exp.Expr) -> exp.Expr:
        """A node with the meaning that PostgreSQL gives it; parts before what they are in."""
        for part in reversed(list(node.walk())):
            if part.meta.get(_REWRITTEN):
                continue
            replacement = self._rewritten(part)
            if replacement is not None:
                replacement = _mark(replacement, part)
                if part is node:
                    return replacement
                part.replace(replacement)
        return node

    def _rewritten(self, node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Div):
            return self._arithmetic(node)
        if isinstance(node, (*_COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ)):
            return self._compared_intervals(node, ("this", "expression"))
        if isinstance(node, exp.Between):
            return self._compared_intervals(node, ("this", "low", "high"))
        if isinstance(node, exp.Cast):
            return self._cast(node)
        if isinstance(node, exp.Extract):
            _check_field(self._context, node.this)
        if isinstance(node, exp.Anonymous):
            return self._called(node)
        return None

    # -------------------------------------------------------------------------------- arithmetic

    def _arithmetic(self, node: exp.Binary) -> exp.Expr | None:
        left, right = node.this, node.expression
        kinds = [self._type_of(side) for side in (left, right)]
        if kinds[0] is None or kinds[1] is None:
            return None
        if isinstance(node, exp.Mul | exp.Div) and any(map(pa.types.is_interval, kinds)):
            return self._scaled_interval(node, kinds)
        if isinstance(node, exp.Add | exp.Sub) and any(map(pa.types.is_interval, kinds)):
            return self._date_and_interval(node, kinds)
        if not all(map(pa.types.is_integer, kinds)) or isinstance(node, exp.Div):
            return None
        if left.is_number and right.is_number and len(left.name) + len(right.name) < 18:
            return None
        kind = self._type_of(node)
        if kind is None or not pa.types.is_integer(kind) or _has_room(node, kinds, kind):
            return None
        return _call(f"checked__{_CHECKED[type(node)]}__{kind}", left, right)

    def _scaled_interval(self, node: exp.Binary, kinds: Sequence[pa.DataType | None]) -> exp.Expr | None:
        interval, number = (0, 1) if pa.types.is_interval(kinds[0]) else (1, 0)
        sides = (node.this, node.expression)
        kind = kinds[number]
        is_number = kind is not None and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        )
        if not is_number or (isinstance(node, exp.Div) and interval == 1):
            return None
        name = "interval__divide" if isinstance(node, exp.Div) else "interval__multiply"
        return _call(name, sides[interval], parse_expression(f"CAST({to_sql(sides[number])} AS DOUBLE)"))

    def _date_and_interval(self, node: exp.Binary, kinds: Sequence[pa.DataType | None]) -> exp.Expr | None:
        """A date and an interval are a timestamp: an hour after a date is another instant."""
        for side, kind in zip(("this", "expression"), kinds, strict=True):
            if kind == pa.date32():
                copy = node.copy()
                instant = f"arrow_cast({to_sql(node.args[side])}, 'Timestamp(ns)')"
                copy.set(side, _mark(parse_expression(instant), node))
                return copy
        return None

    # ------------------------------------------------------------------------------- comparisons

    def _compared_intervals(self, node: exp.Expr, sides: Sequence[str]) -> exp.Expr | None:
        kinds = [self._type_of(node.args[side]) for side in sides]
        if not any(kind is not None and pa.types.is_interval(kind) for kind in kinds):
            return None
        copy = node.copy()
        for side, kind in zip(sides, kinds, strict=True):
            value = node.args[side].copy()
            if kind is None or not (
                pa.types.is_interval(kind) or pa.types.is_duration(kind) or pa.types.is_null(kind)
            ):
                return None
            if not pa.types.is_interval(kind):
                value = parse_expression(f"arrow_cast({to_sql(value)}, 'Interval(MonthDayNano)')")
            copy.set(side, _mark(_call("interval__length", value), value))
        return copy

    # ------------------------------------------------------------------------------------- casts

    def _cast(self, node: exp.Cast) -> exp.Expr | None:
        target, value = node.to.this, node.this
        if target in exp.DataType.INTEGER_TYPES:
            kind = self._type_of(value)
            if kind is None or not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
                return None
            copy = node.copy()
            rounds_away = pa.types.is_decimal(kind) or _is_number(value)
            copy.set("this", _call("round" if rounds_away else "round__even", value))
            return copy
        if target in exp.DataType.TEXT_TYPES and self._type_of(value) == pa.binary():
            return parse_expression(f"('\\x' || encode({to_sql(value)}, 'hex'))")
        if target == exp.DataType.Type.VARBINARY and value.is_string and value.name.startswith("\\x"):
            digits = value.name.removeprefix("\\x")
            if len(digits) % 2 or re.search(r"[^0-9a-fA-F]", digits):
                raise self._context.fail(
                    f"`{value.name}` is not a BYTEA", node, "write pairs of hexadecimal digits"
                )
            return parse_expression(f"decode('{digits.lower()}', 'hex')")
        return None

    # ------------------------------------------------------------------------------------- calls

    def _called(self, node: exp.Anonymous) -> exp.Expr | None:
        name, arguments = node.name.lower(), node.expressions
        if name == "round" and len(arguments) == 1 and not _is_number(arguments[0]):
            kind = self._type_of(arguments[0])
            if kind is not None and pa.types.is_floating(kind):
                return _call("round__even", arguments[0])
        if name in ("to_char", "date_format") and len(arguments) == 2 and arguments[1].is_string:
            pattern = arguments[1].name
            if name == "to_char" and not is_strftime(pattern):
                with self._context.planning(arguments[1]):
                    return parse_expression(to_char(to_sql(arguments[0]), pattern))
        if name in ("to_date", "to_timestamp") and len(arguments) == 2 and arguments[1].is_string:
            pattern = arguments[1].name
            if not is_strftime(pattern):
                with self._context.planning(arguments[1]):
                    return _call(name, arguments[0], exp.Literal.string(strftime_pattern(pattern)))
        return None


def _is_number(node: exp.Expr) -> bool:
    """Whether it is a number that is written out: a NUMERIC to PostgreSQL."""
    node = node.unnest()
    if isinstance(node, exp.Neg):
        node = node.this.unnest()
    return bool(node.is_number)


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
