"""Expressions that mean something else to PostgreSQL than to DataFusion, written so that both agree.

`respell` knows only the syntax and comes before functions are bound; `Semantics` knows the types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.model.fragments import literal
from headrace.sql.bind.aggregate_forms import PERCENTILE, continuous_percentile, respell_aggregate
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.foreign_calls import foreign_call
from headrace.sql.bind.frames import MEAN, mean_of, over_moving_frame, without_excluded
from headrace.sql.bind.interval_literals import in_units, spelled_out
from headrace.sql.bind.json_forms import (
    COMPACT_JSON_VALUE,
    JSON_VALUE,
    ROW_OBJECT,
    built_json,
    is_json,
    json_value,
)
from headrace.sql.bind.planning import JSON_BUILDERS
from headrace.sql.bind.postgres_calls import PostgresCalls, TypeOf, call_of, list_items, parse_expression
from headrace.sql.bind.row_functions import ROW_FUNCTIONS, row_function_in
from headrace.sql.bind.time_patterns import is_strftime, strftime_pattern, to_char
from headrace.sql.parse.dialect import IS_NOT, copy_position, to_sql
from headrace.sql.types import type_name

_REWRITTEN: Final = "rewritten"
"""The mark of a node that has its meaning already."""

_RENAMED: Final = {
    "ceiling": "ceil", "sign": "signum", "char_length": "character_length", "pow": "power",
    "jsonb_array_length": "json_length", "json_array_length": "json_length",
}  # fmt: skip

_BYTE_ORDERS: Final = ("C", "POSIX", "UCS_BASIC")
"""Collations that compare texts by their bytes, as it is done here."""

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_TIMESTAMPS: Final = (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ)
_CHECKED: Final = {exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply"}


def is_rewritten(node: exp.Expr) -> bool:
    """Whether any part of an expression is not as the user wrote it."""
    return any(part.meta.get(_REWRITTEN) for part in node.walk())


def _mark(node: exp.Expr, origin: exp.Expr) -> exp.Expr:
    node.meta[_REWRITTEN] = True
    copy_position(next((part for part in origin.walk() if "start" in part.meta), None), node)
    return node


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
    if isinstance(node, exp.Anonymous | exp.Filter | exp.WithinGroup):
        aggregate = respell_aggregate(context, node, lambda part: respell(context, part))
        if aggregate is not None:
            return aggregate
    if isinstance(node, exp.Bracket) and len(node.expressions) == 1 and is_json(node.this):
        return call_of("json_get", respell(context, node.this.copy()), node.expressions[0])
    if isinstance(node, exp.Anonymous):
        foreign = foreign_call(context, node)
        if foreign is not None:
            return respell(context, foreign)
        return _own_function(context, node) or _respelled_call(context, node)
    if isinstance(node, exp.Window):
        other_frame = without_excluded(context, node) or over_moving_frame(context, node)
        if other_frame is not None:
            return respell(context, other_frame)
        return _without_rows(node) or _shifted(context, node)
    matching = _respelled_match(context, node)
    return matching or _respelled_form(node) or _respelled_value(node) or _respelled_rows(context, node)


def _respelled_match(context: BindContext, node: exp.Expr) -> exp.Expr | None:
    """How texts are compared, and BETWEEN SYMMETRIC."""
    if isinstance(node, exp.Collate):
        if node.expression.name.upper() not in _BYTE_ORDERS:
            hint = 'leave it out: texts are compared by their bytes, as with COLLATE "C"'
            raise context.fail(f"COLLATE {node.expression.name} is not supported", node, hint)
        return _paren(respell(context, node.this.copy()))
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
    return None


def _respelled_form(node: exp.Expr) -> exp.Expr | None:
    """A form that is only another spelling."""
    if isinstance(node, exp.ByteString):
        return exp.Literal.string(node.name)  # E'…', whose escapes are read
    if isinstance(node, exp.Sqrt | exp.Cbrt):
        return call_of(type(node).__name__.lower(), node.this)  # |/ x, ||/ x
    if isinstance(node, exp.Abs):
        return call_of("abs", node.this)  # @ x
    if isinstance(node, exp.Pow):
        sides = (node.this, node.expression)
        return call_of("power", *(exp.cast(side.copy(), "DOUBLE") for side in sides))
    if isinstance(node, exp.StartsWith):
        return call_of("starts_with", node.this, node.expression)  # text ^@ text
    if isinstance(node, exp.If) and not isinstance(node.parent, exp.Case):
        ifs = [exp.If(this=node.this.copy(), true=node.args["true"].copy())]
        default = node.args.get("false")
        return exp.Case(ifs=ifs, default=None if default is None else default.copy())
    if isinstance(node, exp.BitwiseNot):
        return _paren(exp.Sub(this=exp.Neg(this=_paren(node.this.copy())), expression=exp.Literal.number(1)))
    return None


def _respelled_value(node: exp.Expr) -> exp.Expr | None:
    """A value that is written as PostgreSQL alone reads it."""
    if isinstance(node, exp.Interval):
        return _spelled_interval(node)
    if isinstance(node, exp.Cast) and node.this.is_string:
        if node.to.this == exp.DataType.Type.INTERVAL:
            return _spelled_interval(node)
        return _list_of_text(node) if node.to.this == exp.DataType.Type.ARRAY else None
    if isinstance(node, exp.Bracket) and len(node.expressions) == 1:
        return _bounded(node, node.expressions[0])
    return None


def _spelled_interval(node: exp.Expr) -> exp.Expr | None:
    """An interval in a form that only PostgreSQL reads."""
    unit = node.args.get("unit")
    if node.this is None or not node.this.is_string or isinstance(unit, exp.Var):
        return None
    text = node.this.name
    if isinstance(unit, exp.IntervalSpan):
        text = in_units(text, unit.this.name, unit.expression.name)
    text = spelled_out(text) or (None if unit is None else text)
    return None if text is None else exp.Interval(this=exp.Literal.string(text))


_LAST: Final = 2**31 - 1
"""An index behind the end of every list."""


def _bounded(node: exp.Bracket, index: exp.Expr) -> exp.Expr | None:
    """`list[2:]` and `list[:2]` with both bounds."""
    if not isinstance(index, exp.Slice) or (index.this is not None and index.expression is not None):
        return None
    bounds = (index.this or exp.Literal.number(1), index.expression or exp.Literal.number(_LAST))
    return exp.Bracket(
        this=node.this.copy(), expressions=[exp.Slice(this=bounds[0].copy(), expression=bounds[1].copy())]
    )


def _list_of_text(node: exp.Cast) -> exp.Expr | None:
    """`CAST('{1,2}' AS INT[])` as a list of values."""
    items = list_items(node.this.name)
    if items is None:
        return None
    inner = node.to.expressions[0]
    values = [
        exp.Null() if item is None else exp.Cast(this=exp.Literal.string(item), to=inner.copy())
        for item in items
    ]
    return exp.Cast(this=exp.array(*values), to=node.to.copy())


def _respelled_rows(context: BindContext, node: exp.Expr) -> exp.Expr | None:
    is_not = isinstance(node, exp.Not) and bool(node.meta.get(IS_NOT))
    test = node.this if is_not else node
    if isinstance(test, exp.Is) and isinstance(test.expression, exp.Null) and (values := _row(test.this)):
        # A row is NULL if all of its values are, and NOT NULL if none is.
        tests: list[exp.Expr] = [
            _paren(exp.Is(this=_paren(value.copy()), expression=exp.Null())) for value in values
        ]
        return _paren(_joined(exp.And, [exp.Not(this=each) for each in tests] if is_not else tests))
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


def _own_function(context: BindContext, node: exp.Anonymous) -> exp.Expr | None:
    """A function that gives rows or JSON, which is made of others."""
    name = node.name.lower()
    if name not in ROW_FUNCTIONS and name not in JSON_BUILDERS and name != ROW_OBJECT:
        return None
    plain = call_of(name, *(respell(context, argument.copy()) for argument in node.expressions))
    copy_position(node, plain)
    return row_function_in(plain) if name in ROW_FUNCTIONS else built_json(context, plain)


def _respelled_call(context: BindContext, node: exp.Anonymous) -> exp.Expr | None:
    name, arguments = node.name.lower(), node.expressions
    if name in ("some", "all") and len(arguments) == 1 and isinstance(node.parent, exp.Binary):
        return (exp.Any if name == "some" else exp.All)(this=_paren(arguments[0].copy()))
    if name == "row" and arguments:
        fields = [
            part
            for at, value in enumerate(arguments, 1)
            # NULL is a text: DataFusion makes lists that are too short of fields without a type.
            for part in (
                exp.Literal.string(f"f{at}"),
                exp.cast(value.copy(), "TEXT") if isinstance(value, exp.Null) else value,
            )
        ]
        return call_of("named_struct", *fields)
    if name in _RENAMED:
        return call_of(_RENAMED[name], *arguments)
    if name == "array_length" and len(arguments) == 2:
        return call_of("nullif", _mark(node.copy(), node), exp.Literal.number(0))
    return _respelled_arguments(context, node)


def _respelled_arguments(context: BindContext, node: exp.Anonymous) -> exp.Expr | None:
    name, arguments = node.name.lower(), node.expressions
    if name in ("mod", "div"):
        return _divided(context, node)
    if name in ("num_nulls", "num_nonnulls") and arguments:
        return _counted_nulls(node)
    if any(isinstance(argument, exp.Kwarg) for argument in arguments):
        return _named_arguments(context, node)
    if name == "string_agg" and len(arguments) == 2 and arguments[1].find(exp.Column) is not None:
        separator = arguments[1].this if isinstance(arguments[1], exp.Order) else arguments[1]
        if separator.find(exp.Column) is not None:
            hint = "string_agg(x, ',')"
            raise context.fail("the separator of `string_agg` is the same for all rows", separator, hint)
    if name == "string_agg" and arguments and isinstance(arguments[0], exp.Distinct):
        return _distinct_texts(context, node, arguments[0].expressions)
    if name in ("convert_from", "convert_to"):
        return _converted(context, node)
    return None


def _converted(context: BindContext, node: exp.Anonymous) -> exp.Expr:
    """Bytes as a text, or the other way round; texts are UTF-8."""
    name, arguments = node.name.lower(), node.expressions
    if len(arguments) != 2 or arguments[1].name.upper().replace("-", "") != "UTF8":
        raise context.fail(f"{name} takes a value and 'UTF8'", node, f"{name}(x, 'UTF8')")
    target = "Utf8" if name == "convert_from" else "Binary"
    return call_of("arrow_cast", arguments[0], exp.Literal.string(target))


def _divided(context: BindContext, node: exp.Anonymous) -> exp.Expr:
    name, arguments = node.name.lower(), node.expressions
    if len(arguments) != 2:
        raise context.fail(f"`{name}` takes 2 arguments, not {len(arguments)}", node, f"{name}(a, b)")
    left, right = (_paren(argument.copy()) for argument in arguments)
    if name == "mod":
        return _paren(exp.Mod(this=left, expression=right))
    return call_of("trunc", exp.Div(this=left, expression=right))


def _counted_nulls(node: exp.Anonymous) -> exp.Expr:
    condition = "IS NULL" if node.name.lower() == "num_nulls" else "IS NOT NULL"
    cases = [
        parse_expression(f"CASE WHEN ({to_sql(argument)}) {condition} THEN 1 ELSE 0 END")
        for argument in node.expressions
    ]
    return _paren(_joined(exp.Add, [_mark(case, node) for case in cases]))


def _distinct_texts(context: BindContext, node: exp.Anonymous, arguments: list[exp.Expr]) -> exp.Expr:
    """Distinct texts in their order, as PostgreSQL gives them: a set has no order that a replay repeats."""
    if len(arguments) != 2:
        raise context.fail("`string_agg` takes a string and a separator", node, "string_agg(DISTINCT x, ',')")
    if isinstance(node.parent, exp.Filter | exp.Window):
        hint = "write the order: string_agg(DISTINCT x, ',' ORDER BY x)"
        raise context.fail("distinct strings have no order of their own here", node, hint)
    text, separator = map(to_sql, arguments)
    values = f"array_agg(DISTINCT {text}) FILTER (WHERE ({text}) IS NOT NULL)"
    return parse_expression(f"array_to_string(array_sort({values}), {separator})")


def _without_rows(node: exp.Window) -> exp.Expr | None:
    """A function over a frame that ends before it begins: there are no rows in it."""
    spec = node.args.get("spec")
    if spec is None:
        return None
    bounds = []
    for end in ("start", "end"):
        value, side = spec.args.get(end), str(spec.args.get(f"{end}_side")).upper()
        if not isinstance(value, exp.Expr) or not value.is_int or side not in ("PRECEDING", "FOLLOWING"):
            return None
        bounds.append(int(value.name) * (-1 if side == "PRECEDING" else 1))
    if bounds[0] <= bounds[1]:
        return None
    copy = node.copy()
    copy.set("spec", exp.WindowSpec(kind="ROWS", start="CURRENT ROW", end="CURRENT ROW"))
    inner = copy.this.this if isinstance(copy.this, exp.Filter) else copy.this
    is_count = isinstance(inner, exp.Anonymous) and inner.name.lower() == "count"
    return exp.Case(
        ifs=[exp.If(this=exp.Boolean(this=False), true=copy)],
        default=exp.Literal.number(0) if is_count else None,
    )


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


_INTERVAL_PARTS: Final = ("years", "months", "weeks", "days", "hours", "mins", "secs")


def _named_arguments(context: BindContext, node: exp.Anonymous) -> exp.Expr:
    """`make_interval(hours => 3)`."""
    parts: dict[str, exp.Expr] = {}
    for index, argument in enumerate(node.expressions):
        is_named = isinstance(argument, exp.Kwarg)
        name = argument.this.name.lower() if is_named else _INTERVAL_PARTS[min(index, 6)]
        if node.name.lower() != "make_interval":
            raise context.fail(f"`{node.name}` has no named arguments", argument, "write the values in order")
        if name not in _INTERVAL_PARTS:
            hint = f"the parts are {', '.join(_INTERVAL_PARTS)}"
            raise context.fail(f"an interval has no `{name}`", argument, hint)
        parts[name] = argument.expression if is_named else argument
    zero = exp.Literal.number(0)
    values = [
        parse_expression(f"CAST({to_sql(parts.get(name, zero))} AS DOUBLE)") for name in _INTERVAL_PARTS
    ]
    return call_of(f"make_interval__{'_'.join(['double'] * len(values))}", *values)


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
            elif part.meta.get(_REWRITTEN):
                continue
            else:
                replacement = self._rewritten(part)
            if replacement is not None:
                replacement = _mark(replacement, part)
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
        if isinstance(node, (*_COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ)):
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
                copy.set(side, _mark(parse_expression(instant), node))
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
            copy.set(side, _mark(call_of("interval__length", value), value))
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
        if name == "round" and len(arguments) == 1 and not _is_number(arguments[0]):
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


def _is_number(node: exp.Expr) -> bool:
    """Whether it is a number that is written out: a NUMERIC to PostgreSQL."""
    node = node.unnest()
    if isinstance(node, exp.Neg):
        node = node.this.unnest()
    return bool(node.is_number)


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
