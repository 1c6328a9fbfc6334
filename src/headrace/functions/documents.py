"""Parses JSON strings to values, each distinct string of a batch once.

Objects, arrays, strings, booleans and integers are Python's own. A number with a fraction or an exponent
is a `JsonNumber`, which keeps its digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Codes = npt.NDArray[np.int64]


class Missing:
    """Stands for no value: NULL, a string that is not JSON, an element that the document does not have."""


MISSING: Final = Missing()


@dataclass(slots=True)
class JsonNumber:
    """A number with a fraction or an exponent, as it was written.

    Not frozen: frozen dataclasses are slow to create, and there is one for every such number of a document.
    """

    text: str

    def __float__(self) -> float:
        return float(self.text)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_float=JsonNumber, parse_constant=_refuse)
_quote: Callable[[str], str] = json.JSONEncoder(ensure_ascii=False).encode


def parse(text: str) -> Any:
    """The value of a JSON string; MISSING if it is not JSON."""
    try:
        value = _decoder.decode(text)
        if "\\ud" in text or "\\uD" in text:
            # Half of a surrogate pair can be escaped in JSON, but not encoded in UTF-8.
            to_text(value).encode()
    except (ValueError, RecursionError):
        return MISSING
    return value


def to_text(value: Any) -> str:
    """A value as compact JSON, its numbers as they were written."""
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join([f"{_quote(key)}:{to_text(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([to_text(item) for item in value]) + "]"
    return json.dumps(value)


@dataclass(frozen=True)
class _Parsed:
    """A column of JSON strings, its distinct documents, and which of them each row has."""

    texts: pa.Array
    documents: list[Any]
    codes: Codes


_latest = _Parsed(pa.array([], pa.string()), [], np.empty(0, np.int64))


def _parsed(texts: pa.Array) -> _Parsed:
    """Parse a column; the last one is cached, since queries read many fields of one column."""
    global _latest  # noqa: PLW0603 - replaced in one assignment, so that threads at worst parse twice
    latest = _latest
    if not _same_memory(latest.texts, texts):
        distinct, codes = _encode(texts)
        documents = [MISSING if text is None else parse(text) for text in distinct]
        _latest = latest = _Parsed(texts, documents, codes)
    return latest


def _same_memory(first: pa.Array, second: pa.Array) -> bool:
    """Whether two arrays are views of the same memory, which cannot change while they live."""
    return (
        len(first) == len(second)
        and first.offset == second.offset
        and first.type == second.type
        and [buffer and buffer.address for buffer in first.buffers()]
        == [buffer and buffer.address for buffer in second.buffers()]
    )


def _encode(column: pa.Array) -> tuple[list[Any], Codes]:
    """The distinct values of a column, NULL among them, and which of them each row has."""
    encoded = column.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return encoded.dictionary.to_pylist(), codes


def compute(
    texts: pa.Array,
    arguments: Sequence[pa.Array],
    returns: pa.DataType,
    call: Callable[..., Any],
) -> pa.Array:
    """`call(document, *arguments)` for every row, computed once for each distinct combination.

    The document is MISSING where the string is NULL, not JSON, or nested too deeply to be traversed; NULL
    arguments are None.
    """
    parsed = _parsed(texts)
    values, codes = [parsed.documents], [parsed.codes]
    for column in arguments:
        distinct, its_codes = _encode(column)
        values.append(distinct)
        codes.append(its_codes)
    combinations, rows = _combine([len(distinct) for distinct in values], codes)
    results = []
    for combination in combinations:
        document, *rest = [distinct[at] for distinct, at in zip(values, combination, strict=True)]
        try:
            results.append(call(document, *rest))
        except RecursionError:
            results.append(call(MISSING, *rest))
    return pa.array(results, returns).take(pa.array(rows))


def _combine(sizes: Sequence[int], codes: Sequence[Codes]) -> tuple[Iterable[tuple[int, ...]], Codes]:
    """The distinct combinations of several columns' codes, and which of them each row has."""
    if all(size <= 1 for size in sizes[1:]):
        rest = (0,) * (len(sizes) - 1)
        return [(at, *rest) for at in range(sizes[0])], codes[0]
    flat = np.ravel_multi_index(tuple(codes), tuple(sizes))
    distinct, rows = np.unique(flat, return_inverse=True)
    return zip(*(part.tolist() for part in np.unravel_index(distinct, tuple(sizes))), strict=True), rows
