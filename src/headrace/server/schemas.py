"""The columns of a connection table: from the fields or the definition of its schema, to SQL and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.base.errors import HeadraceError, UserError, suggest
from headrace.formats.registry.client import RegisteredSchema
from headrace.server.connections import flatten
from headrace.sql.types import JSON_MARK, column_lines, column_name, type_name

_TYPES: Mapping[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "timestamp": pa.timestamp("ns"),
    "date": pa.date32(),
    "json": pa.string(),
}
_KNOWN = [*_TYPES, "decimal128", "struct", "list"]
_UNITS = {"second": "s", "millisecond": "ms", "microsecond": "us", "nanosecond": "ns"}
_SCHEMA_KEYS = ("format", "bad_data", "framing", "fields", "definition", "inferred", "primary_keys")
_DEFINITIONS = {"json_schema": "json", "avro_schema": "avro", "protobuf_schema": "protobuf"}


class TableSchema(NamedTuple):
    """What a schema says: the lines between the brackets of a CREATE TABLE, and options of the format."""

    lines: list[str]
    options: dict[str, Any]


def read_schema(schema: Mapping[str, Any] | None) -> TableSchema:
    """The columns and the options of a schema; raises a UserError for what is wrong."""
    if schema is None:
        return TableSchema([], {})
    for key in schema:
        if key not in _SCHEMA_KEYS:
            raise UserError(
                f"a schema has no `{key}`", hint=suggest(key, _SCHEMA_KEYS, listing="its keys are")
            )
    options: dict[str, Any] = {}
    options |= _choice("format", schema.get("format"))
    options |= _choice("bad_data", schema.get("bad_data"))
    options |= _framing(schema.get("framing"))
    fields = schema.get("fields") or []
    definition = schema.get("definition")
    if not isinstance(fields, list):
        raise UserError("`fields` of a schema is a list")
    columns = [_field(field) for field in fields]
    if definition:
        columns = columns or definition_columns(definition)
        options = _definition_options(definition) | options
    metadata = {field["name"]: field["metadata_key"] for field in fields if field.get("metadata_key")}
    lines = [
        f"{line} METADATA FROM '{metadata[column.name]}'" if column.name in metadata else line
        for column, line in zip(columns, column_lines(columns), strict=True)
    ]
    keys = schema.get("primary_keys") or []
    for key in keys:
        if columns and key not in [column.name for column in columns]:
            raise UserError(f"there is no column `{key}` for the primary key")
    if keys:
        lines.append(f"PRIMARY KEY ({', '.join(map(column_name, keys))})")
    return TableSchema(lines, options)


def _choice(name: str, value: Any) -> dict[str, Any]:
    """`"json"`, or `{"json": {…}}` with options of its own."""
    if value is None or value == {}:
        return {}
    if isinstance(value, str):
        return {name: value}
    if isinstance(value, Mapping) and len(value) == 1:
        chosen, inner = next(iter(value.items()))
        options = flatten(inner, f"{chosen}.") if isinstance(inner, Mapping) and name == "format" else {}
        set_options = {key: option for key, option in options.items() if option not in (False, "", None)}
        return {name: chosen, **set_options}
    raise UserError(f"`{name}` of a schema is a name, or a name with its options, got {json.dumps(value)}")


def _framing(value: Any) -> dict[str, Any]:
    if value in (None, {}, ""):
        return {}
    if isinstance(value, Mapping):
        value = value.get("method", value)
        if isinstance(value, Mapping) and list(value) == ["newline"]:
            length = (value["newline"] or {}).get("max_line_length")
            return {
                "framing": "newline",
                **({} if length is None else {"framing.newline.max_length": length}),
            }
    if value == "newline":
        return {"framing": "newline"}
    raise UserError(f"there is no framing {json.dumps(value)}", hint="`newline` is")


def _field(field: Any) -> pa.Field:
    if not isinstance(field, Mapping) or not isinstance(field.get("name"), str) or not field["name"]:
        raise UserError(f"a field has a name and a type, got {json.dumps(field)[:200]}")
    kind = _type(field, field["name"])
    marks = JSON_MARK if field.get("type") == "json" else None
    return pa.field(field["name"], kind, nullable=not field.get("required", False), metadata=marks)


def _type(field: Mapping[str, Any], name: str) -> pa.DataType:
    kind = field.get("type")
    if kind == "struct":
        return pa.struct([_field(inner) for inner in field.get("fields") or []])
    if kind == "list":
        element = field.get("element") or field.get("items") or field.get("item")
        if not isinstance(element, Mapping):
            raise UserError(f"the list `{name}` has no `element`")
        return pa.list_(_type(element, name))
    if kind == "decimal128":
        try:
            return pa.decimal128(field.get("precision", 38), field.get("scale", 10))
        except (pa.ArrowInvalid, ValueError, TypeError, OverflowError) as error:
            raise UserError(f"the decimal `{name}` cannot be: {error}") from None
    if kind == "timestamp" and field.get("unit") is not None:
        if field["unit"] not in _UNITS:
            raise UserError(f"`{field['unit']}` is no unit of time", hint=f"units are {', '.join(_UNITS)}")
        return pa.timestamp(_UNITS[field["unit"]])
    if not isinstance(kind, str) or kind not in _TYPES:
        raise UserError(
            f"the type of `{name}` is not known: {json.dumps(kind)[:100]}",
            hint=suggest(str(kind), _KNOWN, listing="the types are"),
        )
    return _TYPES[kind]


def definition_columns(definition: Any) -> list[pa.Field]:
    """The columns of a definition `{"json_schema": "…"}`, `avro_schema` or `protobuf_schema`."""
    if not isinstance(definition, Mapping) or len(definition) != 1:
        raise UserError("a definition has one key", hint=f"such as {', '.join(_DEFINITIONS)}")
    kind, value = next(iter(definition.items()))
    text = value.get("schema") if isinstance(value, Mapping) else value
    if kind == "raw_schema":
        return [pa.field("value", pa.binary() if text == "raw_bytes" else pa.string(), nullable=False)]
    if kind not in _DEFINITIONS or not isinstance(text, str):
        raise UserError(
            f"there is no definition `{kind}`", hint=suggest(str(kind), _DEFINITIONS, listing="there are")
        )
    message = value.get("message_name") if isinstance(value, Mapping) else None
    try:
        return list(_columns_of(kind, text, message))
    except HeadraceError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"the {kind} cannot be read: {error}") from None


def _columns_of(kind: str, text: str, message: str | None) -> pa.Schema:
    if kind == "json_schema":
        from headrace.formats.json.columns import schema_columns

        return schema_columns(RegisteredSchema("JSON", text))
    if kind == "avro_schema":
        from headrace.formats.avro import schema as avro
        from headrace.formats.avro.read import as_record

        return avro.arrow_schema(as_record(avro.parse_schema(text)))
    from headrace.formats.protobuf import schema as protobuf

    return protobuf.arrow_schema(protobuf.compile_files(text, "schema.proto", {}).message(message))


def _definition_options(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the format that a definition sets."""
    kind, value = next(iter(definition.items()))
    inner = value if isinstance(value, Mapping) else {"schema": value}
    options: dict[str, Any] = {"format": _DEFINITIONS[kind]} if kind in _DEFINITIONS else {}
    if kind in ("avro_schema", "protobuf_schema"):
        options[f"{_DEFINITIONS[kind]}.schema"] = inner.get("schema")
    if kind == "protobuf_schema" and inner.get("message_name"):
        options["protobuf.message_name"] = inner["message_name"]
    return options


def field_views(columns: Sequence[pa.Field]) -> list[dict[str, Any]]:
    """Columns as the REST API has them."""
    return [_field_view(column) for column in columns]


def _field_view(column: pa.Field) -> dict[str, Any]:
    is_json = bool(column.metadata) and not JSON_MARK.keys().isdisjoint(column.metadata)
    return {
        "name": column.name,
        **({"type": "json"} if is_json else _type_view(column.type)),
        "required": not column.nullable,
        "sql_name": "JSON" if is_json else type_name(column.type),
        "metadata_key": None,
    }


def _type_view(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": field_views(list(kind))}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "list", "element": _field_view(kind.value_field)}
    if pa.types.is_decimal(kind):
        return {"type": "decimal128", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "timestamp", "unit": {short: unit for unit, short in _UNITS.items()}[kind.unit]}
    for name, named in _TYPES.items():
        if kind == named:
            return {"type": name}
    return {"type": str(kind)}
