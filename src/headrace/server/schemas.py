"""The columns of a connection table: from the fields or the definition of its schema, to SQL and back."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pyarrow as pa

from headrace.base.errors import HeadraceError, UserError, suggest
from headrace.formats.options import FormatName, FormatOptions, ReadOptions
from headrace.formats.registry.client import RegisteredSchema
from headrace.server.connections import flatten, quoted
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
_SAME_TYPES = {"f32": "float32", "f64": "float64", "utf8": "string", "binary": "bytes"}
"""Other names of types that Arroyo's clients may send."""
_KNOWN = [*_TYPES, "decimal128", "struct", "list"]
_UNITS = {"second": "s", "millisecond": "ms", "microsecond": "us", "nanosecond": "ns"}
_SCHEMA_KEYS = ("format", "bad_data", "framing", "fields", "definition", "inferred", "primary_keys")
_FIELD_KEYS = (
    "name",
    "type",
    "required",
    "sql_name",
    "metadata_key",
    "unit",
    "precision",
    "scale",
    "fields",
    "items",
    "element",
    "item",
)
_DEFINITIONS = {"json_schema": "json", "avro_schema": "avro", "protobuf_schema": "protobuf"}
_FORMATS = (*get_args(FormatName), "parquet")
_BAD_DATA = get_args(ReadOptions.model_fields["bad_data"].annotation)
_UNSET = {"timestamp_format": "rfc3339", "decimal_encoding": "number", "compression": "uncompressed"}
"""What Arroyo's clients send for options of a format that they do not set, beside false and nothing."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class TableSchema(NamedTuple):
    """What a schema says: the lines between the brackets of a CREATE TABLE, and options of the format.

    `view` is the schema as the REST API shows it.
    """

    lines: list[str]
    options: dict[str, Any]
    view: dict[str, Any]


def read_schema(schema: Mapping[str, Any] | None) -> TableSchema:
    """The columns and the options of a schema; raises a UserError for what is wrong."""
    schema = schema or {}
    _check_keys(schema, _SCHEMA_KEYS, "a schema")
    chosen, format_options = _format(schema.get("format"))
    bad_data = _bad_data(schema.get("bad_data"))
    max_length, framing = _framing(schema.get("framing"))
    fields = schema.get("fields") or []
    if not isinstance(fields, list):
        raise UserError("`fields` of a schema is a list")
    columns = [_field(field) for field in fields]
    definition = _definition(schema.get("definition"))
    options = {**format_options, **framing} | ({} if bad_data is None else {"bad_data": bad_data})
    if definition is not None:
        columns = columns or _definition_columns(definition)
        options = _definition_options(definition) | options
    metadata = _metadata(fields)
    _check_names([column.name for column in columns])
    lines = [
        f"{line} METADATA FROM {quoted(metadata[column.name])}" if column.name in metadata else line
        for column, line in zip(columns, column_lines(columns), strict=True)
    ]
    keys = _primary_keys(schema.get("primary_keys"), [column.name for column in columns])
    if keys:
        lines.append(f"PRIMARY KEY ({', '.join(map(column_name, keys))})")
    inferred = schema.get("inferred")
    if not isinstance(inferred, bool | None):
        raise UserError(f"`inferred` of a schema is true, false or null, got {_shown(inferred)}")
    view = {
        "format": None if chosen is None else {"type": chosen, **_inner(format_options)},
        "bad_data": None if bad_data is None else {"behavior": bad_data},
        "framing": {"method": "newline", "max_line_length": max_length} if framing else None,
        "fields": field_views(columns, metadata),
        "definition": definition,
        "inferred": inferred,
        "primary_keys": keys,
    }
    return TableSchema(lines, options, view)


def _inner(format_options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a format without the format's name before theirs."""
    return {name.partition(".")[2]: value for name, value in format_options.items() if name != "format"}


def _shown(value: Any) -> str:
    return json.dumps(value)[:200]


def _check_keys(values: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    for key in values:
        if key not in keys:
            raise UserError(f"{what} has no `{key}`", hint=suggest(key, keys, listing="its keys are"))


def _tagged(name: str, value: Any, tag: str) -> tuple[str, dict[str, Any]]:
    """A name and what belongs to it: of `"json"`, `{"json": {…}}`, or `{"type": "json", …}` with that tag."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping):
        if isinstance(value.get(tag), str):
            return value[tag], {key: item for key, item in value.items() if key != tag}
        if len(value) == 1:
            ((chosen, inner),) = value.items()
            if inner is None or isinstance(inner, Mapping):
                return chosen, dict(inner or {})
    raise UserError(
        f"`{name}` of a schema is a name, or an object with its `{tag}`, got {_shown(value)}",
        hint=f'such as `{{"{tag}": "…"}}`',
    )


def _format(value: Any) -> tuple[str | None, dict[str, Any]]:
    """The name of a format, and its options with the name among them."""
    if value is None or value == {}:
        return None, {}
    chosen, inner = _tagged("format", value, "type")
    flat = flatten(inner)
    if chosen == "json" and flat.pop("debezium", False) is True:
        chosen = "debezium_json"
    if chosen not in _FORMATS:
        raise UserError(
            f"there is no format `{chosen}`", hint=suggest(chosen, _FORMATS, listing="the formats are")
        )
    prefix = "json" if chosen == "debezium_json" else chosen
    option_names = {
        alias.removeprefix(f"{prefix}.")
        for field in FormatOptions.model_fields.values()
        if (alias := field.alias or "").startswith(f"{prefix}.")
    }
    options = {"format": chosen}
    for name, option in flat.items():
        if option in (False, "", _UNSET.get(name)):
            continue
        if chosen != "parquet" and name not in option_names:
            raise UserError(
                f"the format `{chosen}` has no option `{name}`",
                hint=suggest(name, sorted(option_names), listing="its options are"),
            )
        options[f"{prefix}.{name}"] = option
    return chosen, options


def _bad_data(value: Any) -> str | None:
    if value is None or value == {}:
        return None
    chosen, inner = _tagged("bad_data", value, "behavior")
    if chosen not in _BAD_DATA or inner:
        raise UserError(
            f"there is no `bad_data` {_shown(value)}",
            hint=suggest(chosen, _BAD_DATA, listing="it is one of"),
        )
    return chosen


def _framing(value: Any) -> tuple[int | None, dict[str, Any]]:
    """The longest line, and the options."""
    if value in (None, {}, ""):
        return None, {}
    if isinstance(value, Mapping) and isinstance(value.get("method"), Mapping):
        value = value["method"]
    method, inner = _tagged("framing", value, "method")
    if method != "newline":
        raise UserError(f"there is no framing {_shown(value)}", hint="`newline` is")
    _check_keys(inner, ("max_line_length",), "the framing `newline`")
    length = inner.get("max_line_length")
    if length is None:
        return None, {"framing": "newline"}
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise UserError(f"`max_line_length` is a number of bytes, at least 1, got {_shown(length)}")
    return length, {"framing": "newline", "framing.newline.max_length": length}


def _primary_keys(keys: Any, columns: Sequence[str]) -> list[str]:
    if not isinstance(keys, list | None) or not all(isinstance(key, str) for key in keys or ()):
        raise UserError(f"`primary_keys` of a schema is a list of names of columns, got {_shown(keys)}")
    for key in keys or ():
        if columns and key not in columns:
            raise UserError(
                f"there is no column `{key}` for the primary key",
                hint=suggest(key, columns, listing="the columns are"),
            )
    return keys or []


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that one table cannot have."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"the schema has {count} columns `{name}`", hint="names are there once")
        if _CONTROL.search(name):
            raise UserError(
                f"{_shown(name)} cannot be the name of a column", hint="it has no control characters"
            )


def _metadata(fields: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The metadata that columns are read from, by their names."""
    keys = {}
    for field in fields:
        key = field.get("metadata_key")
        if not isinstance(key, str | None):
            raise UserError(f"the `metadata_key` of `{field['name']}` is a string, got {_shown(key)}")
        if key:
            keys[field["name"]] = key
    return keys


def _field(field: Any) -> pa.Field:
    if not isinstance(field, Mapping) or not isinstance(field.get("name"), str) or not field["name"]:
        raise UserError(f"a field has a name and a type, got {_shown(field)}")
    _check_keys(field, _FIELD_KEYS, f"the field `{field['name']}`")
    required = field.get("required", False)
    if not isinstance(required, bool):
        raise UserError(f"`required` of `{field['name']}` is true or false, got {_shown(required)}")
    kind = _type(field, field["name"])
    marks = JSON_MARK if field.get("type") == "json" else None
    return pa.field(field["name"], kind, nullable=not required, metadata=marks)


def _type(field: Mapping[str, Any], name: str) -> pa.DataType:
    kind = field.get("type")
    kind = _SAME_TYPES.get(kind, kind) if isinstance(kind, str) else kind
    if kind == "struct":
        inner = field.get("fields")
        if not isinstance(inner, list) or not inner:
            raise UserError(f"the struct `{name}` has a list of `fields`, got {_shown(inner)}")
        members = [_field(member) for member in inner]
        _check_names([member.name for member in members])
        return pa.struct(members)
    if kind == "list":
        element = field.get("items") or field.get("element") or field.get("item")
        if not isinstance(element, Mapping):
            raise UserError(f"the list `{name}` has no `items`", hint='such as `{"type": "string"}`')
        return pa.list_(_type(element, name))
    if kind == "decimal128":
        try:
            return pa.decimal128(field.get("precision", 38), field.get("scale", 10))
        except (pa.ArrowInvalid, ValueError, TypeError, OverflowError) as error:
            raise UserError(f"the decimal `{name}` cannot be: {error}") from None
    if kind == "timestamp" and field.get("unit") is not None:
        unit = field["unit"]
        if not isinstance(unit, str) or unit not in (*_UNITS, *_UNITS.values()):
            raise UserError(f"{_shown(unit)} is no unit of time", hint=f"units are {', '.join(_UNITS)}")
        return pa.timestamp(_UNITS.get(unit, unit))
    if not isinstance(kind, str) or kind not in _TYPES:
        raise UserError(
            f"the type of `{name}` is not known: {json.dumps(kind)[:100]}",
            hint=suggest(str(kind), _KNOWN, listing="the types are"),
        )
    return _TYPES[kind]


def _definition(value: Any) -> dict[str, Any] | None:
    """A definition with its `type` and its `schema`; also of `{"json_schema": "…"}`."""
    if value is None or value == {}:
        return None
    if isinstance(value, Mapping) and len(value) == 1 and "type" not in value:
        ((kind, inner),) = value.items()
        value = {**inner, "type": kind} if isinstance(inner, Mapping) else {"type": kind, "schema": inner}
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise UserError(
            f"`definition` of a schema has a `type` and a `schema`, got {_shown(value)}",
            hint=f"the types are {', '.join(_DEFINITIONS)}",
        )
    kind = value["type"]
    if kind not in (*_DEFINITIONS, "raw_schema"):
        raise UserError(
            f"there is no definition `{kind}`", hint=suggest(kind, _DEFINITIONS, listing="there are")
        )
    keys = ("type", "schema", *(("message_name", "dependencies") if kind == "protobuf_schema" else ()))
    _check_keys(value, keys, f"a definition `{kind}`")
    if not isinstance(value.get("schema"), str):
        raise UserError(f"the `schema` of a {kind} is a string, got {_shown(value.get('schema'))}")
    if not isinstance(value.get("message_name"), str | None):
        raise UserError(f"`message_name` is a string, got {_shown(value['message_name'])}")
    if value.get("dependencies"):
        raise UserError(
            "a protobuf_schema with `dependencies` cannot be stored",
            hint="write the messages that it imports into the one `schema`",
        )
    return {key: item for key, item in value.items() if key != "dependencies" and item is not None}


def _definition_columns(definition: Mapping[str, Any]) -> list[pa.Field]:
    """The columns of a definition."""
    kind, text = definition["type"], definition["schema"]
    if kind == "raw_schema":
        return [pa.field("value", pa.binary() if text == "raw_bytes" else pa.string(), nullable=False)]
    try:
        return list(_columns_of(kind, text, definition.get("message_name")))
    except HeadraceError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"the {kind} cannot be read: {error}") from None


def _columns_of(kind: str, text: str, message: str | None) -> pa.Schema:
    if kind == "json_schema":
        from headrace.formats.json.columns import schema_columns

        json.loads(text)  # what is no JSON is told as such, not as a schema without columns
        return schema_columns(RegisteredSchema("JSON", text))
    if kind == "avro_schema":
        from headrace.formats.avro import schema as avro
        from headrace.formats.avro.read import as_record

        return avro.arrow_schema(as_record(avro.parse_schema(text)))
    from headrace.formats.protobuf import schema as protobuf

    return protobuf.arrow_schema(protobuf.compile_files(text, "schema.proto", {}).message(message))


def _definition_options(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the format that a definition sets."""
    kind = definition["type"]
    options: dict[str, Any] = {"format": _DEFINITIONS[kind]} if kind in _DEFINITIONS else {}
    if kind in ("avro_schema", "protobuf_schema"):
        options[f"{_DEFINITIONS[kind]}.schema"] = definition["schema"]
    if definition.get("message_name"):
        options["protobuf.message_name"] = definition["message_name"]
    return options


def field_views(
    columns: Sequence[pa.Field], metadata: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Columns as the REST API has them; `metadata` are the keys that some of them are read from."""
    return [{**_field_view(column), "metadata_key": (metadata or {}).get(column.name)} for column in columns]


def _field_view(column: pa.Field) -> dict[str, Any]:
    is_json = bool(column.metadata) and not JSON_MARK.keys().isdisjoint(column.metadata)
    return {
        "name": column.name,
        **({"type": "json"} if is_json else _type_view(column.type)),
        "required": not column.nullable,
        "sql_name": "JSON" if is_json else type_name(column.type),
    }


def _type_view(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": field_views(list(kind))}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "list", "items": _field_view(kind.value_field)}
    if pa.types.is_decimal(kind):
        return {"type": "decimal128", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "timestamp", "unit": {short: unit for unit, short in _UNITS.items()}[kind.unit]}
    for name, named in _TYPES.items():
        if kind == named:
            return {"type": name}
    return {"type": str(kind)}
