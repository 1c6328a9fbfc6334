"""Convert between the text form of PostgreSQL values and Arrow columns.

The session is expected to be in UTC, with dates in ISO style, intervals in ISO 8601 and bytes in hex.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import BadLineError
from headrace.formats.base import is_binary, is_json, is_list, plain_field
from headrace.formats.intervals import format_interval, parse_interval
from headrace.formats.json.format import PLAIN, JsonFormat, encode_values

_TEXT = pa.string()
_BOUNDS = re.compile(r"(?:\[[+-]?\d+:[+-]?\d+\])+=")
_ITEM = re.compile(
    r'\s*(?:([{}])|"((?:[^"\\]|\\.)*)"|((?:[^",{}\\\s]|\\.)(?:[^",{}\\]|\\.)*))\s*(,?)', re.DOTALL
)


class UnreadableError(ValueError):
    """A string that is not a valid value of the column's type."""

    def __init__(self, index: int, text: str, kind: pa.DataType) -> None:
        excerpt = text if len(text) <= 100 else text[:100] + "…"
        super().__init__(f"`{excerpt}` cannot be read as {kind}")
        self.index = index
        """The index of the string in its array."""


# ------------------------------------------------------------------------------------------------ reading


_UNREADABLE = (ValueError, OverflowError, BadLineError)
"""The errors of conversions; those of Arrow are ValueErrors too."""


def read_texts(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Convert strings to the type of a field; raises an UnreadableError for one that does not fit."""
    try:
        return _read(texts, plain_field(field).type)
    except _UNREADABLE:
        for error in unreadable(texts, field):
            raise error from None
        raise


def unreadable(texts: pa.Array, field: pa.Field, first: int = 0) -> Iterator[UnreadableError]:
    """Return an error for each string that is not a value of the field's type, numbered from `first`."""
    kind = plain_field(field).type
    try:
        _read(texts, kind)
    except _UNREADABLE:
        if len(texts) == 1:
            yield UnreadableError(first, texts[0].as_py(), kind)
            return
        half = len(texts) // 2
        yield from unreadable(texts[:half], field, first)
        yield from unreadable(texts[half:], field, first + half)


def _read(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        read = _read_booleans(texts)
    elif pa.types.is_timestamp(kind):
        # PostgreSQL has microseconds; a column with less cuts them off.
        parsed = "ns" if kind.unit == "ns" else "us"
        zoned = pc.any(pc.match_substring_regex(texts, r"[+-]\d\d(:\d\d)?$")).as_py()
        read = texts.cast(pa.timestamp(parsed, "UTC" if zoned else None)).cast(pa.timestamp(parsed))
        read = read.cast(kind, safe=False)
    elif pa.types.is_time(kind):
        moments = pc.binary_join_element_wise("1970-01-01 ", texts, "").cast(pa.timestamp("ns"))
        read = moments.cast(pa.time64("ns")).cast(kind, safe=False)
    elif pa.types.is_interval(kind):
        read = pa.array([None if text is None else parse_interval(text) for text in texts.to_pylist()], kind)
    elif is_binary(kind):
        read = _read_bytes(texts).cast(kind)
    elif pa.types.is_nested(kind):
        read = _read_nested(texts, kind)
    else:
        read = texts.cast(kind)
    return read


def _read_booleans(texts: pa.Array) -> pa.Array:
    valid = pc.is_in(texts, pa.array(["t", "f", "true", "false", None], _TEXT))
    if not pc.all(valid, min_count=0).as_py():
        raise ValueError("not a boolean")
    return pc.if_else(texts.is_valid(), pc.starts_with(texts, "t"), None)


def _read_bytes(texts: pa.Array) -> pa.Array:
    if not pc.all(pc.starts_with(texts, "\\x"), min_count=0).as_py():
        return texts.cast(pa.binary())  # of a column of texts
    digits = pc.utf8_slice_codeunits(texts, 2).cast(pa.large_string())
    offsets, data = _buffers(digits)
    decoded = binascii.unhexlify(data)
    mask = None if not texts.null_count else texts.is_null()
    array = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(texts), [None, pa.py_buffer(offsets // 2), pa.py_buffer(decoded)]
    )
    return array if mask is None else pc.if_else(mask, None, array)


def _buffers(array: pa.Array) -> tuple[Any, bytes]:
    """Return the offsets of a large string or binary array, from 0, and the bytes of its values."""
    array = pa.concat_arrays([array])
    if not len(array):
        return np.zeros(1, np.int64), b""
    _, places, data = array.buffers()
    offsets = np.frombuffer(places, np.int64)[array.offset : array.offset + len(array) + 1]
    low, high = int(offsets[0]), int(offsets[-1])
    return offsets - low, b"" if data is None else data.to_pybytes()[low:high]


def _read_nested(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    values = texts.to_pylist()
    first = next((text.lstrip() for text in values if text is not None), "")
    if is_list(kind) and (first.startswith("{") or _BOUNDS.match(first)):
        lists = [None if text is None else parse_array(text) for text in values]
        return _read_lists(lists, kind)
    # What is not an array of PostgreSQL is JSON.
    messages = [b'{"v":' + (b"null" if text is None else text.encode()) + b"}" for text in values]
    rows = JsonFormat(pa.schema([pa.field("v", kind)])).decode(messages).rows
    return rows.column("v").combine_chunks()


def _read_lists(lists: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not is_list(kind):
        if any(isinstance(elements, list) for elements in lists):
            raise ValueError("an array has more dimensions than the column")
        return _read(pa.array(lists, _TEXT), kind)
    if any(isinstance(elements, str) for elements in lists):
        raise ValueError("an array has fewer dimensions than the column")
    items = _read_lists(
        [item for elements in lists if elements is not None for item in elements], kind.value_type
    )
    ends = np.cumsum([0, *(0 if elements is None else len(elements) for elements in lists)]).tolist()
    offsets = [None if elements is None else start for elements, start in zip(lists, ends[:-1], strict=True)]
    return pa.ListArray.from_arrays(pa.array([*offsets, ends[-1]], pa.int32()), items).cast(kind)


def parse_array(text: str) -> list[Any]:
    """Parse a PostgreSQL array into nested lists of strings and None; raises a ValueError.

    >>> parse_array('{1,NULL,"a b",{x}}')
    ['1', None, 'a b', ['x']]
    """
    bounds = _BOUNDS.match(text)
    position = 0 if bounds is None else bounds.end()
    top: list[Any] = []
    open_lists = [top]
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None or (len(open_lists) == 1 and match.group(1) != "{"):
            raise ValueError(f"`{text}` is not an array")
        brace, quoted, bare, _ = match.groups()
        position = match.end()
        if brace == "{":
            open_lists[-1].append([])
            open_lists.append(open_lists[-1][-1])
            position = match.end(1)
        elif brace == "}":
            open_lists.pop()
        elif quoted is not None:
            open_lists[-1].append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            word = bare.rstrip()
            open_lists[-1].append(None if word.upper() == "NULL" else re.sub(r"\\(.)", r"\1", word))
    if len(open_lists) != 1 or len(top) != 1:
        raise ValueError(f"`{text}` is not an array")
    array: list[Any] = top[0]
    return array


# ------------------------------------------------------------------------------------------------ writing


def write_texts(column: pa.Array, field: pa.Field, *, as_json: bool = False) -> pa.Array:
    """Convert a column to the text form of PostgreSQL; `as_json` if it goes into JSON.

    Texts that go into JSON are JSON already. NaN and infinity are strings there.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return write_texts(column.storage, field, as_json=as_json or is_json(field))
    if pa.types.is_dictionary(kind):
        return write_texts(column.dictionary_decode(), field, as_json=as_json)
    if pa.types.is_timestamp(kind):
        written = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.timestamp("us"))
    elif pa.types.is_time(kind):
        written = column.cast(pa.time64("ns")).cast(pa.time64("us"), safe=False)
    elif pa.types.is_duration(kind):
        nanoseconds = column.cast(pa.duration("ns")).cast(pa.int64()).to_pylist()
        written = _texts(nanoseconds, lambda value: format_interval(pa.MonthDayNano([0, 0, value])))
    elif pa.types.is_interval(kind):
        written = _texts(column.to_pylist(), format_interval)
    elif is_binary(kind):
        written = _write_bytes(column.cast(pa.large_binary()))
    elif is_list(kind) and not as_json:
        written = _write_lists(column, field)
    elif pa.types.is_nested(kind) or (as_json and pa.types.is_floating(kind)):
        written = encode_values(column, field, PLAIN)
        written = pc.if_else(column.is_valid(), written, pa.scalar(None, written.type))
    elif pa.types.is_null(kind):
        written = pa.nulls(len(column), _TEXT)
    elif pa.types.is_float16(kind) or pa.types.is_string_view(kind):
        written = column.cast(pa.float32() if pa.types.is_float16(kind) else _TEXT)
    else:
        written = column
    return written


def _texts(values: Sequence[Any], text_of: Any) -> pa.Array:
    return pa.array([None if value is None else text_of(value) for value in values], _TEXT)


def _write_bytes(column: pa.Array) -> pa.Array:
    offsets, data = _buffers(column.fill_null(b""))
    digits = pa.LargeStringArray.from_buffers(
        len(column), pa.py_buffer(offsets * 2), pa.py_buffer(binascii.hexlify(data))
    )
    texts = pc.binary_join_element_wise(pa.scalar("\\x", digits.type), digits, pa.scalar("", digits.type))
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, texts.type))


def _write_lists(column: pa.Array, field: pa.Field) -> pa.Array:
    inner = column.type.value_field
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    written = write_texts(column.flatten(), inner)
    items = written.cast(pa.large_string()).to_pylist()
    if not is_list(inner.type):
        items = ["NULL" if item is None else _quoted(item) for item in items]
    elif None in items:
        raise ValueError(f"column `{field.name}`: an array of PostgreSQL cannot hold a null for an array")
    ends = np.cumsum([0, *lengths]).tolist()
    lists = ["{" + ",".join(items[start:end]) + "}" for start, end in pairwise(ends)]
    return pa.array(lists, _TEXT, mask=column.is_null().to_numpy(zero_copy_only=False))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
