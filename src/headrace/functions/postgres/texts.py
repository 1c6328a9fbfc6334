"""Functions over strings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from headrace.base.errors import ExpressionError
from headrace.functions.postgres.overload import BOOLEAN, BYTES, INTEGER, MANY, TEXT, TEXTS, Overload

_DIRECTIVE: Final = re.compile(r"%(?:(?P<position>\d+)\$)?(?P<left>-)?(?P<width>\d+)?(?P<kind>.)", re.DOTALL)
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_$]*")
_RESERVED: Final = frozenset(
    """all analyse analyze and any array as asc asymmetric both case cast check collate column constraint
    create current_date current_role current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign from grant group having in initially intersect
    into lateral leading limit localtime localtimestamp not null offset on only or order placing primary
    references returning select session_user some symmetric table then to trailing true union unique
    user using variadic when where window with""".split()  # noqa: SIM905 - a list of words
)


def quote_identifier(name: str) -> str:
    """A name in double quotes, if it needs them.

    >>> quote_identifier("a"), quote_identifier("A b")
    ('a', '"A b"')
    """
    if _PLAIN.fullmatch(name) and name not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A string in single quotes.

    >>> quote_literal("it's")
    "'it''s'"
    """
    quoted = text.replace("'", "''")
    return f" E'{quoted.replace(chr(92), chr(92) * 2)}'".lstrip() if "\\" in text else f"'{quoted}'"


def format_text(pattern: str | None, *arguments: str | None) -> str | None:
    """`format('%s of %I', …)`.

    >>> format_text("%s-%2$s-%1$5s|%%", "a", "b")
    'a-b-    a|%'
    """
    if pattern is None:
        return None
    result, end, last = "", 0, 0
    for match in _DIRECTIVE.finditer(pattern):
        result += pattern[end : match.start()]
        end = match.end()
        if match["kind"] == "%":
            result += "%"
            continue
        last = int(match["position"]) if match["position"] else last + 1
        if not 1 <= last <= len(arguments):
            raise ExpressionError(
                f"format('{pattern}', …) has {len(arguments)} arguments", hint="it needs more"
            )
        text = _formatted(match["kind"], arguments[last - 1], pattern)
        width = int(match["width"] or 0)
        result += text.ljust(width) if match["left"] else text.rjust(width)
    rest = pattern[end:]
    if "%" in rest:
        raise ExpressionError(f"format('{pattern}', …) ends in `%`", hint="write %% for a percent sign")
    return result + rest


def _formatted(kind: str, argument: str | None, pattern: str) -> str:
    if kind == "s":
        return argument or ""
    if kind == "L":
        return "NULL" if argument is None else quote_literal(argument)
    if kind == "I":
        if argument is None:
            raise ExpressionError("format: %I stands for a name, and got NULL")
        return quote_identifier(argument)
    raise ExpressionError(f"format('{pattern}', …) has `%{kind}`", hint="there are %s, %I, %L and %%")


def _python_flags(flags: str) -> int:
    result = 0
    for flag in flags:
        if flag not in "gicnspmx":
            raise ExpressionError(f"`{flag}` is not a flag of a regular expression", hint="i, g, n, s, x are")
        result |= {"i": re.IGNORECASE, "x": re.VERBOSE, "n": re.MULTILINE, "m": re.MULTILINE}.get(flag, 0)
    return result if set(flags) & set("nmp") else result | re.DOTALL


_WORDS: Final = {r"\m": r"\b(?=\w)", r"\M": r"\b(?<=\w)", r"\y": r"\b", r"\Y": r"\B"}


def compile_regex(pattern: str, flags: str = "") -> re.Pattern[str]:
    """A regular expression of PostgreSQL; raises an ExpressionError if it is none."""
    text = re.sub(r"\\[mMyY]|\\.", lambda match: _WORDS.get(match[0], match[0]), pattern, flags=re.DOTALL)
    text = re.sub(r"\[:(\w+):\]", lambda match: _POSIX.get(match[1], match[0]), text)
    try:
        return re.compile(text, _python_flags(flags))
    except re.error as error:
        raise ExpressionError(f"`{pattern}` is not a regular expression: {error}") from None


_POSIX: Final = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "word": r"\w", "blank": r" \t",
}  # fmt: skip


def regexp_split(text: str, pattern: str, flags: str = "") -> list[str]:
    """What stands between the matches; an empty match splits between characters.

    >>> regexp_split("a1b22c", "[0-9]+"), regexp_split("abc", "")
    (['a', 'b', 'c'], ['a', 'b', 'c'])
    """
    result, start = [], 0
    for match in compile_regex(pattern, flags).finditer(text):
        if match.end() == match.start() and (match.start() in (0, len(text)) or match.start() == start):
            continue
        result.append(text[start : match.start()])
        start = match.end()
    return [*result, text[start:]]


def regexp_substring(
    text: str, pattern: str, start: int = 1, number: int = 1, flags: str = "", group: int = 0
) -> str | None:
    """A match of a regular expression, or a group of it.

    >>> regexp_substring("a1b22", "[0-9]+", 1, 2)
    '22'
    """
    if start < 1 or number < 1 or group < 0:
        raise ExpressionError("regexp_substr: start and number are at least 1, the group at least 0")
    regex = compile_regex(pattern, flags)
    for index, match in enumerate(regex.finditer(text, start - 1), start=1):
        if index == number:
            return match[group] if group <= regex.groups else None
    return None


def substring_of_pattern(text: str, pattern: str) -> str | None:
    """`substring(text FROM pattern)`: the first group if there is one, else the whole match."""
    regex = compile_regex(pattern)
    match = regex.search(text)
    if match is None:
        return None
    group: str | None = match[1 if regex.groups else 0]
    return group


def regexp_replace(
    text: str, pattern: str, replacement: str, start: int, number: int, flags: str = ""
) -> str:
    """Replace the match with a number, or all of them if it is 0, from a character on."""
    if start < 1 or number < 0:
        raise ExpressionError("regexp_replace: the start is at least 1, the number at least 0")
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        if number not in (0, count):
            return match[0]
        return re.sub(r"\\(.)", lambda step: _replaced(step[1], match), replacement, flags=re.DOTALL)

    return text[: start - 1] + compile_regex(pattern, flags).sub(replace, text[start - 1 :])


def _replace_first(text: str, pattern: str, replacement: str, start: int) -> str:
    return regexp_replace(text, pattern, replacement, start, 1)


def _replaced(step: str, match: re.Match[str]) -> str:
    if step.isdigit():
        return match[int(step)] or "" if int(step) <= match.re.groups else ""
    return {"&": match[0], "\\": "\\"}.get(step, f"\\{step}")


def _variadic(name: str, compute: Any, returns: Any) -> Sequence[Overload]:
    return [Overload(name, (TEXT,) * (count + 1), returns, compute, lenient=True) for count in range(MANY)]


TEXT_FUNCTIONS: Final = (
    *_variadic("format", format_text, TEXT),
    Overload("quote_ident", (TEXT,), TEXT, quote_identifier),
    Overload("quote_literal", (TEXT,), TEXT, quote_literal),
    Overload(
        "quote_nullable",
        (TEXT,),
        TEXT,
        lambda text: "NULL" if text is None else quote_literal(text),
        lenient=True,
    ),
    Overload("regexp_split_to_array", (TEXT, TEXT), TEXTS, regexp_split),
    Overload("regexp_split_to_array", (TEXT, TEXT, TEXT), TEXTS, regexp_split),
    Overload("regexp_substr", (TEXT, TEXT), TEXT, regexp_substring),
    Overload("regexp_substr", (TEXT, TEXT, INTEGER), TEXT, regexp_substring),
    Overload("regexp_substr", (TEXT, TEXT, INTEGER, INTEGER), TEXT, regexp_substring),
    Overload("regexp_substr", (TEXT, TEXT, INTEGER, INTEGER, TEXT), TEXT, regexp_substring),
    Overload("regexp_substr", (TEXT, TEXT, INTEGER, INTEGER, TEXT, INTEGER), TEXT, regexp_substring),
    Overload(
        "regexp_replace",
        (TEXT, TEXT, TEXT, INTEGER),
        TEXT,
        _replace_first,
    ),
    Overload("regexp_replace", (TEXT, TEXT, TEXT, INTEGER, INTEGER), TEXT, regexp_replace),
    Overload("regexp_replace", (TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT), TEXT, regexp_replace),
    Overload("substring_of_pattern", (TEXT, TEXT), TEXT, substring_of_pattern, internal=True),
    Overload("regexp_extract", (TEXT, TEXT), TEXT, regexp_substring),
    Overload(
        "regexp_extract",
        (TEXT, TEXT, INTEGER),
        TEXT,
        lambda text, pattern, group: regexp_substring(text, pattern, group=group),
    ),
    Overload("length", (BYTES,), INTEGER, len),
    Overload("octet_length", (BYTES,), INTEGER, len),
    Overload("text_of_boolean", (BOOLEAN,), TEXT, lambda value: "t" if value else "f", internal=True),
)
