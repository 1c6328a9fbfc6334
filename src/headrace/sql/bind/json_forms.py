"""JSON of values: expressions that write values of any type as JSON text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.model.fragments import literal
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.meanings import chosen_values, copy_marks, marked
from headrace.sql.parse.dialect import HeadraceDialect, to_sql
from headrace.sql.types import UNBOUNDED_DECIMAL, type_name

JSON_VALUE: Final = "json__value"
"""A call that stands for a value as JSON, until its type is known."""
COMPACT_JSON_VALUE: Final = "json__compact_value"
"""The same for JSON that is written without blanks, as `to_json` does."""
ROW_OBJECT: Final = "json_object_of_row"
"""A call that makes JSON of the names and values of a whole row."""
_DEEPEST: Final = 4
"""How many structs may be in each other."""


def parse_internal(text: str) -> exp.Expr:
    """Parse an expression that Headrace itself has written; it may call functions that users cannot."""
    node: exp.Expr = exp.maybe_parse(text, dialect=HeadraceDialect)
    for call in node.find_all(exp.Anonymous):
        if "__" in call.name:
            call.meta["rewritten"] = True
    return node


def json_value_of(name: str) -> str:
    """What writes the values of a function: those of `jsonb_…` have blanks in them."""
    return JSON_VALUE if "jsonb" in name else COMPACT_JSON_VALUE


def built_json(context: BindContext, node: exp.Anonymous) -> exp.Expr:
    """JSON of values that are written out: `jsonb_build_object('a', x)`."""
    name, arguments = node.name.lower(), [to_sql(argument) for argument in node.expressions]
    if name in ("row_to_json", "to_json", "to_jsonb"):
        if len(arguments) != 1:
            raise context.fail(f"`{name}` takes a value", node, f"{name}(x)")
        placeholder = COMPACT_JSON_VALUE if name == "row_to_json" else json_value_of(name)
        return copy_marks(node, parse_internal(f"{placeholder}({arguments[0]})"))
    values = [f"coalesce({json_value_of(name)}({value}), 'null')" for value in arguments]
    build = "json__array" if "array" in name else f"{name.split('_')[0]}__object"
    if name in (ROW_OBJECT, "json_build_object"):
        build = "json__compact_object" if name == ROW_OBJECT else "json__built_object"
    if "object" in name:
        if len(arguments) % 2:
            raise context.fail(f"`{name}` takes pairs of a key and a value", node, f"{name}('a', 1, 'b', 2)")
        pairs = zip(arguments[::2], values[1::2], strict=True)
        values = [f"json__pair(CAST({key} AS TEXT), {value})" for key, value in pairs]
    built = parse_internal(f"{build}(arrow_cast(make_array({', '.join(values)}), 'List(Utf8)'))")
    return copy_marks(node, built)


def json_value(
    context: BindContext, node: exp.Expr, type_of: Callable[[exp.Expr], pa.DataType | None]
) -> exp.Expr:
    """What a call of `JSON_VALUE` stands for: the value as JSON, NULL where it is NULL."""
    value = node.expressions[0]
    if is_json(value):
        return exp.Paren(this=value.copy())
    kind = type_of(value)
    is_compact = node.name == COMPACT_JSON_VALUE
    text = None if kind is None else _json_text(to_sql(value), kind, compact=is_compact)
    if text is None:
        name = "this value" if kind is None else type_name(kind)
        raise context.fail(
            f"{name} cannot be written as JSON", value, "cast it to TEXT, or choose its fields"
        )
    return parse_internal(text)


_JSON_RESULTS: Final = re.compile(
    r"(json_(get|get_json|element_at|delete|delete_at|concatenate)|get_first_json_object"
    r"|jsonb_(set|insert)|jsonb?_(strip_nulls|object|extract_path))(__|$)|json__((compact|built)_)?(array|object)$|jsonb__object$"
    r"|jsonb__get__"
)
"""The functions whose results are JSON, under the names that DataFusion knows."""


def is_json(node: exp.Expr) -> bool:
    """Whether an expression gives JSON, which is text to all else."""
    values = list(chosen_values(node))
    return bool(values) and all(map(_is_json_value, values))


def _is_json_value(node: exp.Expr) -> bool:
    if marked(node) in ("json", "jsonb"):
        return True
    if isinstance(node, exp.Bracket) and len(node.expressions) == 1:
        return is_json(node.this)  # json['key']
    if isinstance(node, exp.Cast):
        return node.to.this in (exp.DataType.Type.JSON, exp.DataType.Type.JSONB)
    return isinstance(node, exp.Anonymous) and _JSON_RESULTS.match(node.name.lower()) is not None


def is_jsonb(node: exp.Expr) -> bool:
    """Whether an expression gives JSONB, whose elements are written as PostgreSQL does."""
    values = list(chosen_values(node))
    return bool(values) and all(map(_is_jsonb_value, values))


def _is_jsonb_value(node: exp.Expr) -> bool:
    if marked(node) == "jsonb":
        return True
    if isinstance(node, exp.Bracket) and len(node.expressions) == 1:
        return is_jsonb(node.this)
    if isinstance(node, exp.Cast):
        return bool(node.to.this == exp.DataType.Type.JSONB)
    return isinstance(node, exp.Anonymous) and node.name.lower().startswith("jsonb_")


def _json_text(value: str, kind: pa.DataType, depth: int = 0, *, compact: bool = False) -> str | None:
    """The SQL of a value of this type as JSON; None for a type that is not written as JSON."""
    text: str | None = None
    compactly = "compact_" * compact
    if kind == UNBOUNDED_DECIMAL:
        text = f"regexp_replace(CAST({value} AS TEXT), '\\.?0+$', '')"
    elif _is_plain(kind):
        text = f"CAST({value} AS TEXT)"
    elif pa.types.is_floating(kind):
        text = f"json__number(CAST({value} AS DOUBLE))"
    elif kind == pa.string():
        text = f"json__quoted({value})"
    elif pa.types.is_null(kind):
        text = "CAST(NULL AS TEXT)"
    elif pa.types.is_timestamp(kind):
        # Fractions of a second are written where there are any, to the microsecond.
        seconds = f"to_char({value}, '%Y-%m-%dT%H:%M:%S')"
        fraction = f"rtrim(to_char({value}, '%.6f'), '0')"
        text = f"json__quoted({seconds} || CASE WHEN {fraction} = '.' THEN '' ELSE {fraction} END)"
    elif pa.types.is_date(kind):
        text = f"json__quoted(CAST({value} AS TEXT))"
    elif pa.types.is_time(kind):
        text = f"json__quoted(regexp_replace(CAST({value} AS TEXT), '(\\.\\d*?[1-9])0+$', '\\1'))"
    elif pa.types.is_list(kind) and kind.value_type == pa.string():
        text = f"json__{compactly}texts({value})"
    elif pa.types.is_list(kind) and _is_plain(kind.value_type):
        text = f"json__{compactly}array(arrow_cast({value}, 'List(Utf8)'))"
    elif pa.types.is_struct(kind) and depth < _DEEPEST:
        text = _json_object(value, kind, depth, compact=compact)
    return text


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the text of a value is its JSON."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind))


def _json_object(value: str, kind: pa.StructType, depth: int, *, compact: bool) -> str | None:
    build = "json__compact_object" if compact else "jsonb__object"
    pairs = []
    for field in kind:
        item = f"get_field({value}, {literal(field.name)})"
        text = _json_text(item, field.type, depth + 1, compact=compact)
        if text is None:
            return None
        pairs.append(f"json__pair({literal(field.name)}, {text})")
    return f"CASE WHEN ({value}) IS NOT NULL THEN {build}(make_array({', '.join(pairs)})) END"
