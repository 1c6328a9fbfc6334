"""Infer the columns of JSON from JSON Schema, or from a sample of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.base.errors import BadLineError, ConfigurationError
from headrace.formats._shared.wire import BYTES
from headrace.formats.base import LineError
from headrace.formats.json.format import infer_schema
from headrace.formats.registry.client import RegisteredSchema, split_headers

_JSON = {b"headrace.json": b"true"}
_DEEPEST = 20
_SIMPLE: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_CONNECT: Mapping[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "float32": pa.float32(),
}
"""Types that Kafka Connect adds to JSON Schema."""
_TIMES: Mapping[str, pa.DataType] = {"date-time": pa.timestamp("ns"), "date": pa.date32()}


# ------------------------------------------------------------------------------------------ from a schema


def schema_columns(schema: RegisteredSchema, *, changes: bool = False) -> pa.Schema:
    """Return the columns of objects that a JSON Schema describes, or of the rows of changes.

    A member without a type is a column of JSON, and one that is not required is nullable.
    """
    try:
        root = json.loads(schema.text)
    except ValueError:
        root = None
    node = _followed(root, root)
    if changes:
        inner = _followed(_properties(node).get("payload"), root) or node
        members = _properties(inner)
        node = _without_null(members.get("after") or members.get("before"), root)
    if not _properties(node):
        raise ConfigurationError(
            "the JSON Schema of the messages declares no columns",
            hint="declare them with the option `schema`",
        )
    return pa.schema(_fields(node, root, 0))


def _properties(node: Any) -> Mapping[str, Any]:
    properties = node.get("properties") if isinstance(node, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _followed(node: Any, root: Any) -> Any:
    """Resolve a reference inside the schema; None for an external one."""
    for _ in range(_DEEPEST):
        if not isinstance(node, Mapping) or not isinstance(node.get("$ref"), str):
            return node
        target: Any = root
        document, inside, path = node["$ref"].partition("#/")
        if document or not inside:
            return None
        for part in path.split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        node = target
    return None


def _without_null(node: Any, root: Any) -> Any:
    """Return the only alternative to null, or None."""
    node = _followed(node, root)
    if not isinstance(node, Mapping):
        return None
    for word in ("oneOf", "anyOf"):
        if isinstance(node.get(word), Sequence):
            alternatives = [branch for branch in node[word] if not _is_null(branch)]
            return _without_null(alternatives[0], root) if len(alternatives) == 1 else None
    return node


def _is_null(node: Any) -> bool:
    return isinstance(node, Mapping) and node.get("type") == "null"


def _may_be_null(node: Any, root: Any) -> bool:
    node = _followed(node, root)
    if not isinstance(node, Mapping):
        return True
    kinds = node.get("type")
    alternatives = node.get("oneOf") or node.get("anyOf") or ()
    return (
        kinds == "null" or (isinstance(kinds, list) and "null" in kinds) or any(map(_is_null, alternatives))
    )


def _fields(node: Any, root: Any, depth: int) -> list[pa.Field]:
    required = node.get("required") or ()
    return [
        _field(name, member, root, depth).with_nullable(name not in required or _may_be_null(member, root))
        for name, member in _properties(node).items()
    ]


def _field(name: str, node: Any, root: Any, depth: int) -> pa.Field:
    node = _without_null(node, root)
    kind = None if node is None or depth > _DEEPEST else _type(node, root, depth)
    return pa.field(name, pa.string(), metadata=_JSON) if kind is None else pa.field(name, kind)


def _type(node: Mapping[str, Any], root: Any, depth: int) -> pa.DataType | None:
    """Return the type of values; None if it is not given."""
    kinds = node.get("type")
    kinds = [name for name in kinds if name != "null"] if isinstance(kinds, list) else [kinds]
    if len(kinds) != 1:
        return None
    if kinds[0] == "object" and _properties(node):
        return pa.struct([field.with_nullable(True) for field in _fields(node, root, depth + 1)])
    if kinds[0] == "array" and isinstance(node.get("items"), Mapping):
        item = _field("item", node["items"], root, depth + 1)
        return None if item.metadata else pa.list_(item.type)
    if kinds[0] == "string":
        return _TIMES.get(str(node.get("format")), pa.string())
    return _CONNECT.get(str(node.get("connect.type"))) or _SIMPLE.get(str(kinds[0]))


# ------------------------------------------------------------------------------------------ from a sample


def sample_columns(options: Any, sample: bytes | Sequence[bytes], *, where: str) -> pa.Schema:
    """Infer the columns of the lines of a file, or of messages; the options are FormatOptions.

    For changes these are the columns of the rows, and for messages with a schema those of the payload. Bad
    records are skipped if they are dropped.
    """
    changes = options.format == "debezium_json"
    is_file = isinstance(sample, bytes)
    plain = not changes and not options.json_include_schema and not options.drop_bad
    if isinstance(sample, bytes) and plain:
        return infer_schema(sample, where=where)
    texts = sample.split(b"\n") if isinstance(sample, bytes) else _lines(options, sample)
    lines = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            lines += _rows(_read(text), changes=changes, with_schema=options.json_include_schema)
        except LineError as error:
            if not options.drop_bad:
                bad = error.at(number, text, where)
                raise bad if is_file else _of_message(bad) from None
    written = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in lines)
    try:
        return infer_schema(written, where=where)
    except BadLineError as error:
        raise error if is_file else _of_message(error) from None


def _of_message(error: BadLineError) -> BadLineError:
    """Return the error for a message, without a line number."""
    return BadLineError(
        error.message.replace(f"line {error.line}", "a message", 1),
        line=error.line,
        content=error.content,
        column=error.column,
        hint=error.hint,
        where=error.where,
        record=error.record,
        fault=error.fault,
    )


def _lines(options: Any, messages: Sequence[bytes]) -> list[bytes]:
    """Yield the lines or messages with one row each."""
    if options.names_schemas:
        messages = split_headers(pa.array(messages, BYTES))[1].to_pylist()
    if options.framing is not None:
        return [line for message in messages for line in message.split(b"\n")]
    return list(messages)


def _read(text: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except UnicodeDecodeError:
        raise LineError("it is not UTF-8") from None
    except ValueError as error:
        raise LineError(f"it is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise LineError("it is not a JSON object")
    return value


def _rows(value: Mapping[str, Any], *, changes: bool, with_schema: bool) -> list[Mapping[str, Any]]:
    inner = value.get("payload")
    if isinstance(inner, Mapping) and (with_schema or (changes and "op" not in value)):
        value = inner
    if changes:
        return [row for name in ("before", "after") if isinstance(row := value.get(name), Mapping)]
    return [value]
