"""Calls and operators of PostgreSQL whose meaning depends on the types of their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import counted
from headrace.functions.postgres.catalog import BY_NAME, PUBLIC
from headrace.functions.postgres.number_patterns import read_pattern
from headrace.functions.postgres.overload import (
    BOOLEAN,
    DOUBLE,
    INTERVAL,
    TEXT,
    TEXTS,
    TIMESTAMP,
    Overload,
    accepts,
    find_overload,
)
from headrace.functions.postgres.times import INTERVAL_FIELDS, LONG_UNITS, MORE_FIELDS, check_zone
from headrace.model.fragments import EPOCH_CLOCK
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.json_forms import is_json, is_jsonb
from headrace.sql.bind.meanings import Meaning, marked
from headrace.sql.parse.dialect import HeadraceDialect, copy_position, to_sql
from headrace.sql.types import UNBOUNDED_DECIMAL, type_name

TypeOf = Callable[[exp.Expr], pa.DataType | None]

_UNITS: Final = (
    *("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"),
    *LONG_UNITS,
)
_FIELDS: Final = (*_UNITS, "nanosecond", "dow", "doy", "epoch", "isodow", "isoyear", *MORE_FIELDS)

_OF_MICROSECONDS: Final = {
    "second": 1_000_000, "seconds": 1_000_000, "millisecond": 1_000, "milliseconds": 1_000,
}  # fmt: skip
"""Fields of a time with a fraction, and how many microseconds are one of them."""

OPERATORS: Final[dict[type[exp.Expr], str]] = {
    exp.ArrayContainsAll: "@>",
    exp.ArrayContainedBy: "<@",
    exp.ArrayOverlaps: "&&",
    exp.JSONBContainsTopKey: "?",
    exp.JSONBContainsAllTopKeys: "?&",
    exp.JSONBContainsAnyTopKeys: "?|",
    exp.JSONBDeleteAtPath: "#-",
    exp.JSONBExtract: "#>",
    exp.JSONBExtractScalar: "#>>",
}
"""Operators of lists and of JSON."""

_PATH_OPERATORS: Final = {
    "?": "json_has_key",
    "?&": "json_has_all", "?|": "json_has_any", "#-": "json_delete_at", "#>": "json_element_at",
    "#>>": "json_text_at",
}  # fmt: skip


def parse_expression(text: str) -> exp.Expr:
    """Parse an expression that Headrace itself has written."""
    return exp.maybe_parse(text, dialect=HeadraceDialect)


def call_of(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A call of a function."""
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def list_items(text: str) -> list[str | None] | None:
    """The items of a list that is written as a text; None if it is not.

    >>> list_items('{a, "b,c", NULL}')
    ['a', 'b,c', None]
    """
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    items: list[str | None] = []
    for quoted, plain in re.findall(r'("(?:[^"\\]|\\.)*")|([^,{}"]+)', text[1:-1]):
        if quoted:
            items.append(re.sub(r"\\(.)", r"\1", quoted[1:-1]))
        elif plain.strip():
            items.append(None if plain.strip().upper() == "NULL" else plain.strip())
    return items


def length_of(value: exp.Expr, kind: pa.DataType) -> exp.Expr | None:
    """What orders intervals and differences of instants: their length; None for values of another type."""
    if pa.types.is_duration(kind):
        return parse_expression(f"arrow_cast({to_sql(value)}, 'Int64')")
    return parse_expression(f"interval__length({to_sql(value)})") if pa.types.is_interval(kind) else None


def interval_of(value: exp.Expr, kind: pa.DataType) -> exp.Expr:
    """A value as an INTERVAL; the difference of two instants has days, to PostgreSQL."""
    if pa.types.is_interval(kind):
        return value
    interval = parse_expression(f"arrow_cast({to_sql(value)}, 'Interval(MonthDayNano)')")
    return call_of("justify_hours__interval", interval) if pa.types.is_duration(kind) else interval


class PostgresCalls:
    """Writes calls and operators of PostgreSQL so that DataFusion computes the same."""

    def __init__(self, context: BindContext, type_of: TypeOf) -> None:
        self._context = context
        self._type_of = type_of

    def form(self, node: exp.Expr) -> exp.Expr | None:
        """Rewrite an expression that is not a call; None if it means the same in DataFusion."""
        if isinstance(node, exp.Like | exp.ILike):
            return self._like_any(node)
        if isinstance(node, exp.Extract):
            return self.extract(node.this, node.expression)
        if isinstance(node, exp.AtTimeZone):
            return self.at_time_zone(node)
        if isinstance(node, exp.Overlaps):
            return self.overlaps(node)
        if isinstance(node, exp.Substring):
            return self.substring(node)
        if isinstance(node, exp.Binary) and type(node) in OPERATORS:
            return self.operator(node)
        return self.ordered(node) if isinstance(node, exp.Ordered) else None

    def ordered(self, node: exp.Ordered) -> exp.Expr | None:
        """An order of window functions and aggregates, by the length of intervals."""
        kind = self._type_of(node.this)
        length = None if kind is None else length_of(node.this, kind)
        if length is None:
            return None
        copy: exp.Expr = node.copy()
        copy.set("this", length)
        return copy

    # ------------------------------------------------------------------------------------- calls

    def call(self, node: exp.Anonymous) -> exp.Expr | None:
        """Rewrite a call; None if it means the same in DataFusion."""
        name, arguments = node.name.lower(), node.expressions
        if name in self._context.planner.user_functions or _is_aggregated(arguments):
            return None
        if name in _SPECIAL:
            special: exp.Expr | None = getattr(self, _SPECIAL[name])(node)
            return special
        if name == "age" and len(arguments) == 1:
            today = call_of("current_date")
            copy_position(node, today)
            arguments = [today, *arguments]
        if name not in PUBLIC:
            return None
        if name == "regexp_replace" and 3 <= len(arguments) <= 4:
            return self._regexp_replace(node)
        if name == "format":
            arguments = [self._as_text(argument) for argument in arguments]
        return self._overload(node, name, arguments)

    def _regexp_replace(self, node: exp.Anonymous) -> exp.Expr | None:
        """The text for a match may have a `$` in it, and a backslash before `&` for the whole match."""
        text, pattern, replacement, *flags = node.expressions
        if flags and not flags[0].is_string:
            return self._overload(node, "regexp_replace", node.expressions)
        if replacement.is_string and not re.search(r"\$|\\\D|\\$", replacement.name):
            return None
        letters = flags[0].name if flags else ""
        number = exp.Literal.number(0 if "g" in letters else 1)
        rest = exp.Literal.string(letters.replace("g", ""))
        arguments = [text, pattern, replacement, exp.Literal.number(1), number, rest]
        return self._overload(node, "regexp_replace", arguments)

    def _date_part(self, node: exp.Anonymous) -> exp.Expr | None:
        arguments = node.expressions
        if len(arguments) != 2 or not arguments[0].is_string:
            return None
        return self.extract(arguments[0], arguments[1])

    def _type_name(self, node: exp.Anonymous) -> exp.Expr | None:
        """`pg_typeof(x)`: the type of an expression in PostgreSQL's words."""
        if len(node.expressions) != 1:
            raise self._context.fail("`pg_typeof` takes a value", node, "pg_typeof(x)")
        (value,) = node.expressions
        kind = self._type_of(value)
        return None if kind is None else exp.Literal.string(_postgres_type(value, kind))

    def _timezone(self, node: exp.Anonymous) -> exp.Expr | None:
        if len(node.expressions) != 2:
            raise self._context.fail("`timezone` takes a zone and a time", node, "timezone('UTC', ts)")
        zone, time = node.expressions
        return self.at_time_zone(exp.AtTimeZone(this=time.copy(), zone=zone.copy()))

    def _overload(self, node: exp.Expr, name: str, arguments: Sequence[exp.Expr]) -> exp.Expr | None:
        kinds = self._kinds(arguments)
        if kinds is None:
            return None
        overload = find_overload(BY_NAME[name], kinds)
        if overload is None:
            overload, kinds = _with_lists(BY_NAME[name], arguments, kinds)
        if overload is None:
            if name in self._context.planner.built_in:
                return None
            listed = ", ".join(map(type_name, kinds))
            hint = f"it is called as {_usage(BY_NAME[name])}"
            raise self._context.fail(f"`{name}` cannot take ({listed})", node, hint)
        values = [
            self._fitted(argument, kind, declared)
            for argument, kind, declared in zip(arguments, kinds, overload.arguments, strict=True)
        ]
        return call_of(overload.registered, *values)

    def _kinds(self, arguments: Sequence[exp.Expr]) -> list[pa.DataType] | None:
        """The types of some arguments; None if one of them cannot be planned, which is said elsewhere."""
        kinds = [self._type_of(argument) for argument in arguments]
        return None if any(kind is None for kind in kinds) else [kind for kind in kinds if kind is not None]

    def _fitted(self, argument: exp.Expr, kind: pa.DataType, declared: pa.DataType) -> exp.Expr:
        if declared == TEXTS and argument.is_string:
            return self._list_of(argument)
        if kind == declared:
            return argument
        text = to_sql(argument)
        if declared == TIMESTAMP:
            return parse_expression(f"arrow_cast({text}, 'Timestamp(ns)')")
        if declared == INTERVAL:
            return interval_of(argument, kind)
        return parse_expression(f"CAST({text} AS {type_name(declared)})")

    def as_interval(self, value: exp.Expr, kind: pa.DataType | None) -> exp.Expr:
        """An interval, or a difference of instants as one."""
        return value if kind is None else self._fitted(value, kind, INTERVAL)

    def _list_of(self, literal: exp.Expr) -> exp.Expr:
        """A list that is written as a text, '{a,b}'."""
        values = list_items(literal.name)
        if values is None:
            raise self._context.fail(
                f"`{literal.name}` is not a list", literal, "write '{a,b}' or ARRAY['a']"
            )
        items = [exp.Null() if value is None else exp.Literal.string(value) for value in values]
        return parse_expression(f"CAST({to_sql(exp.array(*items))} AS TEXT[])")

    def _list_form(self, node: exp.Anonymous) -> exp.Expr:
        name = node.name.lower()
        form, count = _LIST_FORMS[name]
        if len(node.expressions) != count:
            message = f"`{name}` takes {counted(count, 'argument')}, not {len(node.expressions)}"
            raise self._context.fail(message, node)
        if name in ("array_lower", "array_upper") and to_sql(node.expressions[1]) != "1":
            raise self._context.fail(
                "lists have one dimension", node.expressions[1], f"write {name}(list, 1)"
            )
        return parse_expression(form.format(*map(to_sql, node.expressions)))

    # ------------------------------------------------------------------------------------ as text

    def _as_text(self, argument: exp.Expr) -> exp.Expr:
        """A value as PostgreSQL writes it in `format` and `concat`."""
        kind = self._type_of(argument)
        if kind == BOOLEAN:
            return call_of("text_of_boolean__bool", argument)
        return self.text_of(argument, kind) or argument

    def text_of(self, argument: exp.Expr, kind: pa.DataType | None) -> exp.Expr | None:
        """A value as a TEXT; None if the type is not known."""
        if kind is None or kind == TEXT:
            return None
        return self.written(argument, kind) or parse_expression(f"CAST({to_sql(argument)} AS TEXT)")

    def written(self, argument: exp.Expr, kind: pa.DataType) -> exp.Expr | None:
        """A value as PostgreSQL writes it; None if DataFusion writes it so."""
        text = to_sql(argument)
        if pa.types.is_interval(kind) or pa.types.is_duration(kind):
            return call_of("interval_text__interval", self._fitted(argument, kind, INTERVAL))
        if pa.types.is_timestamp(kind):
            written = call_of("timestamp_text__timestamp", self._fitted(argument, kind, TIMESTAMP))
            return parse_expression(f"({to_sql(written)} || '+00')") if _is_instant(argument) else written
        if pa.types.is_floating(kind):
            number = argument.unnest()
            digits = number.this.unnest().name if isinstance(number, exp.Neg) else number.name
            if (number.is_number or isinstance(number, exp.Neg)) and re.fullmatch(r"\d*\.\d+|\d+\.", digits):
                return exp.Literal.string("-" * isinstance(number, exp.Neg) + digits)
            name = "float" if kind == pa.float32() else "double"
            return call_of(f"text_of_number__{name}", argument)
        if pa.types.is_binary(kind):
            return parse_expression(f"('\\x' || encode({text}, 'hex'))")
        if pa.types.is_time(kind):
            return parse_expression(f"regexp_replace(CAST({text} AS TEXT), '(\\.\\d*?[1-9])0+$', '\\1')")
        if kind == UNBOUNDED_DECIMAL:
            return parse_expression(f"regexp_replace(CAST({text} AS TEXT), '\\.?0+$', '')")
        return None

    def number_or_interval_to_char(self, value: exp.Expr, pattern: exp.Expr) -> exp.Expr | None:
        """`to_char(number, '999.99')`, `to_char(interval, 'HH24:MI')`; None for values of other types."""
        kind = self._type_of(value)
        if kind is None:
            return None
        if pa.types.is_interval(kind) or pa.types.is_duration(kind):
            return call_of("interval_to_char__interval_string", interval_of(value, kind), pattern)
        if not accepts(DOUBLE, kind) or pa.types.is_null(kind):
            return None
        if pattern.is_string:
            with self._context.planning(pattern):
                read_pattern(pattern.name)
        return call_of(
            "number_text__string_string", parse_expression(f"CAST({to_sql(value)} AS TEXT)"), pattern
        )

    def _concatenated(self, node: exp.Anonymous) -> exp.Expr | None:
        name, arguments = node.name, node.expressions
        kinds = [self._type_of(argument) for argument in arguments]
        if all(kind is None or kind == TEXT or pa.types.is_integer(kind) for kind in kinds):
            return None
        return call_of(name, *map(self._as_text, arguments))

    # ------------------------------------------------------------------------------------ times

    def extract(self, field: exp.Expr, value: exp.Expr) -> exp.Expr | None:
        """`extract(field FROM value)`."""
        kind, name = self._type_of(value), field.name.lower()
        if kind is not None and (pa.types.is_interval(kind) or pa.types.is_duration(kind)):
            if name not in INTERVAL_FIELDS and name.removesuffix("s") not in INTERVAL_FIELDS:
                hint = f"what can is {', '.join(INTERVAL_FIELDS)}"
                raise self._context.fail(f"`{field.name}` cannot be extracted from an INTERVAL", field, hint)
            interval = self._fitted(value, kind, INTERVAL)
            return call_of("interval_part__string_interval", exp.Literal.string(name), interval)
        if name not in _FIELDS and name.removesuffix("s") not in _FIELDS:
            hint = f"what can is {', '.join(_FIELDS)}"
            raise self._context.fail(f"`{field.name}` cannot be extracted", field, hint)
        if name in MORE_FIELDS and kind is not None:
            instant = self._fitted(value, kind, TIMESTAMP)
            return call_of("timestamp_part__string_timestamp", exp.Literal.string(name), instant)
        if name in _OF_MICROSECONDS and kind is not None and not pa.types.is_date(kind):
            microseconds = f"CAST(date_part('microsecond', {to_sql(value)}) AS DOUBLE)"
            return parse_expression(f"({microseconds} / CAST({_OF_MICROSECONDS[name]} AS DOUBLE))")
        return None

    def _date_trunc(self, node: exp.Anonymous) -> exp.Expr | None:
        arguments = node.expressions
        if len(arguments) not in (2, 3):
            return None
        if not arguments[0].is_string:
            hint = "date_trunc('hour', ts)"
            raise self._context.fail("the unit of date_trunc is written out", arguments[0], hint)
        return self._truncated(arguments)

    def _truncated(self, arguments: Sequence[exp.Expr]) -> exp.Expr | None:
        written, value = arguments[:2]
        unit = written.name.lower()
        unit = unit if unit in _UNITS else unit.removesuffix("s")
        if unit not in _UNITS:
            raise self._context.fail(
                f"`{written.name}` is not a unit of date_trunc", written, f"the units are {', '.join(_UNITS)}"
            )
        literal, kind = exp.Literal.string(unit), self._type_of(value)
        if kind is None:
            return None
        if len(arguments) == 3:
            instant = self._fitted(value, kind, TIMESTAMP)
            self._check_zone(arguments[2])
            local = call_of("to_local_time_of__string_timestamp", arguments[2], instant)
            truncated = self._truncated([literal, local]) or call_of("date_trunc", literal, local)
            return call_of("from_local_time_of__string_timestamp", arguments[2], truncated)
        if pa.types.is_interval(kind) or pa.types.is_duration(kind):
            interval = self._fitted(value, kind, INTERVAL)
            return call_of("truncate_interval__string_interval", literal, interval)
        if unit in LONG_UNITS:
            instant = self._fitted(value, kind, TIMESTAMP)
            return call_of("truncate_timestamp__string_timestamp", literal, instant)
        return None if unit == written.name else call_of("date_trunc", literal, value)

    def at_time_zone(self, node: exp.AtTimeZone) -> exp.Expr | None:
        """`ts AT TIME ZONE zone`: the instant of a local time, or the local time of an instant."""
        value, zone = node.this, node.args["zone"]
        kind = self._type_of(value)
        if kind is None:
            return None
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            hint = "it takes a TIMESTAMP: CAST(… AS TIMESTAMP)"
            raise self._context.fail(f"{type_name(kind)} has no time zone", node, hint)
        self._check_zone(zone)
        name = "to_local_time_of" if _is_instant(value) else "from_local_time_of"
        return call_of(f"{name}__string_timestamp", zone, self._fitted(value, kind, TIMESTAMP))

    def _check_zone(self, zone: exp.Expr) -> None:
        if zone.is_string:
            with self._context.planning(zone):
                check_zone(zone.name)

    def overlaps(self, node: exp.Overlaps) -> exp.Expr:
        """`(start, end) OVERLAPS (start, end)`: periods without their ends."""
        periods = []
        for side in (node.this, node.expression):
            parts = side.expressions if isinstance(side, exp.Tuple) else []
            if len(parts) != 2:
                hint = "write (start, end) OVERLAPS (start, end)"
                raise self._context.fail("OVERLAPS compares two periods", node, hint)
            start, end = map(to_sql, parts)
            kind = self._type_of(parts[1])
            if kind is not None and pa.types.is_interval(kind):
                end = f"{start} + {end}"
            periods.append((f"least({start}, {end})", f"greatest({start}, {end})"))
        (a, b), (c, d) = periods
        return parse_expression(f"(({a} < {d} AND {c} < {b}) OR {a} = {c})")

    # ------------------------------------------------------------------------------------ operators

    def operator(self, node: exp.Binary) -> exp.Expr | None:
        """An operator of lists or of JSON."""
        symbol = OPERATORS[type(node)]
        left, right = node.this, node.expression
        if symbol in _PATH_OPERATORS:
            return self._overload_of_operator(node, symbol, _PATH_OPERATORS[symbol], [left, right])
        kinds = self._kinds([left, right])
        if kinds is None:
            return None
        if any(map(pa.types.is_list, kinds)):
            left, right = (self._list_of(side) if side.is_string else side for side in (left, right))
            if symbol == "&&":
                return call_of("array_has_any", left, right)
            return call_of("array_has_all", *((left, right) if symbol == "@>" else (right, left)))
        if symbol == "&&":
            raise self._context.fail("&& compares two lists", node, "such as ARRAY[1, 2] && ARRAY[2]")
        sides = [left, right] if symbol == "@>" else [right, left]
        return self._overload_of_operator(node, symbol, "json_holds", sides)

    def compared(self, node: exp.Binary) -> exp.Expr | None:
        """A comparison with the elements of a list, or of JSON."""
        return self._quantified(node) or self._compared_json(node)

    def _quantified(self, node: exp.Binary) -> exp.Expr | None:
        """`x = ANY(list)`, `x > ALL(list)`: NULL where an element that is NULL could decide."""
        right = node.expression
        if not isinstance(right, exp.Any | exp.All):
            return None
        kind = self._type_of(right.this)
        if kind is None:
            return None
        name = type(right).__name__.upper()
        written = list_items(right.this.unnest().name) if right.this.unnest().is_string else None
        item_kind = None if written is None else self._type_of(node.this)
        if written is not None and item_kind is not None:
            listed = exp.array(
                *(exp.Null() if item is None else exp.Literal.string(item) for item in written)
            )
            right = type(right)(this=parse_expression(f"CAST({to_sql(listed)} AS {type_name(item_kind)}[])"))
            kind = pa.list_(item_kind)
        if not pa.types.is_list(kind):
            hint = f"write {name}(ARRAY[1, 2]) or {name}(SELECT …)"
            raise self._context.fail(f"{name} takes a list, and this is {type_name(kind)}", right, hint)
        is_any = isinstance(right, exp.Any)
        value, items = f"({to_sql(node.this)})", f"({to_sql(right.this.unnest())})"
        test = _TESTS[type(node), is_any].format(value, items)
        decided = "WHEN {0} THEN TRUE" if is_any else "WHEN NOT ({0}) THEN FALSE"
        return parse_expression(
            f"(CASE WHEN cardinality({items}) = 0 THEN {'FALSE' if is_any else 'TRUE'} "
            f"WHEN {value} IS NULL THEN NULL {decided.format(test)} "
            f"WHEN cardinality(array_compact({items})) < cardinality({items}) THEN NULL ELSE {test} END)"
        )

    def _like_any(self, node: exp.Binary) -> exp.Expr | None:
        """`text LIKE ANY (ARRAY['a%', 'b%'])`."""
        right = node.expression
        if not isinstance(right, exp.Any | exp.All):
            return None
        patterns = right.this.unnest()
        if not isinstance(patterns, exp.Array) or not patterns.expressions:
            hint = "write LIKE ANY (ARRAY['a%', 'b%']), or a regular expression with ~"
            raise self._context.fail("LIKE takes one pattern, or a list that is written out", right, hint)
        tests: list[exp.Expr] = []
        for pattern in patterns.expressions:
            like = node.copy()
            like.set("expression", pattern.copy())
            like.set("negate", None)
            tests.append(exp.Paren(this=exp.Not(this=like) if node.args.get("negate") else like))
        joined = exp.Or if isinstance(right, exp.Any) else exp.And
        return exp.Paren(this=reduce(lambda left, test: joined(this=left, expression=test), tests))

    def json_arithmetic(self, node: exp.Binary) -> exp.Expr | None:
        """`json - key` and `json || json`."""
        left, right = node.this, node.expression
        if isinstance(node, exp.Sub) and is_json(left):
            return self._overload_of_operator(node, "-", "json_delete", [left, right])
        if isinstance(node, exp.DPipe) and is_json(left) and (is_json(right) or right.is_string):
            if right.is_string and not _is_document(right.name):
                hint = "write CAST(… AS TEXT) || 'text' for texts"
                raise self._context.fail(f"`{right.name}` is not JSON, and JSON || takes JSON", right, hint)
            return self._overload_of_operator(node, "||", "json_concatenate", [left, right])
        return None

    def _compared_json(self, node: exp.Binary) -> exp.Expr | None:
        """`json = json`, in which blanks and the order of keys have no meaning."""
        if not isinstance(node, exp.EQ | exp.NEQ):
            return None
        left, right = node.this, node.expression
        sides = [
            is_json(side) or (side.is_string and side.name.strip()[:1] in ("{", "[", '"'))
            for side in (left, right)
        ]
        if not all(sides) or not (is_json(left) or is_json(right)):
            return None
        for side in (left, right):
            if side.is_string and not _is_document(side.name):
                raise self._context.fail(f"`{side.name}` is not JSON", side, "JSON is compared with JSON")
        equal = self._overload_of_operator(node, "=", "json_equal", [left, right])
        return exp.Not(this=equal) if isinstance(node, exp.NEQ) and equal is not None else equal

    def _overload_of_operator(
        self, node: exp.Expr, symbol: str, name: str, sides: Sequence[exp.Expr]
    ) -> exp.Expr | None:
        kinds = self._kinds(sides)
        if kinds is None:
            return None
        values = list(sides)
        overload = find_overload(BY_NAME[name], kinds)
        if overload is None:
            overload, kinds = _with_lists(BY_NAME[name], values, kinds)
        if overload is None:
            listed = f"{type_name(kinds[0])} {symbol} {type_name(kinds[1])}"
            raise self._context.fail(f"{listed} cannot be computed", node, _OPERATOR_HINTS.get(symbol))
        fitted = map(self._fitted, values, kinds, overload.arguments)
        return call_of(overload.registered, *fitted)

    def substring(self, node: exp.Substring) -> exp.Expr | None:
        """`substring(text FROM pattern)`."""
        start = node.args.get("start")
        if start is None or node.args.get("length") is not None or self._type_of(start) != TEXT:
            return None
        return call_of("substring_of_pattern__string_string", node.this, start)


_LIST_FORMS: Final = {
    "array_remove": ("array_remove_all({0}, {1})", 2),
    "array_replace": ("array_replace_all({0}, {1}, {2})", 3),
    "array_ndims": ("(CASE WHEN cardinality({0}) > 0 THEN array_ndims({0}) END)", 1),
    "array_lower": ("(CASE WHEN cardinality({0}) > 0 THEN 1 END)", 2),
    "array_upper": ("(CASE WHEN cardinality({0}) > 0 THEN CAST(cardinality({0}) AS BIGINT) END)", 2),
    "trim_array": ("array_slice({0}, 1, CAST(cardinality({0}) AS BIGINT) - ({1}))", 2),
}
"""Functions over lists, in terms of DataFusion's, and how many arguments they take."""

_SPECIAL: Final = {
    **dict.fromkeys(_LIST_FORMS, "_list_form"),
    "concat": "_concatenated",
    "concat_ws": "_concatenated",
    "date_part": "_date_part",
    "pg_typeof": "_type_name",
    "datepart": "_date_part",
    "date_trunc": "_date_trunc",
    "timezone": "_timezone",
}
"""Functions with rules of their own, and the method that knows these."""

_TESTS: Final[dict[tuple[type[exp.Expr], bool], str]] = {
    (exp.EQ, True): "array_has({1}, {0})",
    (exp.NEQ, True): "({0} <> array_min({1}) OR {0} <> array_max({1}))",
    (exp.LT, True): "{0} < array_max({1})",
    (exp.LTE, True): "{0} <= array_max({1})",
    (exp.GT, True): "{0} > array_min({1})",
    (exp.GTE, True): "{0} >= array_min({1})",
    (exp.EQ, False): "({0} = array_min({1}) AND {0} = array_max({1}))",
    (exp.NEQ, False): "NOT array_has({1}, {0})",
    (exp.LT, False): "{0} < array_min({1})",
    (exp.LTE, False): "{0} <= array_min({1})",
    (exp.GT, False): "{0} > array_max({1})",
    (exp.GTE, False): "{0} >= array_max({1})",
}
"""What a comparison with ANY (True) or ALL (False) elements of a list means, without NULL."""

_OPERATOR_HINTS: Final = {
    "@>": "it compares two lists, or two JSON texts",
    "#>": "the path is a list of texts: json #> '{items,0}'",
    "#>>": "the path is a list of texts: json #>> '{items,0}'",
}


_POSTGRES_NAMES: Final = {
    pa.bool_(): "boolean", pa.int16(): "smallint", pa.int32(): "integer", pa.int64(): "bigint",
    pa.float32(): "real", pa.float64(): "double precision", pa.string(): "text", pa.binary(): "bytea",
    pa.date32(): "date", pa.null(): "unknown",
}  # fmt: skip


def _postgres_type(value: exp.Expr, kind: pa.DataType) -> str:
    """The name of a type in PostgreSQL's words."""
    value = value.unnest()
    if is_json(value):
        return "jsonb"
    if value.is_string:
        return "unknown"
    if value.is_number:
        return "integer" if value.name.isdigit() and int(value.name) < 2**31 else "numeric"
    if pa.types.is_list(kind):
        return f"{_postgres_type(exp.Null(), kind.value_type)}[]"
    if pa.types.is_timestamp(kind):
        return f"timestamp with{'' if _is_instant(value) else 'out'} time zone"
    tests = {
        "numeric": pa.types.is_decimal, "interval": pa.types.is_interval, "record": pa.types.is_struct,
        "time without time zone": pa.types.is_time,
    }  # fmt: skip
    named = (name for name, test in tests.items() if test(kind))
    return _POSTGRES_NAMES.get(kind) or next(named, "interval" if pa.types.is_duration(kind) else str(kind))


def _is_document(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _with_lists(
    overloads: Sequence[Overload], arguments: Sequence[exp.Expr], kinds: Sequence[pa.DataType]
) -> tuple[Overload | None, list[pa.DataType]]:
    """The overload that takes written-out texts as lists, '{a,b}', and the types of the arguments then."""
    for overload in overloads:
        if len(overload.arguments) == len(kinds):
            lists = [
                TEXTS if declared == TEXTS and argument.is_string else kind
                for argument, kind, declared in zip(arguments, kinds, overload.arguments, strict=True)
            ]
            if find_overload([overload], lists) is not None:
                return overload, lists
    return None, list(kinds)


def _is_aggregated(arguments: Sequence[exp.Expr]) -> bool:
    """Whether DISTINCT or ORDER BY stands in a call, which only aggregates have."""
    return any(isinstance(argument, exp.Distinct | exp.Order) for argument in arguments)


def meaning_of(node: exp.Expr) -> Meaning | None:
    """What the value of a resolved expression means beyond its type."""
    if is_json(node):
        return "jsonb" if is_jsonb(node) else "json"
    return "instant" if _is_instant(node) else None


def _is_instant(node: exp.Expr) -> bool:
    """Whether a time is one WITH TIME ZONE, by how it is written: an instant, not a local time."""
    node = node.unnest()
    if marked(node) == "instant":
        return True
    if isinstance(node, exp.Cast):
        return node.to.this in (exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)
    if isinstance(node, exp.Add | exp.Sub):
        return _is_instant(node.this)
    if isinstance(node, exp.Anonymous):
        if node.name == "date_trunc" and len(node.expressions) == 2:
            return _is_instant(node.expressions[1])
        names = ("now", "current_timestamp", EPOCH_CLOCK, "row_time", "to_timestamp")
        return node.name in names or node.name.startswith(("from_local_time_of__", "make_timestamptz__"))
    return False


def _usage(overloads: Sequence[Overload]) -> str:
    calls = [f"`{o.name}({', '.join(map(type_name, o.arguments))})`" for o in overloads[:4]]
    return " or ".join(calls)
