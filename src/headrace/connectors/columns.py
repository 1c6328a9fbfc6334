"""The columns that sources have by their own account."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.options import Options
from headrace.connectors.memory import MemorySource
from headrace.model.fragments import plain_schema
from headrace.model.operator import SourceOperator


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
