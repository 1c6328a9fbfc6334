"""Rewrites the errors of DataFusion about SQL that it cannot plan for the people who wrote the SQL."""

from __future__ import annotations

import re
from typing import Final

from headrace.base.errors import ExpressionError, suggest
from headrace.sql.types import TYPE_NAMES

_CAST = "write CAST(… AS …) where one type is to become another"

_REWRITES: Final = [
    (re.compile(pattern, re.DOTALL), message, hint)
    for pattern, message, hint in (
        (
            r'column "([^"]+)" must appear in the GROUP BY|Expression (\S+) could not be resolved from',
            "`{0}` is neither grouped nor aggregated",
            "add it to GROUP BY, or aggregate it, for example with first_value(…)",
        ),
        (
            r"HAVING clause references",
            "HAVING has what is neither grouped nor aggregated",
            "use WHERE, or add it to GROUP BY",
        ),
        (
            r"Aggregate function calls cannot be nested",
            "an aggregate cannot stand inside another",
            "aggregate in a subquery first",
        ),
        (r"Cannot coerce arithmetic expression (.+?) to valid types", "{0} cannot be computed", _CAST),
        (
            r"Cannot infer common argument type for comparison operation (.+) (\S+) (.+)",
            "{0} cannot be compared with {2}",
            _CAST,
        ),
        (
            r"(?i)Cannot infer common argument type for logical boolean operation (.+) (AND|OR) (.+)",
            "{1} joins conditions, and these are {0} and {2}",
            "compare the other with something",
        ),
        (
            r"Can not find compatible types to compare (.+) with \[(.+)\]",
            "{0} cannot be compared with {1}",
            _CAST,
        ),
        (
            r"There isn't a common type to coerce (.+) and (.+) in I?LIKE expression",
            "LIKE compares texts, and these are {0} and {1}",
            _CAST,
        ),
        (r"^Cannot cast (.+) to (\w+)$", "'{0}' is not of type {1}", None),
        (r"Cannot cast value '(.*)' to value of BOOLEAN type", "'{0}' is not of type BOOLEAN", None),
        (r"Unsupported type '(.*?)'\. Must be a supported arrow type", "there is no Arrow type `{0}`", _CAST),
        (
            r"does not support logical expression Wildcard",
            "`*` can stand in the SELECT list and in count(*) only",
            "name the columns",
        ),
        (
            r"ParserError\(\"Expected: (.+?), found: (.+?) at Line",
            "expected {0}, found `{1}`",
            None,
        ),
        (
            r"Failed to coerce then \((.+)\) and else \((.+)\) to common types",
            "the branches of CASE are {0} and {1}, which have no type in common",
            _CAST,
        ),
        (
            r"Incompatible inputs for Union: .* were of type (.+), but got incompatible type (.+) on",
            "a UNION of {0} and {1} has no type in common",
            _CAST,
        ),
        (
            r"Unnest should be rewritten",
            "unnest can stand in the SELECT list only",
            "select it in a subquery, or write CROSS JOIN UNNEST(…) AS u (x)",
        ),
        (r"Cannot get result type for temporal operation (.+?): ", "{0} cannot be computed", None),
        (r"Unsupported ast node in sqltorel: (\w+)", "{0} is not supported", None),
        (r"unnest\(\) can only be applied to", "unnest takes a list", None),
        (r"Unsupported CAST from (.+) to (.+)", "{0} cannot be cast to {1}", None),
        (r"Cannot cast string '(.*)' to value of (\S+) type", "'{0}' is not of type {1}", None),
        (
            r"^`(.*)` is not an interval$",
            "`{0}` is not an interval",
            "it is a number and a unit, such as INTERVAL '10 minutes'",
        ),
        (r"The window (\S+) is not defined", "there is no WINDOW `{0}`", "write OVER (…)"),
        (
            r"Invalid function '(\w+)'",
            "`{0}` cannot be called like this",
            "a window function needs OVER (PARTITION BY … ORDER BY …)",
        ),
        (
            r"Cannot create filter with non-boolean predicate '.*' returning (.+)",
            "a condition is true or false, and this is {0}",
            "compare it with something",
        ),
        (r"Substring without for/from", "`substr` needs a start", "substr(text, start, length)"),
        (
            r"array_element does not support type (.+?)\. ",
            "{0} has no elements",
            "a list has: write list[1] for the first",
        ),
        (
            r"unction '(\w+)' expects (\d+) arguments but received (\d+)",
            "`{0}` takes {1} arguments, not {2}",
            None,
        ),
        (
            r"Field \* not found in struct",
            "`.*` of a STRUCT is not supported",
            "name its fields: (s).a, (s).b",
        ),
        (r"Field (\S+) not found in struct", "there is no field `{0}`", None),
        (
            r"Cannot access field at argument \d+: type (.+) is not Struct",
            "{0} has no fields",
            "a STRUCT has; an element of a list is list[1]",
        ),
        (
            r"Unary operator 'NOT' requires a boolean expression, got (.+)",
            "NOT takes a condition, and this is {0}",
            "compare it with something",
        ),
        (r"Unary operator '-' only supports", "`-` takes a number or an INTERVAL", _CAST),
        (r"(?i)SUM not supported for (.+)", "`sum` cannot take ({0})", _CAST),
        (
            r"frame offsets for (?:ROWS|GROUPS).*must be non negative integers",
            "a frame of ROWS or GROUPS counts rows: its bounds are whole numbers, not below 0",
            "such as ROWS BETWEEN 3 PRECEDING AND CURRENT ROW",
        ),
        (r"start bound cannot be UNBOUNDED FOLLOWING", "a frame cannot start at UNBOUNDED FOLLOWING", None),
        (r"end bound cannot be UNBOUNDED PRECEDING", "a frame cannot end at UNBOUNDED PRECEDING", None),
        (
            r"RANGE requires exactly one ORDER BY column",
            "RANGE with a distance takes an ORDER BY of one column",
            "order by one column, or write ROWS",
        ),
        (
            r"Join condition must be boolean type, but got (.+)",
            "a condition is true or false, and this is {0}",
            "compare it with something",
        ),
        (
            r"only support Literal types for field at idx: \d+ in Window Function",
            "an argument of this window function is the same for all rows",
            "write the number",
        ),
        (r"NTILE requires a positive integer", "`ntile` takes a whole number above 0", "ntile(4)"),
        (
            r"string_agg delimiter must be a string literal",
            "the separator of `string_agg` is a string that is written out",
            "string_agg(x, ',')",
        ),
        (
            r"Aggregate function calls cannot contain window function calls",
            "an aggregate cannot be computed of a window function",
            "compute the window function in a subquery",
        ),
        (r"step can't be 0 for function (\w+)", "the step of `{0}` cannot be 0", None),
        (r"invalid Unicode scalar value: (-?\d+)", "{0} is not the number of a character", None),
        (r"Month value '(\S+)' is out of range", "{0} is not a month", "months are 1 to 12"),
        (r"'(\w+)' does not support zero arguments", "`{0}` needs an argument", None),
        (
            r"No function matches the given name and argument types '(\w+)\((.*?)\)'\.",
            "`{0}` cannot take ({1})",
            None,
        ),
        (
            r"unction '(\w+)' failed to match any signature.*?received \w+ \(DataType: (.+?)\)\.",
            "`{0}` cannot take {1}",
            None,
        ),
    )
]

_MOST_CANDIDATES: Final = 4
_LONGEST: Final = 300
"""More of what DataFusion says about a plan helps nobody."""


def explain_error(error: ExpressionError) -> ExpressionError:
    """The same error in terms of SQL, with a hint."""
    text = error.message
    for pattern, message, hint in _REWRITES:
        if match := pattern.search(text):
            parts = [with_sql_types(part) for part in match.groups() if part is not None]
            said = message.format(*parts).replace(" 1 arguments", " 1 argument")
            return ExpressionError(said, hint=hint or _candidates(text))
    if match := re.search(r"Unsupported SQL type (\w+)", text):
        return ExpressionError(f"`{match[1]}` is not a type", hint=suggest(match[1].upper(), TYPE_NAMES))
    first = text.split("\n")[0].strip().removeprefix("This feature is not implemented: ")
    return ExpressionError(with_sql_types(first)[:_LONGEST], hint=_candidates(text))


def _candidates(text: str) -> str | None:
    """The ways to call a function that DataFusion names."""
    lines = text.partition("Candidate functions:")[2].split("\n")
    calls = [with_sql_types(line.strip()) for line in lines if line.strip() and "UserDefined" not in line]
    if not calls:
        return None
    shown = " or ".join(f"`{call}`" for call in dict.fromkeys(calls[:_MOST_CANDIDATES]))
    return f"it is called as {shown}"


_TYPES: Final = {
    "Utf8View": "TEXT", "LargeUtf8": "TEXT", "Utf8": "TEXT", "String": "TEXT",
    "Boolean": "BOOLEAN", "Null": "NULL",
    "Int8": "TINYINT", "Int16": "SMALLINT", "Int32": "INT", "Int64": "BIGINT",
    "UInt8": "TINYINT UNSIGNED", "UInt16": "SMALLINT UNSIGNED",
    "UInt32": "INT UNSIGNED", "UInt64": "BIGINT UNSIGNED",
    "Float16": "FLOAT", "Float32": "FLOAT", "Float64": "DOUBLE", "Date32": "DATE", "Date64": "DATE",
    "Binary": "BYTEA", "LargeBinary": "BYTEA", "BinaryView": "BYTEA",
    "Timestamp": "TIMESTAMP", "Time32": "TIME", "Time64": "TIME", "Time": "TIME", "Interval": "INTERVAL",
    "Duration": "DURATION", "Decimal128": "DECIMAL", "Decimal256": "DECIMAL", "Decimal": "DECIMAL",
}  # fmt: skip
_TYPE: Final = re.compile(
    rf"\b({'|'.join(_TYPES)})\b(?:\((?:s|ms|us|ns|µs|MonthDayNano|DayTime|YearMonth)[^()]*\))?"
)
_LIST: Final = re.compile(r"(?:Large|FixedSize)?List\((?:non-null )?([^()]*(?:\([^()]*\))?[^()]*)\)")


_FIELD: Final = re.compile(r'"([^"]*)": ')


def _struct_type(match: re.Match[str]) -> str:
    """`Struct("a": Int32)` as `STRUCT<a Int32>`."""
    return f"STRUCT<{_FIELD.sub(lambda name: f'{name[1]} ', match[1])}>"


def with_sql_types(text: str) -> str:
    """A message with the types of Arrow written as SQL writes them.

    >>> with_sql_types("List(Utf8) - Interval(MonthDayNano)")
    'TEXT[] - INTERVAL'
    """
    text = re.sub(r'\bStruct\(((?:"[^"]*": [^()]*)+)\)', _struct_type, text)
    text = _TYPE.sub(lambda match: _TYPES[match[1]], text)
    while _LIST.search(text):
        text = _LIST.sub(r"\1[]", text)
    return text
