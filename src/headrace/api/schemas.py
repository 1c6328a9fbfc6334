"""Schemas as users write them, and those that sources have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import HeadraceError, PlanError
from headrace.base.options import Options
from headrace.base.spans import Source
from headrace.connectors.memory import MemorySource
from headrace.formats.types import parse_type
from headrace.model.fragments import plain_schema
from headrace.model.operator import SourceOperator
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
        parsed = columns_of(Source("schema", schema))
    elif isinstance(schema, Mapping):
        parsed = pa.schema([(name, _type(name, kind)) for name, kind in schema.items()])
    else:
        raise PlanError(
            f"`schema` takes columns, got {type(schema).__name__} {schema!r}",
            hint="write it as 'id BIGINT, name TEXT', {'id': 'BIGINT'} or pa.schema([…])",
        )
    return parsed


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
        return columns_of(Source("schema", f"value {kind}")).field(0).type


def without_hidden(schema: pa.Schema) -> pa.Schema:
    """The columns that users speak of: event time and retractions left out."""
    return plain_schema(pa.schema([field for field in schema if field.name not in (TIMESTAMP, RETRACT)]))


def source_schema(source: SourceOperator) -> pa.Schema | None:
    """The columns that a source has by its own account."""
    if isinstance(source, MemorySource):
        options = source.options
        tables = [options.rows] if options.lanes is None else list(options.lanes.values())
        schemas = [table.schema for table in tables if table is not None]
        return without_hidden(pa.unify_schemas(schemas, promote_options="permissive")) if schemas else None
    declared = _declared(source)
    fixed = declared if declared is not None else getattr(source, "table_schema", None)
    return without_hidden(fixed) if isinstance(fixed, pa.Schema) and len(fixed) else None


def _declared(source: SourceOperator) -> Any:
    """The value of the option `schema`, if the source has one."""
    options = getattr(source, "options", None)
    if not isinstance(options, Options):
        return None
    for name, field in type(options).model_fields.items():
        if (field.alias or name) == "schema":
            return getattr(options, name)
    return None


def takes_schema(model: type[Options]) -> bool:
    """Whether a connector has an option `schema`."""
    return any((field.alias or name) == "schema" for name, field in model.model_fields.items())
