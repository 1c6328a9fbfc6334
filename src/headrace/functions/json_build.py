"""Builds JSON from values: the parts of `json_agg`, `jsonb_object_agg`, `jsonb_build_object` and `to_jsonb`.

The binder composes them by the types of the values; each piece is JSON text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.base.errors import ExpressionError

_quote: Final = json.JSONEncoder(ensure_ascii=False).encode
_decoder: Final = json.JSONDecoder()


def quoted(texts: pa.Array) -> pa.Array:
    """Texts as strings of JSON; NULL stays NULL."""
    return pa.array([None if text is None else _quote(text) for text in texts.to_pylist()], pa.string())


def numbers(values: pa.Array) -> pa.Array:
    """Floating-point numbers as numbers of JSON; NaN and infinities, which it does not have, as strings."""
    return pa.array([None if value is None else _number(value) for value in values.to_pylist()], pa.string())


def _number(value: float) -> str:
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else f'"{"-" * (value < 0)}Infinity"'
    return str(int(value)) if value.is_integer() else _without_exponent(repr(value))


def _without_exponent(text: str) -> str:
    """A number as PostgreSQL's NUMERIC prints it.

    >>> _without_exponent("1.5e-07")
    '0.00000015'
    """
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    whole, _, fraction = digits.partition(".")
    return f"{sign}0.{'0' * (-int(exponent) - len(whole))}{whole}{fraction}"


def array_of(lists: pa.Array) -> pa.Array:
    """Lists of JSON as arrays of JSON."""
    return _joined(lists, lambda items: f"[{', '.join(items)}]")


def array_of_texts(lists: pa.Array) -> pa.Array:
    """Lists of strings as JSON arrays."""
    return _joined(lists, lambda texts: f"[{', '.join(texts)}]", convert=_quote)


def object_of(lists: pa.Array) -> pa.Array:
    """Lists of pairs as objects of type JSON: in their order, with keys that are there twice."""
    return _joined(lists, lambda pairs: f"{{ {', '.join(_spaced(pair) for pair in pairs)} }}")


def built_object_of(lists: pa.Array) -> pa.Array:
    """Lists of pairs as `json_build_object` writes them."""
    return _joined(lists, lambda pairs: f"{{{', '.join(map(_spaced, pairs))}}}")


def compact_array_of(lists: pa.Array) -> pa.Array:
    """Lists of JSON as arrays without blanks."""
    return _joined(lists, lambda items: f"[{','.join(items)}]")


def compact_array_of_texts(lists: pa.Array) -> pa.Array:
    """Lists of strings as JSON arrays without blanks."""
    return _joined(lists, lambda texts: f"[{','.join(texts)}]", convert=_quote)


def compact_object_of(lists: pa.Array) -> pa.Array:
    """Lists of pairs as objects without blanks."""

    def build(pairs: Sequence[str]) -> str:
        return "{" + ",".join(f"{_quote(key)}:{value}" for key, value in map(_split, pairs)) + "}"

    return _joined(lists, build)


def binary_object_of(lists: pa.Array) -> pa.Array:
    """Lists of pairs as objects of type JSONB: the last of each key, in the order of their keys."""

    def build(pairs: Sequence[str]) -> str:
        values = dict(map(_split, pairs))
        keys = sorted(values, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{_quote(key)}: {values[key]}" for key in keys) + "}"

    return _joined(lists, build)


def pair(keys: pa.Array, values: pa.Array) -> pa.Array:
    """A key and a value, which is JSON, as a piece of an object."""
    rows = zip(keys.to_pylist(), values.to_pylist(), strict=True)
    return pa.array([_pair(key, value) for key, value in rows], pa.string())


def _pair(key: str | None, value: str | None) -> str:
    if key is None:
        raise ExpressionError("a key of a JSON object is NULL", hint="leave such rows out: FILTER (WHERE …)")
    return f"{_quote(key)}: {'null' if value is None else value}"


def _split(piece: str) -> tuple[str, str]:
    key, end = _decoder.raw_decode(piece)
    return key, piece[end + 2 :]


def _spaced(piece: str) -> str:
    key, value = _split(piece)
    return f"{_quote(key)} : {value}"


def _joined(
    lists: pa.Array, build: Callable[[Sequence[str]], str], *, convert: Callable[[str], str] = str
) -> pa.Array:
    def each(items: Sequence[Any] | None) -> str | None:
        return None if items is None else build(["null" if item is None else convert(item) for item in items])

    return pa.array([each(items) for items in lists.to_pylist()], pa.string())
