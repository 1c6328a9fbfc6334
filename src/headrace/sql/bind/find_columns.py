"""Infers the columns of a table that declares none, from its source."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Final

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import BadLineError, ExternalError, HeadraceError, suggest
from headrace.formats.base import is_list
from headrace.model.fragments import plain_type
from headrace.model.registry import registry
from headrace.sql.bind.catalog import (
    CatalogTable,
    check_source_key,
    connector_options,
    option_error,
    option_model,
    watermark_of,
)
from headrace.sql.parse.table_definition import ColumnDefinition
from headrace.sql.problems import fail, sql_error
from headrace.sql.types import JSON_MARK

WRITE_THEM: Final = "write them: (name TYPE, …)"
_TEXTS_HOLD_TIMES: Final = ("json", "debezium_json", "csv")
"""Formats that have no type for times, and read them from texts."""
_IN_OPTIONS: Final = re.compile(r"declare (them|the columns) with the option `schema`")


def with_columns(table: CatalogTable) -> CatalogTable:
    """A table that is read, with the columns of its source if it declares none.

    The source is asked each time; the table is then as if it declared the columns. Raises a SqlError if the
    source cannot tell them, and an ExternalError if it cannot be reached.
    """
    if table.columns is not None:
        return table
    option_model(table, "source")
    check_source_key(table)
    fixed = getattr(registry.constructor("source", table.connector), "table_schema", None)
    if fixed is not None and not table.definition.columns:
        return table
    schema = fixed if fixed is not None else pa.schema([_column(table, f) for f in _find(table)])
    _check(table, schema)
    definition = table.definition
    columns = [ColumnDefinition(field.name, field, definition.span) for field in schema]
    columns += definition.columns
    definition = replace(definition, columns=tuple(columns), has_columns=True)
    return replace(
        table,
        definition=definition,
        columns=pa.schema([column.field for column in columns]),
        inferred_columns=() if fixed is not None else tuple(schema),
    )


def _find(table: CatalogTable) -> pa.Schema:
    """The columns that the source finds, without the reserved ones."""
    try:
        source = registry.build("source", table.connector, connector_options(table, "source", None))
    except HeadraceError as error:
        raise option_error(error, table)[0] from error
    what = f"the columns of `{table.name}` cannot be found out"
    find = getattr(source, "find_columns", None)
    if find is None:
        fail(f"{what}: connector `{table.connector}` cannot tell them", table.span(), WRITE_THEM)
    try:
        schema = find()
    except HeadraceError as error:
        if isinstance(error, ExternalError) and not isinstance(error, BadLineError):
            raise ExternalError(f"{what}: {error.message}", hint=error.hint, where=error.where) from error
        hint = WRITE_THEM
        if error.hint is not None and not isinstance(error, BadLineError):
            hint = _IN_OPTIONS.sub(WRITE_THEM, error.hint)
        raise sql_error(f"{what}: {error.message}", table.span(), hint) from error
    if not len(schema):
        fail(f"{what}: nothing is there yet to find them out from", table.span(), WRITE_THEM)
    return pa.schema([field for field in schema if field.name not in (TIMESTAMP, RETRACT)])


def _column(table: CatalogTable, field: pa.Field) -> pa.Field:
    """A column with SQL types: instants have no time zone, and event times are not strings."""
    field = _plain(field)
    kind = field.type
    event_time, _ = watermark_of(table)
    is_text = kind == pa.string() and (table.value("format") or "json") in _TEXTS_HOLD_TIMES
    if field.name == event_time and is_text:
        kind = pa.timestamp("ns")
    return field.with_type(kind)


def _plain(field: pa.Field) -> pa.Field:
    """A column of plain types without zones, and JSON in the place of objects that never had a member."""
    kind = field.type if pa.types.is_nested(field.type) else plain_type(field.type)
    marks = {name: value for name, value in (field.metadata or {}).items() if name in JSON_MARK}
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp(kind.unit)
    elif pa.types.is_struct(kind) and not kind.num_fields:
        kind, marks = pa.string(), JSON_MARK
    elif pa.types.is_struct(kind):
        kind = pa.struct([_plain(member) for member in kind])
    elif is_list(kind):
        kind = pa.list_(_plain(kind.value_field))
    return pa.field(field.name, kind, field.nullable, metadata=marks or None)


def _check(table: CatalogTable, schema: pa.Schema) -> None:
    """Refuse names that are there twice, and a key that is not there."""
    definition = table.definition
    for name, count in Counter(schema.names).items():
        if count > 1:
            fail(f"{count} columns of `{table.name}` are called `{name}`", table.span(), WRITE_THEM)
    for column in definition.columns:
        if column.name in schema.names:
            hint = "give the computed one another name"
            fail(f"`{table.name}` has a column `{column.name}` already", column.span, hint)
    for name in definition.primary_key:
        if name not in schema.names:
            near = suggest(name, schema.names, listing="found were")
            fail(f"there is no column `{name}` for the primary key", definition.span, near)
