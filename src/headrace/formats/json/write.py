"""Encode rows as JSON, by column, not by row.

Conventions: timestamps as `2023-09-18T14:23:10`, UTC without a zone, with 3, 6 or 9 digits of fraction only
when it is not zero; binary as base64; NaN and the infinities as strings; decimals as numbers; intervals as
strings; structs, lists and maps as JSON; columns that hold JSON unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.base import is_binary, is_json, is_list, is_text
from headrace.formats.intervals import format_interval

_TEXT = pa.large_string()
_NEEDS_ESCAPE = r'[\x00-\x1f"\\\x7f]'

TimestampFormat = Literal["RFC3339", "unix", "unix_millis"]
DecimalEncoding = Literal["number", "string", "bytes"]


@dataclass(frozen=True)
class JsonStyle:
    """How to write values that JSON has no type for."""

    timestamps: TimestampFormat = "RFC3339"
    decimals: DecimalEncoding = "number"


PLAIN = JsonStyle()


def encode_json_lines(batch: pa.RecordBatch | pa.Table) -> bytes:
    r"""Encode rows as JSON lines, each ended by a newline.

    >>> encode_json_lines(pa.record_batch({"a": [1, None], "b": ["x", 'say "y"']}))
    b'{"a":1,"b":"x"}\n{"a":null,"b":"say \\"y\\""}\n'
    """
    if batch.num_rows == 0:
        return b""
    if isinstance(batch, pa.Table):
        parts: list[bytes] = [encode_json_lines(part) for part in batch.to_batches()]
        return b"".join(parts)
    return encode_lines(list(batch.schema), batch, PLAIN)


def encode_lines(fields: Sequence[pa.Field], batch: pa.RecordBatch, style: JsonStyle) -> bytes:
    """Encode rows as JSON lines in a style."""
    if batch.num_rows == 0:
        return b""
    return _text_bytes(encode_objects(fields, batch, style, end="}\n"))


def encode_objects(
    fields: Sequence[pa.Field], batch: pa.RecordBatch, style: JsonStyle = PLAIN, *, end: str = "}"
) -> pa.Array:
    """Encode each row as a JSON object."""
    if not fields:
        return pa.repeat(pa.scalar("{" + end, _TEXT), batch.num_rows)
    columns = [_encode(column, field, style) for field, column in zip(fields, batch.columns, strict=True)]
    return _join_fields([field.name for field in fields], columns, end)


def join_lines(before: str, texts: pa.Array, after: str) -> bytes:
    """Join strings as lines, each between `before` and `after`."""
    if len(texts) == 0:
        return b""
    parts = (pa.scalar(before, _TEXT), texts, pa.scalar(f"{after}\n", _TEXT))
    return _text_bytes(pc.binary_join_element_wise(*parts, pa.scalar("", _TEXT)))


def _text_bytes(lines: pa.Array) -> bytes:
    # The texts lie one behind the other in the data buffer: that is the output already.
    offsets = memoryview(lines.buffers()[1]).cast("q")
    first, last = offsets[lines.offset], offsets[lines.offset + len(lines)]
    data: bytes = memoryview(lines.buffers()[2])[first:last].tobytes()
    return data


def encode_json_values(column: pa.Array) -> pa.Array:
    """Encode each value of a column as JSON; null becomes `null`."""
    return _encode(column, pa.field("", column.type), PLAIN)


def encode_values(column: pa.Array, field: pa.Field, style: JsonStyle) -> pa.Array:
    """Encode each value of a column as JSON in a style; `field` may mark the column as JSON."""
    return _encode(column, field, style)


def _join_fields(names: list[str], columns: list[pa.Array], end: str) -> pa.Array:
    parts: list[Any] = []
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        opening = "{" if index == 0 else ","
        parts += [pa.scalar(f"{opening}{json.dumps(name, ensure_ascii=False)}:", _TEXT), column]
    return pc.binary_join_element_wise(*parts, pa.scalar(end, _TEXT), pa.scalar("", _TEXT))


def _encode(column: pa.Array, field: pa.Field, style: JsonStyle) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
        if not is_json(field):
            return _encode(column, pa.field(field.name, column.type), style)
    if is_json(field):
        return encode_raw(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar("null", _TEXT), len(column))
    if field.type != kind:
        field = pa.field(field.name, kind)
    if pa.types.is_struct(kind):
        return _encode_struct(column, field, style)
    if is_list(kind):
        return _encode_list(column, field, style)
    for applies, encode in _ENCODERS:
        if applies(kind):
            encoded = encode(column, style)
            return pc.fill_null(encoded, "null") if encoded.null_count else encoded
    return _encode_each(column)


def encode_raw(column: pa.Array) -> pa.Array:
    """Encode strings that are JSON already; newlines in them are replaced, since they would end the line."""
    texts = pc.fill_null(column.cast(_TEXT), "null")
    if pc.any(pc.match_substring(texts, "\n")).as_py():
        texts = pc.replace_substring(texts, "\n", " ")
    return texts


def _quote(texts: pa.Array) -> pa.Array:
    mark = pa.scalar('"', _TEXT)
    return pc.binary_join_element_wise(mark, texts.cast(_TEXT), mark, pa.scalar("", _TEXT))


def _encode_plain(column: pa.Array, _: JsonStyle) -> pa.Array:
    return column.cast(_TEXT)


def _encode_half(column: pa.Array, style: JsonStyle) -> pa.Array:
    return _encode_float(column.cast(pa.float32()), style)


def _encode_float(column: pa.Array, _: JsonStyle) -> pa.Array:
    texts = column.cast(_TEXT)
    if pc.any(pc.equal(pc.floor(column), column)).as_py():
        # A float stays a float for whoever reads it: `1.0`, not `1`.
        texts = pc.replace_substring_regex(texts, r"^(-?\d+)$", r"\1.0")
    odd = pc.fill_null(pc.invert(pc.is_finite(column)), False)
    if not pc.any(odd).as_py():
        return texts
    named = pc.if_else(pc.is_nan(column), "NaN", pc.if_else(pc.less(column, 0), "-Infinity", "Infinity"))
    return pc.if_else(odd, _quote(named), texts)


def _encode_text(column: pa.Array, _: JsonStyle) -> pa.Array:
    texts = column.cast(_TEXT)
    odd = pc.fill_null(pc.match_substring_regex(texts, _NEEDS_ESCAPE), False)
    quoted = _quote(texts)
    if not pc.any(odd).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(quoted, odd, pa.array(escaped, _TEXT))


def _encode_timestamp(column: pa.Array, style: JsonStyle) -> pa.Array:
    unit = column.type.unit
    if style.timestamps == "unix":
        return column.cast(pa.int64()).cast(_TEXT)
    if style.timestamps == "unix_millis":
        return _milliseconds(column).cast(_TEXT)
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    plain = column.cast(pa.timestamp(unit))
    texts = pc.replace_substring(plain.cast(_TEXT), " ", "T", max_replacements=1)
    if digits == 0:
        return _quote(texts)
    # The fraction is always `digits` long here; cut the groups of three that are zero in each value.
    ticks = plain.cast(pa.int64())
    shortest, cut = texts, 0
    while cut < digits:
        cut += 3
        has_no_fraction = pc.equal(ticks, pc.multiply(pc.divide(ticks, 10**cut), 10**cut))
        if not pc.any(has_no_fraction).as_py():
            break
        stop = -cut if cut < digits else -cut - 1
        shorter = pc.utf8_slice_codeunits(texts, 0, stop)
        shortest = (
            shorter if pc.all(has_no_fraction).as_py() else pc.if_else(has_no_fraction, shorter, shortest)
        )
    return _quote(shortest)


def _milliseconds(column: pa.Array) -> pa.Array:
    ticks, per = column.cast(pa.int64()), {"s": -1000, "ms": 1, "us": 10**3, "ns": 10**6}[column.type.unit]
    if per < 0:
        return pc.multiply_checked(ticks, -per)
    milliseconds = pc.divide(ticks, per)
    # Division cuts towards 1970: what lies before it belongs to the millisecond below.
    return pc.subtract(milliseconds, pc.greater(pc.multiply(milliseconds, per), ticks).cast(pa.int64()))


def _encode_decimal(column: pa.Array, style: JsonStyle) -> pa.Array:
    if style.decimals == "number":
        return column.cast(_TEXT)
    if style.decimals == "string":
        return _quote(column.cast(pa.string()))
    width = column.type.bit_width // 8
    data, start = memoryview(column.buffers()[1]), column.offset
    texts: list[str | None] = []
    for index, valid in enumerate(column.is_valid().to_pylist(), start):
        unscaled = int.from_bytes(data[index * width : (index + 1) * width], "little", signed=True)
        length = unscaled.bit_length() // 8 + 1
        coded = base64.b64encode(unscaled.to_bytes(length, "big", signed=True))
        texts.append(coded.decode() if valid else None)
    return _quote(pa.array(texts, _TEXT))


def _encode_interval(column: pa.Array, _: JsonStyle) -> pa.Array:
    texts = [None if value is None else format_interval(value) for value in column.to_pylist()]
    return _quote(pa.array(texts, _TEXT))


def _encode_binary(column: pa.Array, _: JsonStyle) -> pa.Array:
    texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    return _quote(pa.array(texts, _TEXT))


def _encode_duration(column: pa.Array, _: JsonStyle) -> pa.Array:
    return column.cast(pa.int64()).cast(_TEXT)


def _encode_dictionary(column: pa.Array, style: JsonStyle) -> pa.Array:
    values = column.dictionary_decode()
    return _encode(values, pa.field("", values.type), style)


def _encode_struct(column: pa.Array, field: pa.Field, style: JsonStyle) -> pa.Array:
    children = list(field.type)
    if not children:
        texts = pa.repeat(pa.scalar("{}", _TEXT), len(column))
    else:
        encoded = [
            _encode(values, child, style) for child, values in zip(children, column.flatten(), strict=True)
        ]
        texts = _join_fields([child.name for child in children], encoded, "}")
    return _where_valid(column, texts)


def _encode_list(column: pa.Array, field: pa.Field, style: JsonStyle) -> pa.Array:
    item = field.type.value_field
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    return _join_items(column, _encode(column.flatten(), item, style), "[", "]")


def _encode_map(column: pa.Array, style: JsonStyle) -> pa.Array:
    entries = column.cast(
        pa.list_(pa.struct([pa.field("key", column.type.key_type), pa.field("value", column.type.item_type)]))
    )
    flat = entries.flatten()
    keys, values = (_encode(flat.field(member.name), member, style) for member in flat.type)
    bare = pc.invert(pc.starts_with(keys, '"'))
    if pc.any(bare).as_py():
        keys = pc.if_else(bare, _quote(keys), keys)
    return _join_items(entries, pc.binary_join_element_wise(keys, values, pa.scalar(":", _TEXT)), "{", "}")


def _join_items(lists: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    """Join the JSON of the items of each list; `items` are the flat values of the lists."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), pa.scalar(",", _TEXT)).cast(_TEXT)
    empty = pa.scalar("", _TEXT)
    texts = pc.binary_join_element_wise(pa.scalar(opening, _TEXT), joined, pa.scalar(closing, _TEXT), empty)
    return _where_valid(lists, texts)


def _where_valid(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(column), texts, "null") if column.null_count else texts


def _encode_each(column: pa.Array) -> pa.Array:
    texts = [
        "null" if value is None else json.dumps(value, default=str, ensure_ascii=False)
        for value in column.to_pylist()
    ]
    return pa.array(texts, _TEXT)


def _encode_clock(column: pa.Array, _: JsonStyle) -> pa.Array:
    return _quote(column.cast(pa.string()))


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, JsonStyle], pa.Array]], ...] = (
    (is_text, _encode_text),
    (lambda kind: pa.types.is_integer(kind) or pa.types.is_boolean(kind), _encode_plain),
    (pa.types.is_decimal, _encode_decimal),
    (pa.types.is_float16, _encode_half),
    (pa.types.is_floating, _encode_float),
    (pa.types.is_timestamp, _encode_timestamp),
    (lambda kind: pa.types.is_date(kind) or pa.types.is_time(kind), _encode_clock),
    (is_binary, _encode_binary),
    (pa.types.is_duration, _encode_duration),
    (pa.types.is_dictionary, _encode_dictionary),
    (pa.types.is_map, _encode_map),
    (pa.types.is_interval, _encode_interval),
)
