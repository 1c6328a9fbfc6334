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
            r'Invalid input syntax for type interval: "(.*)"',
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
    """The same error in the words of SQL, with what to do as its hint."""
    text = error.message
    for pattern, message, hint in _REWRITES:
        if match := pattern.search(text):
            parts = [with_sql_types(part) for part in match.groups() if part is not None]
            return ExpressionError(message.format(*parts), hint=hint or _candidates(text))
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


def with_sql_types(text: str) -> str:
    """A message with the types of Arrow written as SQL writes them.

    >>> with_sql_types("List(Utf8) - Interval(MonthDayNano)")
    'TEXT[] - INTERVAL'
    """
    text = _TYPE.sub(lambda match: _TYPES[match[1]], text)
    while _LIST.search(text):
        text = _LIST.sub(r"\1[]", text)
    return text
