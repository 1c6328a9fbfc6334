"""Resolves a call of one of Headrace's own functions to the signature that is registered with DataFusion.

A Python function has one signature for DataFusion, but `json_get(json, 'a', 0)` takes any number of steps of
two types. So each combination is registered under its own name, which `resolve` returns: `json_get__ti` is
`json_get` with a string and an integer step, `multi_hash__3` is `multi_hash` of three values.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.functions.arithmetic import (
    CHECKED,
    INTEGERS,
    INTERVAL,
    LENGTH,
    bigint_total,
    decimal_mean,
    decimal_quotient,
    divide_interval,
    interval_length,
    mean_type,
    multiply_interval,
    round_half_even,
)
from headrace.functions.checks import at_most_one_row
from headrace.functions.hashes import multi_hash
from headrace.functions.json_build import (
    array_of,
    array_of_texts,
    binary_object_of,
    built_object_of,
    compact_array_of,
    compact_array_of_texts,
    compact_object_of,
    numbers,
    object_of,
    pair,
    quoted,
)
from headrace.functions.json_matches import extract_json, extract_json_string, get_first_json_object
from headrace.functions.json_values import JSON_FUNCTIONS
from headrace.functions.postgres.catalog import OVERLOADS
from headrace.functions.rows import (
    JSONB_ELEMENTS,
    JSONB_LISTS,
    TEXT_LISTS,
    TEXTS,
    json_elements_text,
    json_values,
    json_values_text,
    mode_position,
    regexp_matches,
    regexp_split,
)

MOST_STEPS = 5
"""How many keys and indexes a call of a `json_…` function takes at most."""
MOST_HASHED = 32
"""How many values a call of `multi_hash` takes at most."""

_STEPS = {"t": pa.string(), "i": pa.int64()}


@dataclass(frozen=True)
class Signature:
    """A function as it is registered with DataFusion."""

    name: str
    arguments: tuple[pa.DataType, ...]
    returns: pa.DataType
    call: Callable[..., pa.Array]


_PATH_FUNCTIONS = (
    Signature("extract_json", (pa.string(), pa.string()), pa.list_(pa.string()), extract_json),
    Signature("extract_json_string", (pa.string(), pa.string()), pa.string(), extract_json_string),
    Signature("get_first_json_object", (pa.string(), pa.string()), pa.string(), get_first_json_object),
)

_ARITHMETIC = (
    Signature("round__even", (pa.float64(),), pa.float64(), round_half_even),
    Signature("bigint__total", (LENGTH,), pa.int64(), bigint_total),
    Signature("interval__length", (INTERVAL,), LENGTH, interval_length),
    Signature("interval__multiply", (INTERVAL, pa.float64()), INTERVAL, multiply_interval),
    Signature("interval__divide", (INTERVAL, pa.float64()), INTERVAL, divide_interval),
    *(
        Signature(f"checked__{operation}__{kind}", (arrow, arrow), arrow, function)
        for operation, function in CHECKED.items()
        for kind, (arrow, _) in INTEGERS.items()
    ),
)
"""What operators and casts mean; users do not call these by name."""

_ROWS = (
    Signature("json__elements_text", (pa.string(),), TEXTS, json_elements_text),
    Signature("json__values", (pa.string(),), TEXTS, json_values),
    Signature("json__values_text", (pa.string(),), TEXTS, json_values_text),
    *(Signature(name, (pa.string(),), TEXTS, function) for name, function in JSONB_LISTS.items()),
    Signature("regexp_matches__list", (pa.string(),) * 3, TEXT_LISTS, regexp_matches),
    Signature("regexp_split__list", (pa.string(),) * 2, TEXTS, regexp_split),
    Signature("mode__position", (TEXTS,), pa.int64(), mode_position),
    Signature("json__quoted", (pa.string(),), pa.string(), quoted),
    Signature("json__number", (pa.float64(),), pa.string(), numbers),
    Signature("json__array", (TEXTS,), pa.string(), array_of),
    Signature("json__texts", (TEXTS,), pa.string(), array_of_texts),
    Signature("json__compact_array", (TEXTS,), pa.string(), compact_array_of),
    Signature("json__compact_texts", (TEXTS,), pa.string(), compact_array_of_texts),
    Signature("json__compact_object", (TEXTS,), pa.string(), compact_object_of),
    Signature("json__built_object", (TEXTS,), pa.string(), built_object_of),
    Signature("json__object", (TEXTS,), pa.string(), object_of),
    Signature("jsonb__object", (TEXTS,), pa.string(), binary_object_of),
    Signature("json__pair", (pa.string(), pa.string()), pa.string(), pair),
    *(
        Signature(
            f"decimal__mean__{scale}", (pa.decimal128(38, scale), pa.int64()), mean_type(scale), decimal_mean
        )
        for scale in range(39)
    ),
    *(
        Signature(
            f"decimal__divide__{scale}", (pa.decimal128(38, scale),) * 2, mean_type(scale), decimal_quotient
        )
        for scale in range(39)
    ),
)
"""What the binder makes of set-returning functions, of ordered-set and of JSON aggregates."""

_CHECKS = (Signature("at_most_one_row", (pa.int64(),), pa.bool_(), at_most_one_row),)
"""Functions that the binder calls, and users cannot."""

PATH_FUNCTIONS = frozenset(signature.name for signature in _PATH_FUNCTIONS)
"""The functions whose second argument is a JSONPath."""
FUNCTION_NAMES = frozenset({"multi_hash", *JSON_FUNCTIONS, *PATH_FUNCTIONS})
"""The names that users write."""


@functools.cache
def all_signatures() -> tuple[Signature, ...]:
    """Every signature to register."""
    patterns = [
        pattern for count in range(MOST_STEPS + 1) for pattern in itertools.product(_STEPS, repeat=count)
    ]
    elements = [
        Signature(
            f"{name}__{''.join(pattern)}",
            (pa.string(), *(_STEPS[letter] for letter in pattern)),
            function.returns,
            function,
        )
        for name, function in JSON_FUNCTIONS.items()
        for pattern in patterns
    ]
    elements += [
        Signature(f"{_of_jsonb(name)}__{letter}", (pa.string(), kind), function.returns, function)
        for name, function in JSONB_ELEMENTS.items()
        for letter, kind in _STEPS.items()
    ]
    hashes = [
        Signature(f"multi_hash__{count}", (pa.string(),) * count, pa.string(), multi_hash)
        for count in range(1, MOST_HASHED + 1)
    ]
    postgres = [
        Signature(overload.registered, overload.arguments, overload.returns, overload)
        for overload in OVERLOADS
    ]
    return (*_PATH_FUNCTIONS, *_ARITHMETIC, *_ROWS, *_CHECKS, *postgres, *elements, *hashes)


def _of_jsonb(name: str) -> str:
    return name.replace("json_", "jsonb__")


def resolve(name: str, argument_types: Sequence[pa.DataType], *, of_jsonb: bool = False) -> str | None:
    """The registered name for a call of a public function, lower-cased, with arguments of these types.

    The name of any other function is returned as it is. None means that the function does not take such
    arguments; `usage(name)` says which it takes.
    """
    if name == "multi_hash":
        fits = 1 <= len(argument_types) <= MOST_HASHED and not any(map(_is_bytes, argument_types))
        return f"multi_hash__{len(argument_types)}" if fits else None
    letters = "".join([_letter(kind) for kind in argument_types])
    if name in JSON_FUNCTIONS:
        fits = letters.startswith("t") and "?" not in letters and len(letters) <= MOST_STEPS + 1
        is_laid_out = of_jsonb and name in JSONB_ELEMENTS and len(letters) == 2  # json -> step
        registered = _of_jsonb(name) if is_laid_out else name
        return f"{registered}__{letters[1:]}" if fits else None
    if name in FUNCTION_NAMES:
        return name if letters == "tt" else None
    return name


def usage(name: str) -> str:
    """How a public function is called, for an error message."""
    if name == "multi_hash":
        return f"multi_hash(value, …) takes 1 to {MOST_HASHED} values that can be texts"
    if name in JSON_FUNCTIONS:
        return f"{name}(json, step, …) takes a string and up to {MOST_STEPS} keys (TEXT) and indexes (BIGINT)"
    return f"{name}(json, path) takes two texts, such as {name}(value, '$.items[0].id')"


def _letter(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
        return "t"
    return "i" if pa.types.is_integer(kind) else "?"


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind)
