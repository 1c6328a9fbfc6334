"""Write Protobuf messages by column: encode each field, then join the bytes of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ConfigurationError, PlanError, suggest
from headrace.formats._shared.conform import check_columns, conform_rows
from headrace.formats._shared.wire import (
    BYTES,
    join,
    join_lists,
    nothing,
    sized,
    varint,
    varints,
    with_lengths,
    zigzags,
)
from headrace.formats.base import Path
from headrace.formats.protobuf.schema import KINDS, TIMES, WRAPPERS, ProtoField, ProtoMessage, arrow_schema
from headrace.formats.protobuf.wire import BYTES as SLICE
from headrace.formats.protobuf.wire import FIXED32, FIXED64, VARINT

_FIXED = {
    "double": ("<f8", FIXED64),
    "fixed64": ("<u8", FIXED64),
    "sfixed64": ("<i8", FIXED64),
    "float": ("<f4", FIXED32),
    "fixed32": ("<u4", FIXED32),
    "sfixed32": ("<i4", FIXED32),
}


def check_writable(message: ProtoMessage, columns: pa.Schema) -> None:
    """Raise a ConfigurationError unless these columns can be written as messages of the type."""
    by_name = {field.name: field for field in message.fields}
    for name in columns.names:
        if name not in by_name:
            raise ConfigurationError(
                f"the message `{message.name}` has no field `{name}`",
                hint=suggest(name, by_name, listing="it has"),
            )
        _check(by_name[name], (name,))
    kinds = arrow_schema(message)
    check_columns(columns, pa.schema([kinds.field(name) for name in columns.names]), writing=True)


def _check(field: ProtoField, path: Path) -> None:
    if field.kind == "group" or (field.message is not None and field.message.free):
        what = "a group" if field.kind == "group" else f"a `{field.message.name if field.message else ''}`"
        raise ConfigurationError(f"field `{'.'.join(path)}` is {what}, which cannot be written")
    for member in field.message.fields if field.message is not None else ():
        _check(member, (*path, member.name))


def encode_messages(message: ProtoMessage, rows: pa.Table) -> pa.Array:
    """Encode each row as a message of the type. Call `check_writable` first."""
    kinds = arrow_schema(message)
    conformed = conform_rows(rows, pa.schema([kinds.field(name) for name in rows.schema.names]))
    for index, error in conformed.bad.items():
        column = f"column `{error.column}`: " if error.column else ""
        raise PlanError(f"row {index} cannot be written as Protobuf, {column}{error.reason}")
    columns = {name: conformed.rows.column(name).combine_chunks() for name in rows.schema.names}
    fields = [field for field in message.fields if field.name in columns]
    return _fields(fields, [columns[field.name] for field in fields], rows.num_rows)


def _fields(fields: Sequence[ProtoField], columns: Sequence[pa.Array], count: int) -> pa.Array:
    parts = [_field(field, column, (field.name,)) for field, column in zip(fields, columns, strict=True)]
    return join(*parts) if parts else pa.repeat(pa.scalar(b"", BYTES), count)


def _field(field: ProtoField, column: pa.Array, path: Path) -> pa.Array:
    """Encode a field of each message with its tag; nothing where it is not set."""
    if field.repeated:
        return _repeated(field, column, path)
    present = column.is_valid()
    if not field.presence:
        # A field that has its default is not written.
        default = pa.scalar(field.default, column.type)
        present = pc.and_(present, pc.invert(pc.fill_null(pc.equal(column, default), True)))
    values = join(_tag(field), _values(field, column.filter(present), path))
    if len(values) == len(column):
        return values
    return pc.replace_with_mask(pa.repeat(pa.scalar(b"", BYTES), len(column)), present, values)


def _tag(field: ProtoField, wire: int | None = None) -> bytes:
    if wire is None:
        slices = field.message is not None or field.kind in {"string", "bytes"}
        wire = _FIXED[field.kind][1] if field.kind in _FIXED else SLICE if slices else VARINT
    return varint(field.number << 3 | wire)


def _repeated(field: ProtoField, column: pa.Array, path: Path) -> pa.Array:
    if field.kind == "map":
        entry = pa.struct([pa.field("key", column.type.key_type), pa.field("value", column.type.item_type)])
        column = column.cast(pa.list_(entry))
    items = column.flatten()
    if items.null_count or (field.kind == "map" and items.field(1).null_count):
        raise PlanError(
            f"column `{'.'.join(path)}` has a null in a list, which Protobuf cannot say",
            hint="leave out the nulls",
        )
    if field.packed:
        packed = join(_tag(field, SLICE), with_lengths(join_lists(column, _values(field, items, path))))
        return pc.if_else(pc.greater(pc.fill_null(pc.list_value_length(column), 0), 0), packed, nothing())
    return join_lists(column, join(_tag(field), _values(field, items, path)))


def _values(field: ProtoField, column: pa.Array, path: Path) -> pa.Array:
    """Encode values without nulls, as they are written after the tag."""
    message = field.message
    if message is not None:
        return with_lengths(_message(message, column))
    if field.kind in {"string", "bytes"}:
        return with_lengths(column.cast(BYTES))
    if field.kind in _FIXED:
        view = _FIXED[field.kind][0]
        return sized(column.to_numpy(zero_copy_only=False).astype(view), np.dtype(view).itemsize)
    if field.kind == "bool":
        return sized(column.to_numpy(zero_copy_only=False).astype(np.uint8), 1)
    if field.kind == "enum":
        return _enum(field, column, path)
    numbers = column.to_numpy(zero_copy_only=False)
    if pa.types.is_unsigned_integer(KINDS[field.kind]):
        return varints(numbers.astype(np.uint64))
    numbers = numbers.astype(np.int64)
    return varints(zigzags(numbers) if field.kind.startswith("sint") else numbers.view(np.uint64))


def _enum(field: ProtoField, column: pa.Array, path: Path) -> pa.Array:
    names = {name: number for number, name in field.values.items()}
    coded = column.dictionary_encode()
    numbers: list[int] = []
    for text in coded.dictionary.to_pylist():
        if text not in names and not text.lstrip("-").isdigit():
            raise PlanError(
                f"column `{'.'.join(path)}` has the value `{text}`, which the enum does not have",
                hint=f"the values are {', '.join(names)}",
            )
        numbers.append(names[text] if text in names else int(text))
    values = np.array(numbers, np.int64)[coded.indices.to_numpy()]
    return varints(values.view(np.uint64))


def _message(message: ProtoMessage, column: pa.Array) -> pa.Array:
    columns: Sequence[Any]
    if message.name in TIMES:
        ticks = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        seconds = ticks // 10**9
        if message.name.endswith("Duration"):
            seconds = np.where((ticks < 0) & (ticks % 10**9 > 0), seconds + 1, seconds)
        columns = [pa.array(seconds), pa.array((ticks - seconds * 10**9).astype(np.int32))]
    elif message.name in WRAPPERS:
        columns = [column]
    else:
        columns = column.flatten()
    return _fields(message.fields, columns, len(column))
