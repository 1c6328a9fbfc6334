"""JSON with the id of its schema in a registry, and JSON Schema for columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.formats._shared.wire import BYTES
from headrace.formats.base import Decoded, Format, Rows, is_json, is_list
from headrace.formats.json.write import JsonStyle
from headrace.formats.registry.client import NO_HEADER, SchemaRegistry, header, split_headers

Describe: TypeAlias = Callable[[Sequence[pa.Field]], dict[str, Any]]
"""A function that returns the schema of rows with some columns."""


def any_schema(_: Sequence[pa.Field]) -> dict[str, Any]:
    """Return the schema of any JSON value."""
    return {}


def one_row_each(messages: Sequence[bytes]) -> NDArray[np.int64]:
    """Return one row for each message."""
    return np.ones(len(messages), np.int64)


def json_schema(fields: Sequence[pa.Field], style: JsonStyle, *, title: str = "Row") -> dict[str, Any]:
    """Return the JSON Schema of objects with these members.

    >>> json_schema([pa.field("a", pa.int64(), nullable=False)], JsonStyle())["properties"]
    {'a': {'type': 'integer'}}
    """
    schema = _object(fields, style)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **schema}


def _object(fields: Sequence[pa.Field], style: JsonStyle) -> dict[str, Any]:
    return {"type": "object", "properties": {field.name: _member(field, style) for field in fields}}


def _member(field: pa.Field, style: JsonStyle) -> dict[str, Any]:
    schema = _describe(field, style)
    if not field.nullable or not schema:
        return schema
    return {"oneOf": [{"type": "null"}, schema]}


def _describe(field: pa.Field, style: JsonStyle) -> dict[str, Any]:
    kind = field.type
    if is_json(field):
        return {}
    if pa.types.is_struct(kind):
        return _object(list(kind), style)
    if is_list(kind):
        return {"type": "array", "items": _member(kind.value_field, style)}
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _member(kind.item_field, style)}
    if pa.types.is_boolean(kind):
        return {"type": "boolean"}
    numbered = pa.types.is_timestamp(kind) and style.timestamps != "RFC3339"
    if pa.types.is_integer(kind) or pa.types.is_duration(kind) or numbered:
        return {"type": "integer"}
    if pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and style.decimals == "number"):
        return {"type": "number"}
    return {"type": "string"}


class RegisteredJson(Format):
    """A JSON format whose messages start with the id of their schema; reading does not need the schema."""

    def __init__(
        self,
        inner: Format,
        registry: SchemaRegistry,
        *,
        describe: Describe,
        counts: Callable[[Sequence[bytes]], Any] = one_row_each,
        drop_bad: bool = False,
    ) -> None:
        super().__init__(inner.schema)
        self.updating = inner.updating
        self._inner, self._registry, self._drop_bad = inner, registry, drop_bad
        self._describe, self._counts = describe, counts

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "JSON") -> Decoded:
        """Decode messages."""
        messages = [data] if isinstance(data, bytes) and data else list(data or ())
        numbers, bodies = split_headers(pa.array(messages, BYTES))
        contents: list[bytes] = bodies.to_pylist()
        bad = []
        for index in np.flatnonzero(numbers < 0).tolist():
            bad.append(NO_HEADER.at(first_line + index, messages[index], where, binary=True))
            contents[index] = b""  # as many lines as there are messages, so that numbers stay right
        if bad and not self._drop_bad:
            raise bad[0]
        decoded = self._inner.decode(contents, first_line=first_line, where=where)
        for error in decoded.bad:
            error.record = messages[error.line - first_line]
        bad = sorted([*bad, *decoded.bad], key=lambda error: error.line)
        filled = np.array([bool(body.strip()) for body in contents], np.int64)
        filled[[error.line - first_line for error in decoded.bad]] = 0
        good = [contents[index] for index in np.flatnonzero(filled).tolist()]
        filled[filled == 1] = self._counts(good)
        return Decoded(decoded.rows, bad, filled)

    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as lines, without schema ids."""
        return self._inner.encode(rows)

    def messages(self, rows: Rows) -> list[bytes]:
        """Encode the rows as messages."""
        fields, _ = self.columns(rows)
        text = json.dumps(self._describe(fields), ensure_ascii=False)
        head = header(self._registry.register("JSON", text))
        return [head + message for message in self._inner.messages(rows)]
