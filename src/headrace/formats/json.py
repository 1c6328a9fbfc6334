"""JSON lines: one object per row.

Conventions of the output: every column is written, null included; timestamps as `2023-09-18T14:23:10`, UTC
without a zone, with 3, 6 or 9 digits of fraction only when it is not zero; binary as base64; NaN and the
infinities as texts; decimals as numbers; structs, lists and maps as JSON.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from headrace.errors import BadLineError, HeadraceError

_TEXT = pa.large_string()
_NEEDS_ESCAPE = r'[\x00-\x1f"\\\x7f]'
_COLUMN = re.compile(r"Column\(/(.*?)\)")
_SHOWN = 200


def encode_json_lines(batch: pa.RecordBatch | pa.Table) -> bytes:
    r"""The rows as JSON lines, each ended by a newline; the work is done by column, not by row.

    >>> encode_json_lines(pa.record_batch({"a": [1, None], "b": ["x", 'say "y"']}))
    b'{"a":1,"b":"x"}\n{"a":null,"b":"say \\"y\\""}\n'
    """
    if batch.num_rows == 0:
        return b""
    if isinstance(batch, pa.Table):
        parts: list[bytes] = [encode_json_lines(part) for part in batch.to_batches()]
        return b"".join(parts)
    if batch.num_columns == 0:
        return b"{}\n" * int(batch.num_rows)
    lines = _join_fields(batch.schema.names, [_encode(column) for column in batch.columns], "}\n")
    # The texts lie one behind the other in the data buffer: that is the output already.
    offsets = memoryview(lines.buffers()[1]).cast("q")
    first, last = offsets[lines.offset], offsets[lines.offset + len(lines)]
    data: bytes = memoryview(lines.buffers()[2])[first:last].tobytes()
    return data


def encode_json_values(column: pa.Array) -> pa.Array:
    """Each value of a column as JSON text; null becomes the text `null`."""
    return _encode(column)


def _join_fields(names: list[str], columns: list[pa.Array], end: str) -> pa.Array:
    parts: list[Any] = []
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        opening = "{" if index == 0 else ","
        parts += [pa.scalar(f"{opening}{json.dumps(name, ensure_ascii=False)}:", _TEXT), column]
    return pc.binary_join_element_wise(*parts, pa.scalar(end, _TEXT), pa.scalar("", _TEXT))


def _encode(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        if column.type.extension_name == "arrow.json":
            return pc.fill_null(column.storage.cast(_TEXT), "null")
        return _encode(column.storage)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar("null", _TEXT), len(column))
    for applies, encode in _ENCODERS:
        if applies(kind):
            encoded = encode(column)
            return pc.fill_null(encoded, "null") if encoded.null_count else encoded
    return _encode_each(column)


def _quote(texts: pa.Array) -> pa.Array:
    mark = pa.scalar('"', _TEXT)
    return pc.binary_join_element_wise(mark, texts.cast(_TEXT), mark, pa.scalar("", _TEXT))


def _encode_plain(column: pa.Array) -> pa.Array:
    return column.cast(_TEXT)


def _encode_half(column: pa.Array) -> pa.Array:
    return _encode_float(column.cast(pa.float32()))


def _encode_float(column: pa.Array) -> pa.Array:
    texts = column.cast(_TEXT)
    if pc.any(pc.equal(pc.floor(column), column)).as_py():
        # A float stays a float for whoever reads it: `1.0`, not `1`.
        texts = pc.replace_substring_regex(texts, r"^(-?\d+)$", r"\1.0")
    odd = pc.fill_null(pc.invert(pc.is_finite(column)), False)
    if not pc.any(odd).as_py():
        return texts
    named = pc.if_else(pc.is_nan(column), "NaN", pc.if_else(pc.less(column, 0), "-Infinity", "Infinity"))
    return pc.if_else(odd, _quote(named), texts)


def _encode_text(column: pa.Array) -> pa.Array:
    texts = column.cast(_TEXT)
    odd = pc.fill_null(pc.match_substring_regex(texts, _NEEDS_ESCAPE), False)
    quoted = _quote(texts)
    if not pc.any(odd).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(quoted, odd, pa.array(escaped, _TEXT))


def _encode_timestamp(column: pa.Array) -> pa.Array:
    unit = column.type.unit
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    plain = column.cast(pa.timestamp(unit))
    texts = pc.replace_substring(plain.cast(_TEXT), " ", "T", max_replacements=1)
    if digits == 0:
        return _quote(texts)
    # The fraction is always `digits` long here; cut the groups of three that are zero in each value.
    ticks = plain.cast(pa.int64())
    kept, cut = texts, 0
    while cut < digits:
        cut += 3
        whole = pc.equal(ticks, pc.multiply(pc.divide(ticks, 10**cut), 10**cut))
        if not pc.any(whole).as_py():
            break
        stop = -cut if cut < digits else -cut - 1
        shorter = pc.utf8_slice_codeunits(texts, 0, stop)
        kept = shorter if pc.all(whole).as_py() else pc.if_else(whole, shorter, kept)
    return _quote(kept)


def _encode_binary(column: pa.Array) -> pa.Array:
    texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    return _quote(pa.array(texts, _TEXT))


def _encode_duration(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()).cast(_TEXT)


def _encode_dictionary(column: pa.Array) -> pa.Array:
    return _encode(column.dictionary_decode())


def _encode_struct(column: pa.Array) -> pa.Array:
    names = [field.name for field in column.type]
    if not names:
        texts = pa.repeat(pa.scalar("{}", _TEXT), len(column))
    else:
        texts = _join_fields(names, [_encode(child) for child in column.flatten()], "}")
    return _where_valid(column, texts)


def _encode_list(column: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    return _join_items(column, _encode(column.flatten()), "[", "]")


def _encode_map(column: pa.Array) -> pa.Array:
    entries = column.cast(
        pa.list_(pa.struct([pa.field("key", column.type.key_type), pa.field("value", column.type.item_type)]))
    )
    flat = entries.flatten()
    keys, values = _encode(flat.field("key")), _encode(flat.field("value"))
    bare = pc.invert(pc.starts_with(keys, '"'))
    if pc.any(bare).as_py():
        keys = pc.if_else(bare, _quote(keys), keys)
    return _join_items(entries, pc.binary_join_element_wise(keys, values, pa.scalar(":", _TEXT)), "{", "}")


def _join_items(lists: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    """The JSON texts of the items of each list, joined; `items` are the lists' values, flat."""
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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _encode_clock(column: pa.Array) -> pa.Array:
    return _quote(column.cast(pa.string()))


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (_is_text, _encode_text),
    (lambda kind: pa.types.is_integer(kind) or pa.types.is_boolean(kind), _encode_plain),
    (pa.types.is_decimal, _encode_plain),
    (pa.types.is_float16, _encode_half),
    (pa.types.is_floating, _encode_float),
    (pa.types.is_timestamp, _encode_timestamp),
    (lambda kind: pa.types.is_date(kind) or pa.types.is_time(kind), _encode_clock),
    (_is_binary, _encode_binary),
    (pa.types.is_duration, _encode_duration),
    (pa.types.is_dictionary, _encode_dictionary),
    (pa.types.is_struct, _encode_struct),
    (pa.types.is_map, _encode_map),
    (_is_list, _encode_list),
)


def decode_json_lines(
    data: bytes, schema: pa.Schema | None = None, *, first_line: int = 1, where: str = "JSON lines"
) -> pa.Table:
    """The rows of JSON lines; empty lines are skipped, the last line needs no newline.

    With a schema, its columns come in its order, missing ones null, others ignored. Without one it is
    inferred from these lines. A line that does not fit raises a BadLineError with its number (from
    `first_line` on), its content and the column, if one is known.
    """
    rows = sum(1 for line in data.split(b"\n") if line.strip())
    if rows == 0:
        return schema.empty_table() if schema is not None else pa.table({})
    try:
        table = _read(data, schema)
    except pa.ArrowInvalid as error:
        raise _find_bad_line(data, schema, first_line, where, str(error)) from None
    if table.num_rows != rows:
        raise _find_bad_line(data, schema, first_line, where, "there is more than one value in the line")
    return table


def _read(data: bytes, schema: pa.Schema | None) -> pa.Table:
    if schema is not None and len(schema) == 0:
        schema = None
    return pa.json.read_json(
        io.BytesIO(data),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 1024)),
        parse_options=pa.json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )


def _find_bad_line(
    data: bytes, schema: pa.Schema | None, first_line: int, where: str, reason: str
) -> HeadraceError:
    numbered = [(i, line) for i, line in enumerate(data.split(b"\n"), first_line) if line.strip()]
    for number, line in numbered:
        try:
            value = json.loads(line)
        except UnicodeDecodeError:
            return _bad_line(number, line, where, "it is not UTF-8")
        except ValueError as error:
            return _bad_line(number, line, where, f"it is not JSON: {error}")
        if not isinstance(value, dict):
            return _bad_line(number, line, where, "it is not a JSON object")
    # Every line is an object, so one does not fit the types: find the first prefix that fails.
    fits, fails = 0, len(numbered)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            _read(b"\n".join(line for _, line in numbered[:middle]), schema)
            fits = middle
        except pa.ArrowInvalid as error:
            fails, reason = middle, str(error)
    number, line = numbered[fails - 1]
    return _bad_line(number, line, where, reason)


def _bad_line(number: int, line: bytes, where: str, reason: str) -> BadLineError:
    content = line.decode("utf-8", "replace").strip()
    shown = content if len(content) <= _SHOWN else content[:_SHOWN] + "…"
    column = None
    if match := _COLUMN.search(reason):
        column = match.group(1)
        reason = f"column `{column}`: {reason.split(match.group(0), 1)[1].strip(' :')}"
    reason = re.sub(r"^JSON parse error: ", "", reason)
    reason = re.sub(r"\s*in row \d+$", "", reason)
    return BadLineError(
        f"line {number} cannot be read, {reason}: {shown}",
        line=number,
        content=content,
        column=column,
        where=where,
        hint="correct the line, or name the column's type with the option `schema`" if column else None,
    )
