"""Schemas as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from headrace.api.query_text import QueryText
from headrace.base.errors import HeadraceError, PlanError
from headrace.base.options import Options
from headrace.formats.types import parse_type
from headrace.sql.embed import columns_of

Schema: TypeAlias = pa.Schema | Mapping[str, str | pa.DataType] | str
"""The columns of a stream: a pyarrow schema, a mapping of names to types, or SQL: `id BIGINT, name TEXT`."""


def parse_schema(schema: Schema) -> pa.Schema:
    """The schema that a user has written in any of its forms.

    >>> parse_schema("id BIGINT, name TEXT") == parse_schema({"id": "BIGINT", "name": pa.string()})
    True
    """
    if isinstance(schema, pa.Schema):
        parsed = schema
    elif isinstance(schema, str):
        parsed = _columns(QueryText().expression(schema))
    elif isinstance(schema, Mapping):
        for name in schema:
            if not isinstance(name, str):
                raise PlanError(f"`schema` takes the names of columns, got {name!r}", hint=_HINT)
        parsed = pa.schema([(name, _type(name, kind)) for name, kind in schema.items()])
    else:
        raise PlanError(
            f"`schema` takes columns, got {type(schema).__name__} {schema!r}",
            hint=_HINT,
        )
    if not parsed.names:
        raise PlanError("`schema` names no column", hint=_HINT)
    return parsed


_HINT = "write it as 'id BIGINT, name TEXT', {'id': 'BIGINT'} or pa.schema([…])"


def _type(name: str, kind: str | pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if not isinstance(kind, str):
        raise PlanError(
            f"the type of column `{name}` is {kind!r}",
            hint="write a type of SQL or of Arrow, as 'BIGINT' or 'int64'",
        )
    try:
        return parse_type(kind)
    except HeadraceError:
        return _columns(QueryText("value ").expression(kind)).field(0).type


def _columns(text: QueryText) -> pa.Schema:
    with text.explained():
        return columns_of(text.source)


def takes_schema(model: type[Options]) -> bool:
    """Whether a connector has an option `schema`."""
    return any((field.alias or name) == "schema" for name, field in model.model_fields.items())
