"""Functions that give a list for each row, whose elements the binder turns into rows or into one value."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.base.errors import ExpressionError
from headrace.functions.documents import MISSING, to_text
from headrace.functions.json_values import JsonFunction, as_text
from headrace.functions.postgres.json import layout

TEXTS: Final = pa.list_(pa.string())
TEXT_LISTS: Final = pa.list_(TEXTS)
_FLAGS: Final = {"i": re.IGNORECASE, "n": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def _elements(value: Any) -> list[str | None] | None:
    return [as_text(item) for item in value] if isinstance(value, list) else None


def _values(value: Any) -> list[str] | None:
    return [to_text(item) for item in value.values()] if isinstance(value, dict) else None


def _value_texts(value: Any) -> list[str | None] | None:
    return [as_text(item) for item in value.values()] if isinstance(value, dict) else None


def _layout_as_text(value: Any) -> str | None:
    return layout(value) if isinstance(value, dict | list) else as_text(value)


def _laid_out_json(value: Any) -> str | None:
    return None if value is MISSING else layout(value)


def _items(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any] | None]:
    """What is made of each element of an array."""
    return lambda value: [convert(item) for item in value] if isinstance(value, list) else None


def _members(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any] | None]:
    """What is made of each value of an object."""
    return lambda value: [convert(item) for item in value.values()] if isinstance(value, dict) else None


JSONB_ELEMENTS: Final = {
    "json_get": JsonFunction(pa.string(), _laid_out_json),
    "json_as_text": JsonFunction(pa.string(), _layout_as_text),
}
"""What the functions of these names give for JSONB: objects and arrays as PostgreSQL writes them."""
JSONB_LISTS: Final = {
    "jsonb__elements": JsonFunction(TEXTS, _items(layout)),
    "jsonb__elements_text": JsonFunction(TEXTS, _items(_layout_as_text)),
    "jsonb__values": JsonFunction(TEXTS, _members(layout)),
    "jsonb__values_text": JsonFunction(TEXTS, _members(_layout_as_text)),
}
"""The lists that functions of JSONB make rows of."""

json_elements_text = JsonFunction(TEXTS, _elements)
json_values = JsonFunction(TEXTS, _values)
json_values_text = JsonFunction(TEXTS, _value_texts)


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str, flags: str) -> re.Pattern[str]:
    options = re.NOFLAG
    for flag in flags.replace("g", ""):
        if flag not in _FLAGS:
            allowed = ", ".join(sorted([*_FLAGS, "g"]))
            raise ExpressionError(
                f"`{flag}` is not a flag of a regular expression", hint=f"the flags are {allowed}"
            )
        options |= _FLAGS[flag]
    try:
        return re.compile(pattern, options)
    except re.error as error:
        raise ExpressionError(f"`{pattern}` is not a regular expression: {error}") from error


def regexp_matches(texts: pa.Array, patterns: pa.Array, flags: pa.Array) -> pa.Array:
    """The matches in each string, each with its groups or itself: the first, or with the flag `g` all."""

    def matches(text: str, pattern: str, options: str) -> list[list[str | None]]:
        iterator = _compiled(pattern, options).finditer(text)
        results = [list(match.groups()) or [match[0]] for match in iterator]
        return results if "g" in options else results[:1]

    return _each(matches, TEXT_LISTS, texts, patterns, flags)


def regexp_split(texts: pa.Array, patterns: pa.Array) -> pa.Array:
    """The parts of each string between the matches of a pattern."""

    def pieces(text: str, pattern: str) -> list[str]:
        compiled = _compiled(pattern, "")
        cuts = [match.span() for match in compiled.finditer(text)]
        # A match of nothing separates two characters, and not the ends of the text from nothing.
        cuts = [(low, high) for low, high in cuts if high > low or 0 < low < len(text)]
        starts, ends = [0, *(high for _, high in cuts)], [*(low for low, _ in cuts), len(text)]
        return [text[low:high] for low, high in zip(starts, ends, strict=True)]

    return _each(pieces, TEXTS, texts, patterns)


def mode_position(lists: pa.Array) -> pa.Array:
    """The position, from 1, of the most frequent value of each list; of several the first."""

    def position(values: Sequence[str]) -> int | None:
        if not values:
            return None
        value = max(Counter(values).items(), key=lambda pair: pair[1])[0]
        return values.index(value) + 1

    return _each(position, pa.int64(), lists)


def _each(call: Callable[..., Any], returns: pa.DataType, *columns: pa.Array) -> pa.Array:
    """The results of a call for every row; NULL where an argument is."""
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([None if None in row else call(*row) for row in rows], returns)
