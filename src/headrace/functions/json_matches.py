"""`extract_json` and its kin: what a JSONPath selects in a JSON text.

A text that is not JSON, or a path that is NULL, gives NULL; a path that is no path is an error.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.functions.documents import MISSING, compute, to_text
from headrace.functions.json_path import compile_path


def _matches(document: Any, path: str | None) -> list[Any] | None:
    if path is None:
        return None
    compiled = compile_path(path)
    return None if document is MISSING else compiled.select(document, document)


def _all(document: Any, path: str | None) -> list[str] | None:
    found = _matches(document, path)
    return None if found is None else [to_text(value) for value in found]


def _first(document: Any, path: str | None) -> str | None:
    found = _matches(document, path)
    return to_text(found[0]) if found else None


def _first_string(document: Any, path: str | None) -> str | None:
    found = _matches(document, path)
    return found[0] if found and isinstance(found[0], str) else None


def extract_json(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """The JSON texts of all matches."""
    return compute(texts, [paths], pa.list_(pa.string()), _all)


def get_first_json_object(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """The JSON text of the first match."""
    return compute(texts, [paths], pa.string(), _first)


def extract_json_string(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """The first match if it is a JSON string, without its quotes."""
    return compute(texts, [paths], pa.string(), _first_string)
