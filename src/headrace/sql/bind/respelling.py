"""Forms of PostgreSQL that DataFusion spells differently, rewritten before functions are bound."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Final

from sqlglot import exp

from headrace.sql.bind.aggregate_forms import respell_aggregate
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.foreign_calls import foreign_call
from headrace.sql.bind.frames import over_moving_frame, without_excluded
from headrace.sql.bind.interval_literals import in_units, spelled_out
from headrace.sql.bind.json_forms import (
    ROW_OBJECT,
    built_json,
    is_json,
)
from headrace.sql.bind.planning import JSON_BUILDERS
from headrace.sql.bind.postgres_calls import call_of, list_items, parse_expression
from headrace.sql.bind.row_functions import ROW_FUNCTIONS, row_function_in
from headrace.sql.parse.dialect import IS_NOT, copy_position, to_sql

REWRITTEN: Final = "rewritten"
"""The mark of a node that has its meaning already."""

_RENAMED: Final = {
    "ceiling": "ceil", "sign": "signum", "char_length": "character_length", "pow": "power",
    "jsonb_array_length": "json_length", "json_array_length": "json_length",
}  # fmt: skip

_BYTE_ORDERS: Final = ("C", "POSIX", "UCS_BASIC")
"""Collations that compare texts by their bytes, as it is done here."""

COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


def is_rewritten(node: exp.Expr) -> bool:
    """Whether any part of an expression is not as the user wrote it."""
    return any(part.meta.get(REWRITTEN) for part in node.walk())


def mark_rewritten(node: exp.Expr, origin: exp.Expr) -> exp.Expr:
    """Mark a node as rewritten, at the position of what the user wrote."""
    node.meta[REWRITTEN] = True
    copy_position(next((part for part in origin.walk() if "start" in part.meta), None), node)
    return node


def _paren(node: exp.Expr) -> exp.Paren:
    return exp.Paren(this=node)


def respell(context: BindContext, node: exp.Expr) -> exp.Expr:
    """A copy with names and forms of PostgreSQL that DataFusion spells differently."""

    def visit(part: exp.Expr) -> exp.Expr:
        if part.meta.get(REWRITTEN):
            return part
        replacement = _respelled(context, part)
        return part if replacement is None else mark_rewritten(replacement, part)

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
    if not isinstance(node, (*COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ)):
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
        return call_of("nullif", mark_rewritten(node.copy(), node), exp.Literal.number(0))
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
    return _paren(_joined(exp.Add, [mark_rewritten(case, node) for case in cases]))


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
    if len(call.expressions) < 2 or is_number(call.expressions[1]):
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


def is_number(node: exp.Expr) -> bool:
    """Whether it is a number that is written out: a NUMERIC to PostgreSQL."""
    node = node.unnest()
    if isinstance(node, exp.Neg):
        node = node.this.unnest()
    return bool(node.is_number)
