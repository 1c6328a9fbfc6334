"""Protobuf message types: from descriptors, and their mapping to Arrow."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.base.errors import ConfigurationError, suggest
from headrace.formats.base import JSON_COLUMN
from headrace.formats.protobuf.text import descriptors, load_protobuf, parse_proto

_WELL_KNOWN = ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
TIMES = {"google.protobuf.Timestamp": pa.timestamp("ns"), "google.protobuf.Duration": pa.duration("ns")}
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_ANY_SHAPE = {f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue")}
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
}
KINDS: Mapping[str, pa.DataType] = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "int32": pa.int32(),
    "fixed64": pa.uint64(),
    "fixed32": pa.uint32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "uint32": pa.uint32(),
    "enum": pa.string(),
    "sfixed32": pa.int32(),
    "sfixed64": pa.int64(),
    "sint32": pa.int32(),
    "sint64": pa.int64(),
}


@dataclass(frozen=True)
class ProtoField:
    """A field of a message. `kind` is a type of Protobuf, or `message`, `map` or `group`."""

    number: int
    name: str
    kind: str
    repeated: bool = False
    packed: bool = False
    presence: bool = False
    """Whether the field has presence; else an unset field has its default."""
    default: Any = None
    values: Mapping[int, str] = field(default_factory=dict)
    """The names of the numbers of an enum."""
    closed: bool = False
    """Whether unknown numbers of an enum count as unset."""
    message: ProtoMessage | None = None
    oneof: str = ""
    """The oneof that the field belongs to."""


@dataclass(frozen=True)
class ProtoMessage:
    """A message type. A recursive one, or one of any shape, has no fields and is JSON in Arrow."""

    name: str
    fields: Sequence[ProtoField] = ()
    free: bool = False


class Descriptors:
    """The types of some `.proto` files, as a compiled descriptor set. It pickles."""

    def __init__(self, files: bytes) -> None:
        self._files = files

    @property
    def content(self) -> bytes:
        """The compiled descriptor set."""
        return self._files

    def __getstate__(self) -> dict[str, bytes]:
        return {"_files": self._files}

    @functools.cached_property
    def _set(self) -> list[Any]:
        try:
            files = list(descriptors().FileDescriptorSet.FromString(self._files).file)
        except load_protobuf("message").DecodeError as error:
            raise _unusable(error) from None
        if not files:
            raise _unusable("it is empty")
        return files

    @functools.cached_property
    def _pool(self) -> Any:
        pool = load_protobuf("descriptor_pool").DescriptorPool()
        waiting = {file.name: file for file in self._set}
        try:
            for file in self._set:
                _add(pool, file, waiting)
        except TypeError as error:
            raise _unusable(error) from None
        return pool

    @functools.cached_property
    def _own(self) -> list[Any]:
        """Return the files, imported ones first."""
        return [self._pool.FindFileByName(file.name) for file in self._set]

    def message(self, name: str | None) -> ProtoMessage:
        """Return a message type by its full or short name; without a name, the only one."""
        return message_of(self.descriptor(name))

    def descriptor(self, name: str | None) -> Any:
        """Return the library's descriptor of a message type."""
        by_name = {
            message.full_name: message
            for file in self._own
            for message in file.message_types_by_name.values()
        }
        if name is None:
            last = list(self._own[-1].message_types_by_name.values())
            if len(last) != 1:
                raise ConfigurationError(
                    f"there are {len(last)} messages: {', '.join(message.full_name for message in last)}",
                    hint="name one with `protobuf.message_name`",
                )
            return last[0]
        for full in (name, *(f"{file.package}.{name}" for file in self._own)):
            try:
                return self._pool.FindMessageTypeByName(full)
            except KeyError:
                continue
        own = [full for full in by_name if not full.startswith("google.protobuf.")]
        raise ConfigurationError(
            f"there is no message `{name}`", hint=suggest(name, own, listing="there are")
        )

    def as_json(self, name: str, data: bytes) -> str:
        """Convert a message to JSON; raises a ValueError."""
        message_class = load_protobuf("message_factory").GetMessageClass(
            self._pool.FindMessageTypeByName(name)
        )
        json = load_protobuf("json_format")
        try:
            text: str = json.MessageToJson(
                message_class.FromString(data),
                preserving_proto_field_name=True,
                indent=None,
                descriptor_pool=self._pool,
            )
        except (load_protobuf("message").DecodeError, json.Error, TypeError) as error:
            raise ValueError(str(error)) from None
        return text

    def at(self, path: Sequence[int]) -> Any:
        """Return the descriptor of a message type by its path: its index in the file, then in its parent."""
        inside, message = list(self._own[-1].message_types_by_name.values()), None
        for index in path:
            if not 0 <= index < len(inside):
                raise ConfigurationError(f"the schema has no message at {list(path)}")
            message = inside[index]
            inside = _inside(message)
        return message


def _inside(descriptor: Any) -> list[Any]:
    """Return the nested message types of one, without map entries."""
    return [nested for nested in descriptor.nested_types if not nested.GetOptions().map_entry]


def path_of(descriptor: Any) -> list[int]:
    """Return the path of a message type in its file, for `Descriptors.at`."""
    path: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        inside = _inside(outer) if outer else list(descriptor.file.message_types_by_name.values())
        path.insert(0, [sibling.full_name for sibling in inside].index(descriptor.full_name))
        descriptor = outer
    return path


def _unusable(reason: object) -> ConfigurationError:
    return ConfigurationError(
        f"the descriptor of Protobuf cannot be used: {reason}",
        hint="make it with `protoc --include_imports --descriptor_set_out=FILE`",
    )


def _add(pool: Any, file: Any, waiting: dict[str, Any]) -> None:
    """Add a file to a pool after those that it imports."""
    if waiting.pop(file.name, None) is None:
        return
    for name in file.dependency:
        if name in waiting:
            _add(pool, waiting[name], waiting)
    pool.AddSerializedFile(file.SerializeToString())


def compile_files(text: str, name: str, imports: Mapping[str, str] | Path) -> Descriptors:
    """Compile a `.proto` file with its imports: contents by name, or files of a folder."""
    compiled: dict[str, Any] = {}
    _compile(text, name, imports, compiled)
    files = descriptors().FileDescriptorSet(file=list(compiled.values()))
    return Descriptors(files.SerializeToString())


def _compile(text: str, name: str, imports: Mapping[str, str] | Path, compiled: dict[str, Any]) -> None:
    file = _parse(text, name)
    for imported in file.dependency:
        if imported in compiled:
            continue
        module = imported.removeprefix("google/protobuf/").removesuffix(".proto")
        if imported.startswith("google/protobuf/") and module in _WELL_KNOWN:
            proto = load_protobuf(f"{module}_pb2").DESCRIPTOR
            for dependency in (*proto.dependencies, proto):
                compiled[dependency.name] = descriptors().FileDescriptorProto.FromString(
                    dependency.serialized_pb
                )
        else:
            _compile(_import(imported, name, imports), imported, imports, compiled)
    compiled[name] = file


def _parse(text: str, name: str) -> Any:
    """Parse a file, or its base64-encoded descriptor, which some schema registries store."""
    if _BASE64.fullmatch(text) is None:
        return parse_proto(text, name)
    try:
        file = descriptors().FileDescriptorProto.FromString(base64.b64decode(text))
    except (ValueError, load_protobuf("message").DecodeError):
        raise ConfigurationError(f"{name} is neither a `.proto` file nor its descriptor") from None
    file.name = name
    return file


def _import(imported: str, name: str, imports: Mapping[str, str] | Path) -> str:
    if isinstance(imports, Path):
        if (imports / imported).is_file():
            return (imports / imported).read_text(encoding="utf-8")
    elif imported in imports:
        return imports[imported]
    raise ConfigurationError(
        f"{name} imports `{imported}`, which is not there",
        hint="put it beside the file, or compile both with protoc and use `protobuf.descriptor`",
    )


def message_of(descriptor: Any) -> ProtoMessage:
    """Return the message type of a descriptor of the library."""
    return _message(descriptor, nested=False)


def _message(descriptor: Any, *, nested: bool = True) -> ProtoMessage:
    name = descriptor.full_name
    if name in _ANY_SHAPE or (nested and name in _below(descriptor, {})):
        return ProtoMessage(name, free=True)
    return ProtoMessage(name, [_field(field) for field in descriptor.fields])


def _below(descriptor: Any, seen: dict[str, Any]) -> dict[str, Any]:
    """Return the message types used by one, at any depth; a recursive type includes itself."""
    for member in descriptor.fields:
        inside = member.message_type
        if inside is not None and inside.full_name not in seen:
            seen[inside.full_name] = inside
            _below(inside, seen)
    return seen


def _field(descriptor: Any) -> ProtoField:
    kinds = descriptors().FieldDescriptorProto
    kind = kinds.Type.Name(descriptor.type).removeprefix("TYPE_").lower()
    nested = descriptor.message_type
    message = None if nested is None else _message(nested)
    values: dict[int, str] = {}
    default = None if kind in {"message", "group"} or descriptor.is_repeated else descriptor.default_value
    if descriptor.enum_type is not None:
        for value in descriptor.enum_type.values:
            values.setdefault(value.number, value.name)
    presence = descriptor.has_presence
    if kind == "enum" and default is not None:
        default = values.get(default, str(default))
    if presence and not descriptor.has_default_value:
        default = None
    is_map = nested is not None and nested.GetOptions().map_entry
    oneof = descriptor.containing_oneof
    return ProtoField(
        number=descriptor.number,
        name=descriptor.name,
        kind="map" if is_map else kind,
        repeated=descriptor.is_repeated,
        packed=descriptor.is_packed,
        presence=presence,
        default=default,
        values=values,
        closed=descriptor.enum_type is not None and descriptor.enum_type.is_closed,
        message=message,
        oneof="" if oneof is None or len(oneof.fields) == 1 else oneof.name,
    )


def arrow_field(field: ProtoField) -> pa.Field:
    """Return the Arrow field for a Protobuf field; JSON if Arrow has no such type."""
    if field.kind == "map":
        assert field.message is not None
        key, value = (arrow_field(member) for member in field.message.fields)
        return pa.field(field.name, pa.map_(key.type, value))
    item = _single(field)
    if field.repeated:
        return pa.field(field.name, pa.list_(item.with_name("item")))
    return item


def _single(field: ProtoField) -> pa.Field:
    message = field.message
    if message is None:
        return pa.field(field.name, KINDS[field.kind])
    if message.free:
        return pa.field(field.name, pa.string(), metadata=JSON_COLUMN)
    if message.name in TIMES:
        return pa.field(field.name, TIMES[message.name])
    if message.name in WRAPPERS:
        return pa.field(field.name, KINDS[message.fields[0].kind])
    return pa.field(field.name, pa.struct([arrow_field(member) for member in message.fields]))


def arrow_schema(message: ProtoMessage) -> pa.Schema:
    """Return the columns of messages of a type."""
    return pa.schema([arrow_field(field) for field in message.fields])
