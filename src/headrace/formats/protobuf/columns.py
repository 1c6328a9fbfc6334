"""Derive a Protobuf message type from columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.formats.base import is_binary, is_json, is_list, is_text, plain_name
from headrace.formats.protobuf.schema import TIMES, Descriptors
from headrace.formats.protobuf.text import camel, descriptors, load_protobuf


def files_for(columns: Sequence[pa.Field], name: str = "Row") -> Descriptors:
    """Return a message type `name` with these columns as its fields, numbered in order."""
    kinds = descriptors()
    file = kinds.FileDescriptorProto(name=f"{name.lower()}.proto", syntax="proto3")
    _fill(file.message_type.add(name=name), columns, file)
    imported = load_protobuf("timestamp_pb2").DESCRIPTOR, load_protobuf("duration_pb2").DESCRIPTOR
    needed = [descriptor for descriptor in imported if descriptor.name in file.dependency]
    files = [kinds.FileDescriptorProto.FromString(descriptor.serialized_pb) for descriptor in needed]
    return Descriptors(kinds.FileDescriptorSet(file=[*files, file]).SerializeToString())


def _fill(message: Any, columns: Sequence[pa.Field], file: Any) -> None:
    names: set[str] = set()
    for number, column in enumerate(columns, 1):
        name = plain_name(column.name)
        if name in names:
            raise ConfigurationError(
                f"columns would be called `{name}` in Protobuf more than once",
                hint="rename one: Protobuf knows only letters, digits and `_`",
            )
        names.add(name)
        _describe(message.field.add(name=name, number=number), column, message, file)
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _describe(field: Any, column: pa.Field, message: Any, file: Any) -> None:
    kind, labels = column.type, descriptors().FieldDescriptorProto
    field.label = labels.LABEL_OPTIONAL
    if pa.types.is_map(kind):
        entry = message.nested_type.add(name=f"{camel(field.name)}Entry")
        entry.options.map_entry = True
        field.label, field.type, field.type_name = labels.LABEL_REPEATED, labels.TYPE_MESSAGE, entry.name
        for number, member in enumerate((kind.key_field, kind.item_field), 1):
            inner = entry.field.add(name=("key", "value")[number - 1], number=number)
            _describe(inner, member.with_nullable(False), entry, file)
        return
    if is_list(kind):
        field.label, column = labels.LABEL_REPEATED, kind.value_field.with_name(column.name)
        kind = column.type
        if is_list(kind) or pa.types.is_map(kind):
            raise _no_type(column)
    name = next((name for name, time in TIMES.items() if type(time) is type(kind)), None)
    if name is not None:
        imported = f"google/protobuf/{name.rpartition('.')[2].lower()}.proto"
        if imported not in file.dependency:
            file.dependency.append(imported)
        field.type, field.type_name = labels.TYPE_MESSAGE, f".{name}"
    elif pa.types.is_struct(kind):
        nested = message.nested_type.add(name=camel(field.name))
        field.type, field.type_name = labels.TYPE_MESSAGE, nested.name
        _fill(nested, list(kind), file)
    else:
        field.type = getattr(labels, f"TYPE_{_kind_of(column).upper()}")
        field.proto3_optional = column.nullable and field.label == labels.LABEL_OPTIONAL


def _kind_of(column: pa.Field) -> str:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if is_json(column) or is_text(kind):
        return "string"
    for test, name in _KIND_OF:
        if test(kind):
            return name
    raise _no_type(column)


def _no_type(column: pa.Field) -> ConfigurationError:
    return ConfigurationError(
        f"column `{column.name}` of type {column.type} cannot be written as Protobuf",
        hint="cast it to a text or a number",
    )


_KIND_OF: Sequence[tuple[Any, str]] = (
    (pa.types.is_boolean, "bool"),
    (lambda kind: pa.types.is_signed_integer(kind) and kind.bit_width < 64, "int32"),
    (pa.types.is_signed_integer, "int64"),
    (lambda kind: pa.types.is_unsigned_integer(kind) and kind.bit_width < 64, "uint32"),
    (pa.types.is_unsigned_integer, "uint64"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (is_binary, "bytes"),
    # Protobuf has no type for them.
    (lambda kind: pa.types.is_decimal(kind) or pa.types.is_date(kind) or pa.types.is_time(kind), "string"),
)
