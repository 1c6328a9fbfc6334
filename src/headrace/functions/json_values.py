"""`json_get` and the other `json_…` functions: an element of a JSON string, by keys and indexes.

A string step is a key of an object, an integer is an index of an array, from its end if it is negative. The
result is NULL if the element does not exist or has another type, or if the string is not JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.functions.documents import MISSING, JsonNumber, compute, to_text

_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())


def element(document: Any, *steps: str | int | None) -> Any:
    """The element that keys and indexes lead to; MISSING if there is none."""
    for step in steps:
        if isinstance(step, str):
            document = document.get(step, MISSING) if isinstance(document, dict) else MISSING
        elif isinstance(document, list) and step is not None and -len(document) <= step < len(document):
            document = document[step]
        else:
            return MISSING
    return document


def _json(value: Any) -> str | None:
    return None if value is MISSING else to_text(value)


def as_text(value: Any) -> str | None:
    """A string without its quotes, anything else as JSON; None for JSON's null and for nothing."""
    if isinstance(value, str):
        return value
    return None if value is None else _json(value)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _int(value: Any) -> int | None:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _float(value: Any) -> float | None:
    try:
        return float(value) if type(value) is int or isinstance(value, JsonNumber) else None
    except OverflowError:
        return None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _array(value: Any) -> list[str] | None:
    return [to_text(item) for item in value] if isinstance(value, list) else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list | dict) else None


def _keys(value: Any) -> list[str] | None:
    return list(value) if isinstance(value, dict) else None


def _is_there(value: Any) -> bool:
    return value is not MISSING


@dataclass(frozen=True)
class JsonFunction:
    """A function over an element of a JSON string."""

    returns: pa.DataType
    convert: Callable[[Any], Any]

    def __call__(self, texts: pa.Array, *steps: pa.Array) -> pa.Array:
        return compute(texts, steps, self.returns, lambda *row: self.convert(element(*row)))


JSON_FUNCTIONS = {
    "json_as_text": JsonFunction(_TEXT, as_text),
    "json_contains": JsonFunction(pa.bool_(), _is_there),
    "json_get": JsonFunction(_TEXT, _json),
    "json_get_array": JsonFunction(_TEXTS, _array),
    "json_get_bool": JsonFunction(pa.bool_(), _bool),
    "json_get_float": JsonFunction(pa.float64(), _float),
    "json_get_int": JsonFunction(pa.int64(), _int),
    "json_get_json": JsonFunction(_TEXT, _json),
    "json_get_str": JsonFunction(_TEXT, _string),
    "json_length": JsonFunction(pa.uint64(), _length),
    "json_object_keys": JsonFunction(_TEXTS, _keys),
}
"""By name. Only `json_contains` is never NULL: it is false if there is no such element."""
