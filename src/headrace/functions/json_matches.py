"""`extract_json`, `get_first_json_object`, `extract_json_string`: what a JSONPath selects in a JSON string.

A string that is not JSON, or a path that is NULL, gives NULL. An invalid path is an error.
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
    matches = _matches(document, path)
    return None if matches is None else [to_text(value) for value in matches]


def _first(document: Any, path: str | None) -> str | None:
    matches = _matches(document, path)
    return to_text(matches[0]) if matches else None


def _first_string(document: Any, path: str | None) -> str | None:
    matches = _matches(document, path)
    return matches[0] if matches and isinstance(matches[0], str) else None


def extract_json(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """All matches as JSON strings."""
    return compute(texts, [paths], pa.list_(pa.string()), _all)


def get_first_json_object(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """The first match as a JSON string."""
    return compute(texts, [paths], pa.string(), _first)


def extract_json_string(texts: pa.Array, paths: pa.Array) -> pa.Array:
    """The first match if it is a JSON string, without its quotes."""
    return compute(texts, [paths], pa.string(), _first_string)
