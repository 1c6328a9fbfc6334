"""Convert rows to the types of a table format: what Delta Lake and Iceberg share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
import pyarrow.types as kinds
from pydantic import ConfigDict, Field

from headrace.base.errors import ConfigurationError, PlanError, suggest
from headrace.connectors.base import without_event_time
from headrace.connectors.filesystem.rolling import RollingOptions
from headrace.formats.base import plain_field
from headrace.formats.options import Columns
from headrace.formats.parquet import ParquetFormat, ParquetOptions
from headrace.formats.types import format_type, parse_type

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def lake_schema(schema: pa.Schema, *, zone: str | None) -> pa.Schema:
    """Return the columns in types that a table can have; timestamps are microseconds in this zone."""
    return pa.schema([pa.field(f.name, _lake_type(plain_field(f).type, zone, f.name)) for f in schema])


def _lake_type(kind: pa.DataType, zone: str | None, column: str) -> pa.DataType:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", zone)
    if kinds.is_struct(kind):
        return pa.struct([pa.field(f.name, _lake_type(f.type, zone, column)) for f in kind])
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(_lake_type(kind.value_type, zone, column))
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_time(kind) or kinds.is_duration(kind) or kinds.is_interval(kind) or kinds.is_null(kind):
        raise PlanError(
            f"column `{column}` of type {kind} has no type in a table of files",
            hint="cast it to a text or a number",
        )
    return _WIDER.get(kind, kind)


def schema_text(schema: pa.Schema) -> dict[str, str]:
    """Return columns as JSON, for the commit that creates the table; without time zones."""
    return {field.name: format_type(field.type) for field in lake_schema(schema, zone=None)}


def schema_of(text: Mapping[str, str], *, zone: str | None) -> pa.Schema:
    """Parse the columns that `schema_text` wrote."""
    return lake_schema(
        pa.schema([pa.field(name, parse_type(kind)) for name, kind in text.items()]), zone=zone
    )


def fit(rows: pa.Table, schema: pa.Schema, *, table: str) -> pa.Table:
    """Convert rows to the columns of a table; an error names the column that does not fit."""
    for name in rows.schema.names:
        if name not in schema.names:
            raise ConfigurationError(
                f"{table} has no column `{name}`",
                hint=suggest(name, schema.names, listing="its columns are"),
            )
    columns = []
    for field in schema:
        index = rows.schema.get_field_index(field.name)
        column = pa.nulls(rows.num_rows, field.type) if index < 0 else _cast(rows.column(index), field, table)
        if column.null_count and not field.nullable:
            raise ConfigurationError(
                f"column `{field.name}` of {table} may not be null, and {column.null_count} rows have none",
                hint="leave such rows out, or give them a value",
            )
        columns.append(column)
    return pa.table(columns, schema=schema)


def check_fit(columns: pa.Schema, schema: pa.Schema, *, table: str) -> None:
    """Raise an error for declared columns that a table lacks, or has in an incompatible type."""
    fit(pa.schema([plain_field(field) for field in columns]).empty_table(), schema, table=table)


def _cast(column: pa.ChunkedArray, field: pa.Field, table: str) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        # A timestamp loses what is shorter than the table can tell; anything else must keep its value.
        return column.cast(field.type, safe=not kinds.is_timestamp(column.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ConfigurationError(
            f"column `{field.name}` is {column.type}, and {field.type} in {table}: {error}",
            hint="cast it to the type that the table has",
        ) from None


def digest(data: Mapping[str, Mapping[int, bytes]]) -> str:
    """Return an id of the staged data of an epoch: a retried commit has the same id."""
    checksum = hashlib.sha256()
    for name, parts in sorted(data.items()):
        for subtask, staged in sorted(parts.items()):
            checksum.update(f"{name}/{subtask}/{len(staged)}/".encode())
            checksum.update(staged)
    return checksum.hexdigest()[:32]


class LakeOptions(RollingOptions, ParquetOptions):
    """The options that the sinks of table formats share."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    format: Literal["parquet"] = Field("parquet", description="The format of the files.")
    columns: Columns | None = Field(
        None,
        alias="schema",
        description=(
            "Column → type of the rows; other columns are ignored. Without it all columns are written."
        ),
    )
    with_timestamp: bool = Field(
        default=False, description="Whether to write the event time column `_timestamp` too."
    )


def own_columns(rows: pa.Table, options: LakeOptions) -> pa.Table:
    """Return the columns to write: the declared ones, or all but the event time."""
    if options.columns is not None:
        return rows.select(options.columns.names)
    return rows if options.with_timestamp else without_event_time(rows)


def check_rows(schema: pa.Schema, options: LakeOptions) -> None:
    """Raise an error for rows with retractions, or without a declared column."""
    ParquetFormat(options.columns).check(schema)
