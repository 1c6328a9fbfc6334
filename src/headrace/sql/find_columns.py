"""The columns of a table that was written without any: those that its source finds out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import BadLineError, ExternalError, HeadraceError, suggest
from headrace.formats.base import is_list
from headrace.model.fragments import plain_type
from headrace.model.registry import registry
from headrace.sql.bind.catalog import (
    Table,
    check_source_key,
    connector_options,
    option_error,
    option_model,
    watermark_of,
)
from headrace.sql.parse.table_definition import ColumnDefinition
from headrace.sql.problems import fail, sql_error
from headrace.sql.types import type_name

WRITE_THEM: Final = "write them: (name TYPE, …)"
_TEXTS_HOLD_TIMES: Final = ("json", "debezium_json", "csv")
"""Formats that have no type for times, and read them from texts."""
_JSON: Final = {b"headrace.json": b"true"}
_IN_OPTIONS: Final = re.compile(r"declare (them|the columns) with the option `schema`")
_KEYWORDS: Final = ("check", "constraint", "foreign", "primary", "unique", "watermark")
"""What begins something else than a column in a CREATE TABLE."""


def with_columns(table: Table) -> Table:
    """A table that is read, with the columns of its source if none were written.

    They are found anew each time; the table is then as if they had been written. Raises a SqlError if they
    cannot be found out, and an ExternalError if nobody answers who knows them.
    """
    if table.columns is not None:
        return table
    option_model(table, "source")
    check_source_key(table)
    fixed = getattr(registry.constructor("source", table.connector), "table_schema", None)
    if fixed is not None and not table.definition.columns:
        return table
    found = fixed if fixed is not None else pa.schema([_column(table, f) for f in _find(table)])
    _check(table, found)
    definition = table.definition
    columns = [ColumnDefinition(one.name, one, definition.span) for one in found]
    columns += definition.columns
    definition = replace(definition, columns=tuple(columns), has_columns=True)
    return replace(
        table,
        definition=definition,
        columns=pa.schema([column.field for column in columns]),
        found=() if fixed is not None else tuple(found),
    )


def _find(table: Table) -> pa.Schema:
    """What the source says, without the names of the engine."""
    try:
        source = registry.build("source", table.connector, connector_options(table, "source", None))
    except HeadraceError as error:
        raise option_error(error, table)[0] from error
    what = f"the columns of `{table.name}` cannot be found out"
    find = getattr(source, "find_columns", None)
    if find is None:
        fail(f"{what}: connector `{table.connector}` cannot tell them", table.span(), WRITE_THEM)
    try:
        found = find()
    except HeadraceError as error:
        if isinstance(error, ExternalError) and not isinstance(error, BadLineError):
            raise ExternalError(f"{what}: {error.message}", hint=error.hint, where=error.where) from error
        given = None if isinstance(error, BadLineError) else error.hint
        hint = WRITE_THEM if given is None else _IN_OPTIONS.sub(WRITE_THEM, given)
        raise sql_error(f"{what}: {error.message}", table.span(), hint) from error
    if not len(found):
        fail(f"{what}: nothing is there yet to find them out from", table.span(), WRITE_THEM)
    return pa.schema([field for field in found if field.name not in (TIMESTAMP, RETRACT)])


def _column(table: Table, field: pa.Field) -> pa.Field:
    """A column in the types of SQL: instants have no zone, and event times are not texts."""
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
    marks = {name: value for name, value in (field.metadata or {}).items() if name in _JSON}
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp(kind.unit)
    elif pa.types.is_struct(kind) and not kind.num_fields:
        kind, marks = pa.string(), _JSON
    elif pa.types.is_struct(kind):
        kind = pa.struct([_plain(one) for one in kind])
    elif is_list(kind):
        kind = pa.list_(_plain(kind.value_field))
    return pa.field(field.name, kind, field.nullable, metadata=marks or None)


def _check(table: Table, found: pa.Schema) -> None:
    """Refuse names that are there twice, and a key that is not there."""
    definition = table.definition
    for name, count in Counter(found.names).items():
        if count > 1:
            fail(f"{count} columns of `{table.name}` are called `{name}`", table.span(), WRITE_THEM)
    for column in definition.columns:
        if column.name in found.names:
            hint = "give the computed one another name"
            fail(f"`{table.name}` has a column `{column.name}` already", column.span, hint)
    for name in definition.primary_key:
        if name not in found.names:
            hint = suggest(name, found.names) or f"found were {', '.join(found.names)}"
            fail(f"there is no column `{name}` for the primary key", definition.span, hint)


def column_lines(columns: Sequence[pa.Field]) -> list[str]:
    """Columns as they are written between the brackets of a CREATE TABLE, without commas.

    >>> column_lines([pa.field("id", pa.int64(), nullable=False), pa.field("userId", pa.string())])
    ['id BIGINT NOT NULL', '"userId" TEXT']
    """
    return [_line(column) for column in columns]


def _line(column: pa.Field) -> str:
    written = _written(column.type)
    if written is None:
        return f"-- {column_name(column.name)} is {column.type}, which SQL has no name for"
    kind = "JSON" if _is_json(column) else written
    return f"{column_name(column.name)} {kind}{'' if column.nullable else ' NOT NULL'}"


def _is_json(field: pa.Field) -> bool:
    return b"headrace.json" in (field.metadata or {})


def _written(kind: pa.DataType) -> str | None:
    """A type as it is declared; None if it cannot be."""
    if pa.types.is_struct(kind):
        members = [(column_name(one.name), "JSON" if _is_json(one) else _written(one.type)) for one in kind]
        if any(inner is None for _, inner in members):
            return None
        return f"STRUCT<{', '.join(f'{name} {inner}' for name, inner in members)}>"
    if pa.types.is_list(kind):
        inner = "JSON" if _is_json(kind.value_field) else _written(kind.value_type)
        return None if inner is None else f"{inner}[]"
    name = type_name(kind)
    return None if name == str(kind) else name


def column_name(name: str) -> str:
    """A name as SQL writes it: in quotes unless it is a word of small letters."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _KEYWORDS
    return name if plain else '"' + name.replace('"', '""') + '"'
