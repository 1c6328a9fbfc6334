"""Avro schemas: parse their JSON, derive them from columns, and map them to Arrow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.formats.base import JSON_COLUMN, is_binary, is_json, is_list, is_text, plain_name

BRANCHES = "branches"
"""The logical type of a union that is read as a struct, with a member for each non-null type."""

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TIMESTAMPS = {
    "timestamp-millis": ("long", pa.timestamp("ms")),
    "timestamp-micros": ("long", pa.timestamp("us")),
    "timestamp-nanos": ("long", pa.timestamp("ns")),
    "local-timestamp-millis": ("long", pa.timestamp("ms")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
    "local-timestamp-nanos": ("long", pa.timestamp("ns")),
}
LOGICAL: Mapping[str, tuple[str, pa.DataType]] = {
    **_TIMESTAMPS,
    "date": ("int", pa.date32()),
    "time-millis": ("int", pa.time32("ms")),
    "time-micros": ("long", pa.time64("us")),
}
"""Logical types of numbers: the primitive type, and the Arrow type."""
_SIMPLE: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


@dataclass(frozen=True)
class AvroType:
    """A type of a schema. `kind` is a primitive or complex type, or `ref`, a recursive named type."""

    kind: str
    name: str = ""
    logical: str = ""
    fields: Sequence[tuple[str, AvroType]] = ()
    """The members of a record, or the branches of a union under the names of their types."""
    item: AvroType | None = None
    """The type of the items of an array or a map."""
    symbols: Sequence[str] = ()
    size: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def optional(self) -> AvroType | None:
        """Return the other branch of a union of null and one type, else None."""
        branches = [node for _, node in self.fields if node.kind != "null"]
        return branches[0] if self.kind == "union" and len(self.fields) == 2 and len(branches) == 1 else None


_Names: TypeAlias = dict[str, AvroType | None]
"""The named types so far; None while one is being parsed."""


def parse_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """Parse a schema; `references` are the schemas that it names, in order of dependency."""
    names: _Names = {}
    for reference in references:
        _parse(_load(reference), "", names)
    return _parse(_load(text), "", names)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if _NAME.fullmatch(text.strip()):
            return text.strip()
        raise ConfigurationError(
            f"the Avro schema is not JSON: {error}",
            hint='write it as `{"type": "record", "name": …, "fields": […]}`',
        ) from None


def _parse(definition: Any, space: str, names: _Names) -> AvroType:
    if isinstance(definition, list):
        branches = [_parse(branch, space, names) for branch in definition]
        return AvroType("union", fields=[(branch.name or branch.kind, branch) for branch in branches])
    if isinstance(definition, str):
        return _named(definition, space, names)
    kind = definition.get("type") if isinstance(definition, dict) else None
    if isinstance(kind, dict | list):
        return _parse(kind, space, names)
    if not isinstance(kind, str):
        raise ConfigurationError(f"the Avro schema has no type in {json.dumps(definition)[:100]}")
    try:
        if kind in ("record", "error", "enum", "fixed"):
            return _parse_named(definition, space, names)
        if kind == "array":
            return AvroType("array", item=_parse(definition["items"], space, names))
        if kind == "map":
            return AvroType("map", item=_parse(definition["values"], space, names))
    except KeyError as error:
        raise ConfigurationError(
            f"the Avro schema has no {error} in {json.dumps(definition)[:100]}",
            hint=f"a type `{kind}` needs it",
        ) from None
    return _logical(_named(kind, space, names), definition)


def _named(name: str, space: str, names: _Names) -> AvroType:
    if name in PRIMITIVES:
        return AvroType(name)
    for full in (f"{space}.{name}", name) if space and "." not in name else (name,):
        if full in names:
            return names[full] or AvroType("ref", full)
    raise ConfigurationError(
        f"the Avro schema names the type `{name}`, which it does not define",
        hint=f"the types are {', '.join([*PRIMITIVES, *names])}",
    )


def _parse_named(definition: Mapping[str, Any], space: str, names: _Names) -> AvroType:
    name, space = definition["name"], definition.get("namespace", space)
    if "." in name:
        space = name.rpartition(".")[0]
    full = name if "." in name or not space else f"{space}.{name}"
    names[full] = None
    if definition["type"] == "enum":
        node = AvroType("enum", full, symbols=tuple(definition["symbols"]))
    elif definition["type"] == "fixed":
        node = _logical(AvroType("fixed", full, size=int(definition["size"])), definition)
    else:
        members = [(member["name"], _parse(member["type"], space, names)) for member in definition["fields"]]
        node = AvroType("record", full, fields=members)
    names[full] = node
    return node


def _logical(node: AvroType, definition: Mapping[str, Any]) -> AvroType:
    """Return the type with its logical type; unknown or invalid ones are ignored, as Avro specifies."""
    name = definition.get("logicalType", "")
    if name in LOGICAL and LOGICAL[name][0] == node.kind:
        return replace(node, logical=name)
    if name == "decimal" and node.kind in ("bytes", "fixed"):
        precision, scale = int(definition.get("precision", 0)), int(definition.get("scale", 0))
        if 0 < precision <= 76 and 0 <= scale <= precision:
            return replace(node, logical="decimal", precision=precision, scale=scale)
    if name == "uuid" and (node.kind == "string" or (node.kind, node.size) == ("fixed", 16)):
        return replace(node, logical="uuid")
    if name == "duration" and (node.kind, node.size) == ("fixed", 12):
        return replace(node, logical="duration")
    return node


def to_json(node: AvroType, defined: set[str] | None = None) -> Any:
    """Return the schema as JSON values; a named type is defined at its first use."""
    defined = set() if defined is None else defined
    if node.kind == "union":
        return [to_json(branch, defined) for _, branch in node.fields]
    if node.kind == "ref" or (node.name and node.name in defined):
        return node.name
    description: dict[str, Any] = {"type": node.kind}
    if node.name:
        description["name"] = node.name
        defined.add(node.name)
    if node.kind == "record":
        description["fields"] = [_member(name, to_json(member, defined)) for name, member in node.fields]
    elif node.item is not None:
        description["items" if node.kind == "array" else "values"] = to_json(node.item, defined)
    elif node.kind == "enum":
        description["symbols"] = list(node.symbols)
    elif node.kind == "fixed":
        description["size"] = node.size
    if node.logical:
        description["logicalType"] = node.logical
    if node.logical == "decimal":
        description |= {"precision": node.precision, "scale": node.scale}
    return description if len(description) > 1 else node.kind


def _member(name: str, kind: Any) -> dict[str, Any]:
    optional = isinstance(kind, list) and kind[:1] == ["null"]
    return {"name": name, "type": kind, **({"default": None} if optional else {})}


def arrow_field(name: str, node: AvroType) -> pa.Field:
    """Return the Arrow field for a type; JSON if Arrow has no such type."""
    optional = node.optional
    if optional is not None:
        return arrow_field(name, optional)
    if node.kind == "union" and node.logical == BRANCHES:
        members = [
            arrow_field(branch_name, branch) for branch_name, branch in node.fields if branch.kind != "null"
        ]
        return pa.field(name, pa.struct(members))
    if node.kind in ("union", "ref"):
        return pa.field(name, pa.string(), metadata=JSON_COLUMN)
    return pa.field(name, _arrow_type(node))


def _arrow_type(node: AvroType) -> pa.DataType:
    if node.kind == "record":
        return pa.struct([arrow_field(name, member) for name, member in node.fields])
    if node.kind == "array":
        assert node.item is not None
        return pa.list_(arrow_field("item", node.item))
    if node.kind == "map":
        assert node.item is not None
        return pa.map_(pa.string(), arrow_field("value", node.item))
    if node.logical == "decimal":
        return (pa.decimal128 if node.precision <= 38 else pa.decimal256)(node.precision, node.scale)
    if node.logical == "duration":
        return pa.month_day_nano_interval()
    if node.kind == "enum" or node.logical == "uuid":
        return pa.string()
    if node.kind == "fixed":
        return pa.binary(node.size)
    return LOGICAL[node.logical][1] if node.logical else _SIMPLE[node.kind]


def arrow_schema(node: AvroType) -> pa.Schema:
    """Return the columns of messages of this type: the members of a record, else the one column `value`."""
    members = node.fields if node.kind == "record" else [("value", node)]
    return pa.schema([arrow_field(name, member) for name, member in members])


def schema_of(columns: Sequence[pa.Field], name: str = "Row") -> AvroType:
    """Return the record type for these columns; a nullable column is a union with null."""
    members: dict[str, AvroType] = {}
    for column in columns:
        member = plain_name(column.name)
        if member in members:
            raise ConfigurationError(
                f"columns would be called `{member}` in Avro more than once",
                hint="rename one: Avro knows only letters, digits and `_`",
            )
        node = _node_of(column, f"{name}_{member}")
        null = ("null", AvroType("null"))
        optional = column.nullable and node.kind != "null"
        members[member] = (
            AvroType("union", fields=[null, (node.name or node.kind, node)]) if optional else node
        )
    return AvroType("record", name, fields=list(members.items()))


def _node_of(column: pa.Field, name: str) -> AvroType:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_json(column) or is_text(kind):
        return AvroType("string")
    if pa.types.is_struct(kind):
        return schema_of(list(kind), name)
    if is_list(kind):
        (member,) = schema_of([kind.value_field.with_name(name)]).fields
        return AvroType("array", item=member[1])
    if pa.types.is_map(kind) and is_text(kind.key_type):
        (member,) = schema_of([kind.item_field.with_name(name)]).fields
        return AvroType("map", item=member[1])
    if pa.types.is_decimal(kind):
        return AvroType("bytes", logical="decimal", precision=kind.precision, scale=kind.scale)
    if pa.types.is_timestamp(kind):
        return AvroType(
            "long", logical="timestamp-millis" if kind.unit in ("s", "ms") else "timestamp-micros"
        )
    if pa.types.is_time(kind):
        return AvroType("long", logical="time-micros")
    for test, node in _NODES:
        if test(kind):
            return node
    raise ConfigurationError(
        f"column `{column.name}` of type {kind} cannot be written as Avro",
        hint="cast it to a text or a number",
    )


_NODES: Sequence[tuple[Any, AvroType]] = (
    (pa.types.is_null, AvroType("null")),
    (pa.types.is_boolean, AvroType("boolean")),
    (lambda kind: pa.types.is_integer(kind) and kind.bit_width < 32, AvroType("int")),
    (pa.types.is_int32, AvroType("int")),
    (pa.types.is_integer, AvroType("long")),
    (pa.types.is_float64, AvroType("double")),
    (pa.types.is_floating, AvroType("float")),
    (is_binary, AvroType("bytes")),
    (pa.types.is_date, AvroType("int", logical="date")),
    (pa.types.is_duration, AvroType("long")),
)
